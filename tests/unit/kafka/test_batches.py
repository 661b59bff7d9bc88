"""Kafka's batches converted to and from Fairlead's, checked with builders and readers of two Kafka clients.

The tests share one file because all of them build and read batches with the same functions.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as PythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder

from fairlead_api.batch.batches import ProducerStamp, Record, decode, decode_records, encode
from fairlead_api.batch.columns import record_batch
from fairlead_api.batch.control_batches import Marker, MarkerKind, pack_marker
from fairlead_api.batch.extension import ExtensionEntry, ExtensionType
from fairlead_api.batch.header import (
    Codec,
    StampFlag,
    make_stamp,
    read_header,
)
from fairlead_api.batch.rewritten_batches import Cover, encode_rewritten
from fairlead_api.batch.validation import UNLIMITED_US, ValidationLimits, validate_produced
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.kafka.batches import (
    ON_LOOP_BYTES_MAX,
    BatchRefusal,
    empty,
    from_kafka,
    is_costly,
    is_costly_to_read,
    to_kafka,
    translate,
)
from fairlead_broker.kafka.codecs import SNAPPY_BLOCKS_MAX, KafkaCodec
from refusals import raises, refuses

LIMIT = 1 << 20
NOW_US = 1_700_000_000_123_456
LIMITS = ValidationLimits(LIMIT, LIMIT, UNLIMITED_US, UNLIMITED_US)
ALL_TIMES = ValidationLimits(LIMIT, LIMIT, UNLIMITED_US, UNLIMITED_US, create_times_kept=False)
MS_MAX = (2**63 - 1) // 1000
CRC_AT, ATTRIBUTES_AT, RECORDS_AT = 17, 21, 61
Build: TypeAlias = Callable[..., Any]
Read: TypeAlias = Callable[[bytes], Any]

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=200)), max_size=4).map(tuple)
KAFKA_RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        # Kafka's clients never send -1, which means no timestamp.
        timestamp_us=st.integers(-MS_MAX, MS_MAX).filter(lambda ms: ms != -1).map(lambda ms: ms * 1000),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=40,
)
STORED_RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_us=st.integers(-(2**63), 2**63 - 1),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=40,
)
# kafka-python compresses with packages that are not installed; aiokafka builds batches with every codec.
BUILDERS = st.sampled_from([(PythonBuilder, (0, 1)), (AioBuilder, tuple(KafkaCodec))]).flatmap(
    lambda pair: st.tuples(st.just(pair[0]), st.sampled_from(pair[1]))
)
READERS = pytest.mark.parametrize("reader", [PythonBatch, AioBatch], ids=["kafka-python", "aiokafka"])


def built(
    records: Sequence[Record],
    builder: Build = PythonBuilder,
    codec: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    *,
    transactional: bool = False,
) -> bytes:
    """Return a Kafka batch as a client builds it."""
    batch = builder(2, codec, transactional, *producer, LIMIT)
    for at, each in enumerate(records):
        appended = batch.append(at, each.timestamp_us // 1000, each.key, each.value, list(each.headers))
        assert appended is not None, "the builder is full"
    return bytes(batch.build())


def stamped(batch: bytes | bytearray, base_offset: int = 0, flags: int = 0, append_us: int = 77_000) -> bytes:
    """Return a batch as a leader stores it."""
    return make_stamp(read_header(batch), base_offset, 3, append_us, flags) + bytes(batch)[36:]


def stored(
    records: Sequence[Record],
    codec: Codec = Codec.NONE,
    producer: ProducerStamp | None = None,
    extension: tuple[ExtensionEntry, ...] = (),
) -> bytes:
    """Return an unstamped batch as the SDK builds it."""
    columns = record_batch(
        [each.value for each in records],
        [each.key for each in records],
        [each.timestamp_us for each in records],
        [each.headers for each in records],
        default_timestamp_us=0,
    )
    return encode(columns, codec, producer, extension).to_bytes()


def sealed(batch: bytes) -> bytes:
    """Return a Kafka batch with a matching checksum."""
    return batch[:CRC_AT] + struct.pack(">I", crc32c(batch[ATTRIBUTES_AT:])) + batch[ATTRIBUTES_AT:]


def framed(records: bytes, count: int, attributes: int = 0, base_ms: int = 0) -> bytes:
    """Return a Kafka batch with the given records."""
    head = struct.pack(
        ">qiibIhiqqqhii",
        0,
        RECORDS_AT - 12 + len(records),
        -1,
        2,
        0,
        attributes,
        count - 1,
        base_ms,
        0,
        -1,
        -1,
        -1,
        count,
    )
    return sealed(head + records)


def read_by(reader: Read, batch: bytes | bytearray) -> list[Record]:
    """Return the records that a client reads, with its milliseconds converted to microseconds."""
    opened = reader(bytes(batch))
    assert opened.validate_crc()
    return [
        Record(each.offset, each.timestamp * 1000, each.key, each.value, tuple(each.headers))
        for each in opened
    ]


def placed(records: Sequence[Record], base_offset: int = 0) -> list[Record]:
    """Return records with their offsets, and with times rounded down to milliseconds."""
    return [
        Record(base_offset + at, each.timestamp_us // 1000 * 1000, each.key, each.value, each.headers)
        for at, each in enumerate(records)
    ]


@given(KAFKA_RECORDS, BUILDERS, st.booleans())
def test_a_clients_batch_is_the_batch_of_the_sdk(
    records: list[Record], builder: tuple[Build, int], transactional: bool
) -> None:
    """A client's batch is accepted, with its records and producer and the bytes that the SDK would send.

    A batch that arrived in a codec that is never stored has the number of that codec in its extension.
    """
    sent = built(records, *builder, (70, 5, 2**31 - 1), transactional=transactional)
    batch = from_kafka(sent, LIMIT, NOW_US)
    header = validate_produced(memoryview(batch), ALL_TIMES, NOW_US)
    # kafka-python does not compress records that would become larger.
    number = sent[ATTRIBUTES_AT + 1] & 7
    codec = (Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.LZ4, Codec.ZSTD)[number]
    extension = (
        (ExtensionEntry(ExtensionType.KAFKA_CODEC, bytes((number,))),)
        if number in {KafkaCodec.GZIP, KafkaCodec.SNAPPY}
        else ()
    )

    assert decode_records(bytes(batch)) == placed(records)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (70, 5, 2**31 - 1)
    assert header.is_transactional == transactional
    assert bytes(batch) == stored(records, codec, ProducerStamp(70, 5, 2**31 - 1, transactional), extension)


@given(KAFKA_RECORDS, st.sampled_from([PythonBuilder, AioBuilder]), st.integers(0, 2**62))
def test_uncompressed_records_come_back_as_the_same_bytes(
    records: list[Record], builder: Build, base_offset: int
) -> None:
    """A batch is returned with the client's bytes, except for base offset, leader epoch and their checksum."""
    sent = built(records, builder, 0, (70, 5, 9))
    received = to_kafka(stamped(from_kafka(sent, LIMIT, NOW_US), base_offset))

    assert received[CRC_AT:] == sent[CRC_AT:]
    assert struct.unpack_from(">qii", received) == (base_offset, len(sent) - 12, 3)


