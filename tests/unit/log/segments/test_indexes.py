"""The index of a segment, in memory and in its two files."""

from __future__ import annotations

from fairlead_broker.log.segments.indexes import (
    NO_TIME,
    OFFSET_INDEX,
    TIME_INDEX,
    SegmentIndex,
    decode_closed_index,
    decode_final_time,
    decode_index,
    encode_final_time,
)


def filled() -> SegmentIndex:
    """Return the index of ten batches of 100 bytes and ten records, with an entry every 200 bytes."""
    index = SegmentIndex()
    for number in range(10):
        index.note(number * 10, number * 100, 1000 + number, 200)
    return index


def files(index: SegmentIndex) -> tuple[bytes, bytes]:
    """Return the two files of an index."""
    count = len(index)
    return (
        OFFSET_INDEX.encode_header() + index.encode_offsets(0, count),
        TIME_INDEX.encode_header() + index.encode_times(0, count),
    )


def test_entries_stand_every_interval_and_never_at_the_start() -> None:
    """An index entry contains a batch's offset, its position and the latest time before it, once per interval."""
    index = filled()

    assert list(index.offsets) == [20, 40, 60, 80]
    assert list(index.positions) == [200, 400, 600, 800]
    assert list(index.times) == [1001, 1003, 1005, 1007]
    assert index.max_time_us == 1009


def test_an_interval_of_zero_gives_each_batch_an_entry_once() -> None:
    """An index with an interval of zero has exactly one entry for each batch except the first batch."""
    index = SegmentIndex()
    for position in (0, 100, 100, 200):
        index.note(position, position, 0, 0)

    assert list(index.positions) == [100, 200]


def test_lookups() -> None:
    """Lookups by offset, position and time find the nearest index entry below or above."""
    index = filled()

    assert [index.place_at_or_below(offset) for offset in (0, 19, 20, 45, 99)] == [
        (0, -1),
        (0, -1),
        (200, 20),
        (400, 40),
        (800, 80),
    ]
    assert [index.position_at_or_above(offset, 1000) for offset in (0, 20, 21, 81)] == [200, 200, 400, 1000]
    assert index.position_at_or_above(0, 150) == 150
    assert [index.position_after(position, 1000) for position in (0, 200, 800)] == [200, 400, 1000]
    assert index.last_before(600, 99) == (400, 40)
    assert index.last_before(601, 60) == (400, 40)
    assert index.last_before(200, 99) == (-1, -1)
    assert [index.first_with_time(time_us) for time_us in (0, 1001, 1002, 1007, 1009)] == [0, 0, 1, 3, 4]


def test_a_cut_leaves_the_original_alone() -> None:
    """Truncating an index returns a shorter copy, and readers of the original index see no change."""
    index = filled()
    shorter, point = index.cut_at_or_below(59)
    nothing, nowhere = index.cut_at_or_below(19)

    assert (list(shorter.offsets), shorter.max_time_us) == ([20, 40], 1003)
    assert point is not None
    assert (point.offset, point.position, point.max_time_us) == (40, 400, 1003)
    assert (len(nothing), nothing.max_time_us, nowhere) == (0, NO_TIME, None)
    assert len(index) == 4


def test_files_come_back() -> None:
    """The two files of an index together are decoded to its entries."""
    index = decode_index(*files(filled()), 1000)

    assert index is not None
    assert list(index.offsets) == [20, 40, 60, 80]
    assert list(index.positions) == [200, 400, 600, 800]
    assert list(index.times) == [1001, 1003, 1005, 1007]


def test_entries_that_contradict_each_other_are_left_out() -> None:
    """An index ends before the first entry that is out of order, contradicts the other file or exceeds the log."""

    def count(offsets: list[int], positions: list[int], times: list[int], size: int = 1000) -> int:
        index = SegmentIndex()
        index.offsets.extend(offsets)
        index.positions.extend(positions)
        index.times.extend(times)
        decoded = decode_index(*files(index), size)
        assert decoded is not None
        return len(decoded)

    assert count([1, 2, 3], [10, 20, 30], [5, 5, 6]) == 3
    assert count([1, 2, 2], [10, 20, 30], [5, 5, 6]) == 2
    assert count([1, 2, 3], [10, 20, 20], [5, 5, 6]) == 2
    assert count([1, 2, 3], [10, 20, 30], [5, 4, 6]) == 1
    assert count([1, 2, 3], [10, 20, 30], [5, 5, 6], size=30) == 2
    offsets, times = files(filled())
    other = SegmentIndex()
    other.note(0, 0, 0, 0)
    other.note(21, 200, 0, 0)
    decoded = decode_index(offsets, files(other)[1], 1000)
    assert decoded is not None
    assert len(decoded) == 0
    assert decode_index(offsets, None, 1000) is None
    assert decode_index(b"", times, 1000) is None


def test_a_closed_index_must_be_whole() -> None:
    """A closed index is invalid without its final time entry or with any other entry missing."""
    offsets, times = files(filled())
    final = encode_final_time(1009, 100)
    whole = decode_closed_index(offsets, times + final, 1000, 100)

    assert whole is not None
    assert whole.max_time_us == 1009
    assert decode_closed_index(offsets, times, 1000, 100) is None
    assert decode_closed_index(offsets, times + final, 1000, 101) is None
    assert decode_closed_index(offsets[:-16], times + final, 1000, 100) is None
    assert decode_closed_index(offsets, times[:-24] + final, 1000, 100) is None
    assert decode_final_time(TIME_INDEX.encode_header() + final, 100) == 1009
    assert decode_final_time(TIME_INDEX.encode_header(), 100) is None
