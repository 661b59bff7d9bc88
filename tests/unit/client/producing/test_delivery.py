"""Deliveries, which read their results from the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fairlead.errors import (
    BatchTooLargeError,
    ClosedError,
    DeliveryTimeoutError,
    FairleadError,
    UnreachableError,
    error_of,
)
from fairlead.producing.accumulator import Accumulator
from fairlead.producing.delivery import BatchDelivery, BatchMetadata, Delivery, RecordMetadata
from fairlead.producing.pending_batch import (
    UNKNOWN_PLACE,
    Acknowledgement,
    PartitionQueue,
    PendingBatch,
    RecordsBatch,
)
from fairlead_api.batch.batches import record_batch
from fairlead_api.problems import ProblemError, SideEffect

Append = Callable[..., RecordsBatch]
STORED = Acknowledgement(base_offset=40, append_time_us=9, leader_epoch=3)


@pytest.fixture
def batch(append: Append) -> RecordsBatch:
    """Return a batch with two records that is in flight."""
    queue = PartitionQueue("flights", 4)
    append(queue)
    return append(queue)


async def test_a_delivery_returns_the_place_of_its_record(batch: RecordsBatch) -> None:
    """A delivery returns the topic, partition, offset and timestamps of its record."""
    batch.acknowledge(STORED)
    metadata = await Delivery(batch, 1)

    assert metadata == RecordMetadata("flights", 4, 41, 1_000_002, 9, 3)
    assert metadata.timestamp == datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC)


async def test_a_delivery_waits_for_its_batch(batch: RecordsBatch) -> None:
    """All deliveries of a batch complete with the batch."""
    deliveries = [Delivery(batch, index) for index in range(2)]
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(_offset(delivery)) for delivery in deliveries]
        asyncio.get_running_loop().call_soon(batch.acknowledge, STORED)

    assert [task.result() for task in waiting] == [40, 41]
    assert deliveries[0].done


async def test_a_cancelled_wait_affects_no_other_wait(batch: RecordsBatch) -> None:
    """Cancelling the wait for a delivery affects neither its batch nor other waits."""
    delivery = Delivery(batch, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await delivery
    assert not delivery.done
    batch.acknowledge(STORED)

    assert (await delivery).offset == 40


async def test_a_failure_is_raised_to_each_delivery_and_then_seen(batch: RecordsBatch) -> None:
    """Each delivery of a failed batch raises the same error, whose traceback does not grow."""
    batch.fail(ClosedError("producer"))
    for index in range(2):
        with pytest.raises(ClosedError) as raised:
            await Delivery(batch, index)
        traceback, length = raised.value.__traceback__, 0
        while traceback is not None:
            traceback, length = traceback.tb_next, length + 1
        assert length <= 3

    assert batch.failure_is_seen


async def test_without_acks_the_offset_is_unknown(batch: RecordsBatch) -> None:
    """A delivery with acks=0 has the offset -1."""
    batch.acknowledge(UNKNOWN_PLACE)

    assert (await Delivery(batch, 1)).offset == -1


async def test_a_piece_of_a_table_has_one_delivery(accumulator: Accumulator) -> None:
    """A piece of a table has one delivery, which returns base offset, last offset and record count."""
    columns = record_batch([b"a", b"b", b"c"], default_timestamp_us=1)
    batch = accumulator.append_columns(PartitionQueue("flights", 4), columns, 0.0)
    delivery = BatchDelivery(batch)
    assert (delivery.done, delivery.partition, delivery.record_count) == (False, 4, 3)
    batch.acknowledge(STORED)
    metadata = await delivery

    assert metadata == BatchMetadata("flights", 4, 40, 3, 9, 3)
    assert metadata.last_offset == 42
    assert BatchMetadata("flights", 4, -1, 3, -1, -1).last_offset == -1


def _cut(batch: PendingBatch) -> list[PendingBatch]:
    """Split a batch into pieces of one record each, and return all pieces."""
    return [batch, *batch.cut(1)]


async def test_deliveries_of_a_batch_that_is_cut_follow_their_records(append: Append) -> None:
    """Deliveries of a split batch, even if already awaited, return the outcome and time of their records."""
    queue = PartitionQueue("flights", 4)
    batch = append(queue)
    for _ in range(2):
        append(queue)
    deliveries = [Delivery(batch, index) for index in range(3)]
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(_offset(delivery)) for delivery in deliveries[:2]]
        await asyncio.wait(waiting, timeout=0)
        first, second, third = _cut(batch)
        second.acknowledge(STORED)
        first.acknowledge(Acknowledgement(base_offset=7, append_time_us=9, leader_epoch=3))
    third.fail(ClosedError("producer"))

    assert [task.result() for task in waiting] == [7, 40]
    assert (await deliveries[1]).timestamp_us == 1_000_002
    with pytest.raises(ClosedError):
        await deliveries[2]
    assert third.failure_is_seen


async def test_a_piece_of_a_table_that_is_cut_waits_for_all_its_parts(accumulator: Accumulator) -> None:
    """The delivery of a split table piece waits for all parts, and returns the offsets of the first and last part."""
    columns = record_batch([b"a", b"b", b"c"], default_timestamp_us=1)
    batch = accumulator.append_columns(PartitionQueue("flights", 4), columns, 0.0)
    delivery = BatchDelivery(batch)
    parts = _cut(batch)
    for offset, part in zip((40, 50, 60), parts, strict=True):
        assert not delivery.done
        part.acknowledge(Acknowledgement(base_offset=offset, append_time_us=9, leader_epoch=3))
    metadata = await delivery

    assert (delivery.record_count, metadata.record_count) == (3, 3)
    assert (metadata.base_offset, metadata.last_offset) == (40, 60)


async def test_a_piece_of_a_table_some_parts_of_which_fail_raises_once(accumulator: Accumulator) -> None:
    """The delivery of a table piece with failed parts raises one error, and all failed parts count as reported."""
    columns = record_batch([b"a", b"b", b"c"], default_timestamp_us=1)
    batch = accumulator.append_columns(PartitionQueue("flights", 4), columns, 0.0)
    delivery = BatchDelivery(batch)
    parts = _cut(batch)
    parts[0].acknowledge(STORED)
    for part in parts[1:]:
        part.fail(ClosedError("producer"))
    with pytest.raises(ClosedError):
        await delivery

    assert [part.failure_is_seen for part in parts] == [False, True, True]


def _late(count: int, side_effect: SideEffect) -> DeliveryTimeoutError:
    late = DeliveryTimeoutError(
        "produce to flights-4", record_count=count, waited_seconds=2.0, attempts=3, side_effect=side_effect
    )
    late.__cause__ = CAUSE
    return late


CAUSE = ClosedError("producer")
REFUSED = error_of(ProblemError("batch_too_large", "too large"), subject="produce to flights-4")
OF_A_NEWER_SERVER = error_of(
    ProblemError.from_document({"code": "too_warm", "status": 400, "kind": "fix", "side_effect": "none"}),
    subject="produce to flights-4",
)
UNREACHABLE = UnreachableError("produce to flights-4", {"http://b:1": "refused"}, sent=False)


@pytest.mark.parametrize(
    "error",
    [REFUSED, OF_A_NEWER_SERVER, UNREACHABLE, _late(1, SideEffect.NONE)],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    ("stored", "doubtful", "told"),
    [
        (1, 0, "2 of the 3 records of this piece failed, the others are stored"),
        (
            1,
            1,
            "2 of the 3 records of this piece failed, 1 of them may nevertheless have been stored, "
            "the others are stored",
        ),
        (0, 1, "3 of the 3 records of this piece failed, 1 of them may nevertheless have been stored"),
    ],
)
async def test_a_piece_of_a_table_any_part_of_which_may_be_stored_fails_as_that(
    accumulator: Accumulator, error: FairleadError, stored: int, doubtful: int, told: str
) -> None:
    """If a part of a table piece may be stored, the delivery fails as possibly stored and counts these records."""
    columns = record_batch([b"a", b"b", b"c"], default_timestamp_us=1)
    batch = accumulator.append_columns(PartitionQueue("flights", 4), columns, 0.0)
    delivery = BatchDelivery(batch)
    parts = _cut(batch)
    for part in parts[:stored]:
        part.acknowledge(STORED)
    for part in parts[3 - doubtful :]:
        part.side_effect = SideEffect.MAYBE
    for part in parts[stored:]:
        part.fail(error)
    with pytest.raises(type(error)) as raised:
        await delivery

    assert raised.value.side_effect is SideEffect.MAYBE  # type: ignore[attr-defined]
    assert told in "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert raised.value.__cause__ is error.__cause__
    assert "were not stored" not in str(raised.value)
    assert (error.side_effect, getattr(error, "__notes__", [])) == (SideEffect.NONE, [])  # type: ignore[attr-defined]


@pytest.mark.parametrize("in_parts", [True, False])
async def test_a_piece_of_a_table_that_is_not_stored_at_all_raises_its_first_failure(
    accumulator: Accumulator, in_parts: bool
) -> None:
    """The delivery of a table piece that was not stored at all raises the first failure unchanged."""
    columns = record_batch([b"a", b"b"], default_timestamp_us=1)
    batch = accumulator.append_columns(PartitionQueue("flights", 4), columns, 0.0)
    delivery = BatchDelivery(batch)
    for part in _cut(batch) if in_parts else [batch]:
        part.fail(REFUSED)
    with pytest.raises(BatchTooLargeError) as raised:
        await delivery

    assert raised.value is REFUSED


async def _offset(delivery: Delivery) -> int:
    return (await delivery).offset
