"""Positions, prefetching and back-off of a consumer's partitions, without a network."""

from __future__ import annotations

import pytest

from fairlead.errors import ClosedError
from fairlead.reading.cursors import Cursor, Fetched, Prefetch
from fairlead.settings import ConsumerSettings
from fairlead.topic_partition import TopicPartition


def _anything(_: Cursor) -> bool:
    return True


@pytest.fixture
def prefetch() -> Prefetch:
    """Return a prefetch buffer of 100 bytes for two partitions at offset 10."""
    prefetch = Prefetch(ConsumerSettings(prefetch_bytes=100, partition_fetch_bytes_max=40))
    prefetch.assign([Cursor("flights", "id", index, 10) for index in range(2)])
    return prefetch


def _cursors(prefetch: Prefetch) -> list[Cursor]:
    return list(prefetch.cursors.values())


def _read(prefetch: Prefetch) -> Fetched:
    fetched = prefetch.take(_anything)
    assert fetched is not None
    return fetched


def test_a_fetch_moves_the_next_fetch_and_not_the_position(prefetch: Prefetch) -> None:
    """A fetch answer advances the next fetch, but not the reader's position."""
    first, _ = _cursors(prefetch)
    first.in_flight = True
    prefetch.arrived(first, first.life, memoryview(b"x" * 30), 15)

    assert (first.fetch_offset, first.position, first.in_flight) == (15, 10, False)
    assert _read(prefetch).start_offset == 10


def test_partitions_in_flight_are_not_due(prefetch: Prefetch) -> None:
    """A partition is in at most one fetch at a time."""
    first, second = _cursors(prefetch)
    first.in_flight = True

    assert prefetch.due(0.0) == [second]


def test_a_partition_is_not_fetched_beyond_its_stop() -> None:
    """Fetches of a partition end at its stop offset; a partition without a stop offset is still fetched."""
    prefetch = Prefetch(ConsumerSettings(), {TopicPartition("flights", 0): 15})
    prefetch.assign([Cursor("flights", "id", index, 10) for index in range(2)])
    first, second = _cursors(prefetch)

    assert prefetch.due(0.0) == [first, second]
    prefetch.arrived(first, first.life, memoryview(b"x"), 15)
    assert prefetch.due(0.0) == [second]
    prefetch.seek(first, 14)
    assert first in prefetch.due(0.0)


def test_a_partition_with_its_share_buffered_is_not_due(prefetch: Prefetch) -> None:
    """A partition that fills its share of the buffer is not fetched, which leaves space for other partitions."""
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"x" * 50), 20)

    assert prefetch.due(0.0) == [second]
    prefetch.release(_read(prefetch))
    assert prefetch.due(0.0) == [second, first]


def test_no_partition_is_starved_by_those_before_it() -> None:
    """Partitions are fetched in turn: no partition is fetched twice before all others have been fetched once."""
    prefetch = Prefetch(ConsumerSettings(prefetch_bytes=1000, partition_fetch_bytes_max=100))
    prefetch.assign([Cursor("flights", "id", index, 0) for index in range(10)])
    turns: list[int] = []

    for _ in range(15):
        for cursor in prefetch.due(0.0)[:2]:
            prefetch.arrived(cursor, cursor.life, memoryview(b"x"), cursor.fetch_offset + 1)
            prefetch.release(_read(prefetch))
            turns.append(cursor.partition)

    assert turns == list(range(10)) * 3


def test_a_full_buffer_stops_all_fetching(prefetch: Prefetch) -> None:
    """A full buffer stops all fetches until the reader frees space."""
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"x" * 100), 20)

    assert prefetch.due(0.0) == []
    prefetch.release(_read(prefetch))
    assert prefetch.due(0.0) == [second, first]


