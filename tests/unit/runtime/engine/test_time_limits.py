"""Time limits that share a timer."""

from __future__ import annotations

import asyncio
import gc

from fairlead_broker.runtime.engine.time_limits import KEPT_MIN, TimeLimit, TimeLimits


async def test_limits_that_are_not_cancelled_expire_once_in_their_order() -> None:
    """Limits expire in the order in which they began, even if the limit that started the timer was cancelled."""
    expired: list[int] = []
    done = asyncio.Event()
    limits = TimeLimits(0.02)
    begun = [limits.begin(lambda number=number: expired.append(number)) for number in range(4)]
    begun[0].cancel()
    begun[2].cancel()
    limits.begin(done.set)
    await asyncio.wait_for(done.wait(), 30)

    assert expired == [1, 3]


async def test_a_limit_begins_when_the_earlier_ones_have_ended() -> None:
    """The timer starts again for a limit that begins after all earlier limits expired or while the last one expires."""
    limits, done = TimeLimits(0.01), asyncio.Event()
    limits.begin(lambda: limits.begin(done.set))
    await asyncio.wait_for(done.wait(), 30)
    done.clear()
    limits.begin(done.set)
    await asyncio.wait_for(done.wait(), 30)


async def test_a_limit_has_its_whole_length() -> None:
    """A limit that begins while the timer runs for an earlier limit does not expire with the earlier limit."""
    loop, limits = asyncio.get_running_loop(), TimeLimits(0.05)
    ends: list[float] = []
    done = asyncio.Event()
    limits.begin(lambda: ends.append(loop.time()))
    await asyncio.sleep(0.02)  # noqa: TID251 - the second limit begins later than the first
    began = loop.time()
    limits.begin(done.set)
    await asyncio.wait_for(done.wait(), 30)

    assert loop.time() - began >= 0.049
    assert len(ends) == 1


async def test_cancelled_limits_behind_a_long_wait_do_not_stay_in_memory() -> None:
    """The limits of waits that have ended are released, although an earlier wait has not ended."""
    limits = TimeLimits(30)
    first = limits.begin(int)
    for _ in range(4 * KEPT_MIN):
        limits.begin(int).cancel()
    kept = sum(isinstance(each, TimeLimit) for each in gc.get_objects())
    first.cancel()
    limits.begin(int).cancel()

    assert kept <= 2 * KEPT_MIN