@READERS
@given(records=STORED_RECORDS, base_offset=st.integers(0, 2**62))
def test_clients_read_every_stored_batch(reader: Read, records: list[Record], base_offset: int) -> None:
    """Clients read the SDK's records at their offsets, with times rounded down to milliseconds."""
    assert read_by(reader, to_kafka(stamped(stored(records), base_offset))) == placed(records, base_offset)


@pytest.mark.parametrize("codec", list(KafkaCodec))
@given(records=KAFKA_RECORDS)
def test_clients_get_a_batch_in_the_codec_of_its_producer_or_uncompressed(
    codec: KafkaCodec, records: list[Record]
) -> None:
    """A batch is returned in its codec, or uncompressed if it was sent with gzip or snappy, which are never stored."""
    batch = to_kafka(stamped(from_kafka(built(records, AioBuilder, codec), LIMIT, NOW_US)))

    assert batch[ATTRIBUTES_AT + 1] == (0 if codec in {KafkaCodec.GZIP, KafkaCodec.SNAPPY} else codec)
    assert read_by(AioBatch, batch) == placed(records)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
@given(records=STORED_RECORDS)
def test_a_batch_keeps_its_codec(codec: Codec, records: list[Record]) -> None:
    """Compressed batches are sent with their codec, or uncompressed to a client that cannot read zstd."""
    batch = stamped(stored(records, codec))
    old = to_kafka(batch, zstd=False)

    assert to_kafka(batch)[ATTRIBUTES_AT + 1] == {Codec.LZ4: 3, Codec.ZSTD: 4}[codec]
    assert old[ATTRIBUTES_AT + 1] == {Codec.LZ4: 3, Codec.ZSTD: 0}[codec]
    assert read_by(AioBatch, to_kafka(batch)) == read_by(AioBatch, old) == placed(records)


