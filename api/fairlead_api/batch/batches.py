"""Record batches and Arrow: encode columns into a batch, decode a batch into columns or records.

The SDK and the broker's JSON and Arrow calls use this module; docs/reference/record-batch.md describes the layout. This
module must not depend on topics, producer state or the network. This module does not decode
produced binary batches: `validation` checks their bytes. `validation` also contains the checks of decoded batches.

The Arrow message of a batch with few records is written without Arrow's writer (`MessageLayout`). Building arrays and
running Arrow's writer takes 80 µs even for one record, which is most of a client's time for such a request. The message
has the same bytes as one that Arrow's writer produces: the buffers in order, each padded to eight bytes, and the
metadata of a message that Arrow wrote earlier, with the numbers replaced. The module is a single file because both
writers must produce the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fairlead_api.batch.arrow_message import PREFIX_BYTES, number_places
from fairlead_api.batch.columns import (
    SCHEMA,
    SCHEMA_WITH_OFFSETS,
    Headers,
    canonical,
    compact,
    constant_timestamps,
    numbers_of,
    one_empty_record,
    record_batch,
    split,
)
from fairlead_api.batch.extension import ExtensionEntry, pack_extension
from fairlead_api.batch.header import (
    FORMAT,
    HEADER_BYTES,
    LENGTH_STOP,
    NO_PRODUCER,
    PADDING_SHIFT,
    Attribute,
    BatchHeader,
    Buffer,
    Codec,
    check_content_checksum,
    check_stamp_checksum,
    is_stamped,
    iterate_headers,
    pack_header,
    read_header,
)
from fairlead_api.batch.validation import (
    CODEC_NAMES,
    check_nulls,
    check_readable,
    read_body,
    validate_columns,
)
from fairlead_api.problems import ProblemError

_ALIGNMENT: Final = 8
_PADDING: Final = tuple(bytes(-count % _ALIGNMENT) for count in range(_ALIGNMENT))
_NO_OFFSETS: Final = bytes(4)
"""Offsets buffer of a column without rows."""
_TIMESTAMP: Final = struct.Struct("<q")
_BITMAP_OF_ONE: Final = 8
_OFFSETS_OF_ONE: Final = 8
_ONE_BYTES_MAX: Final = 4096
"""Maximum number of bytes of key and value of a single record whose surrounding bytes are remembered."""
_ONE_SIZES_MAX: Final = 1024
"""Maximum number of pairs of sizes that are remembered, which take less than a MiB."""


class MessageLayout:
    """Positions of the numbers that can differ between the metadata of two messages with the same schema.

    `template` is any message with the schema.
    """

    __slots__ = ("_around_one", "_constants", "_metadata")

    def __init__(self, template: Buffer) -> None:
        """Split the metadata around its numbers; `number_places` must return their positions in ascending order."""
        metadata, places = number_places(template)
        prefix = bytes(template[: PREFIX_BYTES + len(metadata)])
        form, constants, at = "<", [], 0
        for place, count in places:
            start = PREFIX_BYTES + place
            assert start >= at, "Arrow's writer does not order the buffers as this module assumes"
            form += f"{start - at}s{count}q"
            constants.append(prefix[at:start])
            at = start + 8 * count
        self._metadata = struct.Struct(f"{form}{len(prefix) - at}s")
        self._constants = (*constants, prefix[at:])
        self._around_one: dict[tuple[int | None, int | None], tuple[bytes, bytes, bytes, bytes]] = {}

    @property
    def prefix_bytes(self) -> int:
        """Number of bytes of a message before its Arrow body."""
        return self._metadata.size

    def prefix(self, body_bytes: int, rows: int, places: Sequence[int], nodes: Sequence[int]) -> bytes:
        """Return the bytes before an Arrow body.

        `places` are start and size of each buffer, `nodes` are rows and nulls of each node.
        """
        start, second, third, fourth, stop = self._constants
        return self._metadata.pack(start, body_bytes, second, rows, third, *places, fourth, *nodes, stop)

    def message(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_us: Sequence[int]
    ) -> bytes:
        """Return the message of records without headers.

        Raises `struct.error` or `TypeError` for values that the columns cannot store.
        """
        if len(values) == 1:
            return self._message_of_one(values[0], keys[0], timestamps_us[0])
        return self._message_of_few(values, keys, timestamps_us)

    def _message_of_one(self, value: bytes | None, key: bytes | None, timestamp_us: int) -> bytes:
        """Return the message of one record, whose other bytes depend only on the sizes of value and key."""
        sizes = (None if value is None else len(value), None if key is None else len(key))
        around = self._around_one.get(sizes)
        if around is None:
            if len(value or b"") + len(key or b"") > _ONE_BYTES_MAX:
                return self._message_of_few([value], [key], [timestamp_us])
            if len(self._around_one) >= _ONE_SIZES_MAX:
                self._around_one.clear()
            around = self._around_one[sizes] = self._around(*sizes)
        start, before_value, before_time, stop = around
        time = _TIMESTAMP.pack(timestamp_us)
        return b"".join((start, key or b"", before_value, value or b"", before_time, time, stop))

    def _around(self, value_bytes: int | None, key_bytes: int | None) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the bytes of a message of one record before its key, its value and its timestamp, and at the end."""
        value, key = (None if size is None else bytes(size) for size in (value_bytes, key_bytes))
        message = self._message_of_few([value], [key], [0])
        # Arrow pads each buffer to eight bytes. The offsets of a column have eight bytes for one record, and its bitmap
        # is absent if the record is not null.
        key_at = self._metadata.size + _BITMAP_OF_ONE * (key is None) + _OFFSETS_OF_ONE
        key_stop = key_at + (key_bytes or 0)
        value_at = key_stop + -key_stop % _ALIGNMENT + _BITMAP_OF_ONE * (value is None) + _OFFSETS_OF_ONE
        value_stop = value_at + (value_bytes or 0)
        time_at = value_stop + -value_stop % _ALIGNMENT
        return (
            message[:key_at],
            message[key_stop:value_at],
            message[value_stop:time_at],
            message[time_at + _TIMESTAMP.size :],
        )

    def _message_of_few(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None], timestamps_us: Sequence[int]
    ) -> bytes:
        count = len(values)
        key_bitmap, key_offsets, key_bytes, key_nulls = _binary(keys)
        value_bitmap, value_offsets, value_bytes, value_nulls = _binary(values)
        buffers = (
            *(key_bitmap, key_offsets, key_bytes),
            *(value_bitmap, value_offsets, value_bytes),
            *(b"", struct.pack(f"<{count}q", *timestamps_us)),
            *(bytes((count + 7) // 8), bytes(4 * (count + 1))),  # the headers of all records are null
            *(b"", b"", _NO_OFFSETS, b"", b"", _NO_OFFSETS, b""),
        )
        parts: list[bytes] = [b""]
        places: list[int] = []
        at = 0
        for buffer in buffers:
            size = len(buffer)
            places += (at, size)
            if size:
                padding = _PADDING[size % _ALIGNMENT]
                parts += (buffer, padding)
                at += size + len(padding)
        nodes = (count, key_nulls, count, value_nulls, count, 0, count, count, 0, 0, 0, 0, 0, 0)
        parts[0] = self.prefix(at, count, places, nodes)
        return b"".join(parts)


def _binary(items: Sequence[bytes | None]) -> tuple[bytes, bytes, bytes, int]:
    """Return the validity bitmap (empty if there are no nulls), the offsets, the bytes, and the number of nulls."""
    count, nulls, end, valid = len(items), 0, 0, 0
    offsets = [0]
    for number, item in enumerate(items):
        if item is None:
            nulls += 1
        else:
            end += len(item)
            valid |= 1 << number
        offsets.append(end)
    bitmap = valid.to_bytes((count + 7) // 8, "little") if nulls else b""
    return bitmap, struct.pack(f"<{count + 1}i", *offsets), b"".join(filter(None, items)), nulls


__all__ = [
    "NO_PRODUCER_STAMP",
    "SCHEMA",
    "SCHEMA_WITH_OFFSETS",
    "EncodedBatch",
    "ProducerStamp",
    "Record",
    "canonical",
    "decode",
    "decode_records",
    "encode",
    "encode_records",
    "offsets_of",
    "read_body",
    "record_batch",
    "split",
]

_TIMESTAMP_COLUMN: Final = 2
_HEADERS_COLUMN: Final = 3
_OFFSET_DELTA_COLUMN: Final = 4
_FEW_RECORDS_MAX: Final = 16
"""Maximum number of records whose columns are converted back to lists, which is faster than checking the buffers."""
_SMALL_RECORDS_MAX: Final = 128
"""Maximum number of records in a message that is written directly, two to six times as fast as with Arrow's writer."""
_SMALL: Final = MessageLayout(
    memoryview(one_empty_record().serialize())  # the contents of the record do not matter
)


@dataclass(frozen=True, slots=True)
class ProducerStamp:
    """Producer of a batch, and the sequence of its first record in its partition."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False
    """Whether the batch belongs to a transaction of its producer."""


NO_PRODUCER_STAMP: Final = ProducerStamp(NO_PRODUCER, NO_PRODUCER, NO_PRODUCER)


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """Batch without the leader's stamp, as a sequence of byte strings; large parts are not copied."""

    parts: tuple[Buffer, ...]
    nbytes: int
    record_count: int

    def to_bytes(self) -> bytes:
        """Return the batch as one bytes object."""
        return b"".join(self.parts)


@dataclass(frozen=True, slots=True)
class Record:
    """Record of a decoded batch."""

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def encode(
    batch: pa.RecordBatch,
    codec: Codec = Codec.NONE,
    producer: ProducerStamp | None = None,
    extension: tuple[ExtensionEntry, ...] = (),
) -> EncodedBatch:
    """Encode columns of `SCHEMA` as an unstamped batch. Only brokers write an extension.

    Raises `invalid_record` for a different schema (see `canonical`), for an empty batch and for null timestamps.
    """
    if batch.schema != SCHEMA:
        raise ProblemError(
            "invalid_record", f"columns {batch.schema.names} must be exactly those of {SCHEMA.names}"
        )
    if not batch.num_rows:
        raise ProblemError("invalid_record", "a batch needs at least one record")
    if batch.column(_TIMESTAMP_COLUMN).null_count:
        raise ProblemError("invalid_record", "column timestamp: a timestamp is null")
    count, times = batch.num_rows, numbers_of(batch.column(_TIMESTAMP_COLUMN), np.int64)
    if count > _FEW_RECORDS_MAX or batch.column(_HEADERS_COLUMN).null_count < count:
        span = int(times.min()), int(times.max())
        return _framed(compact(batch).serialize(), count, span, codec, producer, extension)
    keys, values, few = batch.column(0).to_pylist(), batch.column(1).to_pylist(), times.tolist()
    message = pa.py_buffer(_SMALL.message(values, keys, few))
    return _framed(message, count, (min(few), max(few)), codec, producer, extension)


def encode_records(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_us: Sequence[int] | npt.NDArray[np.int64],
    codec: Codec = Codec.NONE,
    producer: ProducerStamp | None = None,
    extension: tuple[ExtensionEntry, ...] = (),
) -> EncodedBatch:
    """Encode records without headers from lists of equal length, to the same bytes as `encode`.

    `keys` is None if no record has a key. Small batches are encoded several times faster than with `encode`. Only
    brokers write an extension. Raises `invalid_record`, which names the column.
    """
    count = len(values)
    if 0 < count <= _SMALL_RECORDS_MAX and count == len(timestamps_us) == (
        count if keys is None else len(keys)
    ):
        few = timestamps_us.tolist() if isinstance(timestamps_us, np.ndarray) else timestamps_us
        try:
            message = pa.py_buffer(_SMALL.message(values, keys or [None] * count, few))
        except (struct.error, TypeError):
            pass  # a value is invalid; Arrow raises an error that names the column
        else:
            times = min(few), max(few)
            return _framed(message, count, times, codec, producer, extension)
    columns = record_batch(values, keys, timestamps_us, default_timestamp_us=0)
    return encode(columns, codec, producer, extension)


def _framed(
    message: pa.Buffer,
    record_count: int,
    times: tuple[int, int],
    codec: Codec,
    producer: ProducerStamp | None,
    extension: tuple[ExtensionEntry, ...],
) -> EncodedBatch:
    """Return a batch whose body is the given Arrow message."""
    body = memoryview(pa.compress(message, CODEC_NAMES[codec], asbytes=True) if codec else message)
    padding = -len(body) % 8
    entries = pack_extension(extension)
    sender = NO_PRODUCER_STAMP if producer is None else producer
    header = BatchHeader(
        base_offset=0,
        length=HEADER_BYTES - LENGTH_STOP + len(entries) + len(body) + padding,
        leader_epoch=0,
        append_time_us=0,
        stamp_flags=0,
        stamp_checksum=0,
        content_checksum=0,
        format=FORMAT,
        codec=codec,
        attributes=padding << PADDING_SHIFT | Attribute.TRANSACTIONAL * sender.is_transactional,
        last_offset_delta=record_count - 1,
        record_count=record_count,
        min_timestamp_us=times[0],
        max_timestamp_us=times[1],
        producer_id=sender.producer_id,
        producer_epoch=sender.producer_epoch,
        base_sequence=sender.base_sequence,
        uncompressed_bytes=message.size,
        schema_id=0,
        extension_bytes=len(entries),
    )
    content = tuple(part for part in (entries, body, bytes(padding)) if len(part))
    return EncodedBatch(
        parts=(pack_header(header, content), *content),
        nbytes=header.total_bytes,
        record_count=record_count,
    )


def decode(
    buffer: Buffer, header: BatchHeader | None = None, *, validate: bool = True, verify_checksum: bool = True
) -> pa.RecordBatch:
    """Decode the batch at the start of a buffer into columns, without copying if the batch is not compressed.

    The columns keep the buffer in memory. If stamp flag bit 0 is set, all timestamps are the append time. A compacted
    batch also has the column `offset_delta`. Raises `malformed_batch`, `crc_mismatch` (for the content checksum and, if
    the batch is stamped, for the stamp's checksum) or `unsupported_version`. `validate=False` is only for bytes that
    this process wrote: other bytes can crash the interpreter.
    """
    view = memoryview(buffer)
    if header is None:
        header = read_header(view)
    if len(view) < header.total_bytes:
        _malformed(f"the batch has {header.total_bytes} bytes, but the buffer has {len(view)}")
    if verify_checksum:
        check_content_checksum(view, 0, header)
        if is_stamped(view):
            check_stamp_checksum(view)
    check_readable(view, header)
    if not header.record_count:
        return _no_records(header)
    body = read_body(view, header)
    columns = body.columns
    if validate:
        validate_columns(columns)
        check_nulls(body.metadata)
        _check_offset_deltas(header, columns)
    if header.has_append_time:
        times = constant_timestamps(columns.num_rows, header.append_time_us)
        columns = columns.set_column(_TIMESTAMP_COLUMN, SCHEMA.field(_TIMESTAMP_COLUMN), times)
    return columns


def _no_records(header: BatchHeader) -> pa.RecordBatch:
    """Return empty columns for a batch that has no body because compaction removed its records."""
    if header.body_stop != header.body_start or header.uncompressed_bytes:
        _malformed("record count 0 with a body; allowed: body length 0")
    schema = SCHEMA_WITH_OFFSETS if header.has_offset_column else SCHEMA
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _check_offset_deltas(header: BatchHeader, columns: pa.RecordBatch) -> None:
    """Raise `malformed_batch` for records whose offsets are unknown or outside the batch."""
    last = header.last_offset_delta
    if not header.has_offset_column:
        if last != header.record_count - 1:
            _malformed(f"last offset delta {last} with {header.record_count} records and no offset column")
        return
    column = columns.column(_OFFSET_DELTA_COLUMN)
    deltas = numbers_of(column, np.int32)
    if column.null_count or deltas[0] < 0 or deltas[-1] > last or (np.diff(deltas) <= 0).any():
        _malformed(
            f"column offset_delta must increase from record to record, from 0 to {last}, without nulls"
        )


def offsets_of(header: BatchHeader, columns: pa.RecordBatch) -> pa.Array:
    """Return the offset of each record of a decoded batch."""
    if header.has_offset_column:
        deltas = numbers_of(columns.column(_OFFSET_DELTA_COLUMN), np.int32)
    else:
        deltas = np.arange(columns.num_rows, dtype=np.int32)
    offsets = deltas.astype(np.int64) + header.base_offset
    return pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets.data)], 0)


