"""Encoding and decoding of record batches."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.batch.batches import (
    ProducerStamp,
    Record,
    decode,
    decode_records,
    encode,
    offsets_of,
)
from fairlead_api.batch.columns import SCHEMA, SCHEMA_WITH_OFFSETS, record_batch
from fairlead_api.batch.extension import ExtensionEntry, read_extension
from fairlead_api.batch.header import (
    HEADER_BYTES,
    NO_PRODUCER,
    Attribute,
    BatchHeader,
    Codec,
    make_stamp,
    pack_header,
    read_header,
)
from refusals import refuses

HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp_us=st.integers(-(2**63), 2**63 - 1),
        key=st.none() | st.binary(max_size=20),
        value=st.none() | st.binary(max_size=20),
        headers=HEADERS,
    ),
    min_size=1,
    max_size=30,
)
CODECS = pytest.mark.parametrize("codec", list(Codec), ids=[codec.name for codec in Codec])


def columns_of(records: list[Record]) -> pa.RecordBatch:
    """Return the columns of the given records."""
    return record_batch(
        [record.value for record in records],
        [record.key for record in records],
        [record.timestamp_us for record in records],
        [record.headers for record in records],
        default_timestamp_us=0,
    )


def values(*content: bytes) -> pa.RecordBatch:
    """Return columns that have only values, all with the timestamp 5."""
    return record_batch(list(content), default_timestamp_us=5)


def stamped(batch: bytes, base_offset: int, append_time_us: int = 77, flags: int = 0) -> bytes:
    """Return a batch as a leader stores it."""
    return make_stamp(read_header(batch), base_offset, 3, append_time_us, flags) + batch[36:]


def assembled(columns: pa.RecordBatch, **fields: Any) -> bytes:
    """Return a batch with the given columns and header fields, which need not be consistent."""
    message = columns.serialize().to_pybytes() if columns.num_rows else b""
    known = dict.fromkeys(BatchHeader.__struct_fields__, 0) | {
        "length": HEADER_BYTES - 12 + len(message),
        "format": 1,
        "last_offset_delta": columns.num_rows - 1,
        "record_count": columns.num_rows,
        "producer_id": NO_PRODUCER,
        "uncompressed_bytes": len(message),
    }
    return pack_header(BatchHeader(**(known | fields)), [message]) + message


@given(RECORDS, st.integers(0, 29), st.integers(1, 30))
def test_few_records_have_the_message_of_arrows_writer(records: list[Record], first: int, count: int) -> None:
    """The message for any records, even for a slice, has the bytes that Arrow's writer produces for a copy."""
    part = columns_of(records).slice(first, count)
    if not part.num_rows:
        return
    copied = pa.RecordBatch.from_arrays([pa.concat_arrays([each]) for each in part.columns], schema=SCHEMA)
    message = copied.serialize().to_pybytes()

    assert encode(part).to_bytes()[HEADER_BYTES:][: len(message)] == message


@given(RECORDS, st.sampled_from(Codec), st.integers(0, 2**62))
def test_records_survive_the_round_trip(records: list[Record], codec: Codec, base_offset: int) -> None:
    """Records with nulls, empty values, repeated headers, binary content and extreme times are decoded unchanged."""
    batch = stamped(encode(columns_of(records), codec).to_bytes(), base_offset)
    expected = [replace(record, offset=base_offset + at) for at, record in enumerate(records)]

    assert decode_records(batch) == expected


@given(RECORDS, st.sampled_from(Codec))
def test_a_batch_is_aligned_and_its_header_true(records: list[Record], codec: Codec) -> None:
    """The size of a batch is aligned, its body extends to the padding, and its header contains the counts and times."""
    encoded = encode(columns_of(records), codec, ProducerStamp(9, 4, 70))
    batch = encoded.to_bytes()
    header = read_header(batch)
    times = [record.timestamp_us for record in records]

    assert len(batch) == encoded.nbytes == header.total_bytes == 12 + header.length
    assert len(batch) % 8 == 0
    assert batch[header.body_stop :] == bytes(header.padding_bytes)
    assert (header.record_count, encoded.record_count) == (len(records), len(records))
    assert header.last_offset_delta == len(records) - 1
    assert (header.min_timestamp_us, header.max_timestamp_us) == (min(times), max(times))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 4, 70)
    assert (header.codec, header.schema_id, header.extension_bytes) == (codec, 0, 0)
    assert batch[:8] == bytes(8)
    assert batch[12:32] == bytes(20)


