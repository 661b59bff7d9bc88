"""Kafka's record batches (format 2) from and to Fairlead's: one Kafka batch is one Fairlead batch, in both directions.

Produce and fetch calls of the Kafka listener call this module for each batch, on the loop or in a thread. The records
are translated by the native distribution `fairlead-kafka-records`, directly between Kafka's bytes and the buffers of
the Arrow message. This module must not know topics, limits of topics or connections: `validate_produced` checks the
batches that this module returns in the same way as batches from all other clients.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, NoReturn

import fairlead_kafka_records
import msgspec
import pyarrow as pa

from fairlead_api.batch.arrow_message import read_message
from fairlead_api.batch.batches import MessageLayout
from fairlead_api.batch.columns import one_empty_record
from fairlead_api.batch.control_batches import Marker, read_marker
from fairlead_api.batch.extension import ExtensionEntry, ExtensionType, pack_extension, read_extension
from fairlead_api.batch.header import (
    FORMAT,
    HEADER_BYTES,
    LENGTH_STOP,
    PADDING_SHIFT,
    Attribute,
    BatchHeader,
    Buffer,
    Codec,
    check_checksums,
    checksum,
    iterate_headers,
    pack_header,
    read_header,
)
from fairlead_api.batch.validation import CODEC_NAMES, check_readable
from fairlead_api.batch.validation import decompress as decompress_body
from fairlead_api.identifiers import ProducerEpoch, ProducerId
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.codecs import (
    KafkaCodec,
    TooLargeError,
    UnreadableError,
    compress_lz4,
    compress_zstd,
    decompress,
)

ON_LOOP_BYTES_MAX: Final = 2 << 20
"""Maximum uncompressed size of a batch that is translated on the event loop, in less than a millisecond."""
KAFKA_HEADER_BYTES: Final = 61
MAGIC: Final = 2
"""Format of Kafka's record batches, which every client since Kafka 0.11 writes."""

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, max timestamp, producer
# id, producer epoch, base sequence, record count.
_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_LENGTH_STOP: Final = 12
_MAGIC_AT: Final = 16
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = 17
_ATTRIBUTES_AT: Final = 21
_CODEC_AT: Final = 22
_CODEC_MASK: Final = 0b111
_APPEND_TIME: Final = 1 << 3
_TRANSACTIONAL: Final = 1 << 4
_CONTROL: Final = 1 << 5
_CLIENT_ATTRIBUTES: Final = _CODEC_MASK | _APPEND_TIME | _TRANSACTIONAL
_EPOCH_MAX: Final = 2**15 - 1
_NO_PRODUCER: Final = (-1, -1, -1)
_NO_TIMESTAMP_MS: Final = -1
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")
_STORED_CODECS: Final = {
    KafkaCodec.NONE: Codec.NONE,
    KafkaCodec.GZIP: Codec.ZSTD,
    KafkaCodec.SNAPPY: Codec.LZ4,
    KafkaCodec.LZ4: Codec.LZ4,
    KafkaCodec.ZSTD: Codec.ZSTD,
}
# Clients may support only the codec with which they produce: KafkaJS itself supports only gzip.
_EXTENSIONS: Final = {
    codec: pack_extension((ExtensionEntry(ExtensionType.KAFKA_CODEC, bytes((codec,))),))
    for codec in (KafkaCodec.GZIP, KafkaCodec.SNAPPY)
}
_SENT_CODECS: Final = {Codec.NONE: KafkaCodec.NONE, Codec.LZ4: KafkaCodec.LZ4, Codec.ZSTD: KafkaCodec.ZSTD}
_CODECS: Final = tuple(int(codec) for codec in KafkaCodec)
_STORED_TRANSACTIONAL: Final = int(Attribute.TRANSACTIONAL)
_HEADER_NAME_OFFSETS: Final = 25
"""Position, in the list of buffer locations, of the size of the header-name offsets."""
_LAYOUT: Final = MessageLayout(memoryview(one_empty_record().serialize()))


class KafkaHeader(msgspec.Struct, frozen=True, gc=False):
    """Fields in the header of a Kafka batch, in byte order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class BatchRefusal(Exception):
    """Raised for a client's batch that cannot be translated; `error` is the name of a Kafka error."""

    def __init__(self, error: str, detail: str) -> None:
        super().__init__(f"{error}: {detail}")
        self.error = error
        self.detail = detail


def is_costly(batch: Buffer) -> bool:
    """Return whether the translation of a client's batch takes so long that it must run in a thread."""
    if len(batch) > ON_LOOP_BYTES_MAX:
        return True
    return len(batch) > _CODEC_AT and bool(batch[_CODEC_AT] & _CODEC_MASK)


