"""A batch on its way to the cluster: open, closed, encoded, sent, and then acknowledged or failed.

Made by the accumulator, encoded and answered by the sender, watched by the deliveries. Pure: time and outcome are
arguments, and a waiting delivery leaves a listener. One outcome for the whole batch is what makes a delivery cheap: a
delivery is a view of its batch and an index, never a future of its own. A batch that its topic refuses for its size is
cut: it keeps its first records, and `rest` leads to the next piece. A refusal names the limit, and the bytes of the
batch show the compression of its payload, so an estimate of the size is enough (`BatchSizes`, `fitting_bytes`, `cuts`):
a piece that is still too large is refused and cut again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from fairlead.errors import FairleadError
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

    from fairlead.producing.accumulator import PartitionQueue
import sys
from collections.abc import Iterable

from fairlead.errors import RecordError

BATCH_BYTES_MIN: Final = 240
"""Size of the smallest batch of any codec: below such a limit cutting does not help."""

OVERHEAD_BYTES: Final = 640
"""What a batch of one empty record has without compression: header, metadata, padding."""

MARGIN: Final = 0.9
"""Records are not all alike: some pieces take more than the whole did on average."""


UNLIMITED: Final = sys.maxsize
"""Payload of a batch while no refusal has told that there is a limit."""


class BatchSizes:
    """How much payload the batches of one topic may have."""

    __slots__ = ("_batch_bytes", "batch_bytes", "fitting_bytes")

    def __init__(self, batch_bytes: int = UNLIMITED) -> None:
        self.batch_bytes = self._batch_bytes = batch_bytes
        """Payload at which a batch of records is full."""
        self.fitting_bytes = UNLIMITED
        """Payload that the topic accepts, as far as its refusals have shown."""

    def fit(self, payload_bytes: int) -> None:
        """Make batches no larger from here on."""
        self.fitting_bytes = min(self.fitting_bytes, payload_bytes)
        self.batch_bytes = min(self._batch_bytes, self.fitting_bytes)

    def forget(self) -> None:
        """Try full batches again: the limit may have been raised."""
        self.fitting_bytes = UNLIMITED
        self.batch_bytes = self._batch_bytes


def fitting_bytes(payload_bytes: int, encoded_bytes: int, limit_bytes: int) -> int | None:
    """Return the payload of a batch that keeps a limit on encoded bytes, as far as one that does not can tell.

    Half of it where the two say nothing: the limit may be on something else, or as small as what every batch has. None
    where no batch is small enough.
    """
    if limit_bytes < BATCH_BYTES_MIN:
        return None
    if limit_bytes < 2 * OVERHEAD_BYTES or encoded_bytes <= limit_bytes:
        return max(payload_bytes // 2, 1)
    share = (limit_bytes - OVERHEAD_BYTES) / (encoded_bytes - OVERHEAD_BYTES)
    return max(int(payload_bytes * share * MARGIN), 1)


def cuts(sizes: Iterable[int], bytes_max: int) -> list[int]:
    """Return where to cut records of these sizes so that each piece has at most so many bytes, or one record."""
    places: list[int] = []
    piece_bytes = 0
    for place, size in enumerate(sizes):
        if place and piece_bytes + size > bytes_max:
            places.append(place)
            piece_bytes = 0
        piece_bytes += size
    return places


SEQUENCE_MAX: Final = 2**31 - 1
"""The sequence behind this one is 0."""
RECORD_OVERHEAD_BYTES: Final = 16
"""What a record costs beside key and value: offsets of two columns and its timestamp. A header costs as much."""


def advanced(sequence: int, records: int) -> int:
    """Return the sequence so many records further."""
    return (sequence + records) & SEQUENCE_MAX


def headers_bytes(headers: Headers) -> int:
    """Return what headers cost."""
    return sum(len(name) + len(value or b"") + RECORD_OVERHEAD_BYTES for name, value in headers)


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Where the leader put a batch. With acks=0 nothing is known: base offset -1."""

    base_offset: int
    append_time_us: int
    leader_epoch: int
    duplicate: bool = False


UNKNOWN_PLACE: Final = Acknowledgement(base_offset=-1, append_time_us=-1, leader_epoch=-1)
"""The outcome with acks=0: the request was valid, nothing more is known."""


