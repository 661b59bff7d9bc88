"""Validation of the bytes of a batch, by the leader before the batch is stored and by readers when they decode it.

The runtime calls `validate_produced` once per produced batch; `batches` calls the checks of the body. The protocol
defines the order of the checks: cheap and safe checks precede expensive and risky checks, so that untrusted bytes reach
the Arrow library last. This module must not depend on topics or offsets; limits and the current time are arguments.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from fairlead_api.batch.arrow_message import (
    HEADER_NAME_NODE,
    HEADER_NODE,
    KEY_NODE,
    TIMESTAMP_NODE,
    ArrowMessage,
    read_message,
)
from fairlead_api.batch.columns import SCHEMA, SCHEMA_WITH_OFFSETS, header_counts
from fairlead_api.batch.compressed_frames import check_one_frame
from fairlead_api.batch.extension import ExtensionType, read_extension
from fairlead_api.batch.header import (
    HEADERS_MAX,
    NO_PRODUCER,
    RECORD_HEADERS_MAX,
    RECORDS_MAX,
    RESERVED_ATTRIBUTES,
    BatchHeader,
    Codec,
    check_sizes,
    check_unread_checksum,
    read_header,
)
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import YEAR_1_US, YEAR_10000_US

UNLIMITED_US: Final = 2**63 - 1
"""Value of a timestamp limit that allows every timestamp."""
_NO_PRODUCER: Final = (NO_PRODUCER, NO_PRODUCER, NO_PRODUCER)
_REFUSED_EXTENSIONS: Final = frozenset(
    {ExtensionType.HORIZON, ExtensionType.IDEMPOTENCY_KEY, ExtensionType.REQUEST_DIGEST}
)
NO_EXTENSIONS: Final[frozenset[ExtensionType]] = frozenset()
"""Extension types reserved for brokers that are nevertheless allowed in a client's batch: none."""
KEYED_EXTENSIONS: Final = frozenset({ExtensionType.IDEMPOTENCY_KEY, ExtensionType.REQUEST_DIGEST})
"""Extension types that a broker adds to a batch encoded from a request with an idempotency key."""


CODEC_NAMES: Final[Mapping[Codec, Literal["lz4", "zstd"]]] = {Codec.LZ4: "lz4", Codec.ZSTD: "zstd"}
_CODECS: Final = tuple(int(codec) for codec in Codec)
_TIMESTAMP: Final = struct.Struct("<q")


class Body(msgspec.Struct, frozen=True):
    """Decompressed body of a batch: the Arrow message, its metadata, and columns that are not validated yet."""

    message: memoryview
    metadata: ArrowMessage
    columns: pa.RecordBatch

    def timestamp_range(self) -> tuple[int, int]:
        """Return the smallest and the largest timestamp of a body that has records and no null timestamps."""
        rows, start = self.metadata.rows, self.metadata.timestamps_start
        if rows == 1:
            (time,) = _TIMESTAMP.unpack_from(self.message, start)
            return time, time
        times = np.frombuffer(self.message, np.int64, rows, start)
        return int(times.min()), int(times.max())


def read_body(batch: memoryview, header: BatchHeader) -> Body:
    """Decompress the body and read the columns without validating their contents.

    Raises `malformed_batch` when the decompressed body does not have the declared length or its metadata do not match
    the schema or the header's record count.
    """
    message = batch[header.body_start : header.body_stop]
    if header.codec:
        message = decompress(message, header)
    if len(message) != header.uncompressed_bytes:
        _malformed(
            f"the body has {len(message)} bytes; the header declares {header.uncompressed_bytes}",
        )
    metadata = read_message(message, offset_column=header.has_offset_column)
    if metadata.rows != header.record_count:
        _malformed(
            f"record count {header.record_count}; the Arrow message has {metadata.rows} rows",
        )
    schema = SCHEMA_WITH_OFFSETS if header.has_offset_column else SCHEMA
    try:
        return Body(message, metadata, pa.ipc.read_record_batch(pa.py_buffer(message), schema))
    except (pa.ArrowException, OSError) as error:
        _malformed(f"the Arrow message cannot be read: {error}", error)