def test_a_seek_drops_what_was_fetched_and_what_is_on_its_way(prefetch: Prefetch) -> None:
    """A seek drops buffered records, and the answer to the earlier fetch is ignored."""
    first, second = _cursors(prefetch)
    prefetch.arrived(second, second.life, memoryview(b"kept"), 11)
    prefetch.arrived(first, first.life, memoryview(b"x" * 90), 15)
    before = first.life
    first.in_flight = True
    prefetch.seek(first, 3)

    assert prefetch.due(0.0) == [second, first]
    first.in_flight = True
    prefetch.arrived(first, before, memoryview(b"late"), 20)
    prefetch.delayed(first, before, 9.0)
    prefetch.failed(first, before, ClosedError("consumer"))
    assert (first.fetch_offset, first.in_flight, first.retry_at, first.error) == (3, True, 0.0, None)
    assert bytes(_read(prefetch).data) == b"kept"
    assert prefetch.take(_anything) is None


def test_an_assignment_drops_the_one_before(prefetch: Prefetch) -> None:
    """A new assignment drops all buffered records of the previous assignment."""
    first, _ = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"x" * 100), 15)
    prefetch.assign([Cursor("other", "id2", 0, 0)])

    assert prefetch.take(_anything) is None
    assert [str(cursor) for cursor in prefetch.due(0.0)] == ["other-0"]


def test_a_refused_partition_waits_for_its_pause(prefetch: Prefetch) -> None:
    """A refused partition is fetched again after its back-off, whose end is a deadline of the buffer."""
    first, second = _cursors(prefetch)
    prefetch.delayed(first, first.life, 2.0)

    assert prefetch.due(1.0) == [second]
    assert prefetch.next_deadline(1.0) == 2.0
    assert prefetch.due(2.0) == [first, second]
    assert prefetch.next_deadline(2.0) is None


def test_a_failed_partition_is_raised_after_its_buffered_records(prefetch: Prefetch) -> None:
    """The error for a failed partition is raised only after its buffered records are read."""
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"good"), 11)
    prefetch.failed(first, first.life, ClosedError("consumer"))

    assert list(prefetch.failures()) == []
    assert prefetch.due(0.0) == [second]
    prefetch.release(_read(prefetch))
    assert list(prefetch.failures()) == [first]
    prefetch.seek(first, 12)
    assert list(prefetch.failures()) == []


def test_only_wanted_partitions_are_taken(prefetch: Prefetch) -> None:
    """Only requested partitions are read, and buffered records of other partitions are kept."""
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"one"), 11)
    prefetch.arrived(second, second.life, memoryview(b"two"), 11)
    taken = prefetch.take(lambda cursor: cursor is second)

    assert taken is not None
    assert bytes(taken.data) == b"two"
    assert bytes(_read(prefetch).data) == b"one"


def test_an_answer_without_batches_may_move_on(prefetch: Prefetch) -> None:
    """An answer without batches is used if it advances the position, and dropped otherwise."""
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b""), 12)
    prefetch.arrived(second, second.life, memoryview(b""), 10)

    assert _read(prefetch).next_offset == 12
    assert prefetch.take(_anything) is None


def test_partitions_come_and_go_beside_the_others(prefetch: Prefetch) -> None:
    """Buffered records and fetches of removed partitions are dropped, and added partitions start at their positions."""
    gone, stays = _cursors(prefetch)
    for cursor in (gone, stays):
        prefetch.arrived(cursor, cursor.life, memoryview(b"x" * 10), 15)
    life = gone.life
    prefetch.remove([gone.topic_partition])
    prefetch.arrived(gone, life, memoryview(b"x" * 10), 20)
    prefetch.add([Cursor("flights", "id", 0, 7)])

    assert _read(prefetch).cursor is stays
    assert prefetch.take(_anything) is None
    assert [(cursor.partition, cursor.position) for cursor in _cursors(prefetch)] == [(1, 10), (0, 7)]


