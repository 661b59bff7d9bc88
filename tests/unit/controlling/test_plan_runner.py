from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.controlling.plan_runner import ATTEMPTS_MAX, PlanRunner
from fairlead_broker.coordination.protocol import (
    CoordinationUnavailable,
    TransactionTooLarge,
    UnknownOutcome,
)
from fairlead_broker.registry.records import ConfigRecord, encode
from fairlead_broker.registry.store_writes import Put, Transaction, has_value, unchanged_since
from refusals import refuses


def value(number: int) -> bytes:
    """Return a number as a configuration record."""
    return encode(ConfigRecord(values={"number": number}))


class Counting:
    """Plans that raise a number in the cluster's configuration to a goal, by one in each transaction."""

    def __init__(self, life: Any, goal: int) -> None:
        """Start at the mirrored number."""
        self.life = life
        self.goal = goal
        self.sizes: list[int] = []

    @property
    def number(self) -> int:
        """The mirrored number."""
        config = self.life.mirror.metadata.cluster_config
        return int(config.value.values["number"]) if config else 0

    def __call__(self, size: int) -> Sequence[Transaction]:
        """Return the transactions from the mirrored number to the goal, each with a compare on the previous value."""
        self.sizes.append(size)
        metadata, key = self.life.mirror.metadata, self.life.mirror.metadata.keys.cluster_config
        revision = metadata.cluster_config.mod_revision if metadata.cluster_config else 0
        return [
            Transaction(
                (unchanged_since(key, revision) if n == self.number else has_value(key, value(n)),),
                (Put(key, value(n + 1)),),
            )
            for n in range(self.number, self.goal)
        ]


@pytest.fixture
def runner(life: Any) -> PlanRunner:
    """Return a plan runner on the cluster of the test."""
    return PlanRunner(life.coordination, life.mirror)


def raising(error: Exception, *, applied: bool = False) -> Callable[[Any], Any]:
    """Return a fault that raises an error after the call, or instead of it."""

    async def fault(call: Any) -> Any:
        if applied:
            await call()
        raise error

    return fault


async def through(call: Any) -> Any:
    """Call the store without a fault."""
    return await call()


async def test_a_plan_is_run_until_it_is_empty(life: Any, runner: PlanRunner) -> None:
    """After a plan has run, a new plan is computed and run, until the new plan is empty."""
    plan = Counting(life, 3)
    await runner.complete(plan)

    assert plan.number == 3
    assert plan.sizes == [60, 60]


async def test_only_the_first_transaction_begins_a_plan(life: Any, runner: PlanRunner) -> None:
    """`begin` runs only the first transaction of a plan, and returns whether the plan had a transaction."""
    begun = [await runner.begin(Counting(life, 3)), await runner.begin(Counting(life, 1))]

    assert begun == [True, False]
    assert Counting(life, 0).number == 1


async def test_an_outdated_plan_is_made_again(life: Any, runner: PlanRunner, kit: Any) -> None:
    """A plan that another writer has outdated is planned again, after the mirror shows the change."""

    async def interfere(call: Any) -> Any:
        await life.coordination.inner.transact((), (Put(kit.keys.cluster_config, value(2)),))
        return await call()

    life.coordination.faults["transact"] = [interfere]
    plan = Counting(life, 4)
    await runner.complete(plan)

    assert plan.number == 4
    assert len(plan.sizes) == 3


async def test_a_refusal_is_decided_on_current_data(life: Any, runner: PlanRunner, kit: Any) -> None:
    """A plan that refuses a request is computed again on current data, and its refusal is raised if it remains."""

    async def written_before(call: Any) -> Any:
        await life.coordination.inner.transact((), (Put(kit.keys.cluster_config, value(1)),))
        return await call()

    life.coordination.faults["list"] = [written_before]
    plan = Counting(life, 2)

    def patient(size: int) -> Sequence[Transaction]:
        if plan.number == 0:
            raise ProblemError("broker_not_found", "the mirror has no number yet")
        return plan(size)

    def refusing(_: int) -> Sequence[Transaction]:
        raise ProblemError("broker_not_found", "no such broker")

    await runner.complete(patient)
    with refuses("broker_not_found"):
        await runner.complete(refusing)

    assert plan.number == 2


@pytest.mark.parametrize("applied", [True, False])
async def test_a_plan_with_an_unknown_outcome_is_made_again(
    life: Any, runner: PlanRunner, applied: bool
) -> None:
    """A plan with an unknown outcome is computed again, and its compares keep it from being applied twice."""
    life.coordination.faults["transact"] = [through, raising(UnknownOutcome("lost"), applied=applied)]
    plan = Counting(life, 4)
    await runner.complete(plan)

    assert plan.number == 4


async def test_a_store_that_is_away_is_said_so(life: Any, runner: PlanRunner) -> None:
    """A plan on an unavailable store fails, with side effect `none` only if nothing was written."""
    faults = life.coordination.faults
    gone = raising(CoordinationUnavailable("away"))
    faults["transact"] = [gone]
    with pytest.raises(ProblemError) as nothing:
        await runner.complete(Counting(life, 2))
    faults["transact"] = [through, gone]
    with pytest.raises(ProblemError) as something:
        await runner.complete(Counting(life, 2))
    faults["transact"] = [raising(UnknownOutcome("lost"))]
    faults["list"] = [gone]
    with pytest.raises(ProblemError) as unknown:
        await runner.complete(Counting(life, 2))
    refusals = [nothing.value, something.value, unknown.value]

    assert [problem.code for problem in refusals] == ["coordination_unavailable"] * 3
    assert [problem.side_effect for problem in refusals] == [
        SideEffect.NONE,
        SideEffect.MAYBE,
        SideEffect.MAYBE,
    ]


async def test_a_transaction_that_is_too_large_is_halved(life: Any, runner: PlanRunner) -> None:
    """A transaction that is too large is halved until it fits, and a single operation that is too large is an error."""
    too_large = raising(TransactionTooLarge("bytes", 2, 1))
    life.coordination.faults["transact"] = [too_large, too_large]
    plan = Counting(life, 1)
    await runner.complete(plan)
    life.coordination.faults["transact"] = [too_large] * 10
    hopeless = Counting(life, 2)
    with pytest.raises(TransactionTooLarge):
        await runner.complete(hopeless)

    assert plan.sizes == [60, 30, 15, 60 // 4]
    assert hopeless.sizes == [60, 30, 15, 7, 3, 1]


async def test_a_plan_that_never_holds_is_given_up(life: Any, runner: PlanRunner, kit: Any) -> None:
    """A plan whose compares never succeed fails after a limited number of attempts."""
    wrong = Transaction((has_value(kit.keys.cluster_config, b"never"),), ())
    with pytest.raises(ProblemError) as refused:
        await runner.complete(lambda _: [wrong])

    assert refused.value.code == "conflict"
    assert f"{ATTEMPTS_MAX} consecutive attempts" in refused.value.detail
    assert refused.value.side_effect is SideEffect.NONE


async def test_what_a_plan_refuses_passes_through(runner: PlanRunner) -> None:
    """A problem that a plan raises propagates to the caller."""

    def refuse(_: int) -> Sequence[Transaction]:
        raise ProblemError("topic_not_found", "there is none")

    with refuses("topic_not_found"):
        await runner.complete(refuse)
