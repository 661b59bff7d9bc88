"""Batches and records of a consumer, from bytes in the form in which a leader stores them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest

from fairlead.errors import CrcMismatchError, MalformedBatchError
from fairlead.reading.cursors import Cursor, Fetched
from fairlead.reading.reader import batches_in
from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import Attribute, Codec, make_stamp, read_header
from fairlead_api.batch.rewritten_batches import Cover, encode_rewritten
from refusals import raises

if TYPE_CHECKING:
    from fairlead.records import ConsumerBatch
from fairlead.topic_partition import TopicPartition


def stored(values: list[bytes | None], base_offset: int, codec: Codec = Codec.NONE) -> bytes:
    """Return a batch as a leader stores it."""
    columns = record_batch(
        values,
        [None, *([b"k"] * (len(values) - 1))],
        [1_000_000 * (row + 1) for row in range(len(values))],
        [(("h", b"1"), ("h", None)), *([None] * (len(values) - 1))],
        default_timestamp_us=0,
    )
    batch = encode(columns, codec).to_bytes()
    return make_stamp(read_header(batch), base_offset, 3, 9_000_000) + batch[36:]


def fetched(data: bytes, start: int, next_offset: int = 99) -> Fetched:
    """Return stored data in the form in which the fetcher passes it to the reader."""
    cursor = Cursor("flights", "id", 4, start)
    return Fetched(cursor, cursor.life, memoryview(data), start, next_offset, None)


def only(data: bytes, start: int = 0) -> ConsumerBatch:
    """Return the only batch of the stored data."""
    [batch] = batches_in(fetched(data, start))
    return batch


@pytest.mark.parametrize("codec", list(Codec))
def test_records_come_back_as_they_were_sent(codec: Codec) -> None:
    """A record has the offset, key, value, timestamp and headers with which it was sent, with every codec."""
    records = list(only(stored([b"a", None, b""], 40, codec)))

    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in records] == [
        ("flights", 4, 40, None, b"a"),
        ("flights", 4, 41, b"k", None),
        ("flights", 4, 42, b"k", b""),
    ]
    assert records[1].timestamp == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert [record.headers for record in records] == [(("h", b"1"), ("h", None)), (), ()]


def test_arrow_has_the_offsets_beside_the_columns() -> None:
    """`to_arrow` adds a column of offsets, and is computed once."""
    batch = only(stored([b"a", b"b"], 40))
    columns = batch.to_arrow()

    assert columns.schema.names == ["offset", "key", "value", "timestamp", "headers"]
    assert columns.column("offset").to_pylist() == [40, 41]
    assert batch.to_arrow() is columns


def test_uncompressed_values_are_not_copied() -> None:
    """The value column of an uncompressed batch is a view of the answer."""
    data = stored([b"a" * 1000, b"b" * 1000], 0)
    batch = only(data)
    values = batch.to_arrow().column("value").buffers()[2]
    start = pa.py_buffer(data).address

    assert values is not None
    assert start <= values.address < start + len(data)


def test_records_below_the_asked_offset_are_left_out() -> None:
    """Records below the requested offset are skipped, within a batch and as whole batches."""
    data = stored([b"a", b"b"], 40) + stored([b"c", b"d", b"e"], 42)
    [batch] = batches_in(fetched(data, start=43))

    assert (batch.base_offset, batch.next_offset, batch.record_count) == (43, 45, 2)
    assert [record.value for record in batch] == [b"d", b"e"]
    assert [record.offset for record in batch] == [43, 44]
    assert batch.to_arrow().column("offset").to_pylist() == [43, 44]


def test_a_batch_can_be_cut_before_an_offset() -> None:
    """A batch can be truncated before an offset, as is necessary when a consumer reads up to an end offset."""
    batch = only(stored([b"a", b"b", b"c"], 40)).before(42)

    assert [record.value for record in batch] == [b"a", b"b"]
    assert (batch.next_offset, len(batch)) == (42, 2)


def test_control_batches_are_never_handed_out() -> None:
    """Control batches are never delivered."""
    control = bytearray(stored([b"\0\0\0\2"], 40))
    attributes = int.from_bytes(control[38:40], "little") | Attribute.CONTROL
    control[38:40] = attributes.to_bytes(2, "little")
    control[32:36] = google_crc32c.value(bytes(control[36:])).to_bytes(4, "little")
    plain = stored([b"a"], 41)

    assert [batch.base_offset for batch in batches_in(fetched(bytes(control) + plain, 40))] == [41]


@pytest.mark.parametrize(("at", "bit"), [(0, 5), (38, 1)], ids=["older than asked for", "a control batch"])
def test_a_flipped_bit_leaves_no_batch_out(at: int, bit: int) -> None:
    """A batch with a flipped bit is refused, and never skipped because of its damaged header."""
    bad = bytearray(stored([b"b"], 41))
    bad[at] ^= 1 << bit
    batches = batches_in(fetched(stored([b"a"], 40) + bytes(bad) + stored([b"c"], 42), 40))

    assert next(batches).base_offset == 40
    with pytest.raises(CrcMismatchError):
        next(batches)


def test_a_damaged_batch_is_refused_with_its_place_after_the_good_ones() -> None:
    """A damaged batch is refused with its position, after the preceding valid batches are returned."""
    good, bad = stored([b"a"], 40), bytearray(stored([b"b"], 41))
    bad[-20] ^= 1
    batches = batches_in(fetched(good + bytes(bad), 40))

    assert next(batches).base_offset == 40
    with raises(CrcMismatchError, "flights-4", 40, len(good)) as refused:
        next(batches)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_forged_stamp_is_refused() -> None:
    """If the stamp with offset and epoch is changed, the first checksum does not match."""
    bad = bytearray(stored([b"a"], 40))
    bad[0] ^= 1

    with pytest.raises(CrcMismatchError):
        list(batches_in(fetched(bytes(bad), 0)))


def test_a_cut_off_answer_is_refused() -> None:
    """A truncated answer is malformed."""
    data = stored([b"a" * 100], 40)

    with pytest.raises(MalformedBatchError):
        list(batches_in(fetched(data[:-8], 40)))


def test_a_record_finds_its_time_and_headers_where_the_batch_is_cut() -> None:
    """A record in a split batch has its own timestamp and headers."""
    batch = only(stored([b"a", b"b", b"c", b"d"], 40), 41)
    records = list(batch.before(43))

    assert [record.offset for record in records] == [41, 42]
    assert [(record.key, record.value) for record in records] == [(b"k", b"b"), (b"k", b"c")]
    assert [record.timestamp_us for record in records] == [2_000_000, 3_000_000]
    assert [record.headers for record in records] == [(), ()]
    assert (records[0].topic, records[0].partition) == ("flights", 4)


def test_records_are_equal_only_to_themselves_and_do_not_change() -> None:
    """Records are immutable, and equal only to themselves."""
    first, second = (next(iter(only(stored([b"a"], 40)))) for _ in range(2))

    assert first == first  # noqa: PLR0124 - the test is about equality with itself
    assert first != second
    assert len({first, second}) == 2
    with pytest.raises(AttributeError):
        first.value = b"b"  # type: ignore[misc]


def test_records_and_batches_show_what_they_are() -> None:
    """Records and batches have a readable representation."""
    batch = only(stored([b"a"], 40))

    assert repr(batch) == "ConsumerBatch(flights-4, offsets 40 to 40, 1 records)"
    assert repr(next(iter(batch))).startswith(
        "Record(flights-4@40, key=None, value=b'a', timestamp=1970-01-01T"
    )
    assert batch.topic_partition == TopicPartition("flights", 4)
    assert batch.leader_epoch == 3
    assert batch.nbytes == len(stored([b"a"], 40))


@pytest.mark.parametrize("offsets", [[45, 46, 47], [45, 47, 52]])
@pytest.mark.parametrize("start", [0, 42, 45, 46, 48, 53])
def test_a_cleaned_batch_is_read_from_any_offset(offsets: list[int], start: int) -> None:
    """A batch that covers removed offsets has the records from the requested offset on, wherever its records begin."""
    header = read_header(stored([b"a", b"b", b"c"], 40))
    columns = record_batch([b"a", b"b", b"c"], [b"k", b"l", b"m"], default_timestamp_us=0)
    data = encode_rewritten(Cover(header, 40, 60, 9_000_000, 0), columns, np.array(offsets))
    left = [offset for offset in offsets if offset >= start]
    batch = only(data, start)

    assert [record.offset for record in batch] == left
    assert batch.to_arrow().column("offset").to_pylist() == left
    assert [record.offset for record in batch.before(47)] == [offset for offset in left if offset < 47]
