"""Deliveries as views of their batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fairlead.accumulator import Accumulator, PartitionQueue
from fairlead.delivery import BatchDelivery, BatchMetadata, Delivery, RecordMetadata
from fairlead.errors import ClosedError
from fairlead.pending_batch import UNKNOWN_PLACE, Acknowledgement, RecordsBatch
from fairlead_api.batches import record_batch

Append = Callable[..., RecordsBatch]
STORED = Acknowledgement(base_offset=40, append_time_us=9, leader_epoch=3)


@pytest.fixture
def batch(append: Append) -> RecordsBatch:
    """A batch of two records on their way."""
    queue = PartitionQueue("flights", 4)
    append(queue)
    return append(queue)


async def test_a_delivery_tells_where_its_record_is(batch: RecordsBatch) -> None:
    """Topic, partition, offset and time of the one record."""
    batch.acknowledge(STORED)
    metadata = await Delivery(batch, 1)

    assert metadata == RecordMetadata("flights", 4, 41, 1_000_002, 9, 3)
    assert metadata.timestamp == datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC)


async def test_a_delivery_waits_for_its_batch(batch: RecordsBatch) -> None:
    """All that wait for one batch wake up with its outcome."""
    deliveries = [Delivery(batch, index) for index in range(2)]
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(_offset(delivery)) for delivery in deliveries]
        asyncio.get_running_loop().call_soon(batch.acknowledge, STORED)

    assert [task.result() for task in waiting] == [40, 41]
    assert deliveries[0].done


async def test_a_cancelled_waiter_disturbs_nobody(batch: RecordsBatch) -> None:
    """Giving up on one record leaves the batch and the other waiters alone."""
    delivery = Delivery(batch, 0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await delivery
    assert not delivery.done
    batch.acknowledge(STORED)

    assert (await delivery).offset == 40


async def test_a_failure_is_raised_to_each_delivery_and_then_seen(batch: RecordsBatch) -> None:
    """The same error for every record, without a traceback that grows with each."""
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
    """acks=0 leaves -1 everywhere, not a guess."""
    batch.acknowledge(UNKNOWN_PLACE)

    assert (await Delivery(batch, 1)).offset == -1


async def test_a_piece_of_a_table_has_one_delivery(accumulator: Accumulator) -> None:
    """Base offset, last offset and count of the piece."""
    columns = record_batch([b"a", b"b", b"c"], default_timestamp_us=1)
    batch = accumulator.append_columns(PartitionQueue("flights", 4), columns, 0.0)
    delivery = BatchDelivery(batch)
    assert (delivery.done, delivery.partition, delivery.record_count) == (False, 4, 3)
    batch.acknowledge(STORED)
    metadata = await delivery

    assert metadata == BatchMetadata("flights", 4, 40, 3, 9, 3)
    assert metadata.last_offset == 42
    assert BatchMetadata("flights", 4, -1, 3, -1, -1).last_offset == -1


async def _offset(delivery: Delivery) -> int:
    return (await delivery).offset
