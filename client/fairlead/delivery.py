"""What `send` returns: a cheap view of a batch that can be awaited.

Made by the producer, one a record or a table piece. Knows its batch and its place in it, and waits through a
future that exists only while somebody waits; cancelling the waiter cancels nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import msgspec

from fairlead.pending_batch import Acknowledgement, ColumnsBatch, PendingBatch, RecordsBatch
from fairlead.timestamps import datetime_of


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record is stored. With acks=0 nobody knows: offset -1."""

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    """The record's create time in microseconds since 1970, UTC."""
    append_time_us: int
    """When the leader appended it, microseconds since 1970, UTC; -1 with acks=0."""
    leader_epoch: int

    @property
    def timestamp(self) -> datetime:
        """The record's create time."""
        return datetime_of(self.timestamp_us)


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Where a piece of a table is stored. With acks=0 nobody knows: offsets -1."""

    topic: str
    partition: int
    base_offset: int
    record_count: int
    append_time_us: int
    leader_epoch: int

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        return self.base_offset if self.base_offset < 0 else self.base_offset + self.record_count - 1


async def outcome(batch: PendingBatch) -> None:
    """Wait until the outcome of a batch is known, without touching it."""
    if not batch.done:
        waiter = asyncio.get_running_loop().create_future()
        batch.listeners.append(partial(_release, waiter))
        await waiter


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Delivery(msgspec.Struct, eq=False, gc=False):
    """The acknowledgement of one record: `await` it for the `RecordMetadata` or the error.

    A struct outside the garbage collector's watch, since one is made for every record: a plain class costs three
    times as much. It is part of no cycle.
    """

    _batch: RecordsBatch
    _index: int

    @property
    def done(self) -> bool:
        """Whether awaiting would return or raise at once."""
        return self._batch.done

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        batch = self._batch
        if not batch.done:
            yield from outcome(batch).__await__()
        result = _result_of(batch, self._index)
        offset = result.base_offset if result.base_offset < 0 else result.base_offset + self._index
        return RecordMetadata(
            batch.topic,
            batch.partition,
            offset,
            batch.timestamp_us(self._index),
            result.append_time_us,
            result.leader_epoch,
        )


class BatchDelivery:
    """The acknowledgement of one piece of a table: `await` it for the `BatchMetadata` or the error."""

    __slots__ = ("_batch",)

    def __init__(self, batch: ColumnsBatch) -> None:
        self._batch = batch

    @property
    def done(self) -> bool:
        """Whether awaiting would return or raise at once."""
        return self._batch.done

    @property
    def partition(self) -> int:
        """The partition that the piece was sent to."""
        return self._batch.partition

    @property
    def record_count(self) -> int:
        """Records of the piece."""
        return self._batch.record_count

    def __await__(self) -> Generator[object, None, BatchMetadata]:
        batch = self._batch
        yield from outcome(batch).__await__()
        result = _result_of(batch, 0)
        return BatchMetadata(
            batch.topic,
            batch.partition,
            result.base_offset,
            batch.record_count,
            result.append_time_us,
            result.leader_epoch,
        )


def _result_of(batch: PendingBatch, delivery: int) -> Acknowledgement:
    if batch.error is not None:
        batch.failures_seen.add(delivery)
        # One error for thousands of deliveries: without this it would grow a traceback with each.
        raise batch.error.with_traceback(None)
    assert batch.result is not None, "a finished batch has a result or an error"
    return batch.result
