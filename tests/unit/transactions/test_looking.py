"""When leaders read the records of producers with open transactions."""

from __future__ import annotations

from fairlead_broker.transactions.looking import INTERVAL_SECONDS, READ_MAX, Looks


def test_a_transaction_is_looked_at_after_a_second_and_then_regularly() -> None:
    """A producer's record is first read after a second, and then every five seconds until the transaction has ended."""
    looks = Looks()
    looks.opened(7, 100.0)  # type: ignore[arg-type]
    looks.opened(7, 100.9)  # type: ignore[arg-type]

    assert looks.take(100.5) == []
    assert looks.next_read() == 101.0
    assert looks.take(101.0) == [7]
    assert looks.next_read() == 101.0 + INTERVAL_SECONDS
    looks.ended(7)  # type: ignore[arg-type]
    looks.ended(7)  # type: ignore[arg-type]
    assert looks.next_read() is None
    assert looks.take(200.0) == []
    assert len(looks) == 0


def test_a_hint_is_followed_at_once() -> None:
    """After a hint, the record of the producer is read at once.

    Hints about producers without an open transaction are ignored.
    """
    looks = Looks()
    looks.opened(7, 100.0)  # type: ignore[arg-type]
    looks.hinted([7, 8], 100.2)  # type: ignore[list-item]
    looks.hinted([7], 100.3)  # type: ignore[list-item]

    assert looks.take(100.3) == [7]
    assert looks.take(101.3) == []


def test_one_read_covers_a_hundred_producers() -> None:
    """Records of the producers that have waited longest are read first, with a minimum pause between two reads."""
    looks = Looks()
    for producer in range(READ_MAX + 1):
        looks.opened(producer, 100.0 + producer / 1000)  # type: ignore[arg-type]
    first = looks.take(110.0)

    assert first == list(range(READ_MAX))
    assert looks.take(110.01) == []
    assert looks.next_read() == 110.05
    assert looks.take(110.05) == [READ_MAX]