class KafkaProducer(NamedTuple):
    """Producer of a client's batch."""

    id: ProducerId
    epoch: ProducerEpoch


def transactional_producer(batch: Buffer) -> KafkaProducer | None:
    """Return the producer of a client's batch that belongs to a transaction; None for every other batch.

    The batch is not checked.
    """
    if len(batch) < KAFKA_HEADER_BYTES or not memoryview(batch)[_CODEC_AT] & _TRANSACTIONAL:
        return None
    header = KafkaHeader(*_HEADER.unpack_from(batch))
    return KafkaProducer(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))


def from_kafka(
    batch: Buffer, decompressed_bytes_max: int, now_us: int, producer_epoch: int | None = None
) -> bytes | bytearray:
    """Return an unstamped Fairlead batch with the records of a Kafka batch.

    `batch` is exactly one batch. Records without a timestamp get `now_us`. The transactional bit is kept.
    `producer_epoch` replaces the epoch that the client states. Raises `BatchRefusal`.
    """
    view = memoryview(batch)
    kafka = _read_kafka_header(view)
    codec = _codec_of(kafka)
    records = view[KAFKA_HEADER_BYTES:]
    if codec:
        records = _decompressed(codec, records, decompressed_bytes_max)
    _check_count(kafka)
    stored = _STORED_CODECS[codec]
    # The message of uncompressed records is written after the room for the header, so that it is copied only once.
    message_at = 0 if stored else HEADER_BYTES
    packed, times = _arrow_message(kafka, records, now_us, message_at)
    message = memoryview(packed)[message_at:]
    body = (
        memoryview(pa.compress(pa.py_buffer(message), CODEC_NAMES[stored], asbytes=True))
        if stored
        else message
    )
    extension, padding = _EXTENSIONS.get(codec, b""), bytes(-len(body) % 8)
    content = (extension, body, padding)
    head = pack_header(
        BatchHeader(
            base_offset=0,
            length=HEADER_BYTES - LENGTH_STOP + len(extension) + len(body) + len(padding),
            leader_epoch=0,
            append_time_us=0,
            stamp_flags=0,
            stamp_checksum=0,
            content_checksum=0,
            format=FORMAT,
            codec=stored,
            attributes=len(padding) << PADDING_SHIFT
            | (_STORED_TRANSACTIONAL if kafka.attributes & _TRANSACTIONAL else 0),
            last_offset_delta=kafka.last_offset_delta,
            record_count=kafka.record_count,
            min_timestamp_us=times[0],
            max_timestamp_us=times[1],
            producer_id=kafka.producer_id,
            producer_epoch=kafka.producer_epoch if producer_epoch is None else producer_epoch,
            base_sequence=kafka.base_sequence,
            uncompressed_bytes=len(message),
            schema_id=0,
            extension_bytes=len(extension),
        ),
        content,
    )
    if stored:
        return b"".join((head, *content))
    packed[:HEADER_BYTES] = head
    return packed


def to_kafka(batch: Buffer, *, zstd: bool = True) -> bytes | bytearray:
    """Return a stored Fairlead batch as a Kafka batch at the same offsets, with the same codec.

    A batch that a client sent with a codec that is not used for stored batches is returned uncompressed. If `zstd` is
    false, for clients that cannot read zstd, a batch compressed with zstd is also returned uncompressed. Raises the
    problems of `check_readable`, `malformed_batch` and `crc_mismatch` for damaged bytes.
    """
    view = memoryview(batch)
    header = read_header(view)
    check_checksums(view, 0, header)
    check_readable(view, header)
    if header.is_control:
        marker = read_marker(
            bytes(view[HEADER_BYTES : header.body_start]), header.producer_id, header.producer_epoch
        )
        return _empty(header) if marker is None else _control_batch(header, marker)
    if not header.record_count:
        return _empty(header)
    codec = _sent_codec(view, header, zstd=zstd)
    records, base_ms = _records(view, header, 0 if codec else KAFKA_HEADER_BYTES)
    if codec:
        compress = compress_lz4 if codec == KafkaCodec.LZ4 else compress_zstd
        records = bytearray(KAFKA_HEADER_BYTES) + compress(memoryview(records))
    return _framed(records, header, codec, base_ms)


