"""The state of producers, which is derived from the log, and its expiry."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_broker.producers import ProducerState, state, stored_batch
from fairlead_broker.producers.state import RETENTION_US, STEP_US_MAX

START = 1_700_000_000_000_000
DAY = RETENTION_US
HOUR = STEP_US_MAX
EPOCH = ProducerEpoch(0)


def use_key(known: ProducerState, time_us: int, key: bytes = b"once") -> None:
    """Apply a request with an idempotency key that was appended at a time."""
    known.replay_key(key, bytes(16), Offset(1), Offset(2), TimestampUs(time_us))


def appends(known: ProducerState, *times_us: int) -> None:
    """Apply the append times of batches without a producer."""
    for time_us in times_us:
        known.advance(time_us)


def known_at(time_us: int) -> ProducerState:
    """Return a state with a producer and a key whose only batches were appended at a time."""
    known = ProducerState()
    known.replay(ProducerId(7), EPOCH, stored_batch(0, 0, 0, time_us))
    use_key(known, time_us)
    return known


def remembers(known: ProducerState) -> bool:
    """Return whether a state still has its producer and its key; either both must be present, or neither."""
    found = {known.producer(7) is not None, known.key(b"once") is not None}
    assert len(found) == 1
    return found.pop()


def test_an_entry_lives_a_day_behind_the_newest_append() -> None:
    """An entry expires a day after the last append of the partition, whichever producer appended."""
    known = known_at(START)
    appends(known, *range(START, START + DAY + 1, HOUR))
    at_a_day = remembers(known)
    appends(known, START + DAY + 1)

    assert (at_a_day, remembers(known)) == (True, False)
    assert (dict(known.producers), dict(known.keys)) == ({}, {})


@pytest.mark.parametrize("jump", [25 * HOUR, 1000 * DAY, -25 * HOUR, -1000 * DAY])
def test_a_jump_of_the_clock_neither_expires_nor_keeps(jump: int) -> None:
    """Entries from before, during and after a temporary jump of the clock expire after a day of regular appends."""
    known = known_at(START)
    known.replay(ProducerId(8), EPOCH, stored_batch(0, 0, 1, START + jump))
    use_key(known, START + jump, b"false time")
    known.replay(ProducerId(9), EPOCH, stored_batch(0, 0, 2, START + 1))
    use_key(known, START + 1, b"true again")
    assert remembers(known)
    appends(known, *range(START + 1, START + DAY - HOUR, HOUR // 2))
    assert [known.producer(each) is not None for each in (7, 8, 9)] == [True] * 3
    assert set(known.keys) == {b"once", b"false time", b"true again"}
    appends(known, *range(START + DAY - HOUR, START + DAY + 2 * HOUR, HOUR // 2))

    assert len(known) == 0


def test_a_clock_that_jumps_again_and_again_expires_nothing() -> None:
    """Append times that jump back and forth, as with leaders whose clocks differ, do not age any entry."""
    known = known_at(START)
    for number in range(100):
        appends(known, START + number + 40 * DAY, START + number)

    assert remembers(known)
    assert known.partition_time_us == START


def test_a_pause_counts_an_hour() -> None:
    """A partition without appends for a month expires nothing, because the pause counts as one hour."""
    known = known_at(START)
    appends(known, START + 30 * DAY)

    assert remembers(known)
    assert known.partition_time_us == START + HOUR


def test_append_times_follow_a_clock_that_is_set_right() -> None:
    """Append times do not go back with the clock, unless the clock is more than an hour behind the last append time."""
    known = known_at(START)
    clocks = [START - HOUR, START - 1, START, START + 1, START - HOUR - 1, START - DAY]

    assert [known.append_time_us(TimestampUs(now)) for now in clocks] == [START, START, START, *clocks[3:]]
    assert ProducerState().append_time_us(TimestampUs(5)) == 5


def test_another_epoch_drops_earlier_batches() -> None:
    """The first batch of a new epoch drops the batches of the previous epoch."""
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
    use_key(copy, 2)

    assert (len(known), len(copy)) == (1, 3)
    assert (known.last_append_time_us, copy.last_append_time_us) == (1, 2)


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
    use_key(known, 1)
    appends(known, *range(HOUR, DAY + 2 * HOUR, HOUR))

    assert len(known) == 0


def test_shared_ids_of_the_time_before_a_promotion_are_forgotten() -> None:
    """Batches below the offset are forgotten if the id is below 2^32 and the producer's transaction is not open."""
    ranged, before, across, opened = (ProducerId(each) for each in (1 << 32, 1, 2, 3))
    known = ProducerState()
    for producer_id, offset in ((ranged, 0), (before, 1), (across, 2)):
        known.replay(producer_id, EPOCH, stored_batch(0, 0, offset, START))
    known.replay(opened, EPOCH, stored_batch(0, 0, 3, START), is_transactional=True)
    known.replay(across, EPOCH, stored_batch(0, 0, 4, START))
    known.forget_shared_ids(Offset(0))
    untouched = set(known.producers)
    known.forget_shared_ids(Offset(4))
    left = {
        producer_id: [batch.base_offset for batch in entry.batches]
        for producer_id, entry in known.producers.items()
    }

    assert untouched == {ranged, before, across, opened}
    assert left == {ranged: [0], across: [4], opened: [3]}


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_batch_of_another_kind_with_the_same_id_and_epoch_begins_an_entry(is_ended: bool) -> None:
    """A plain batch does not join the entry of a transaction that another producer wrote with the same id and epoch."""
    known = ProducerState()
    known.replay(ProducerId(1), EPOCH, stored_batch(0, 0, 0, START), is_transactional=True)
    if is_ended:
        known.replay_marker(ProducerId(1), EPOCH, Offset(1), START)
    known.replay(ProducerId(1), EPOCH, stored_batch(0, 0, 2, START))
    known.replay(ProducerId(1), EPOCH, stored_batch(1, 0, 3, START))
    entry = known.producers[ProducerId(1)]

    assert not entry.is_transactional
    assert not entry.is_ended
    assert [batch.base_offset for batch in entry.batches] == [2, 3]
