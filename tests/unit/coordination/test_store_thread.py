from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from fairlead_broker.coordination.protocol import CoordinationClosed
from fairlead_broker.coordination.store_thread import StoreThread

NAME = "store-thread-test"
SECONDS_MAX = 60


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Event for which a call in the thread waits; it is set at the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


async def test_calls_run_one_after_the_other_and_each_gets_its_outcome(gate: threading.Event) -> None:
    """Calls run in the order in which they arrive, and each future gets the result or the exception of its call."""
    ran: list[int] = []
    thread = StoreThread(NAME)
    held = thread.submit(gate.wait, SECONDS_MAX)
    answers = [thread.submit(ran.append, number) for number in range(20)]
    failed = thread.submit(divmod, 1, 0)
    named = thread.submit(sorted, [1, 3, 2], reverse=True)
    gate.set()

    assert await asyncio.wait_for(held, SECONDS_MAX)
    assert await asyncio.gather(*answers) == [None] * 20
    assert ran == list(range(20))
    with pytest.raises(ZeroDivisionError):
        await failed
    assert await named == [3, 2, 1]
    thread.close()


async def test_a_cancelled_call_runs_only_if_it_has_started(gate: threading.Event) -> None:
    """A started call continues after its future was cancelled; a queued call does not run."""
    ran: list[str] = []
    has_started = threading.Event()

    def work() -> None:
        has_started.set()
        gate.wait(SECONDS_MAX)
        ran.append("started")

    thread = StoreThread(NAME)
    started = thread.submit(work)
    queued = thread.submit(ran.append, "queued")
    last = thread.submit(ran.append, "last")
    await asyncio.to_thread(has_started.wait, SECONDS_MAX)
    started.cancel()
    queued.cancel()
    gate.set()
    await asyncio.wait_for(last, SECONDS_MAX)
    thread.close()

    assert ran == ["started", "last"]


async def test_a_closed_thread_finishes_its_queue_and_takes_no_more_calls(gate: threading.Event) -> None:
    """Calls from before the end run; a later call is refused."""
    thread = StoreThread(NAME)
    held = thread.submit(gate.wait, SECONDS_MAX)
    queued = thread.submit(str, 7)
    thread.close()
    with pytest.raises(CoordinationClosed):
        thread.submit(str, 8)
    gate.set()

    assert await asyncio.wait_for(held, SECONDS_MAX)
    assert await asyncio.wait_for(queued, SECONDS_MAX) == "7"


def test_an_answer_after_the_end_of_the_loop_is_dropped(gate: threading.Event) -> None:
    """A call that ends after its event loop was closed raises no error in the thread, which then ends."""
    name = f"{NAME}-closed"

    async def leave() -> None:
        thread = StoreThread(name)
        thread.submit(gate.wait, SECONDS_MAX)
        thread.close()

    asyncio.run(leave())
    [thread] = [each for each in threading.enumerate() if each.name == name]
    gate.set()
    thread.join(SECONDS_MAX)

    assert not thread.is_alive()