@pytest.mark.parametrize("size", [0, 10, 65_535, 65_536, 300_000])
def test_blocks_of_lz4_do_not_depend_on_each_other(size: int) -> None:
    """LZ4 frames of any size have independent blocks, since Java clients refuse other frames."""
    noise = np.random.default_rng(1).bytes(size)
    record = Record(0, 0, noise, b"z" * size, ())
    batch = to_kafka(stamped(stored([record], Codec.LZ4)))

    assert batch[RECORDS_AT + 4] & 0x20
    assert read_by(AioBatch, batch) == [record]


def test_append_times_are_those_of_the_leader() -> None:
    """A batch with append times has Kafka's bit for append times, and every record has the append time."""
    batch = stamped(stored([Record(0, 5_000, None, b"a", ())]), 7, StampFlag.APPEND_TIME, 9_000_999)

    assert read_by(PythonBatch, to_kafka(batch)) == [Record(7, 9_000_000, None, b"a", ())]


def test_records_without_a_timestamp_get_the_time_of_arrival() -> None:
    """A timestamp of -1 means that there is none: the record gets the broker's time."""
    batch = from_kafka(built([Record(0, -1000, None, b"a", ())]), LIMIT, NOW_US)

    assert [each.timestamp_us for each in decode_records(batch)] == [NOW_US]


@READERS
@given(records=STORED_RECORDS, gaps=st.lists(st.integers(1, 1000), min_size=40, max_size=40))
def test_compacted_batches_keep_their_offsets(reader: Read, records: list[Record], gaps: list[int]) -> None:
    """Records that remain after compaction are read at their offsets, and the batch covers the removed records."""
    offsets = 1_000_000 + np.cumsum(gaps[: len(records)])
    source = read_header(stamped(stored(records), 1_000_000))
    cover = Cover(source, 1_000_000, int(offsets[-1]) + 50, 77_000, 0)
    batch = to_kafka(encode_rewritten(cover, decode(stored(records)), offsets))

    assert [each.offset for each in read_by(reader, batch)] == offsets.tolist()
    assert reader(bytes(batch)).next_offset == cover.next_offset


def test_an_emptied_batch_covers_its_offsets() -> None:
    """A batch whose records were all removed by compaction has no records, but keeps its offsets and producer."""
    source = read_header(
        stamped(stored([Record(0, 5_000, None, b"a", ())], producer=ProducerStamp(7, 1, 9)), 10)
    )
    cover = Cover(source, 10, 15, 77_000, 0, keeps_producer=True)
    batch = PythonBatch(bytes(to_kafka(encode_rewritten(cover, None, np.array([], np.int64)))))

    assert batch.validate_crc()
    assert (list(batch), batch.base_offset, batch.next_offset) == ([], 10, 15)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 1, 9)


@READERS
def test_skipped_offsets_are_covered_by_an_empty_batch(reader: Read) -> None:
    """An empty batch takes a reader past the offsets that it must skip."""
    batch = reader(empty(10, 14, 3))

    assert batch.validate_crc()
    assert (list(batch), batch.base_offset, batch.next_offset) == ([], 10, 15)