def test_a_paused_or_withheld_partition_has_no_deadline_and_no_error(prefetch: Prefetch) -> None:
    """A partition that is paused, or withheld during a rebalance, is not fetched and has no deadline or error."""
    paused, withheld = _cursors(prefetch)
    paused.paused = withheld.withheld = True
    prefetch.delayed(paused, paused.life, retry_at=5.0)
    prefetch.failed(withheld, withheld.life, ClosedError("test"))

    assert prefetch.due(9.0) == []
    assert prefetch.next_deadline(1.0) is None
    assert list(prefetch.failures()) == []
    paused.paused = withheld.withheld = False
    assert prefetch.due(9.0) == [paused]
    assert prefetch.next_deadline(1.0) == 5.0
    assert list(prefetch.failures()) == [withheld]


def test_a_paused_partition_makes_room_for_another(prefetch: Prefetch) -> None:
    """A paused partition frees its buffer space if another partition needs it, and is fetched again later."""
    paused, read = _cursors(prefetch)
    paused.last_epoch = 4
    prefetch.arrived(paused, paused.life, memoryview(b"x" * 60), 15)
    assert not prefetch.make_room()
    prefetch.arrived(paused, paused.life, memoryview(b"x" * 60), 20)
    prefetch.failed(paused, paused.life, ClosedError("test"))
    paused.paused = True
    assert prefetch.due(0.0) == []

    assert prefetch.make_room()
    assert prefetch.due(0.0) == [read]
    assert prefetch.take(_anything) is None
    assert (paused.fetch_offset, paused.last_epoch, paused.position) == (10, 4, 10)
    paused.paused = False
    assert set(prefetch.due(0.0)) == {paused, read}


def test_buffered_records_stay_when_no_partition_needs_room(prefetch: Prefetch) -> None:
    """Buffered records are kept if no partition needs space, or if a fetch in flight would leave a gap."""
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"x" * 120), 15)
    first.paused = second.paused = True
    assert not prefetch.make_room()
    second.paused, first.in_flight = False, True
    assert not prefetch.make_room()

    prefetch.arrived(first, first.life, memoryview(b"x" * 10), 16)
    assert prefetch.make_room()
    assert first.fetch_offset == 10


def test_only_what_is_read_to_an_end_is_fetched(prefetch: Prefetch) -> None:
    """While a consumer reads up to given end offsets, only partitions before their end offset are fetched."""
    first, second = _cursors(prefetch)
    prefetch.until = {second.topic_partition: 12}
    assert prefetch.due(0.0) == [second]
    second.position = 12
    assert prefetch.due(0.0) == []
    prefetch.until = None
    assert prefetch.due(0.0) == [first, second]


def test_a_damaged_length_is_left_to_the_reader(prefetch: Prefetch) -> None:
    """An incorrect batch length is reported by the reader, and affects no other partition of the answer."""
    first, _ = _cursors(prefetch)
    damaged = bytearray(176)
    damaged[8], damaged[12] = 88 - 12, 7
    prefetch.arrived(first, first.life, memoryview(damaged), 12)

    assert first.last_epoch == 7
    assert _read(prefetch).next_offset == 12


@pytest.mark.parametrize("keeps", [True, False])
def test_a_restart_drops_what_was_fetched_and_asked_for(prefetch: Prefetch, *, keeps: bool) -> None:
    """A restarted consumer drops buffered records and continues at its positions.

    A restarted member of a group has no partitions.
    """
    first, second = _cursors(prefetch)
    prefetch.arrived(first, first.life, memoryview(b"x" * 100), 20)
    second.in_flight, asked = True, second.life
    prefetch.restart(keeps_cursors=keeps)
    prefetch.arrived(second, asked, memoryview(b"x"), 11)

    assert prefetch.take(_anything) is None
    assert prefetch.due(0.0) == ([second, first] if keeps else [])
    assert [cursor.fetch_offset for cursor in _cursors(prefetch)] == ([10, 10] if keeps else [])
