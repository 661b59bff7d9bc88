"""The state of producers, which is derived from the log, and its expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers import KeyEntry, ProducerState, state, stored_batch
from fairlead_broker.producers.state import RETENTION_US

if TYPE_CHECKING:
    import pytest

DAY = RETENTION_US
EPOCH = ProducerEpoch(0)


def key_entry(time_us: int) -> KeyEntry:
    """Return the entry of a request that was stored at a time."""
    return KeyEntry(bytes(16), Offset(1), Offset(2), TimestampUs(time_us))


def test_an_entry_lives_a_day_behind_the_newest_append() -> None:
    """An entry expires a day after the latest append time of the partition, whichever producer appended."""
    known = ProducerState()
    known.replay(ProducerId(7), EPOCH, stored_batch(0, 0, 0, 1000))
    known.replay_key(b"once", key_entry(1000))
    known.advance(1000 + DAY)
    at_a_day = (known.producer(7) is not None, known.key(b"once") is not None)
    known.advance(1001 + DAY)

    assert at_a_day == (True, True)
    assert (known.producer(7), known.key(b"once")) == (None, None)
    assert (dict(known.producers), dict(known.keys)) == ({}, {})


def test_time_that_steps_back_makes_nothing_younger() -> None:
    """An earlier append time after a later one does not extend the life of an entry."""
    known = ProducerState()
    known.replay(ProducerId(1), EPOCH, stored_batch(0, 0, 0, 10 * DAY))
    known.replay(ProducerId(2), EPOCH, stored_batch(0, 0, 1, 8 * DAY))
    known.advance(5)

    assert known.newest_time_us == 10 * DAY
    assert known.producer(2) is None
    assert known.producer(1) is not None
    assert len(known) == 2


def test_another_epoch_begins_anew() -> None:
    """Another epoch forgets the batches of the previous one."""
    known = ProducerState()
    known.replay(ProducerId(7), EPOCH, stored_batch(0, 0, 0, 1))
    known.replay(ProducerId(7), ProducerEpoch(1), stored_batch(0, 3, 1, 2))
    entry = known.producer(7)

    assert entry is not None
    assert (entry.epoch, len(entry.batches), entry.next_sequence) == (1, 1, 4)


def test_a_copy_changes_by_itself() -> None:
    """A copy of the state does not change with the original."""
    known = ProducerState()
    known.replay(ProducerId(7), EPOCH, stored_batch(0, 0, 0, 1))
    copy = known.copy()
    copy.replay(ProducerId(8), EPOCH, stored_batch(0, 0, 1, 2))
    copy.replay_key(b"once", key_entry(2))

    assert (len(known), len(copy)) == (1, 3)
    assert (known.newest_time_us, copy.newest_time_us) == (1, 2)


def test_the_least_recently_active_producer_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently active producer is dropped first, so that unused ids do not fill the memory."""
    monkeypatch.setattr(state, "PRODUCERS_MAX", 3)
    known = ProducerState()
    for offset, producer_id in enumerate((1, 2, 3, 1, 4)):
        known.replay(ProducerId(producer_id), EPOCH, stored_batch(offset, 0, offset, 1))

    assert list(known.producers) == [3, 1, 4]
    assert known.producer(2) is None


def test_expired_entries_go_by_themselves() -> None:
    """Expired entries are removed within a minute of append time, without a lookup."""
    known = ProducerState()
    known.replay(ProducerId(7), EPOCH, stored_batch(0, 0, 0, 1))
    known.replay_key(b"once", key_entry(1))
    known.advance(2 * DAY)

    assert len(known) == 0