def decompress(body: memoryview, header: BatchHeader) -> memoryview:
    """Decompress a body, up to the declared length plus one byte.

    A stream is used because Arrow's one-shot function returns uninitialized memory for LZ4 if the length is incorrect.
    """
    declared = header.uncompressed_bytes
    codec = CODEC_NAMES[Codec(header.codec)]
    check_one_frame(body, Codec(header.codec))
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), codec) as stream:
            message = stream.read_buffer(declared + 1)
    except (pa.ArrowException, OSError) as error:
        _malformed(f"the body cannot be decompressed as {codec}: {error}", error)
    if message.size > declared:
        _malformed(f"the decompressed body has more than the declared {declared} bytes")
    return memoryview(message)[: message.size]


def check_readable(batch: memoryview, header: BatchHeader) -> None:
    """Raise a problem for a codec, schema, attributes or extension types that this release does not support."""
    if header.codec not in _CODECS:
        _unsupported("codec", header.codec, [*_CODECS])
    if header.schema_id:
        _unsupported("schema id", header.schema_id, [0])
    if header.attributes & RESERVED_ATTRIBUTES:
        _malformed(f"attributes {header.attributes:#06x} have reserved bits set")
    read_extension(batch, header)


def _unsupported(field: str, value: int, supported: list[int]) -> NoReturn:
    raise ProblemError(
        "unsupported_version",
        f"{field} {value} is unknown; supported: {', '.join(str(number) for number in supported)}",
        data={"value": value, "supported": supported},
    )


def validate_columns(columns: pa.RecordBatch) -> None:
    """Validate every offset, bitmap and text with Arrow. Raises `malformed_batch`."""
    try:
        columns.validate(full=True)
    except pa.ArrowException as error:
        _malformed(f"the Arrow columns are not valid: {error}", error)


def check_nulls(metadata: ArrowMessage) -> None:
    """Raise `invalid_record` for nulls in columns that do not allow nulls.

    The null counts come from the metadata, which Arrow's validation has verified.
    """
    nulls = metadata.null_counts
    if nulls[TIMESTAMP_NODE]:
        raise ProblemError(
            "invalid_record", f"column timestamp has {nulls[TIMESTAMP_NODE]} nulls; allowed: none"
        )
    if nulls[HEADER_NODE] or nulls[HEADER_NAME_NODE]:
        raise ProblemError("invalid_record", "column headers has a null header or header name; allowed: none")


@dataclass(frozen=True, slots=True)
class ValidationLimits:
    """Limits of a topic for produced batches."""

    batch_bytes_max: int
    """Maximum size of a batch in bytes as sent and stored, including header and padding."""
    decompressed_bytes_max: int
    """Maximum size of a body in bytes after decompression."""
    timestamp_before_max_us: int
    """Maximum age of a timestamp in microseconds; `UNLIMITED_US` means no limit."""
    timestamp_after_max_us: int
    """Maximum distance of a timestamp into the future in microseconds; `UNLIMITED_US` means no limit."""
    create_times_kept: bool = True
    """Whether consumers see the create times of the records; False if the append time replaces the create times."""
    keys_required: bool = False
    """Whether every record needs a key, as in a compacted topic."""


def validate_produced(
    batch: memoryview,
    limits: ValidationLimits,
    now_us: int,
    own_extensions: frozenset[ExtensionType] = NO_EXTENSIONS,
) -> BatchHeader:
    """Validate a batch, and return its header if the batch may be stored unchanged.

    The stamped fields are ignored, except for the length. `own_extensions` are the extension types that the broker
    itself has added to this batch; a client's batch with any of these types is refused. Raises `batch_too_large`,
    `malformed_batch`, `crc_mismatch`, `unsupported_version` or `invalid_record`; the detail names the field, its value
    and the allowed values.
    """
    check_sizes(batch, limits.batch_bytes_max)
    check_unread_checksum(batch)
    header = read_header(batch)
    check_readable(batch, header)
    _check_header(header)
    _check_extension(batch, header, own_extensions)
    _check_padding(batch, header)
    if header.uncompressed_bytes > limits.decompressed_bytes_max:
        raise ProblemError(
            "batch_too_large",
            f"the body has {header.uncompressed_bytes} bytes before compression;"
            f" allowed: {limits.decompressed_bytes_max}",
            data={"limit_bytes": limits.decompressed_bytes_max},
        )
    if header.record_count > RECORDS_MAX:
        _too_many("records", header.record_count, RECORDS_MAX)
    body = read_body(batch, header)
    if body.metadata.headers > HEADERS_MAX:
        _too_many("headers", body.metadata.headers, HEADERS_MAX)
    validate_columns(body.columns)
    check_nulls(body.metadata)
    if limits.keys_required and (nulls := body.metadata.null_counts[KEY_NODE]):
        _invalid(
            f"{nulls} of {header.record_count} records have no key; every record of a compacted topic needs one"
        )
    # If the whole batch has at most as many headers as one record may have, no record has too many.
    if body.metadata.headers > RECORD_HEADERS_MAX:
        check_header_counts(body.columns)
    first, last = body.timestamp_range()
    if (first, last) != (header.min_timestamp_us, header.max_timestamp_us):
        _malformed(
            f"min and max timestamp {header.min_timestamp_us} and {header.max_timestamp_us};"
            f" those of the records are {first} and {last}"
        )
    _check_window(header, limits, now_us)
    return header


