"""Batches that wait for their outcome, the queue of a partition, and the sequences of the queue.

A batch is open, closed, encoded, sent, and finally acknowledged or failed. The accumulator creates batches, the sender
encodes batches and records their outcomes, and deliveries wait for the outcomes. The module performs no I/O: times and
outcomes are arguments, and a waiting delivery registers a listener. A delivery is cheap because the whole batch has one
outcome: a delivery consists of a batch and an index, without its own future. A batch that its topic refuses for its
size is cut: the batch keeps its first records, and `rest` is the next piece.

A broker stores each batch of an idempotent producer once and in order by its sequence numbers (`PartitionSequences`). A
batch keeps its producer id, epoch and first sequence in all attempts, so that the broker recognises a retry. These
events break the sequence of batches:

- A batch failed and is certainly not stored: the broker will never accept the batches after the failed batch. If the
  broker also refused all later batches, numbering continues at the first sequence of the failed batch. If a later batch
  may still be in flight, numbering restarts at sequence 0 of the next epoch, which fences the batch in flight.
- A batch failed and its outcome is unknown: the outcome of the next batch decides. An acknowledgement of the next batch
  proves that both batches are stored; a refusal of the next batch proves that the failed batch is not stored.
- The partition no longer remembers the producer (after a day without a batch): the producer gets a new id.

A queue adopts the new identity when every batch before the break has an outcome.

The module is a single file because batches, queues and sequences refer to each other and change together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from fairlead.errors import ClusterError, FairleadError, RecordError
from fairlead.producing.fitting import BatchSizes, cuts
from fairlead.records import Headers
from fairlead_api.batch.batches import (
    EncodedBatch,
    ProducerStamp,
    encode,
    encode_records,
    record_batch,
    split,
)
from fairlead_api.batch.header import Codec
from fairlead_api.problems import SideEffect

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_OVERHEAD_BYTES: Final = 16
"""Bytes that a record needs in addition to its key and value (offsets of two columns and the timestamp), and that a
header needs in addition to its name and value."""


SEQUENCE_MAX: Final = 2**31 - 1
"""Highest sequence, after which numbering continues at 0."""

SEQUENCE_CODES: Final = frozenset({"out_of_order_sequence", "unknown_producer"})
"""Codes of the problems that report a missing earlier batch."""


def headers_bytes(headers: Headers) -> int:
    """Return the payload bytes of headers."""
    return sum(len(name) + len(value or b"") + RECORD_OVERHEAD_BYTES for name, value in headers)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Offset, append time and leader epoch of a stored batch. All fields are -1 (unknown) with acks=0."""

    base_offset: int
    append_time_us: int
    leader_epoch: int
    duplicate: bool = False


UNKNOWN_PLACE: Final = Acknowledgement(base_offset=-1, append_time_us=-1, leader_epoch=-1)
"""Outcome of a batch with unknown offsets: with acks=0 the request was valid; with a commit the batch was stored."""