class PendingBatch:
    """What records and columns have in common: place, times, attempts, outcome.

    `stamp` is the producer's identity and first sequence, the same on every attempt: a repeat is recognised by it.
    Without idempotence every batch goes without. `number` counts the batches of a queue.
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
        """Payload that it holds: room of the buffer, unless it was cut."""
        self._room_bytes: int | None = None
        self.attempts = 0
        self.leads = True
        """Whether every batch before it had its outcome when it was last sent."""
        self.side_effect = SideEffect.NONE
        self.doubt: object = None
        """Stands for the attempts of the batch that it was cut from, where one of them may be stored."""
        self.last_error: FairleadError | None = None
        self.stamp: ProducerStamp | None = None
        self.encoded: EncodedBatch | None = None
        self.result: Acknowledgement | None = None
        self.error: FairleadError | None = None
        self.rest: PendingBatch | None = None
        """The records that were cut off, in a batch that is sent behind this one."""
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
        """Whether the outcome is known."""
        return self.result is not None or self.error is not None

    @property
    def subject(self) -> str:
        """How messages call the batch."""
        return f"produce to {self.topic}-{self.partition}"

    @property
    def record_count(self) -> int:
        """Records of the batch."""
        raise NotImplementedError

    @property
    def room_bytes(self) -> int:
        """Room of the buffer that comes back with its outcome."""
        return self.nbytes if self._room_bytes is None else self._room_bytes

    @property
    def delivery_count(self) -> int:
        """Deliveries that watch the batch: one a record, or one for a piece of a table."""
        return 1

    def columns(self) -> pa.RecordBatch:
        """Return the records as columns of the fixed schema."""
        raise NotImplementedError

    def encode(self, codec: Codec) -> EncodedBatch:
        """Return the wire form, made once: every attempt sends the same bytes."""
        if self.encoded is None:
            self.encoded = encode(self.columns(), codec, self.stamp)
        return self.encoded

    def unstamp(self) -> None:
        """Forget sequence and bytes: nothing that was sent so far is or will be stored."""
        self.stamp = None
        self.encoded = None

    def cut(self, bytes_max: int) -> Sequence[PendingBatch]:
        """Keep the first records and return the others in batches of at most so much payload each, or of one record.

        The pieces are new batches, never sent; their records keep their sequences. Waiting deliveries are notified, and
        find the piece with their record.
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
            # Slices of a table weigh more than the whole; the room that is given back is what was taken.
            piece._room_bytes = min(piece.nbytes, room_bytes)  # noqa: SLF001 - one of its own kind
            room_bytes -= piece._room_bytes  # noqa: SLF001 - as above
            if self.stamp is not None:
                at = advanced(self.stamp.base_sequence, sequence)
                piece.stamp = replace(self.stamp, base_sequence=at)
            sequence += piece.record_count
        self._room_bytes = room_bytes
        self.encoded = None
        self.attempts = 0
        self._tell()
        return pieces

    def _cut_off(self, bytes_max: int) -> Sequence[Self]:
        """Give up all but the first records; there are two at least."""
        raise NotImplementedError

    def _weight(self) -> int:
        """Return the payload of the records that it holds."""
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
        self._tell()

    def _tell(self) -> None:
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener()

    def release(self) -> None:
        """Let the payload go: a delivery kept for long must not keep it."""

    @property
    def failure_is_seen(self) -> bool:
        """Whether every delivery raised the failure, so that `flush` need not raise it again."""
        return len(self.failures_seen) >= self.delivery_count


