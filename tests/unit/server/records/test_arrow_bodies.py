"""Arrow IPC streams from arbitrary clients."""

import struct

import pyarrow as pa
import pytest

from fairlead_api.batch.batches import SCHEMA
from fairlead_api.problems import ProblemError
from fairlead_broker.server.records.arrow_bodies import FETCH_SCHEMA, read_arrow_stream, write_arrow_stream


def stream(*batches: pa.RecordBatch, **options: object) -> bytes:
    """Return an IPC stream of batches with one schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def values(*items: object, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return a batch with the column `value`."""
    return pa.record_batch({"value": pa.array(items, kind or pa.binary())})


def refused(body: bytes) -> ProblemError:
    """Return the problem of a refused body."""
    with pytest.raises(ProblemError) as caught:
        read_arrow_stream(body, 7)
    return caught.value


def test_several_batches_become_one() -> None:
    """All batches of a stream become one batch, cast to the columns of records, with timestamps filled in."""
    records = read_arrow_stream(stream(values("a", kind=pa.string()), values("b", kind=pa.string())), 7)

    assert records.schema == SCHEMA
    assert records.column("value").to_pylist() == [b"a", b"b"]
    assert records.column("timestamp").cast(pa.int64()).to_pylist() == [7, 7]


def test_answer_can_be_produced_again() -> None:
    """An Arrow stream that answers a fetch can be read back, with the offsets of its records."""
    batch = pa.RecordBatch.from_arrays(
        [*read_arrow_stream(stream(values(b"a", b"b")), 7).columns, pa.array([5, 6])], schema=FETCH_SCHEMA
    )
    table = pa.ipc.open_stream(write_arrow_stream([batch])).read_all()

    assert table.column("offset").to_pylist() == [5, 6]
    assert table.column("value").to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"\0" * 64, b"\xff\xff\xff\xff\x00\x00\x00\x00", b"ARROW1\0\0"]
)
def test_other_bytes(body: bytes) -> None:
    """A body that is empty or not an Arrow stream is refused as malformed."""
    assert refused(body).code == "malformed_request"


def test_no_records() -> None:
    """A stream without records is refused."""
    assert refused(stream(values())).code == "malformed_request"


def test_cut_streams() -> None:
    """A truncated stream is refused or returns the batches before the truncation."""
    body = stream(values(b"a" * 100), values(b"b" * 100))
    outcomes = [outcome(body[:size]) for size in range(len(body))]

    assert set(map(str, outcomes)) == {"malformed_request", str([b"a" * 100]), str([b"a" * 100, b"b" * 100])}


def outcome(body: bytes) -> list[bytes] | str:
    """Return the values of a body, or the code of its problem."""
    try:
        return read_arrow_stream(body, 7).column("value").to_pylist()
    except ProblemError as problem:
        return problem.code


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers(codec: str) -> None:
    """Compressed buffers are refused without being read, because their decompressed size is not limited."""
    problem = refused(stream(values(b"a" * 100_000), compression=codec))

    assert problem.code == "malformed_request"
    assert "compression" in problem.detail


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x"] * 3).dictionary_encode(),
        pa.array([b"x"], pa.binary_view()),
        pa.array(["x"], pa.string_view()),
        pa.RunEndEncodedArray.from_arrays([3], pa.array([b"x"])),
        pa.array([[b"x"]], pa.list_view(pa.binary())),
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([b"x"])]),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_types_that_share_bytes(column: pa.Array) -> None:
    """Types that expand a few bytes to gigabytes are refused before their values are read."""
    problem = refused(stream(pa.record_batch({"value": column})))

    assert problem.code == "invalid_record"
    assert problem.data["parameter"] == "value"


def test_millions_of_rows_of_nothing() -> None:
    """A column of nulls, which has no bytes in the stream, is refused because of its number of rows."""
    problem = refused(stream(pa.record_batch({"value": pa.nulls((1 << 31) - 1)})))

    assert problem.code == "batch_too_large"


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ({"key": [b"k"]}, "value is missing"),
        ({"value": [b"v"], "colour": [b"red"]}, "colour"),
        ({"value": [1.5]}, "value"),
        ({"value": [b"v"], "timestamp": ["yesterday"]}, "timestamp"),
        ({"value": [b"v"], "headers": [1]}, "headers"),
    ],
)
def test_wrong_columns_are_named(columns: dict[str, list[object]], named: str) -> None:
    """A missing, unknown or wrongly typed column is refused, and the problem names the column."""
    problem = refused(stream(pa.record_batch(columns)))

    assert problem.code == "invalid_record"
    assert named in problem.detail


def test_lying_offsets() -> None:
    """Offsets outside the data are refused before a value is read."""
    body = bytearray(stream(values(b"abcd", b"efgh")))
    at = body.find(struct.pack("<3i", 0, 4, 8))
    body[at : at + 12] = struct.pack("<3i", 0, 4, 1 << 30)

    assert refused(bytes(body)).code == "malformed_request"