class PendingBatch:
    """Base class of record batches and column batches: partition, times, attempts, outcome.

    `stamp` is the producer's identity and the first sequence. Every attempt sends the same stamp, so that the broker
    recognises a retry; without idempotence the stamp is None. `number` counts the batches of a queue.
    """

    __slots__ = (
        "_room_bytes",
        "attempts",
        "created_at",
        "doubt",
        "encoded",
        "error",
        "failures_seen",
        "last_error",
        "leads",
        "listeners",
        "nbytes",
        "number",
        "queue",
        "rest",
        "result",
        "side_effect",
        "stamp",
    )

    def __init__(self, queue: PartitionQueue, now: float) -> None:
        self.queue = queue
        self.number = queue.next_number()
        self.created_at = now
        self.nbytes = 0
        """Payload bytes of the batch, equal to its reserved buffer space unless the batch was cut."""
        self._room_bytes: int | None = None
        self.attempts = 0
        self.leads = True
        """Whether all earlier batches had their outcomes when this batch was last sent."""
        self.side_effect = SideEffect.NONE
        self.doubt: object = None
        """Token shared by the pieces of a batch that was cut after an attempt that may have stored it; None for a batch
        without such an attempt."""
        self.last_error: FairleadError | None = None
        self.stamp: ProducerStamp | None = None
        self.encoded: EncodedBatch | None = None
        self.result: Acknowledgement | None = None
        self.error: FairleadError | None = None
        self.rest: PendingBatch | None = None
        """Batch of the records that were cut off, sent after this batch; None if nothing was cut off."""
        self.failures_seen: set[int] = set()
        self.listeners: list[Callable[[], None]] = []

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self.queue.topic

    @property
    def partition(self) -> int:
        """Index of the partition."""
        return self.queue.partition

    @property
    def done(self) -> bool:
        """Whether the outcome of the batch is known."""
        return self.result is not None or self.error is not None

    @property
    def subject(self) -> str:
        """Name of the batch in error messages."""
        return f"produce to {self.topic}-{self.partition}"

    @property
    def record_count(self) -> int:
        """Number of records in the batch."""
        raise NotImplementedError

    @property
    def room_bytes(self) -> int:
        """Buffer space in bytes that is freed when the batch has an outcome."""
        return self.nbytes if self._room_bytes is None else self._room_bytes

    @property
    def delivery_count(self) -> int:
        """Number of deliveries that watch the batch: one per record, or one for a piece of a table."""
        return 1

    def columns(self) -> pa.RecordBatch:
        """Return the records as columns of the fixed schema."""
        raise NotImplementedError

    def encode(self, codec: Codec) -> EncodedBatch:
        """Return the encoded batch, which is encoded only once: every attempt sends the same bytes."""
        if self.encoded is None:
            self.encoded = encode(self.columns(), codec, self.stamp)
        return self.encoded

    def unstamp(self) -> None:
        """Clear the stamp and the encoded bytes, because no earlier attempt has stored or will store the batch."""
        self.stamp = None
        self.encoded = None

    def cut(self, bytes_max: int) -> Sequence[PendingBatch]:
        """Keep the first records and return the others in batches of at most `bytes_max`.

        A record that is larger than `bytes_max` gets a separate batch. The pieces are new batches that were never sent;
        their records keep their sequences. Waiting deliveries are notified and find the piece that contains their
        record.
        """
        room_bytes = self.room_bytes
        if self.side_effect is SideEffect.MAYBE and self.attempts:
            self.doubt = object()
        pieces = self._cut_off(bytes_max)
        self.nbytes = self._weight()
        sequence = self.record_count
        for before, piece in pairwise((self, *pieces)):
            piece.rest, before.rest = before.rest, piece
            piece.created_at, piece.last_error = self.created_at, self.last_error
            piece.side_effect, piece.doubt = self.side_effect, self.doubt
            # The slices of a table are together larger than the table, but only the reserved buffer space is freed.
            piece._room_bytes = min(piece.nbytes, room_bytes)  # noqa: SLF001 - an object of the same class
            room_bytes -= piece._room_bytes  # noqa: SLF001 - an object of the same class
            if self.stamp is not None:
                at = advanced(self.stamp.base_sequence, sequence)
                piece.stamp = replace(self.stamp, base_sequence=at)
            sequence += piece.record_count
        self._room_bytes = room_bytes
        self.encoded = None
        self.attempts = 0
        self._settle()
        return pieces

    def _cut_off(self, bytes_max: int) -> Sequence[Self]:
        """Keep the first records and return the other records as batches; the batch must have at least two records."""
        raise NotImplementedError

    def _weight(self) -> int:
        """Return the payload bytes of the batch's records."""
        raise NotImplementedError

    def acknowledge(self, result: Acknowledgement) -> None:
        """Set the acknowledgement and notify waiting deliveries."""
        self.result = result
        self._finish()

    def fail(self, error: FairleadError) -> None:
        """Set the failure and notify waiting deliveries."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.encoded = None
        self.release()
        self._settle()

    def _settle(self) -> None:
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()

    def release(self) -> None:
        """Release the payload, so that a long-lived delivery does not keep the payload in memory."""

    @property
    def failure_is_seen(self) -> bool:
        """Whether every delivery has raised the failure, so that `flush` need not raise the failure again."""
        return len(self.failures_seen) >= self.delivery_count


class RecordsBatch(PendingBatch):
    """Batch of the records of single `send` calls; the producer appends to the lists directly."""

    __slots__ = ("headers", "keys", "times_ns", "values")

    def __init__(self, queue: PartitionQueue, now: float) -> None:
        super().__init__(queue, now)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        """Keys up to the last record that has a key."""
        self.times_ns: list[int] = []
        """Create times in nanoseconds since 1970, as the clock returns them; the times are converted to microseconds
        for a whole batch at a time."""
        self.headers: dict[int, Headers] = {}

    def describe(self, index: int, key: bytes | None, headers: Headers | None) -> None:
        """Set the key and headers of the newest record, and fill the missing keys of earlier records with None."""
        if key is not None:
            keys = self.keys
            if len(keys) < index:
                keys.extend([None] * (index - len(keys)))
            keys.append(key)
        if headers:
            self.headers[index] = headers

    def _padded_keys(self) -> list[bytes | None] | None:
        """Return a key or None for each record; None if no record has a key."""
        missing = len(self.values) - len(self.keys)
        return [*self.keys, *([None] * missing)] if self.keys else None

    @property
    def record_count(self) -> int:
        """Number of records appended so far, counted by their timestamps, which outlive the payload."""
        return len(self.times_ns)

    @property
    def delivery_count(self) -> int:
        """Number of deliveries: one per record."""
        return len(self.times_ns)

    def timestamp_us(self, index: int) -> int:
        """Return the create time of a record in microseconds since 1970."""
        return self.times_ns[index] // 1000

    def _timestamps_us(self) -> npt.NDArray[np.int64]:
        try:
            return np.array(self.times_ns, np.int64) // 1000
        except OverflowError:
            # Timestamps set by the program after the year 2262 do not fit into 64 bits as nanoseconds.
            return np.array([time_ns // 1000 for time_ns in self.times_ns], np.int64)

    def encode(self, codec: Codec) -> EncodedBatch:
        """Return the encoded batch, which is encoded only once; records without headers are encoded from the lists."""
        if self.encoded is None and not self.headers:
            self.encoded = encode_records(
                self.values, self._padded_keys(), self._timestamps_us(), codec, self.stamp
            )
        return super().encode(codec)

    def columns(self) -> pa.RecordBatch:
        """Return the lists of the batch as columns."""
        headers: list[Headers | None] | None = None
        if self.headers:
            headers = [self.headers.get(index) for index in range(len(self.values))]
        return record_batch(
            self.values,
            self._padded_keys(),
            self._timestamps_us(),
            headers,
            default_timestamp_us=0,
        )

    def _cut_off(self, bytes_max: int) -> Sequence[Self]:
        """Cut the lists so that each piece is within the limit, or in the middle if all records fit into one piece."""
        count = self.record_count
        bounds = [*(cuts(self._sizes(), bytes_max) or [count // 2]), count]
        pieces = [self._slice(start, stop) for start, stop in pairwise(bounds)]
        kept = slice(0, bounds[0])
        self.values, self.keys, self.times_ns = self.values[kept], self.keys[kept], self.times_ns[kept]
        self.headers = {index: of_record for index, of_record in self.headers.items() if index < bounds[0]}
        return pieces

    def _slice(self, start: int, stop: int) -> Self:
        piece = type(self)(self.queue, self.created_at)
        piece.values = self.values[start:stop]
        piece.keys = self.keys[start:stop]
        piece.times_ns = self.times_ns[start:stop]
        if self.headers:
            found = ((index, self.headers.get(index)) for index in range(start, stop))
            piece.headers = {index - start: headers for index, headers in found if headers}
        piece.nbytes = piece._weight()  # noqa: SLF001 - an object of the same class
        return piece

    def _weight(self) -> int:
        """Return the payload bytes of all records in total."""
        return sum(self._sizes())

    def _sizes(self) -> Iterator[int]:
        """Yield the payload bytes of each record."""
        keys = self._padded_keys() or [None] * len(self.values)
        for index, (value, key) in enumerate(zip(self.values, keys, strict=True)):
            size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
            yield size + headers_bytes(self.headers[index]) if index in self.headers else size

    def release(self) -> None:
        """Release the payload but keep the timestamps, which deliveries return."""
        self.values = []
        self.keys = []
        self.headers = {}


class ColumnsBatch(PendingBatch):
    """Batch with a piece of a table that already has the fixed schema."""

    __slots__ = ("_columns", "_record_count")

    def __init__(self, queue: PartitionQueue, columns: pa.RecordBatch, now: float) -> None:
        super().__init__(queue, now)
        self._columns: pa.RecordBatch | None = columns
        self._record_count = columns.num_rows
        self.nbytes = columns.nbytes

    @property
    def record_count(self) -> int:
        """Number of rows in the piece."""
        return self._record_count

    def columns(self) -> pa.RecordBatch:
        """Return the piece of the table."""
        assert self._columns is not None, "a batch with an outcome is not encoded again"
        return self._columns

    def _cut_off(self, bytes_max: int) -> Sequence[Self]:
        """Cut the table without copying the rows."""
        columns = self.columns()
        slices = split(columns, bytes_max)
        if len(slices) == 1:
            middle = columns.num_rows // 2
            slices = [columns.slice(0, middle), columns.slice(middle)]
        self._columns, self._record_count = slices[0], slices[0].num_rows
        return [type(self)(self.queue, piece, self.created_at) for piece in slices[1:]]

    def _weight(self) -> int:
        """Return the size of the columns in bytes."""
        return self.columns().nbytes

    def release(self) -> None:
        """Release the piece of the table."""
        self._columns = None


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Producer id and epoch of a batch."""

    producer_id: int
    epoch: int
    is_transactional: bool = False
    """Whether the identity is used for a single transaction: each transaction has a separate epoch."""

    def next_epoch(self) -> ProducerIdentity:
        """Return the identity with the next epoch, which fences this identity."""
        return ProducerIdentity(self.producer_id, self.epoch + 1)