def test_without_a_producer_its_fields_are_minus_one() -> None:
    """A batch without a producer has -1 in the producer fields of its header."""
    header = read_header(encode(values(b"a")).to_bytes())

    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)


@CODECS
def test_the_body_is_one_arrow_message(codec: Codec) -> None:
    """The body of a batch is exactly the encapsulated message that Arrow reads."""
    batch = encode(values(b"a", b"b"), codec).to_bytes()
    header = read_header(batch)
    body = batch[header.body_start : header.body_stop]
    if codec:
        with pa.CompressedInputStream(pa.BufferReader(body), codec.name.lower()) as stream:
            body = stream.read()

    assert len(body) == header.uncompressed_bytes
    assert body[:4] == b"\xff" * 4
    assert pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA) == values(b"a", b"b")


def test_uncompressed_batches_are_decoded_in_place() -> None:
    """Columns of an uncompressed batch are views of the given buffer, and keep the buffer alive."""
    batch = bytearray(encode(values(b"abc" * 100)).to_bytes())
    at = np.frombuffer(batch, np.uint8).ctypes.data
    data = decode(batch).column("value").buffers()[2]

    assert at <= data.address < at + len(batch)


def test_only_the_first_batch_of_a_buffer_is_decoded() -> None:
    """Only the first batch of a buffer is decoded, and a header that the caller provides is not read again."""
    first, second = encode(values(b"a")).to_bytes(), encode(values(b"b")).to_bytes()

    assert decode(first + second) == values(b"a")
    assert decode(memoryview(first + second)[len(first) :], read_header(second)) == values(b"b")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (pa.RecordBatch.from_pydict({"value": [b"a"]}), "must be exactly"),
        (values(), "at least one record"),
        (
            values(b"a").set_column(2, SCHEMA.field(2), pa.nulls(1, SCHEMA.field(2).type)),
            "a timestamp is null",
        ),
    ],
    ids=["schema", "empty", "null-timestamp"],
)
def test_columns_that_are_no_batch_are_not_encoded(columns: pa.RecordBatch, says: str) -> None:
    """Columns with a different schema, without records, or with null timestamps are refused as invalid records."""
    with refuses("invalid_record"):
        encode(columns)


def test_slices_are_encoded_alone() -> None:
    """A slice of columns is encoded to the same bytes as a batch of only its records, without data of adjacent rows."""
    whole = values(*(bytes([65 + number]) * 50 for number in range(20)))

    assert encode(whole.slice(7, 2)).to_bytes() == encode(values(b"H" * 50, b"I" * 50)).to_bytes()


def test_the_append_time_replaces_every_timestamp() -> None:
    """Columns and records have the append time if stamp flag 0 is set, and otherwise the producer's timestamps."""
    batch = encode(values(b"a", b"b")).to_bytes()

    assert [record.timestamp_us for record in decode_records(stamped(batch, 0, 99, 1))] == [99, 99]
    assert [record.timestamp_us for record in decode_records(stamped(batch, 0, 99, 0))] == [5, 5]
    assert decode(stamped(batch, 0, 99, 1)).schema == SCHEMA


def test_both_checksums_are_checked_by_default() -> None:
    """A batch with a wrong stamp or content checksum is refused, unless the caller turns the check off."""
    batch = stamped(encode(values(b"a")).to_bytes(), 7)
    bad_stamp = b"\x09" + batch[1:]
    bad_content = batch[:-1] + b"\x01"
    for wrong in (bad_stamp, bad_content):
        with refuses("crc_mismatch"):
            decode(wrong)

        assert decode(wrong, verify_checksum=False).num_rows == 1


def test_a_batch_that_is_not_whole_is_refused() -> None:
    """A truncated batch is refused, even if its header is complete."""
    with refuses("malformed_batch"):
        decode(encode(values(b"a")).to_bytes()[:-8])


def compacted(deltas: list[int | None], last: int, **fields: int) -> bytes:
    """Return a batch with an offset column."""
    columns = values(*(b"%d" % number for number in range(len(deltas))))
    columns = pa.RecordBatch.from_arrays(
        [*columns.columns, pa.array(deltas, pa.int32())], schema=SCHEMA_WITH_OFFSETS
    )
    return assembled(columns, attributes=int(Attribute.OFFSET_COLUMN), last_offset_delta=last, **fields)