def _check_header(header: BatchHeader) -> None:
    if header.is_control:
        _malformed("attribute bit 1 (control) is set; control batches are written by brokers only")
    if header.has_offset_column:
        _malformed("attribute bit 2 (offset column) is set; offset columns are written by compaction only")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        _malformed(
            f"record count {header.record_count} and last offset delta {header.last_offset_delta};"
            " allowed: a count of at least 1, and the count minus 1"
        )
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    if header.is_transactional:
        # The leader assigns the sequences of a transactional batch that has no base sequence.
        if min(producer[:2]) < 0 or producer[2] < -1:
            _malformed(
                f"producer id {producer[0]}, producer epoch {producer[1]} and base sequence {producer[2]} of a"
                " transactional batch; allowed: id and epoch from 0, base sequence from -1"
            )
        return
    if min(producer) < 0 and producer != _NO_PRODUCER:
        _malformed(
            f"producer id {producer[0]}, producer epoch {producer[1]} and base sequence {producer[2]};"
            " allowed: all from 0, or all -1"
        )


def _check_extension(batch: memoryview, header: BatchHeader, own: frozenset[ExtensionType]) -> None:
    if not header.extension_bytes:
        return
    for entry in read_extension(batch, header):
        if entry.type in _REFUSED_EXTENSIONS and entry.type not in own:
            _malformed(f"extension type {entry.type} is written by brokers only")


def _check_padding(batch: memoryview, header: BatchHeader) -> None:
    if any(batch[header.body_stop :]):
        _malformed(f"the last {header.padding_bytes} bytes are padding and must be zero")


def _check_window(header: BatchHeader, limits: ValidationLimits, now_us: int) -> None:
    # A timestamp outside the years 1 to 9999 would permanently prevent every consumer from reading the batch.
    if limits.create_times_kept and not (
        header.min_timestamp_us >= YEAR_1_US and header.max_timestamp_us < YEAR_10000_US
    ):
        _invalid(
            f"timestamps {header.min_timestamp_us} to {header.max_timestamp_us} (microseconds);"
            " allowed: the years 1 to 9999"
        )
    oldest = now_us - limits.timestamp_before_max_us
    newest = now_us + limits.timestamp_after_max_us
    if header.min_timestamp_us < oldest and limits.timestamp_before_max_us != UNLIMITED_US:
        _invalid(f"timestamp {header.min_timestamp_us} is too old; allowed: from {oldest} (microseconds)")
    if header.max_timestamp_us > newest and limits.timestamp_after_max_us != UNLIMITED_US:
        _invalid(
            f"timestamp {header.max_timestamp_us} is too far in the future; allowed: up to {newest} (microseconds)"
        )


def check_header_counts(columns: pa.RecordBatch) -> None:
    """Raise `invalid_record`, which names the record, if a record has too many headers; the columns must be valid."""
    counts = header_counts(columns)
    record = int(counts.argmax())
    if counts[record] > RECORD_HEADERS_MAX:
        raise ProblemError(
            "invalid_record",
            f"record {record} has {counts[record]} headers; allowed: {RECORD_HEADERS_MAX}",
            data={"record": record, "parameter": "headers"},
        )


def _too_many(what: str, count: int, allowed: int) -> NoReturn:
    raise ProblemError(
        "batch_too_large",
        f"the batch has {count} {what}; allowed: {allowed}, send them in several batches",
        data={f"limit_{what}": allowed},
    )


def _malformed(detail: str, cause: Exception | None = None) -> NoReturn:
    raise ProblemError("malformed_batch", detail) from cause


def _invalid(detail: str) -> NoReturn:
    raise ProblemError("invalid_record", detail)