@dataclass(frozen=True, slots=True)
class Renewal:
    """Break in a partition's sequence, after which later batches need a new identity."""

    after: int
    """Number of the last batch that keeps the old identity."""
    cause: FairleadError
    new_id: bool
    """Whether a new producer id is needed; otherwise the next epoch of the old id is enough."""
    doubtful: bool
    """Whether later batches without a definite answer may be stored and therefore must not be sent again."""
    resume_at: int | None = None
    """Sequence at which numbering under the old identity may continue; None if a later batch may still be in flight."""


class PartitionSequences:
    """Sequences of one partition. A batch is identified by its number in the queue, which grows by one per batch."""

    __slots__ = ("_gaps", "_next", "identity", "renewal")

    def __init__(self) -> None:
        self.identity: ProducerIdentity | None = None
        self.renewal: Renewal | None = None
        self._next = 0
        self._gaps: list[int] = []
        """Numbers of the failed batches that may be stored; a later acknowledgement proves that these batches are
        stored."""

    def renews(self, number: int) -> bool:
        """Return whether a batch must wait for a new identity."""
        return self.identity is None or (self.renewal is not None and number > self.renewal.after)

    def begin(self, identity: ProducerIdentity) -> None:
        """Continue under a new identity, once every batch of the old identity has an outcome."""
        self.identity = identity
        self.renewal = None
        self._next = 0
        self._gaps.clear()

    def resume(self) -> None:
        """Continue under the old identity at the failed batch's first sequence, since later batches were refused."""
        assert self.renewal is not None, "the sequence has no break"
        assert self.renewal.resume_at is not None, "a later batch may still be in flight"
        self._next = self.renewal.resume_at
        self.renewal = None

    def stamp(self, record_count: int) -> ProducerStamp:
        """Return the stamp of the next batch and advance the sequence."""
        assert self.identity is not None, "a stamp needs an identity"
        identity = self.identity
        stamp = ProducerStamp(identity.producer_id, identity.epoch, self._next, identity.is_transactional)
        self._next = advanced(self._next, record_count)
        return stamp

    def move(self, number: int, places: int) -> None:
        """Shift the numbers of the batches after a batch that was cut."""
        self._gaps = [gap + places if gap > number else gap for gap in self._gaps]
        if self.renewal is not None and self.renewal.after > number:
            self.renewal = replace(self.renewal, after=self.renewal.after + places)

    def acknowledged(self, number: int) -> None:
        """Record that a batch and all earlier batches are stored."""
        if self._gaps:
            self._gaps = [gap for gap in self._gaps if gap > number]

    def given_up(
        self,
        number: int,
        stamp: ProducerStamp | None,
        record_count: int,
        cause: FairleadError,
        *,
        doubtful: bool,
    ) -> None:
        """Record the permanent failure of a batch; `doubtful` if the batch may be stored."""
        if stamp is None:
            return
        if self.renews(number):
            if doubtful and self.renewal is not None and self.renewal.resume_at is not None:
                self.renewal = replace(self.renewal, resume_at=None)
        elif doubtful:
            self._gaps.append(number)
        elif self._next == advanced(stamp.base_sequence, record_count):
            # The failed batch was the last batch with a stamp, so its sequences can be used again.
            self._next = stamp.base_sequence
        else:
            self._break(number, stamp, cause)

    def _break(self, number: int, stamp: ProducerStamp, cause: FairleadError) -> None:
        on_its_way = any(gap > number for gap in self._gaps)
        if self.renewal is not None:
            on_its_way = on_its_way or self.renewal.resume_at is None
        resume_at = None if on_its_way else stamp.base_sequence
        self.renewal = Renewal(number, cause, new_id=False, doubtful=False, resume_at=resume_at)

    def refused(self, number: int, error: ClusterError) -> bool:
        """Record that the broker lacks earlier batches although every earlier batch has an outcome.

        Returns whether acknowledged records are missing, that is, whether no earlier failure explains the gap.
        """
        gap = any(missing < number for missing in self._gaps)
        unknown = error.code == "unknown_producer"
        self.renewal = Renewal(number - 1, error, new_id=unknown and not gap, doubtful=True)
        return not gap and not unknown


