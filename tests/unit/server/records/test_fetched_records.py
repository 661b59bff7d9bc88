"""Stored batches decoded for readers of JSON and Arrow."""

import msgspec
import pyarrow as pa
import pytest

from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import RECORD_HEADERS_MAX, STAMP_BYTES, Codec, make_stamp, read_header
from fairlead_api.bodies.json_records import Encoding
from fairlead_api.bodies.payload_texts import PAYLOAD_TEXT_BYTES_MAX
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime import FetchResult
from fairlead_broker.server.records.fetched_records import (
    HEADER_BYTES_MAX,
    SLICE_BYTES_MAX,
    TEXT_BYTES_MAX,
    FetchedRecords,
)

MIB = 1 << 20


def stored(base_offset: int, *values: bytes) -> bytes:
    """Return a batch as the leader stores it."""
    batch = encode(record_batch(list(values), default_timestamp_us=1_500_000)).to_bytes()
    return make_stamp(read_header(batch), base_offset, 3, 2_000_000) + batch[STAMP_BYTES:]


def records(offset: int, *parts: bytes) -> FetchedRecords:
    """Return the result of a fetch from an offset."""
    result = FetchResult(
        data=[memoryview(part) for part in parts],
        next_offset=Offset(9),
        high_watermark=Offset(9),
        log_start_offset=Offset(0),
        last_stable_offset=Offset(9),
        leader_epoch=LeaderEpoch(3),
        deleted_to=Offset(0),
        removed_to=Offset(0),
    )
    return FetchedRecords(PartitionIndex(2), Offset(offset), result)


@pytest.mark.parametrize("offset", range(8))
def test_both_forms_begin_at_the_offset(offset: int) -> None:
    """Records below the requested offset are omitted at any position in a batch."""
    parts = (stored(0, b"0", b"1", b"2") + stored(3, b"3"), stored(4, b"4", b"5", b"6", b"7"))
    answer = msgspec.json.decode(b"".join(records(offset, *parts).to_json(Encoding.UTF8)))
    table = pa.ipc.open_stream(b"".join(records(offset, *parts).to_arrow_stream())).read_all()

    assert [(entry["offset"], entry["value"]) for entry in answer["records"]] == [
        (number, str(number)) for number in range(offset, 8)
    ]
    assert table.column("offset").to_pylist() == list(range(offset, 8))
    assert {entry["partition"] for entry in answer["records"]} == {2}


def test_damaged_batch_is_not_the_readers_mistake() -> None:
    """A stored batch with a wrong checksum fails with `log_damaged` and the offsets of the damage."""
    damaged = bytearray(stored(3, b"a" * 100, b"b" * 100))
    damaged[-20] ^= 1
    for write in (lambda r: r.to_json(Encoding.UTF8), lambda r: r.to_arrow_stream()):
        with pytest.raises(ProblemError) as refused:
            write(records(0, stored(0, b"0", b"1", b"2"), bytes(damaged)))

        assert refused.value.code == "log_damaged"
        assert (refused.value.data["first_offset"], refused.value.data["next_good_offset"]) == (3, 5)


@pytest.mark.parametrize(("at", "bit"), [(0, 1), (38, 1)], ids=["older than asked for", "a control batch"])
def test_a_flipped_bit_leaves_no_batch_out(at: int, bit: int) -> None:
    """The header of a batch is used only after its checksum is verified, so that a flipped bit hides no batch."""
    damaged = bytearray(stored(3, b"a"))
    damaged[at] ^= 1 << bit
    for write in (lambda r: r.to_json(Encoding.UTF8), lambda r: r.to_arrow_stream()):
        with pytest.raises(ProblemError) as refused:
            write(records(2, stored(2, b"0"), bytes(damaged), stored(4, b"b")))

        assert refused.value.code == "log_damaged"


def headed(base_offset: int, *counts: int) -> bytes:
    """Return a stored batch whose records have the given numbers of headers."""
    headers = [[("name", b"")] * count for count in counts]
    columns = record_batch([b""] * len(counts), headers=headers, default_timestamp_us=1_500_000)
    batch = encode(columns, Codec.ZSTD).to_bytes()
    return make_stamp(read_header(batch), base_offset, 3, 2_000_000) + batch[STAMP_BYTES:]