def empty(base_offset: int, last_offset: int, leader_epoch: int) -> bytes:
    """Return a Kafka batch without records, which covers offsets that a reader of committed records must skip."""
    packed = bytearray(
        _HEADER.pack(
            base_offset,
            KAFKA_HEADER_BYTES - _LENGTH_STOP,
            leader_epoch,
            MAGIC,
            0,
            0,
            last_offset - base_offset,
            *(_NO_TIMESTAMP_MS, _NO_TIMESTAMP_MS),
            *_NO_PRODUCER,
            0,
        )
    )
    return bytes(_sealed(packed))


def is_costly_to_read(parts: Sequence[Buffer]) -> bool:
    """Return whether the translation of stored batches takes so long that it must run in a thread.

    Each part is a sequence of whole batches. Batches after a damaged header are not counted, because the translation
    ends at that header.
    """
    if sum(map(len, parts)) > ON_LOOP_BYTES_MAX:
        return True
    try:
        return any(header.codec for part in parts for _, header in iterate_headers(part))
    except ProblemError:
        return False


def translate(
    parts: Iterable[Buffer], bytes_max: int, opened_bytes_max: int, *, zstd: bool = True
) -> tuple[list[bytes | bytearray], int]:
    """Translate stored batches until the Kafka batches exceed `bytes_max`, or their open records `opened_bytes_max`.

    The first batch is always translated. Each part is a sequence of whole batches. Returns the Kafka batches, and the
    number of bytes of their records before compression. A damaged batch ends the translation; if it is the first
    batch, the problems of `to_kafka` are raised.
    """
    translated: list[bytes | bytearray] = []
    nbytes = opened = 0
    try:
        for part in parts:
            view = memoryview(part)
            for at, header in iterate_headers(view):
                opens_to = opened + header.uncompressed_bytes
                if translated and opens_to > opened_bytes_max:
                    return translated, opened
                packed = to_kafka(view[at : at + header.total_bytes], zstd=zstd)
                nbytes += len(packed)
                if translated and nbytes > bytes_max:
                    return translated, opened
                translated.append(packed)
                opened = opens_to
    except ProblemError:
        if not translated:
            raise
    return translated, opened


def _read_kafka_header(view: memoryview) -> KafkaHeader:
    """Check the header and the checksum of exactly one batch."""
    if len(view) < KAFKA_HEADER_BYTES:
        _refuse(
            "INVALID_RECORD",
            f"{len(view)} bytes are too few for a batch; a batch has at least {KAFKA_HEADER_BYTES} bytes",
        )
    if view[_MAGIC_AT] != MAGIC:
        _refuse("UNSUPPORTED_FOR_MESSAGE_FORMAT", f"batch of format {view[_MAGIC_AT]}; allowed: {MAGIC}")
    header = KafkaHeader(*_HEADER.unpack_from(view))
    if _LENGTH_STOP + header.length != len(view):
        _refuse(
            "INVALID_RECORD",
            f"batch of {_LENGTH_STOP + header.length} bytes in a field of {len(view)}; allowed: exactly one batch",
        )
    computed = checksum(view, _ATTRIBUTES_AT, len(view))
    if computed != header.crc:
        _refuse(
            "CORRUPT_MESSAGE",
            f"the computed checksum is {computed:#010x}, but the batch states {header.crc:#010x}",
        )
    if header.attributes & ~_CLIENT_ATTRIBUTES:
        _refuse(
            "INVALID_RECORD", f"attributes {header.attributes & 0xFFFF:#06x} have bits that only brokers set"
        )
    if header.attributes & _APPEND_TIME:
        _refuse("INVALID_TIMESTAMP", "the attributes declare append times, which only brokers set")
    return header


def _check_count(header: KafkaHeader) -> None:
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        _refuse(
            "INVALID_RECORD",
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta};"
            " allowed: at least 1 record, and a delta of the record count minus 1",
        )


def _codec_of(header: KafkaHeader) -> KafkaCodec:
    number = header.attributes & _CODEC_MASK
    if number not in _CODECS:
        _refuse("UNSUPPORTED_COMPRESSION_TYPE", f"codec {number} is unknown; allowed: 0 to {max(_CODECS)}")
    return KafkaCodec(number)


def _decompressed(codec: KafkaCodec, records: memoryview, bytes_max: int) -> memoryview:
    try:
        return memoryview(decompress(codec, records, bytes_max))
    except TooLargeError:
        _refuse("MESSAGE_TOO_LARGE", f"the decompressed records have more than {bytes_max} bytes")
    except UnreadableError as error:
        _refuse("INVALID_RECORD", str(error))