def advanced(sequence: int, records: int) -> int:
    """Return the sequence that follows a number of records."""
    return (sequence + records) & SEQUENCE_MAX


class PartitionQueue:
    """Open batch, closed batches and batches in flight of one partition, and the partition's sequences.

    Closed batches and batches in flight are sorted by number, even after retries. A producer keeps one queue per
    partition for its whole life, because two queues would assign the same sequences.
    """

    __slots__ = (
        "_numbers",
        "closed",
        "in_flight",
        "left_by",
        "open",
        "partition",
        "retry_at",
        "sequences",
        "sizes",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str, partition: int, sizes: BatchSizes | None = None) -> None:
        self.topic = topic
        self.partition = partition
        self.topic_id: str | None = None
        """Id of the topic when a record was last routed here; a recreated topic has a different id."""
        self.sizes = BatchSizes() if sizes is None else sizes
        """Payload limits of the topic, which all its queues share."""
        self.open: RecordsBatch | None = None
        self.closed: deque[PendingBatch] = deque()
        self.in_flight: list[PendingBatch] = []
        self.sequences = PartitionSequences()
        self.retry_at = 0.0
        """Time before which no batch of the queue is sent: the end of the back-off after a refusal."""
        self.left_by: str | None = None
        """Address of the last leader if that broker did not answer or no longer leads; the address is None in all other
        cases."""
        self._numbers = 0

    def next_number(self) -> int:
        """Return the next batch number."""
        self._numbers += 1
        return self._numbers

    def place_behind(self, batch: PendingBatch, pieces: Sequence[PendingBatch]) -> None:
        """Insert the pieces of a waiting batch right after the batch, and renumber the pieces and all later batches."""
        count = len(pieces)
        for later in (*self.in_flight, *self.closed, *([self.open] if self.open else ())):
            if later.number > batch.number:
                later.number += count
        self.sequences.move(batch.number, count)
        place = self.closed.index(batch)
        for step, piece in enumerate(pieces, 1):
            piece.number = batch.number + step
            self.closed.insert(place + step, piece)

    @property
    def is_empty(self) -> bool:
        """Whether no batch waits to be sent."""
        return self.open is None and not self.closed

    def close_open(self) -> None:
        """Close the open batch, if any."""
        if self.open is not None:
            self.closed.append(self.open)
            self.open = None


def bytes_of(given: object, topic: str, field: str) -> bytes | None:
    """Return a key or a value as immutable bytes; raises `RecordError` for text and other types."""
    if given is None:
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    allowed = "give bytes, for text its UTF-8 encoding: text.encode()"
    raise RecordError(topic, field, f"{type(given).__name__} {given!r:.80}", allowed)


def headers_of(given: Headers, topic: str) -> Headers:
    """Return headers as an immutable tuple; raises `RecordError` for anything but (text, bytes) pairs."""
    headers = tuple(given)
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise RecordError(topic, "headers", f"{header!r:.80}", "give pairs of a name and bytes")
        if not (header[1] is None or isinstance(header[1], bytes)):
            raise RecordError(topic, f"header {header[0]}", f"{header[1]!r:.80}", "give bytes or None")
    return headers