def test_compacted_batches_keep_their_offsets() -> None:
    """Offsets of a compacted batch have gaps, and its offset column is among the decoded columns."""
    batch = stamped(compacted([0, 3, 9], 12), 100)

    assert [record.offset for record in decode_records(batch)] == [100, 103, 109]
    assert decode(batch).schema == SCHEMA_WITH_OFFSETS
    assert offsets_of(read_header(batch), decode(batch)).to_pylist() == [100, 103, 109]


@pytest.mark.parametrize(
    ("deltas", "last"),
    [([0, 0], 5), ([3, 1], 5), ([-1, 1], 5), ([0, 6], 5), ([0, None], 5)],
)
def test_offsets_outside_the_batch_are_refused(deltas: list[int | None], last: int) -> None:
    """A batch whose offset deltas decrease, exceed the range of the batch or are null is refused."""
    with refuses("malformed_batch", "offset_delta"):
        decode(compacted(deltas, last))


def test_gaps_need_an_offset_column() -> None:
    """A batch that has fewer records than offsets but no offset column is refused."""
    with refuses("malformed_batch", "offset"):
        decode(assembled(values(b"a"), last_offset_delta=3))


def test_batches_without_records_are_read_as_nothing() -> None:
    """A batch that compaction has emptied keeps its offsets and has no rows.

    An empty batch with a body is refused.
    """
    empty = assembled(values(), last_offset_delta=4)
    kept = assembled(values(), last_offset_delta=4, attributes=int(Attribute.OFFSET_COLUMN))

    assert decode(empty).num_rows == 0
    assert decode(kept).schema == SCHEMA_WITH_OFFSETS
    assert decode_records(empty + encode(values(b"a")).to_bytes())[0].value == b"a"
    for wrong in (
        assembled(values(b"a"), record_count=0),
        assembled(values(), last_offset_delta=4, uncompressed_bytes=8),
    ):
        with refuses("malformed_batch", 0):
            decode(wrong)


def test_control_batches_are_not_delivered() -> None:
    """The records of a control batch are not returned to users, but its columns can be decoded."""
    control = assembled(values(b""), attributes=int(Attribute.CONTROL))
    plain = encode(values(b"a")).to_bytes()

    assert [record.value for record in decode_records(control + plain)] == [b"a"]
    assert decode(control).num_rows == 1


def test_unvalidated_reading_is_for_own_bytes() -> None:
    """For a valid batch, decoding without validation returns the same columns."""
    batch = encode(values(b"a", b"b")).to_bytes()

    assert decode(batch, validate=False) == decode(batch)


def test_offsets_are_counted_from_the_base() -> None:
    """Offsets of a batch without an offset column are consecutive from the base offset."""
    batch = stamped(encode(values(b"a", b"b")).to_bytes(), 1 << 40)

    assert offsets_of(read_header(batch), decode(batch)).to_pylist() == [1 << 40, (1 << 40) + 1]


def test_a_message_that_only_arrow_refuses_is_malformed() -> None:
    """A message that passes the metadata check and is refused by Arrow is malformed."""
    batch = bytearray(encode(values(b"a")).to_bytes())
    metadata = HEADER_BYTES + 8
    root = metadata + struct.unpack_from("<I", batch, metadata)[0]
    vtable = root - struct.unpack_from("<i", batch, root)[0]
    batch[vtable] += 1  # an odd vtable size: no field becomes present, and only Arrow refuses the size

    with refuses("malformed_batch"):
        decode(batch, verify_checksum=False)


@pytest.mark.parametrize("codec", list(Codec))
def test_an_extension_stands_before_the_body(codec: Codec) -> None:
    """A batch with an extension of any length stays aligned, and its entries and records are read back unchanged."""
    columns = record_batch([b"a", None, b"c"], default_timestamp_us=5)
    for length in range(12):
        entries = (ExtensionEntry(77, bytes(length)), ExtensionEntry(78, b"x"))
        batch = encode(columns, codec, extension=entries).to_bytes()
        header = read_header(batch)

        assert (len(batch) % 8, header.extension_bytes % 8) == (0, 0)
        assert read_extension(batch, header) == entries
        assert decode(batch).equals(columns)