@pytest.mark.parametrize("kind", list(MarkerKind))
def test_markers_are_control_batches(kind: MarkerKind) -> None:
    """The end of a transaction is a control record at the offset of the marker."""
    marker = Marker(ProducerId(7), ProducerEpoch(2), kind, Offset(3), TimestampUs(5_000))
    batch = PythonBatch(bytes(to_kafka(stamped(pack_marker(marker), 12))))

    assert batch.validate_crc()
    record = next(iter(batch))
    assert (batch.is_control_batch, batch.is_transactional) == (True, True)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, -1)
    assert (record.offset, record.timestamp) == (12, 5)
    assert (record.abort, record.commit) == (kind == MarkerKind.ABORT, kind == MarkerKind.COMMIT)


@pytest.mark.parametrize(("transactional", "sent"), [(False, (-1, -1, -1)), (True, (7, -1, -1))])
def test_an_epoch_that_kafka_cannot_express_is_left_out(
    transactional: bool, sent: tuple[int, int, int]
) -> None:
    """Although Kafka's epochs have only 16 bits, readers of a transaction get its producer id."""
    producer = ProducerStamp(7, 2**15, 9, transactional)
    batch = PythonBatch(bytes(to_kafka(stamped(stored([Record(0, 0, None, b"a", ())], producer=producer)))))

    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == sent


def test_a_fetch_is_filled_up_to_its_limit() -> None:
    """Batches are translated until the limit is reached; the first batch is translated regardless of its size."""
    batches = [stamped(stored([Record(0, 0, None, b"a" * 100, ())]), at) for at in range(5)]
    size, opens_to = len(to_kafka(batches[0])), read_header(batches[0]).uncompressed_bytes
    parts = [b"".join(batches[:2]), b"".join(batches[2:])]
    whole, all_opened = translate(parts, 5 * size, 5 * opens_to)
    some, some_opened = translate(parts, 4 * size - 1, 5 * opens_to)
    opened, few_opened = translate(parts, 5 * size, 3 * opens_to - 1)
    one, one_opened = translate(parts, 1, 1)

    assert (len(whole), all_opened) == (5, 5 * opens_to)
    assert (len(some), some_opened) == (3, 3 * opens_to)
    assert (len(opened), few_opened) == (2, 2 * opens_to)
    assert (len(one), one_opened) == (1, opens_to)
    assert translate([], 100, 100) == ([], 0)


def test_a_damaged_batch_ends_a_fetch() -> None:
    """The batches before a damaged batch are translated; a damaged first batch is a problem."""
    batches = [stamped(stored([Record(0, 0, None, b"a", ())]), at) for at in range(3)]
    batches[1] = batches[1][:-1] + bytes((batches[1][-1] ^ 1,))
    translated, _ = translate([b"".join(batches)], LIMIT, LIMIT)

    assert translated == [to_kafka(batches[0])]
    with refuses("crc_mismatch"):
        translate(batches[1:], LIMIT, LIMIT)


