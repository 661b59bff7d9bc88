"""The supervisor that owns the tasks of a runtime."""

from __future__ import annotations

import asyncio

from fairlead_broker.runtime.engine.supervisor import Supervisor


async def test_stop_cancels_what_still_runs() -> None:
    """Tasks that wait forever are cancelled with the supervisor, without a failure."""
    supervisor = Supervisor()
    await supervisor.start()
    task = supervisor.spawn(_for_ever(), "waits")
    await supervisor.stop()

    assert task.cancelled()
    assert not supervisor.failure.done()


async def test_task_that_ends_by_itself_is_forgotten() -> None:
    """A task that ends normally is forgotten, and the supervisor keeps running."""
    supervisor = Supervisor()
    await supervisor.start()
    await supervisor.spawn(_nothing(), "ends")

    assert not supervisor.failure.done()

    await supervisor.stop()


async def test_first_failure_ends_all_and_is_reported() -> None:
    """The first failed task cancels the other tasks, and its error is the failure of the supervisor."""
    supervisor = Supervisor()
    await supervisor.start()
    other = supervisor.spawn(_for_ever(), "waits")
    supervisor.spawn(_broken(), "breaks")
    failure = await supervisor.failure
    await supervisor.stop()

    assert isinstance(failure, AssertionError)
    assert other.cancelled()


async def test_stop_without_start_does_nothing() -> None:
    """A supervisor that was not started can be stopped."""
    async with asyncio.timeout(10):
        await Supervisor().stop()


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()


async def _nothing() -> None:
    return None


async def _broken() -> None:
    raise AssertionError("invariant")
