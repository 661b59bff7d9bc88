"""Deliveries, the results of `send`: awaitable references to a record or to a piece of a table in a batch.

The producer creates a delivery for each record or piece of a table. A delivery refers to its batch and to its index in
the batch. A delivery waits on a future that exists only during the wait, so cancelling the wait cancels nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NoReturn

import msgspec

from fairlead.errors import ClusterError, DeliveryTimeoutError, FairleadError, UnreachableError, error_of
from fairlead.producing.pending_batch import Acknowledgement, ColumnsBatch, PendingBatch, RecordsBatch
from fairlead.timestamps import datetime_of
from fairlead_api.problems import ProblemError, SideEffect


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Partition, offset and time of a stored record.

    The offset is -1 if it is unknown: with acks=0, and if the answer to a request that committed the record was lost.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    """The record's create time in microseconds since 1970, UTC."""
    append_time_us: int
    """Time of the leader's append in microseconds since 1970, UTC; -1 with acks=0."""
    leader_epoch: int

    @property
    def timestamp(self) -> datetime:
        """Create time of the record."""
        return datetime_of(self.timestamp_us)


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """Partition, offsets and time of a stored piece of a table. With acks=0 the offsets are unknown: -1."""

    topic: str
    partition: int
    base_offset: int
    record_count: int
    append_time_us: int
    """Time of the leader's append in microseconds since 1970, UTC; -1 with acks=0. For a piece that was stored in
    several parts, this is the time of the last part."""
    leader_epoch: int
    """Leader epoch of the append."""
    last_of_parts: int | None = None
    """Offset of the last record if the piece was stored in parts, possibly with other producers' records in between;
    for other pieces, the value is None."""

    @property
    def last_offset(self) -> int:
        """Offset of the last record."""
        if self.last_of_parts is not None:
            return self.last_of_parts
        return self.base_offset if self.base_offset < 0 else self.base_offset + self.record_count - 1


async def outcome(batch: PendingBatch) -> None:
    """Wait for the outcomes of a batch and of the pieces cut off from the batch, without raising a failure."""
    part: PendingBatch | None = batch
    while part is not None:
        while not part.done:
            await _news(part)
        part = part.rest


async def _news(batch: PendingBatch) -> None:
    """Wait until a batch has an outcome or is cut."""
    waiter = asyncio.get_running_loop().create_future()
    batch.listeners.append(partial(_release, waiter))
    await waiter


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Delivery(msgspec.Struct, eq=False, gc=False):
    """The acknowledgement of one record: `await` returns the `RecordMetadata` or raises the error.

    The garbage collector does not track this struct, which is never part of a reference cycle. The producer creates a
    delivery for every record, and a plain class would cost three times as much.
    """

    _batch: RecordsBatch
    _index: int

    @property
    def done(self) -> bool:
        """Whether awaiting the delivery would return or raise at once."""
        return self._place()[0].done

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        batch, index = self._place()
        while not batch.done:
            yield from _news(batch).__await__()
            batch, index = self._place()
        result = _result_of(batch, index)
        return RecordMetadata(
            batch.topic,
            batch.partition,
            result.base_offset if result.base_offset < 0 else result.base_offset + index,
            batch.timestamp_us(index),
            result.append_time_us,
            result.leader_epoch,
        )

    def _place(self) -> tuple[RecordsBatch, int]:
        """Return the record's current batch and the index in this batch; a cut moves records to another batch."""
        batch, index = self._batch, self._index
        while index >= (count := batch.record_count):
            assert isinstance(batch.rest, RecordsBatch), (
                "a record is in its batch or in a piece cut off from it"
            )
            batch, index = batch.rest, index - count
        return batch, index


