"""The order in which keys are reconciled, at times that the tests set."""

from __future__ import annotations

import pytest

from fairlead_operator.ports import Key
from fairlead_operator.reconcile.loop import BACKOFF_SECONDS_MAX, URGED_BACKOFF_SECONDS, WorkQueue

A = Key("Cluster", "shop", "a")
B = Key("Topic", "shop", "b")


@pytest.fixture
def queue() -> WorkQueue:
    """Return an empty queue."""
    return WorkQueue()


def test_asked_twice_is_given_once(queue: WorkQueue) -> None:
    """A key that was added several times is handed out to a worker once."""
    for now in range(5):
        queue.add(A, now)

    assert queue.take(5) == A
    assert queue.take(5) is None


def test_one_worker_has_a_key(queue: WorkQueue) -> None:
    """A key that is added while a worker handles it is handed out again when the worker is done."""
    queue.add(A, 0)
    queue.take(0)
    queue.add(A, 1)
    before = queue.take(1)
    queue.done(A, 2, again_seconds=None)

    assert before is None
    assert queue.take(2) == A
    queue.done(A, 3, again_seconds=None)
    assert queue.next_due() is None


def test_delays_keep_their_order(queue: WorkQueue) -> None:
    """Keys are handed out when they are due; a key that was added with several due times is due at the earliest."""
    queue.add(A, 0, delay_seconds=10)
    queue.add(B, 0, delay_seconds=5)
    queue.add(A, 0, delay_seconds=3)
    queue.add(A, 0, delay_seconds=30)

    assert queue.next_due() == 3
    assert queue.take(2.9) is None
    assert queue.take(3) == A
    assert queue.next_due() == 5
    assert queue.take(5) == B


def test_success_asks_for_the_next_pass(queue: WorkQueue) -> None:
    """The pause that a pass requested is kept unless the key is added with a shorter pause."""
    queue.add(A, 0)
    queue.take(0)
    queue.done(A, 1, again_seconds=60)

    assert queue.next_due() == 61
    queue.add(A, 10, delay_seconds=5)
    assert queue.next_due() == 15
    assert queue.take(15) == A
    queue.done(A, 16, again_seconds=None)
    assert queue.next_due() is None


def test_failures_back_off_and_success_forgets(queue: WorkQueue) -> None:
    """Pauses after failures double from one second to five minutes, and a success resets them for that key."""
    now, pauses = 0.0, []
    queue.add(A, now)
    for _ in range(11):
        assert queue.take(now) == A
        pauses.append(queue.failed(A, now))
        queue.add(B, now)
        assert queue.take(now) == B
        queue.done(B, now, again_seconds=None)
        now += pauses[-1]

    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, BACKOFF_SECONDS_MAX]
    assert queue.failing("Cluster") == 1
    queue.take(now)
    queue.done(A, now, again_seconds=0.0)
    assert queue.failing("Cluster") == 0
    queue.take(now)
    assert queue.failed(A, now) == 1


def test_a_change_shortens_a_long_pause(queue: WorkQueue) -> None:
    """A failing key that is added again is retried sooner, but never at once."""
    now = 0.0
    queue.add(A, now)
    for _ in range(9):
        queue.take(now)
        now += queue.failed(A, now)
    queue.take(now)
    queue.failed(A, now)
    for later in range(5):
        queue.add(A, now + later)

    assert queue.next_due() == now + URGED_BACKOFF_SECONDS


def test_what_was_cut_short_is_still_wanted(queue: WorkQueue) -> None:
    """A key whose pass ended with the term has not failed, and is handed out again."""
    queue.add(A, 0)
    queue.take(0)
    queue.abandoned(A, 1)

    assert queue.failing("Cluster") == 0
    assert queue.take(1) == A


def test_depth_counts_what_waits_now(queue: WorkQueue) -> None:
    """The depth of the queue counts the keys that a worker could take now, but not delayed or running keys."""
    queue.add(A, 0)
    queue.add(B, 0, delay_seconds=10)
    queue.add(Key("Topic", "shop", "c"), 0)
    queue.take(0)

    assert queue.depth(0) == 1
    assert queue.depth(10) == 2
