"""The workers of the operator, in a loop whose time passes only when no task can run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
import structlog

from fairlead_operator.ports import Conflict, Invalid, Key
from fairlead_operator.reconcile.loop import PASS_SECONDS_MAX, WorkLoop
from fairlead_operator.telemetry import Telemetry
from virtual_time.loop import VirtualLoop, pass_time

A = Key("Cluster", "shop", "a")
B = Key("Cluster", "shop", "b")
RESYNC_SECONDS = 100.0


class LoopClock:
    """A clock that shows the loop's time."""

    def now(self) -> datetime:
        """Return the loop's time as a date, counted from 1970."""
        return datetime.fromtimestamp(self.monotonic(), UTC)

    def monotonic(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()


class Term:
    """A leader's term, which the test starts and ends."""

    def __init__(self) -> None:
        self.leading = asyncio.Event()
        self.lost = asyncio.Event()

    async def wait_until_leading(self) -> None:
        """Wait until the test starts the term."""
        await self.leading.wait()

    async def wait_until_lost(self) -> None:
        """Wait until the test ends the term."""
        await self.lost.wait()


class World:
    """A set of resources that records the times of passes by key."""

    def __init__(self, work: Callable[[Key], Awaitable[float | None]]) -> None:
        self.work = work
        self.term = Term()
        self.keys = [A]
        self.passes: list[tuple[float, Key]] = []
        self.ended: list[tuple[float, Key]] = []
        self.telemetry = Telemetry(structlog.get_logger())
        self.loop = WorkLoop(
            {"Cluster": self},
            term=self.term,
            existing=lambda: self.keys,
            exists=self.keys.__contains__,
            prepare=self.prepare,
            resync_seconds=RESYNC_SECONDS,
            clock=LoopClock(),
            chance=lambda: 0.5,
            telemetry=self.telemetry,
        )

    async def prepare(self) -> None:
        """Prepare nothing."""

    async def reconcile(self, key: Key) -> float | None:
        """Record the pass, and run the work of the test."""
        now = asyncio.get_running_loop().time
        self.passes.append((now(), key))
        try:
            return await self.work(key)
        finally:
            self.ended.append((now(), key))

    def count(self, result: str) -> float:
        """Return the number of passes with a result."""
        found = self.telemetry.registry.get_sample_value(
            "fairlead_operator_reconcile_total", {"kind": "Cluster", "result": result}
        )
        return found or 0.0


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())  # type: ignore[arg-type]


async def at_work(world: World, seconds: float) -> None:
    """Run the workers for the given number of seconds."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(world.loop.run())
        await pass_time(seconds)
        task.cancel()


def test_every_resource_is_looked_at_again() -> None:
    """The leader reconciles every resource at the start and at every resync."""

    async def scenario() -> None:
        async def nothing(_: Key) -> None:
            return None

        world = World(nothing)
        world.term.leading.set()
        await at_work(world, 350)

        assert world.passes == [(0.0, A), (100.0, A), (200.0, A), (300.0, A)]
        assert world.count("ok") == 4

    run(scenario)


def test_followers_do_not_work() -> None:
    """A follower reconciles nothing, and queued changes wait until the follower becomes leader."""

    async def scenario() -> None:
        async def nothing(_: Key) -> None:
            return None

        world = World(nothing)
        world.loop.add(B)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.loop.run())
            await pass_time(50)
            assert world.passes == []
            world.term.leading.set()
            await pass_time(1)
            task.cancel()

        assert sorted(world.passes) == [(50.0, A), (50.0, B)]

    run(scenario)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Conflict(409, "Conflict", "somebody was faster"), "conflict"),
        (Invalid(422, "Invalid", "no"), "failed"),
        (TimeoutError(), "failed"),
        (ZeroDivisionError(), "failed"),
    ],
)
def test_a_failing_key_backs_off_alone(error: Exception, result: str) -> None:
    """A key whose pass raises an error is retried after increasing pauses, and other keys are not delayed."""

    async def scenario() -> None:
        async def fail_for_a(key: Key) -> float | None:
            if key == A:
                raise error
            return 5.0

        world = World(fail_for_a)
        world.keys = [A, B]
        world.term.leading.set()
        await at_work(world, 15.5)

        assert [time for time, key in world.passes if key == A] == [0.0, 1.0, 3.0, 7.0, 15.0]
        assert [time for time, key in world.passes if key == B] == [0.0, 5.0, 10.0, 15.0]
        assert world.count(result) == 5

    run(scenario)


def test_a_pass_that_hangs_is_cut_short() -> None:
    """A pass that exceeds its time limit fails, and its key is retried."""

    async def scenario() -> None:
        async def hang(_: Key) -> None:
            await asyncio.Event().wait()

        world = World(hang)
        world.term.leading.set()
        await at_work(world, PASS_SECONDS_MAX + 2)

        assert world.passes == [(0.0, A), (PASS_SECONDS_MAX + 1, A)]
        assert world.count("failed") == 1

    run(scenario)


def test_work_ends_with_the_term() -> None:
    """A pass ends when leadership is lost, and its key comes first in the next term."""

    async def scenario() -> None:
        async def slow(_: Key) -> None:
            await pass_time(20)

        world = World(slow)
        world.term.leading.set()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.loop.run())
            await pass_time(10)
            world.term.leading.clear()
            world.term.lost.set()
            await pass_time(30)
            after_loss = (list(world.passes), list(world.ended))
            world.term.lost.clear()
            world.term.leading.set()
            await pass_time(5)
            task.cancel()

        assert after_loss == ([(0.0, A)], [(10.0, A)])
        assert world.passes == [(0.0, A), (40.0, A)]
        assert world.count("failed") == 0

    run(scenario)


def test_a_resource_that_is_gone_is_forgotten() -> None:
    """The key of a deleted object is reconciled once more and then dropped."""

    async def scenario() -> None:
        async def nothing(_: Key) -> None:
            return None

        world = World(nothing)
        world.term.leading.set()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.loop.run())
            await pass_time(10)
            world.keys.clear()
            world.loop.add(A)
            await pass_time(500)
            task.cancel()

        assert world.passes == [(0.0, A), (10.0, A)]

    run(scenario)


def test_only_the_leader_reports_waiting_and_failing_keys() -> None:
    """Only the leader reports waiting and failing keys, and failures of an earlier term are not reported."""

    async def scenario() -> None:
        async def fail(_: Key) -> None:
            raise Invalid(422, "Invalid", "no")

        world = World(fail)

        def gauges() -> tuple[float | None, float | None]:
            value = world.telemetry.registry.get_sample_value
            failing = value("fairlead_operator_queue_failing", {"kind": "Cluster"})
            return value("fairlead_operator_queue_depth"), failing

        world.loop.add(B)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(world.loop.run())
            await pass_time(5)
            before = gauges()
            world.term.leading.set()
            await pass_time(5)
            during = gauges()
            world.term.leading.clear()
            world.term.lost.set()
            await pass_time(30)
            after = gauges()
            task.cancel()

        assert (before, during, after) == ((0.0, 0.0), (0.0, 2.0), (0.0, 0.0))

    run(scenario)