class BatchDelivery:
    """The acknowledgement for one piece of a table: `await` returns the `BatchMetadata` or raises the error."""

    __slots__ = ("_batch", "_record_count")

    def __init__(self, batch: ColumnsBatch) -> None:
        self._batch = batch
        self._record_count = batch.record_count

    @property
    def done(self) -> bool:
        """Whether awaiting the delivery would return or raise at once."""
        return all(part.done for part in self._parts())

    @property
    def partition(self) -> int:
        """The partition that the piece was sent to."""
        return self._batch.partition

    @property
    def record_count(self) -> int:
        """Number of records in the piece."""
        return self._record_count

    def __await__(self) -> Generator[object, None, BatchMetadata]:
        yield from outcome(self._batch).__await__()
        parts = list(self._parts())
        failed = [part for part in parts if part.error is not None]
        if failed:
            self._raise(failed)
        first, last = _result_of(parts[0], 0), _result_of(parts[-1], 0)
        in_parts = len(parts) > 1 and last.base_offset >= 0
        return BatchMetadata(
            self._batch.topic,
            self._batch.partition,
            first.base_offset,
            self._record_count,
            last.append_time_us,
            last.leader_epoch,
            last.base_offset + parts[-1].record_count - 1 if in_parts else None,
        )

    def _parts(self) -> Iterator[PendingBatch]:
        """Yield the batch and the pieces cut off from the batch."""
        part: PendingBatch | None = self._batch
        while part is not None:
            yield part
            part = part.rest

    def _raise(self, failed: Sequence[PendingBatch]) -> NoReturn:
        for part in failed:
            part.failures_seen.add(0)
        error = failed[0].error
        assert error is not None, "the batch has failed"
        if self._batch.rest is not None:
            error = partly(error, failed, self._record_count)
        raise error.with_traceback(None)


def _result_of(batch: PendingBatch, delivery: int) -> Acknowledgement:
    if batch.error is not None:
        batch.failures_seen.add(delivery)
        # Thousands of deliveries may raise the same error object, whose traceback would grow with each raise.
        raise batch.error.with_traceback(None)
    assert batch.result is not None, "a batch without an error has a result"
    return batch.result


def partly(error: FairleadError, failed: Sequence[PendingBatch], count: int) -> FairleadError:
    """Return the failure of a piece that was sent in several parts, some of which were or may have been stored."""
    lost = sum(part.record_count for part in failed)
    doubtful = sum(part.record_count for part in failed if part.side_effect is SideEffect.MAYBE)
    if lost == count and not doubtful:
        return error
    summary = f"{lost} of the {count} records of this piece failed"
    if doubtful:
        summary += f", {doubtful} of them may nevertheless have been stored"
    if lost < count:
        summary += ", the others are stored"
    if isinstance(error, DeliveryTimeoutError):
        return _late(error, count, summary)
    return in_doubt(error, getattr(error, "subject", ""), summary)


def _late(error: DeliveryTimeoutError, count: int, summary: str) -> DeliveryTimeoutError:
    late = DeliveryTimeoutError(
        error.subject,
        record_count=count,
        waited_seconds=error.waited_seconds,
        attempts=error.attempts,
        side_effect=SideEffect.MAYBE,
    )
    late.__cause__ = error.__cause__
    late.add_note(summary)
    return late


def doubted(error: FairleadError, subject: str) -> FairleadError:
    """Return the failure of a batch that an earlier attempt may have stored; see `in_doubt`."""
    return in_doubt(
        error, subject, "an earlier attempt received no definite answer: the records may have been stored"
    )


def in_doubt(error: FairleadError, subject: str, summary: str) -> FairleadError:
    """Return a copy of a failure with side effect `maybe` and a reason.

    The original error is not changed, because several batches share the error.
    """
    if isinstance(error, ClusterError):
        document = error.problem.to_document()
        document |= {"detail": f"{error.detail}; {summary}", "side_effect": SideEffect.MAYBE.value}
        problem = ProblemError.from_document(document)
        return error_of(problem, subject=subject, broker=error.broker, advice=error.next_step)
    if isinstance(error, UnreachableError):
        unreachable = UnreachableError(subject, error.attempts, sent=True)
        unreachable.__cause__ = error.__cause__
        unreachable.add_note(summary)
        return unreachable
    return error
