"""Selection of whole batches from a range of bytes."""

from __future__ import annotations

import struct

import pytest

from fairlead_api.batch.header import LENGTH_STOP
from fairlead_broker.log import StampedBatch
from fairlead_broker.log.segments.indexes import SegmentIndex
from fairlead_broker.log.segments.reading import NotWhole, ReadPlan, WrongBytes, plan_read, whole_batches
from log_kit import BatchMaker, stored

LENGTH_AT = 8
LAST_OFFSET_DELTA_AT = 40


def segment_of(batches: list[StampedBatch], interval_bytes: int) -> tuple[SegmentIndex, memoryview]:
    """Return the index and the bytes of a segment."""
    index, position = SegmentIndex(), 0
    for batch in batches:
        index.note(batch.base_offset, position, batch.max_time_us, interval_bytes)
        position += batch.nbytes
    return index, memoryview(stored(*batches))


def planned(plan: ReadPlan | None) -> ReadPlan:
    """Return a plan, which must not be None."""
    assert plan is not None
    return plan


@pytest.mark.parametrize("interval_bytes", [0, 1500, 1 << 30])
def test_however_much_arrives_only_whole_batches_are_returned(make: BatchMaker, interval_bytes: int) -> None:
    """A range of bytes that ends anywhere yields its complete batches, or raises `NotWhole` if it has none."""
    batches = [make(2 * number, 2) for number in range(8)]
    nbytes = batches[0].nbytes
    index, data = segment_of(batches, interval_bytes)
    plan = planned(plan_read(index, len(data), 5, 1 << 20, 16, 0))
    for count in range(plan.nbytes + 1):
        arrived = data[plan.position : plan.position + count]
        whole = (plan.position + count) // nbytes
        if whole <= 2:
            with pytest.raises(NotWhole):
                whole_batches(plan, arrived, index)
        else:
            read = whole_batches(plan, arrived, index)

            assert read is not None
            assert read.data == stored(*batches[2:whole])
            assert read.next_offset == 2 * whole


@pytest.mark.parametrize("interval_bytes", [0, 5, 1 << 30], ids=["entries", "runs", "no entries"])
@pytest.mark.parametrize("changed", range(1, 21))
def test_a_stale_batch_between_two_good_ones_is_not_returned(
    make: BatchMaker, interval_bytes: int, changed: int
) -> None:
    """A read ends before a position at which an older batch or other bytes have replaced the next batch."""
    batches = [make(number) for number in range(40)]
    nbytes = batches[0].nbytes
    index, data = segment_of(batches, interval_bytes if interval_bytes != 5 else 5 * nbytes)
    for stale in (stored(make(changed - 1)), stored(make(changed + 1)), b"\xff" * nbytes):
        mixed = bytearray(data)
        mixed[changed * nbytes : (changed + 1) * nbytes] = stale
        plan = planned(plan_read(index, len(data), 0, 22 * nbytes, 40, 0))
        read = whole_batches(plan, memoryview(mixed)[plan.position : plan.position + plan.nbytes], index)

        assert read is not None
        assert (read.data, read.next_offset) == (data[: changed * nbytes], changed)


def test_bytes_that_the_index_did_not_promise_are_reported(make: BatchMaker) -> None:
    """A read never returns batches at offsets other than those in the index, or bytes that are not batches."""
    batches = [make(number) for number in range(40)]
    index, data = segment_of(batches, 0)
    plan = planned(plan_read(index, len(data), 3, 1 << 20, 40, 0))
    shifted = bytes(data[plan.position + batches[0].nbytes :])

    for wrong in (shifted, b"\xff" * plan.nbytes, bytes(plan.nbytes)):
        with pytest.raises((WrongBytes, NotWhole)):
            whole_batches(plan, memoryview(wrong), index)


def test_a_range_that_cannot_fit_is_not_planned(make: BatchMaker) -> None:
    """A read has no plan if its first batch may exceed the allowed bytes, or if no batch is below the offset limit."""
    batches = [make(0), make(1, 1, 5000), make(2)]
    index, data = segment_of(batches, 0)

    assert plan_read(index, len(data), 1, 10, 3, 0, nbytes_max=5000) is None
    assert planned(plan_read(index, len(data), 1, 10, 3, 0, nbytes_max=6000)).nbytes == batches[1].nbytes
    assert plan_read(index, len(data), 1, 10, 1, 0) is None


def test_batches_that_changed_places_are_no_gap(make: BatchMaker) -> None:
    """A read of batches in the wrong order, or with a batch missing, returns only good batches from its beginning."""
    first, second, third = make(0, 10), make(10, 10), make(20, 10)
    for interval_bytes in (0, 1 << 30):
        for stored_batches in ([second, first, third], [first, third, second], [first, third]):
            index, _ = segment_of([first, second, third], interval_bytes)
            data = memoryview(stored(*stored_batches))
            plan = planned(plan_read(index, len(data), 0, 1 << 20, 30, 0))
            try:
                read = whole_batches(plan, data[plan.position : plan.position + plan.nbytes], index)
            except WrongBytes:
                continue

            assert stored_batches[0] is first
            assert read is not None
            assert (read.data, read.next_offset) == (stored(first), 10)


@pytest.mark.parametrize("field", [LENGTH_AT, LAST_OFFSET_DELTA_AT], ids=["length", "last offset"])
def test_a_flipped_bit_hides_no_batch(make: BatchMaker, field: int) -> None:
    """A batch that is hidden by a flipped length or last offset leaves an offset gap, which the read reports."""
    batches = [make(2 * number, 2) for number in range(8)]
    index, data = segment_of(batches, 1 << 30)
    plan = planned(plan_read(index, len(data), 5, 1 << 20, 16, 0))
    changed = bytearray(data)
    if field == LENGTH_AT:
        # The batch before the requested batch gets the length of both batches.
        struct.pack_into("<I", changed, batches[0].nbytes + field, 2 * batches[0].nbytes - LENGTH_STOP)
    else:
        changed[2 * batches[0].nbytes + field + 3] ^= 0x80

    with pytest.raises(WrongBytes):
        whole_batches(plan, memoryview(changed), index)
