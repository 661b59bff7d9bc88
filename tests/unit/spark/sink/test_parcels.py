from __future__ import annotations

import pyarrow as pa
import pytest

from fairlead_spark.sink.columns import SchemaError, SinkColumns
from fairlead_spark.sink.parcels import Parcel, parcels
from refusals import raises

RECORD = (("value", "v"),)


def cut(
    table: pa.Table, columns: SinkColumns, topic: str | None = None
) -> list[tuple[str, int | None, list[object]]]:
    """Return the topic, partition and values of each parcel."""
    return [
        (parcel.topic, parcel.partition, parcel.records.column("value").to_pylist())
        for parcel in parcels(table, columns, topic)
    ]


def test_rows_are_cut_by_topic_and_partition_in_their_order() -> None:
    """Rows are split by topic and partition in their order, and rows without a partition form one parcel."""
    table = pa.table(
        {
            "v": ["a", "b", "c", "d", "e", "f"],
            "t": ["x", "y", "x", "x", "y", "x"],
            "p": pa.array([1, 0, None, 0, 0, 1], pa.int32()),
        }
    )

    assert cut(table, SinkColumns(RECORD, "p", "t")) == [
        ("x", None, ["c"]),
        ("x", 0, ["d"]),
        ("x", 1, ["a", "f"]),
        ("y", 0, ["b", "e"]),
    ]


def test_rows_that_go_the_same_way_are_not_copied() -> None:
    """A table with one destination is sent without a copy."""
    table = pa.table({"v": ["a", "b"], "t": ["x", "x"], "p": pa.array([3, 3], pa.int32())})

    (parcel,) = parcels(table, SinkColumns(RECORD, "p", "t"), None)

    assert (parcel.topic, parcel.partition) == ("x", 3)
    address = table.column("v").chunk(0).buffers()[2].address
    assert parcel.records.column("value").chunk(0).buffers()[2].address == address
    assert [*parcels(table, SinkColumns(RECORD, None, None), "z")] == [Parcel("z", None, parcel.records)]


def test_rows_with_offsets_are_refused_in_a_write_to_a_table() -> None:
    """A write to a table accepts rows without offsets, and refuses all rows if any row has an offset."""
    columns = SinkColumns(RECORD, None, None, offset="o")
    table = pa.table({"v": ["a", "b"], "o": pa.array([None, None], pa.int64())})
    mixed = table.set_column(1, "o", pa.array([None, 7], pa.int64()))

    assert cut(table, columns, "x") == [("x", None, ["a", "b"])]
    with pytest.raises(SchemaError):
        cut(mixed, columns, "x")


def test_rows_that_go_nowhere_are_refused() -> None:
    """A row without a topic or with a negative partition is refused."""
    table = pa.table({"v": ["a", "b"], "t": ["x", None], "p": pa.array([0, -1], pa.int32())})

    with raises(SchemaError, "t", 1, 2):
        cut(table, SinkColumns(RECORD, None, "t"))
    with raises(SchemaError, "p", -1):
        cut(table, SinkColumns(RECORD, "p", None), "x")


def texts_of(*raw: bytes | None) -> pa.Array:
    """Return a column of strings that are not verified as UTF-8, as Spark passes them."""
    binary = pa.array(raw, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), binary.buffers())


def test_topics_that_are_no_text_are_refused_by_row() -> None:
    """A topic that is not UTF-8 is refused, and the error contains the row and the bytes."""
    column = pa.chunked_array([texts_of(b"x", b"y"), texts_of(b"x", b"\xffz")])
    table = pa.table({"v": ["a", "b", "c", "d"], "t": column})

    with raises(SchemaError, "t", "b'\\xffz'", 4):
        cut(table, SinkColumns(RECORD, None, "t"))


def test_names_of_headers_that_are_no_text_are_refused_by_row() -> None:
    """The sink refuses a header name that is not UTF-8 and names its row, before the broker refuses the batch."""
    names = texts_of(b"trace", b"kind", None, b"\xfe", b"late")
    entries = pa.StructArray.from_arrays(
        [names, pa.array([b"\xff", b"v", b"v", b"v", None])], ["key", "value"]
    )
    given = pa.ListArray.from_arrays(pa.array([0, 1, None, 3, 5], pa.int32()), entries)
    columns = SinkColumns((*RECORD, ("headers", "h")), None, None)

    assert [parcel.records.num_rows for parcel in parcels(_headed(given[:3]), columns, "x")] == [3]
    with raises(SchemaError, "h", "b'\\xfe'", 4):
        next(parcels(_headed(given), columns, "x"))


def _headed(headers: pa.Array) -> pa.Table:
    return pa.table({"v": ["a"] * len(headers), "h": headers})