def decode_records(buffer: Buffer) -> list[Record]:
    """Decode all records of concatenated batches except control batches. Raises the problems of `decode`."""
    view = memoryview(buffer)
    records: list[Record] = []
    for at, header in iterate_headers(view):
        columns = decode(view[at : at + header.total_bytes], header)
        # The control bit is checked only after the checksums, since a flipped bit may mark a batch as a control batch.
        if not header.is_control:
            records.extend(_records(header, columns))
    return records


def _records(header: BatchHeader, columns: pa.RecordBatch) -> Iterator[Record]:
    return map(
        Record,
        numbers_of(offsets_of(header, columns), np.int64).tolist(),
        numbers_of(columns.column(_TIMESTAMP_COLUMN), np.int64).tolist(),
        columns.column("key").to_pylist(),
        columns.column("value").to_pylist(),
        _header_tuples(columns.column("headers")),
    )


def _header_tuples(column: pa.Array) -> Iterable[Headers]:
    """Return the headers of each record; the pairs are created for all records at once."""
    if column.null_count == len(column):
        return [()] * len(column)
    lists = cast("pa.ListArray", column)
    items = cast("pa.StructArray", lists.values)
    names = cast("list[str]", items.field(0).to_pylist())
    pairs = tuple(zip(names, items.field(1).to_pylist(), strict=True))
    bounds = numbers_of(lists.offsets, np.int32).tolist()
    valid = column.is_valid().to_pylist()
    return [
        pairs[start:stop] if there else ()
        for there, start, stop in zip(valid, bounds, bounds[1:], strict=False)
    ]


def _malformed(detail: str) -> NoReturn:
    raise ProblemError("malformed_batch", detail)