class RecordsBatch(PendingBatch):
    """Records gathered one by one by `send`; the producer appends to the lists directly."""

    __slots__ = ("headers", "keys", "times_ns", "values")

    def __init__(self, queue: PartitionQueue, now: float) -> None:
        super().__init__(queue, now)
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        """As many as there are up to the last record that has one."""
        self.times_ns: list[int] = []
        """Create times in nanoseconds since 1970: as the clock tells them, divided a batch at once."""
        self.headers: dict[int, Headers] = {}

    def describe(self, index: int, key: bytes | None, headers: Headers | None) -> None:
        """Give the newest record what not every record has; those before it without a key are caught up with."""
        if key is not None:
            keys = self.keys
            if len(keys) < index:
                keys.extend([None] * (index - len(keys)))
            keys.append(key)
        if headers:
            self.headers[index] = headers

    def _padded_keys(self) -> list[bytes | None] | None:
        """Return a key for each record; None where no record has one."""
        missing = len(self.values) - len(self.keys)
        return [*self.keys, *([None] * missing)] if self.keys else None

    @property
    def record_count(self) -> int:
        """Records so far; their times outlive the payload."""
        return len(self.times_ns)

    @property
    def delivery_count(self) -> int:
        """One a record."""
        return len(self.times_ns)

    def timestamp_us(self, index: int) -> int:
        """Return the create time of a record in microseconds since 1970."""
        return self.times_ns[index] // 1000

    def _timestamps_us(self) -> npt.NDArray[np.int64]:
        try:
            return np.array(self.times_ns, np.int64) // 1000
        except OverflowError:
            # Times of their own beyond the year 2262 are no nanoseconds in 64 bits.
            return np.array([time_ns // 1000 for time_ns in self.times_ns], np.int64)

    def encode(self, codec: Codec) -> EncodedBatch:
        """Return the wire form, made once; straight from the lists where no record has headers."""
        if self.encoded is None and not self.headers:
            self.encoded = encode_records(
                self.values, self._padded_keys(), self._timestamps_us(), codec, self.stamp
            )
        return super().encode(codec)

    def columns(self) -> pa.RecordBatch:
        """Return the lists as columns."""
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
        """Cut the lists where the pieces are full, in the middle if none is."""
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
        piece.nbytes = piece._weight()  # noqa: SLF001 - one of its own kind
        return piece

    def _weight(self) -> int:
        """Return what all records add to the payload."""
        return sum(self._sizes())

    def _sizes(self) -> Iterator[int]:
        """Return what each record adds to the payload."""
        keys = self._padded_keys() or [None] * len(self.values)
        for index, (value, key) in enumerate(zip(self.values, keys, strict=True)):
            size = RECORD_OVERHEAD_BYTES + len(value or b"") + len(key or b"")
            yield size + headers_bytes(self.headers[index]) if index in self.headers else size

    def release(self) -> None:
        """Keep the timestamps, which the deliveries tell."""
        self.values = []
        self.keys = []
        self.headers = {}


class ColumnsBatch(PendingBatch):
    """A piece of a table, already of the fixed schema."""

    __slots__ = ("_columns", "_record_count")

    def __init__(self, queue: PartitionQueue, columns: pa.RecordBatch, now: float) -> None:
        super().__init__(queue, now)
        self._columns: pa.RecordBatch | None = columns
        self._record_count = columns.num_rows
        self.nbytes = columns.nbytes

    @property
    def record_count(self) -> int:
        """Rows of the piece."""
        return self._record_count

    def columns(self) -> pa.RecordBatch:
        """Return the piece."""
        assert self._columns is not None, "a finished batch is not encoded again"
        return self._columns

    def _cut_off(self, bytes_max: int) -> Sequence[Self]:
        """Cut the table without copying it."""
        columns = self.columns()
        slices = split(columns, bytes_max)
        if len(slices) == 1:
            middle = columns.num_rows // 2
            slices = [columns.slice(0, middle), columns.slice(middle)]
        self._columns, self._record_count = slices[0], slices[0].num_rows
        return [type(self)(self.queue, piece, self.created_at) for piece in slices[1:]]

    def _weight(self) -> int:
        """Return the bytes of the columns."""
        return self.columns().nbytes

    def release(self) -> None:
        """Let the table go."""
        self._columns = None


def bytes_of(given: object, topic: str, field: str) -> bytes | None:
    """Return a key or a value as bytes of its own; raises `RecordError` for text and all else."""
    if given is None:
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    allowed = "give bytes, for text its UTF-8 encoding: text.encode()"
    raise RecordError(topic, field, f"{type(given).__name__} {given!r:.80}", allowed)


def headers_of(given: Headers, topic: str) -> Headers:
    """Return headers that stay as they are; raises `RecordError` for what is no list of (text, bytes)."""
    headers = tuple(given)
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise RecordError(topic, "headers", f"{header!r:.80}", "give pairs of a name and bytes")
        if not (header[1] is None or isinstance(header[1], bytes)):
            raise RecordError(topic, f"header {header[0]}", f"{header[1]!r:.80}", "give bytes or None")
    return headers
