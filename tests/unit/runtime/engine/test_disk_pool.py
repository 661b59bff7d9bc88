"""Threads for blocking calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from fairlead_broker.runtime.engine.disk_pool import SHORT_CALLS_MAX, DiskPool


@pytest.fixture
async def pool() -> Iterator[DiskPool]:
    """Yield a pool of two threads."""
    made = DiskPool("test", 2)
    yield made
    made.close()


async def test_answers_what_the_call_returns_or_raises(pool: DiskPool) -> None:
    """The result or exception of a call reaches the waiting task."""
    assert await pool.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 7, 0)


async def test_answers_all_in_the_order_of_the_calls(pool: DiskPool) -> None:
    """Results are returned in the order of the calls, with exceptions in their places."""
    answers = await pool.run_all([lambda: 1, lambda: 1 // 0, lambda: 3])

    assert answers[0::2] == [1, 3]
    assert isinstance(answers[1], ZeroDivisionError)


async def test_runs_no_more_calls_at_once_than_it_has_threads(pool: DiskPool) -> None:
    """Ten calls share the two threads of the pool."""
    both = threading.Barrier(2)
    names = await pool.run_all([lambda: (both.wait(10), threading.current_thread().name)[1]] * 10)

    assert set(names) == {"test-0", "test-1"}


async def test_a_patient_pool_starts_threads_only_for_long_calls() -> None:
    """Calls that are started together use one thread, and get further threads while they take long."""
    pool = DiskPool("patient", 3, patient=True)
    all_run = threading.Barrier(3)
    try:
        calls = [pool.submit(all_run.wait, 30) for _ in range(3)]
        at_first = [each.name for each in threading.enumerate() if each.name.startswith("patient-")]
        places = await asyncio.gather(*calls)
    finally:
        pool.close()

    assert at_first == ["patient-0"]
    assert sorted(places) == [0, 1, 2]


async def test_cancelled_wait_does_not_stop_the_call(pool: DiskPool) -> None:
    """A call whose wait is cancelled runs to its end, and its result is dropped."""
    may_end, ended = threading.Event(), threading.Event()

    def call() -> None:
        assert may_end.wait(10)
        ended.set()

    future = pool.submit(call)
    future.cancel()
    may_end.set()
    await pool.run(ended.wait, 10)

    assert ended.is_set()
    assert future.cancelled()


async def test_completions_of_many_threads_all_arrive(pool: DiskPool) -> None:
    """No completion is lost, however completions and wake-ups interleave."""
    for _ in range(50):
        async with asyncio.timeout(10):
            assert await pool.run_all([lambda: 1] * 40) == [1] * 40


async def test_close_waits_for_the_threads() -> None:
    """A closed pool has no running thread."""
    pool = DiskPool("closing", 3)
    await pool.run_all([lambda: None] * 3)
    pool.close()

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closing")]


async def test_idle_waits_for_calls_whose_wait_was_cancelled(pool: DiskPool) -> None:
    """Queued calls can be dropped, and the pool waits for running calls even if their waits were cancelled."""
    begun, may_end, done = threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        may_end.wait(10)
        done.append(1)

    futures = [pool.submit(slow) for _ in range(5)]
    await asyncio.to_thread(begun.wait, 10)
    for future in futures:
        future.cancel()
    pool.drop_queued()
    idle = asyncio.ensure_future(pool.idle())
    await asyncio.wait([idle], timeout=0.05)
    waited = not idle.done()
    may_end.set()
    await idle

    assert waited
    assert len(done) <= 2


async def test_short_calls_of_one_iteration_share_a_thread_and_end_together(pool: DiskPool) -> None:
    """Short calls run in order in one thread, and the task that waits for the first of them finds all of them done."""
    ran: list[tuple[int, str]] = []

    def call(number: int) -> int:
        ran.append((number, threading.current_thread().name))
        return 6 // number

    futures = [pool.submit_short(call, number) for number in (1, 0, 3)]
    await futures[0]

    assert [future.done() for future in futures] == [True] * 3
    assert (futures[0].result(), futures[2].result()) == (6, 2)
    assert isinstance(futures[1].exception(), ZeroDivisionError)
    assert [number for number, _ in ran] == [1, 0, 3]
    assert len({name for _, name in ran}) == 1


async def test_many_short_calls_use_several_threads(pool: DiskPool) -> None:
    """A thread runs a limited number of short calls, so that a slow call does not delay all others."""
    both = threading.Barrier(2)
    at_ends = {0, SHORT_CALLS_MAX}
    futures = [
        pool.submit_short(both.wait if number in at_ends else int, *([10] if number in at_ends else []))
        for number in range(2 * SHORT_CALLS_MAX)
    ]

    assert sorted(await asyncio.gather(*(futures[number] for number in at_ends))) == [0, 1]


async def test_drops_short_calls_that_have_not_started(pool: DiskPool) -> None:
    """A short call is cancelled like any other queued call, and the pool is idle afterwards."""
    may_end = threading.Event()
    running = [pool.submit(may_end.wait, 10) for _ in range(2)]
    short = pool.submit_short(int)
    pool.drop_queued()
    may_end.set()
    await asyncio.gather(*running, return_exceptions=True)
    await pool.idle()

    assert short.cancelled()