def test_json_ends_early_inside_a_batch() -> None:
    """An answer ends at the size limit of its text, and further answers from its next offset contain the rest."""
    batch = encode(record_batch([b"x" * 1_000] * 40_000, default_timestamp_us=0), Codec.ZSTD).to_bytes()
    part = make_stamp(read_header(batch), 0, 3, 2_000_000) + batch[STAMP_BYTES:]
    first = b"".join(records(0, part).to_json(Encoding.UTF8))
    following = msgspec.json.decode(first)["next_offset"]
    second = msgspec.json.decode(b"".join(records(following, part).to_json(Encoding.UTF8)))

    assert TEXT_BYTES_MAX <= len(first) < TEXT_BYTES_MAX + MIB
    assert len(msgspec.json.decode(first)["records"]) == following
    assert second["records"][0]["offset"] == following
    assert second["records"][-1]["offset"] == 39_999


def test_slices_hold_few_objects() -> None:
    """The number of records and headers decoded at once is limited, even for a record with many headers."""
    part = headed(0, *[0] * 10_000, RECORD_HEADERS_MAX, *[7] * 2_000)
    slices = list(records(0, part).slices(Encoding.UTF8))
    objects = [sum(1 + len(record.headers) for record in each) for each in slices]

    assert sum(map(len, slices)) == 12_001
    assert max(objects) == RECORD_HEADERS_MAX + 1


def test_slices_hold_few_bytes() -> None:
    """The bytes of the records converted at once are limited, even if all large records of a batch are adjacent."""
    values = [b"x"] * 40_000 + [b"y" * 20_000] * 100 + [b"z" * 2 * SLICE_BYTES_MAX]
    batch = encode(record_batch(values, default_timestamp_us=0), Codec.ZSTD).to_bytes()
    part = make_stamp(read_header(batch), 0, 3, 2_000_000) + batch[STAMP_BYTES:]
    slices = list(records(0, part).slices(Encoding.UTF8))
    sizes = [sum(len(msgspec.json.encode(record.value)) - 2 for record in each) for each in slices]

    assert sum(sizes) == sum(map(len, values))
    assert sorted(sizes)[-2] <= SLICE_BYTES_MAX
    assert len(slices[-1]) == 1


def with_codec(columns: pa.RecordBatch) -> bytes:
    """Return a stored batch that is compressed."""
    batch = encode(columns, Codec.ZSTD).to_bytes()
    return make_stamp(read_header(batch), 0, 3, 2_000_000) + batch[STAMP_BYTES:]


def valued(*values: bytes) -> bytes:
    """Return a stored batch with these values."""
    return with_codec(record_batch(list(values), default_timestamp_us=0))


@pytest.mark.parametrize(
    "part",
    [
        headed(0, 1, RECORD_HEADERS_MAX + 1, 2),
        valued(b"a", b"\x01" * (PAYLOAD_TEXT_BYTES_MAX // 5), b"b"),
        valued(b"a", b"x" * (PAYLOAD_TEXT_BYTES_MAX + 1), b"b"),
        with_codec(
            record_batch(
                [b"a", b"b", b"c"],
                headers=[None, [("n" * HEADER_BYTES_MAX, b"v")], None],
                default_timestamp_us=0,
            )
        ),
    ],
    ids=["number of headers", "escapes", "value", "headers"],
)
def test_a_record_that_json_cannot_show_is_refused(part: bytes) -> None:
    """A record with too many headers or too much text ends a JSON answer, or is refused if it is the first.

    An Arrow answer includes a record that is too large for a JSON answer.
    """
    before = msgspec.json.decode(b"".join(records(0, part).to_json(Encoding.UTF8)))
    with pytest.raises(ProblemError) as refused:
        records(1, part).to_json(Encoding.UTF8)
    behind = msgspec.json.decode(b"".join(records(2, part).to_json(Encoding.UTF8)))
    table = pa.ipc.open_stream(b"".join(records(1, part).to_arrow_stream())).read_all()

    assert ([entry["offset"] for entry in before["records"]], before["next_offset"]) == ([0], 1)
    assert refused.value.code == "not_acceptable"
    assert [entry["offset"] for entry in behind["records"]] == [2]
    assert table.num_rows == 2