def _arrow_message(
    kafka: KafkaHeader, records: memoryview, now_us: int, room: int
) -> tuple[bytearray, tuple[int, int]]:
    """Return the Arrow message of the records, after `room` zero bytes, and the smallest and largest timestamp."""
    rows = kafka.record_count
    body_at = room + _LAYOUT.prefix_bytes
    try:
        packed, places, nulls, times = fairlead_kafka_records.decode(
            records, rows, kafka.base_timestamp_ms, now_us, body_at
        )
    except ValueError as error:
        _refuse("INVALID_RECORD", str(error))
    except OverflowError as error:
        _refuse("INVALID_TIMESTAMP", str(error))
    key_nulls, value_nulls, headers_nulls, header_value_nulls = nulls
    headers = places[_HEADER_NAME_OFFSETS] // 4 - 1
    columns = (rows, key_nulls, rows, value_nulls, rows, 0, rows, headers_nulls)
    header_columns = (headers, 0, headers, 0, headers, header_value_nulls)
    packed[room:body_at] = _LAYOUT.prefix(len(packed) - body_at, rows, places, (*columns, *header_columns))
    return packed, times


def _records(view: memoryview, header: BatchHeader, room: int) -> tuple[bytearray, int]:
    """Return the records of a stored batch, after `room` zero bytes, and the timestamp of the first record."""
    message = view[header.body_start : header.body_stop]
    if header.codec:
        message = decompress_body(message, header)
    arrow = read_message(message, offset_column=header.has_offset_column)
    if arrow.rows != header.record_count:
        raise ProblemError(
            "malformed_batch", f"record count {header.record_count}; the Arrow message has {arrow.rows} rows"
        )
    try:
        return fairlead_kafka_records.encode(
            message[arrow.body_start :], arrow.places, arrow.rows, arrow.headers, room
        )
    except ValueError as error:
        raise ProblemError("malformed_batch", str(error)) from error


def _sent_codec(view: memoryview, header: BatchHeader, *, zstd: bool) -> KafkaCodec:
    codec = _SENT_CODECS[Codec(header.codec)]
    if codec == KafkaCodec.ZSTD and not zstd:
        return KafkaCodec.NONE
    if any(entry.type == ExtensionType.KAFKA_CODEC for entry in read_extension(view, header)):
        return KafkaCodec.NONE
    return codec


def _empty(header: BatchHeader) -> bytearray:
    """Return a Kafka batch without records, which covers the offsets of the batch."""
    return _framed(bytearray(KAFKA_HEADER_BYTES), header, KafkaCodec.NONE, header.min_timestamp_us // 1000)


def _control_batch(header: BatchHeader, marker: Marker) -> bytearray:
    """Return the marker of a transaction as Kafka's control batch, which has one record."""
    key, value = _CONTROL_KEY.pack(0, marker.kind), _CONTROL_VALUE.pack(0, 0)
    # Attributes, timestamp delta, offset delta, key, value and no headers; lengths are one-byte zigzag numbers.
    record = b"".join((bytes(3), bytes((2 * len(key),)), key, bytes((2 * len(value),)), value, bytes(1)))
    packed = bytearray(KAFKA_HEADER_BYTES) + bytes((2 * len(record),)) + record
    return _framed(packed, header, KafkaCodec.NONE, header.min_timestamp_us // 1000, _CONTROL, 1)


def _framed(
    packed: bytearray,
    header: BatchHeader,
    codec: KafkaCodec,
    base_ms: int,
    attributes: int = 0,
    count: int | None = None,
) -> bytearray:
    """Write Kafka's header in front of the records in `packed`, which has room for the header."""
    producer = header.producer_id, header.producer_epoch, header.base_sequence
    if header.producer_epoch > _EPOCH_MAX:
        # Readers of a transaction need the producer id to leave out an aborted transaction.
        producer = (header.producer_id, -1, -1) if header.is_transactional else _NO_PRODUCER
    max_ms = header.max_timestamp_us // 1000
    attributes |= codec
    if header.has_append_time:
        attributes |= _APPEND_TIME
        max_ms = header.append_time_us // 1000
    if header.is_transactional:
        attributes |= _TRANSACTIONAL
    _HEADER.pack_into(
        packed,
        0,
        header.base_offset,
        len(packed) - _LENGTH_STOP,
        header.leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_ms,
        max_ms,
        *producer,
        header.record_count if count is None else count,
    )
    return _sealed(packed)


def _sealed(packed: bytearray) -> bytearray:
    """Write the checksum of a batch into its header."""
    _CRC.pack_into(packed, _CRC_AT, checksum(packed, _ATTRIBUTES_AT, len(packed)))
    return packed


def _refuse(error: str, detail: str) -> NoReturn:
    raise BatchRefusal(error, detail) from None