def test_large_and_compressed_batches_are_costly_to_read() -> None:
    """Batches are costly if one is compressed or all are large; batches after damage do not count."""
    plain = stamped(stored([Record(0, 0, None, b"a" * 1000, ())]))
    packed = stamped(stored([Record(0, 0, None, b"a" * 1000, ())], Codec.ZSTD))

    assert is_costly_to_read([plain, plain + packed])
    assert is_costly_to_read([plain] * (ON_LOOP_BYTES_MAX // len(plain) + 1))
    assert not is_costly_to_read([plain, plain])
    assert not is_costly_to_read([plain, plain[:-1], packed])


RECORD = bytes.fromhex("0e 00 00 00 01 02 61 00")
"""One encoded record: length, attributes, deltas of timestamp and offset, no key, the value `a`, no headers."""
LONG = "fe ff ff ff 0f"
"""The length 2^31 - 1."""
REFUSED = {
    "nothing": (b"", "INVALID_RECORD"),
    "half a header": (framed(RECORD, 1)[:60], "INVALID_RECORD"),
    "two batches": (framed(RECORD, 1) * 2, "INVALID_RECORD"),
    "another length": (framed(RECORD, 1) + b"x", "INVALID_RECORD"),
    "format 1": (framed(RECORD, 1)[:16] + b"\x01" + framed(RECORD, 1)[17:], "UNSUPPORTED_FOR_MESSAGE_FORMAT"),
    "another checksum": (framed(RECORD, 1)[:-1] + b"\x01", "CORRUPT_MESSAGE"),
    "codec 5": (framed(RECORD, 1, 5), "UNSUPPORTED_COMPRESSION_TYPE"),
    "append times": (framed(RECORD, 1, 1 << 3), "INVALID_TIMESTAMP"),
    "control bit": (framed(RECORD, 1, 1 << 5), "INVALID_RECORD"),
    "horizon bit": (framed(RECORD, 1, 1 << 6), "INVALID_RECORD"),
    "sign bit": (framed(RECORD, 1, -(1 << 15)), "INVALID_RECORD"),
    "no records": (framed(b"", 0), "INVALID_RECORD"),
    "negative count": (framed(RECORD, -1), "INVALID_RECORD"),
    "more records than bytes": (framed(RECORD, 2**31 - 1), "INVALID_RECORD"),
    "another last delta": (
        sealed(framed(RECORD, 1)[:23] + bytes((0, 0, 0, 1)) + framed(RECORD, 1)[27:]),
        "INVALID_RECORD",
    ),
    "fewer records": (framed(RECORD, 2), "INVALID_RECORD"),
    "more records": (framed(RECORD + RECORD, 1), "INVALID_RECORD"),
    "the same offset twice": (framed(RECORD + RECORD, 2), "INVALID_RECORD"),
    "times before the first": (framed(RECORD, 1, base_ms=-(2**63)), "INVALID_TIMESTAMP"),
    "times after the last": (framed(RECORD, 1, base_ms=MS_MAX + 1), "INVALID_TIMESTAMP"),
    "a sum of times": (
        framed(bytes.fromhex("10 00 02 00 01 02 61 00 00"), 1, base_ms=2**63 - 1),
        "INVALID_TIMESTAMP",
    ),
} | {
    name: (framed(bytes.fromhex(record), 1), "INVALID_RECORD")
    for name, record in {
        "a long record": f"{LONG} 00 00 00 01 02 61 00",
        "a negative record": "01 00 00 00 01 02 61 00",
        "an empty record": "00 00 00 00 01 02 61 00",
        "a number without end": "ff ff ff ff ff ff ff ff ff ff",
        "a number of 33 bits": "ff ff ff ff 1f 00 00 01 02 61 00",
        "a long key": f"16 00 00 00 {LONG} 02 61 00",
        "a key of -2 bytes": "0e 00 00 00 03 02 61 00",
        "a long value": f"16 00 00 00 01 {LONG} 61 00",
        "many headers": f"16 00 00 00 01 02 61 {LONG}",
        "headers below none": "0e 00 00 00 01 02 61 01",
        "a long header name": f"18 00 00 00 01 02 61 02 {LONG}",
        "a header without a name": "12 00 00 00 01 02 61 02 01 01",
        "a long header value": f"1a 00 00 00 01 02 61 02 00 {LONG}",
        "a byte more than the record": "10 00 00 00 01 02 61 00 00",
    }.items()
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_exactly_a_batch_is_refused(case: str) -> None:
    """Each kind of malformed batch is refused with Kafka's corresponding error."""
    batch, error = REFUSED[case]

    with raises(BatchRefusal, error=error):
        from_kafka(batch, LIMIT, NOW_US)


def test_header_names_are_text() -> None:
    """A header name that is not UTF-8 is refused by the check that applies to every produced batch."""
    batch = from_kafka(framed(bytes.fromhex("14 00 00 00 01 02 61 02 02 ff 01"), 1), LIMIT, NOW_US)

    with refuses("malformed_batch"):
        validate_produced(memoryview(batch), LIMITS, NOW_US)


@pytest.mark.parametrize("codec", [codec for codec in KafkaCodec if codec])
def test_records_are_decompressed_up_to_the_limit(codec: KafkaCodec) -> None:
    """Compressed records of exactly the maximum size are accepted; one byte more, and invalid frames, are refused."""
    batch = built([Record(0, 0, None, bytes(10_000), ())], AioBuilder, codec)
    size = len(built([Record(0, 0, None, bytes(10_000), ())])) - RECORDS_AT

    assert decode_records(from_kafka(batch, size, NOW_US))[0].value == bytes(10_000)
    with raises(BatchRefusal, error="MESSAGE_TOO_LARGE"):
        from_kafka(batch, size - 1, NOW_US)
    with raises(BatchRefusal, error="INVALID_RECORD"):
        from_kafka(framed(b"\x05" + b"\xff" * 19, 1, codec), LIMIT, NOW_US)
    with raises(BatchRefusal, error="INVALID_RECORD"):
        from_kafka(sealed(batch[:8] + struct.pack(">i", len(batch) - 13) + batch[12:-1]), LIMIT, NOW_US)


def test_snappy_is_read_in_both_framings() -> None:
    """Snappy data is a single bare block, or a limited number of blocks in the format of snappy-java."""
    block = pa.compress(RECORD, "snappy", asbytes=True)
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    parts = [pa.compress(part, "snappy", asbytes=True) for part in (RECORD[:3], RECORD[3:])]
    framed_parts = head + b"".join(struct.pack(">i", len(part)) + part for part in parts)
    empty = struct.pack(">i", 1) + b"\x00"

    for records in (block, framed_parts):
        assert decode_records(from_kafka(framed(records, 1, 2), LIMIT, NOW_US))[0].value == b"a"
    for records in (head + empty * (SNAPPY_BLOCKS_MAX + 1), head + struct.pack(">i", -1), head + b"\x00"):
        with raises(BatchRefusal, error="INVALID_RECORD"):
            from_kafka(framed(records, 1, 2), LIMIT, NOW_US)
    with raises(BatchRefusal, error="MESSAGE_TOO_LARGE"):
        from_kafka(framed(framed_parts, 1, 2), len(RECORD) - 1, NOW_US)


@pytest.mark.parametrize("codec", list(KafkaCodec))
@pytest.mark.parametrize("fitting", [False, True], ids=["checksum kept", "checksum fitted"])
def test_every_flipped_bit_is_refused_or_harmless(codec: KafkaCodec, fitting: bool) -> None:
    """If one bit of a batch is flipped, only valid records are stored, even if the checksum matches."""
    records = [
        Record(0, 1_000_000, b"key", b"value" * 3, (("name", b"x"), ("", None))),
        Record(0, 2_000_000, None, None, ()),
    ]
    batch = built(records, AioBuilder, codec, (7, 1, 9))
    stored_batch = bytes(from_kafka(batch, LIMIT, NOW_US))
    harmless = set()
    for bit in range(8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            result = from_kafka(sealed(bytes(flipped)) if fitting else flipped, LIMIT, NOW_US)
            validate_produced(memoryview(result), LIMITS, NOW_US)
        except (BatchRefusal, ProblemError):
            continue
        if result != stored_batch:
            harmless.add(bit // 8)
        assert len(decode_records(bytes(result))) == len(read_by(AioBatch, to_kafka(stamped(result))))

    # Without a matching checksum, only the fields before the checksum may change, and these are not stored.
    assert fitting or harmless == set()


def test_damaged_batches_are_not_sent() -> None:
    """A flipped bit in a stored batch causes a problem, never a Kafka batch with a matching checksum."""
    batch = stamped(stored([Record(0, 0, b"key", b"value", (("name", b"x"),))]))
    for bit in range(8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProblemError):
            to_kafka(flipped)


def test_large_and_compressed_batches_are_costly() -> None:
    """Compressed batches and batches of more than 2 MiB are translated in a thread; all others on the event loop."""
    plain = framed(RECORD, 1)

    assert [is_costly(batch) for batch in (b"", plain[:22], plain, bytes(2 << 20))] == [False] * 4
    assert [is_costly(batch) for batch in (framed(RECORD, 1, 4), bytes((2 << 20) + 1))] == [True] * 2
