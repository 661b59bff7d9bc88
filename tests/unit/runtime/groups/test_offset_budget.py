"""The budget of offset transactions: a rate, granted in the order of requests."""

from __future__ import annotations

import asyncio

from fairlead_broker.clock import SystemClock
from fairlead_broker.runtime.groups.offset_budget import OffsetBudget


async def test_what_is_beyond_the_rate_waits_in_its_order() -> None:
    """Forty requests at 200 a second with a burst of 20 take at least 0.1 s and are granted in order."""
    now = asyncio.get_running_loop().time
    budget = OffsetBudget(SystemClock(), lambda: 200.0)
    granted: list[int] = []
    over = asyncio.Event()

    def grant(number: int) -> None:
        granted.append(number)
        if len(granted) == 40:
            over.set()

    began = now()
    for number in range(40):
        budget.ask(lambda number=number: grant(number))  # type: ignore[misc]
    assert 1 <= len(granted) <= 25
    assert budget.waiting == 40 - len(granted)
    async with asyncio.timeout(30):
        await over.wait()

    assert granted == list(range(40))
    assert now() - began >= 0.09
    assert budget.granted == 40
    assert budget.waiting == 0


async def test_transactions_beyond_the_granted_one_hold_up_the_next() -> None:
    """A commit that needs several transactions uses budget for each of them, which delays the next commit."""
    now = asyncio.get_running_loop().time
    budget = OffsetBudget(SystemClock(), lambda: 50.0)
    granted = asyncio.Event()
    budget.ask(lambda: budget.spend(10))
    began = now()
    budget.ask(granted.set)
    async with asyncio.timeout(30):
        await granted.wait()

    assert now() - began >= 0.1
    assert budget.granted == 12


async def test_a_granted_group_may_ask_again_and_a_closed_budget_grants_nothing() -> None:
    """A granted group may request again in its callback, and a closed budget grants nothing."""
    budget = OffsetBudget(SystemClock(), lambda: 0.001)
    granted: list[str] = []

    def again() -> None:
        granted.append("first")
        budget.ask(lambda: granted.append("second"))

    budget.ask(again)
    assert granted == ["first"]
    assert budget.waiting == 1
    budget.close()
    assert budget.waiting == 0
