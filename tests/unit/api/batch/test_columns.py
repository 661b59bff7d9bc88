"""The columns of a record batch: built from lists, converted from users' tables, split and compacted."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead_api.batch.columns import (
    HEADERS_TYPE,
    SCHEMA,
    TIMESTAMP_TYPE,
    canonical,
    compact,
    header_counts,
    null_headers,
    payload_sizes,
    record_batch,
    split,
)
from refusals import refuses

NOW_US = 1_700_000_000_000_000
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=20),
        st.none() | st.integers(-(2**63), 2**63 - 1),
        HEADERS,
    ),
    min_size=1,
    max_size=30,
)


def built(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Build columns from rows of (value, key, timestamp, headers)."""
    values, keys, timestamps, headers = (list(column) for column in zip(*rows, strict=True))
    return record_batch(values, keys, timestamps, headers, default_timestamp_us=NOW_US)


def listed(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a batch."""
    headers = [
        None if record is None else [(item["key"], item["value"]) for item in record]
        for record in batch.column("headers").to_pylist()
    ]
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return list(
        zip(batch.column("value").to_pylist(), batch.column("key").to_pylist(), times, headers, strict=True)
    )


def message_bytes(batch: pa.RecordBatch) -> bytes:
    """Return the complete message that Arrow would send."""
    return bytes(batch.serialize().to_pybytes())


@given(ROWS)
def test_lists_become_columns(rows: list[tuple[Any, ...]]) -> None:
    """Columns from lists distinguish null from empty, use the default timestamp, and have null for empty headers."""
    batch = built(rows)
    batch.validate(full=True)

    assert batch.schema == SCHEMA
    assert listed(batch) == [
        (value, key, NOW_US if time is None else time, headers or None) for value, key, time, headers in rows
    ]


def test_columns_that_are_not_given_are_null_or_the_default() -> None:
    """Columns that are not given contain only nulls, or the default timestamp."""
    batch = record_batch([b"a", None], default_timestamp_us=5)

    assert listed(batch) == [(b"a", None, 5, None), (None, None, 5, None)]


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"values": [1]}, "value"),
        ({"values": [b""], "keys": [1.5]}, "key"),
        ({"values": [b""], "keys": []}, "key"),
        ({"values": [b""], "timestamps_us": [1, 2]}, "timestamp"),
        ({"values": [b""], "timestamps_us": ["now"]}, "timestamp"),
        ({"values": [b""], "timestamps_us": [2**63]}, "timestamp"),
        ({"values": [b""], "headers": []}, "headers"),
        ({"values": [b""], "headers": [[(1, b"")]]}, "headers"),
        ({"values": [b""], "headers": [[("a", 1)]]}, "headers"),
        ({"values": [b""], "headers": [[(None, b"")]]}, "headers"),
    ],
)
def test_a_list_that_fits_no_column_is_refused_by_name(columns: dict[str, Any], name: str) -> None:
    """A list with a wrong type, a wrong length or a null header name is an invalid record that names the column."""
    with refuses("invalid_record", name):
        record_batch(**columns, default_timestamp_us=NOW_US)


def column(values: list[Any], kind: pa.DataType) -> pa.Table:
    """Return a table with one column called value."""
    return pa.table({"value": pa.array(values, kind)})


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.binary(2),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
    ids=str,
)
def test_any_kind_of_bytes_becomes_binary(kind: pa.DataType) -> None:
    """Text and binary columns of every layout become their bytes; nulls stay null."""
    given_values = ["ab", None, "cd"] if "string" in str(kind) else [b"ab", None, b"cd"]
    batch = canonical(column(given_values, kind), NOW_US)
    batch.validate(full=True)

    assert batch.schema == SCHEMA
    assert listed(batch) == [(value, None, NOW_US, None) for value in (b"ab", None, b"cd")]


def test_a_column_of_nulls_without_a_type_is_taken() -> None:
    """Arrow's null type is accepted for every column, as a column of nulls."""
    nulls = pa.nulls(2)
    batch = canonical(pa.table({"value": nulls, "key": nulls, "timestamp": nulls, "headers": nulls}), NOW_US)

    assert listed(batch) == [(None, None, NOW_US, None)] * 2


def test_times_of_an_array_stand_as_they_are() -> None:
    """Timestamps in an array of 64-bit numbers are interpreted as microseconds, even if the array is not contiguous."""
    times = np.array([1, -2, NOW_US, 2**62], np.int64)
    rows = [(b"a", None, 1, None), (b"b", None, NOW_US, None)]

    whole = record_batch([b"a"] * 4, None, times, default_timestamp_us=0)
    apart = record_batch([b"a", b"b"], None, times[::2], default_timestamp_us=0)

    assert [row[2] for row in listed(whole)] == times.tolist()
    assert listed(apart) == rows
    assert message_bytes(apart) == message_bytes(built(rows))


@pytest.mark.parametrize(
    ("kind", "number", "expected"),
    [
        (pa.timestamp("s"), 3, 3_000_000),
        (pa.timestamp("ms", "UTC"), -3, -3_000),
        (pa.timestamp("us", "Europe/Rome"), 3, 3),
        (pa.timestamp("ns"), 3_999, 3),
    ],
    ids=str,
)
def test_timestamps_of_any_unit_become_microseconds(kind: pa.DataType, number: int, expected: int) -> None:
    """Timestamps of any unit become microseconds: nanoseconds are truncated, and null becomes the default."""
    batch = canonical(
        column([b"a", b"b"], pa.binary()).append_column("timestamp", pa.array([number, None], kind)), 9
    )

    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [expected, 9]


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS_TYPE,
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.list_(pa.struct([("value", pa.string()), ("key", pa.string())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_headers_of_several_layouts_are_taken(kind: pa.DataType) -> None:
    """Headers may be lists of structs in any field order, or maps, and empty headers become null."""
    pairs = [[("a", b"1"), ("a", b"")], None, []]
    if pa.types.is_map(kind):
        values: list[Any] = pairs
    else:
        as_text = kind.value_type.field("value").type == pa.string()
        values = [
            None
            if headers is None
            else [{"key": name, "value": text.decode() if as_text else text} for name, text in headers]
            for headers in pairs
        ]
    table = column([b"x", b"y", b"z"], pa.binary()).append_column("headers", pa.array(values, kind))
    batch = canonical(table, NOW_US)
    batch.validate(full=True)

    assert [row[3] for row in listed(batch)] == [[("a", b"1"), ("a", b"")], None, None]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"key": pa.array([b""])}, "value"),
        ({"value": pa.array([b""]), "offset": pa.array([1])}, "offset"),
        ({"value": pa.array([1])}, "value int64"),
        ({"value": pa.array([b""]), "key": pa.array([1.0])}, "key double"),
        ({"value": pa.array([b""]), "timestamp": pa.array([1])}, "timestamp int64"),
        (
            {"value": pa.array([b""]), "timestamp": pa.array([2**60], pa.timestamp("s"))},
            "timestamp",
        ),
        ({"value": pa.array([b""]), "headers": pa.array(["a"])}, "headers string"),
        ({"value": pa.array([b""]), "headers": pa.array([["a"]])}, "headers"),
        ({"value": pa.array([b""]), "headers": pa.array([[{"key": "a"}]])}, "headers"),
        (
            {"value": pa.array([b""]), "headers": pa.array([[{"k": "a", "v": b""}]])},
            "headers",
        ),
        (
            {"value": pa.array([b""]), "headers": pa.array([[{"key": 1, "value": b""}]])},
            "headers",
        ),
        (
            {"value": pa.array([b""]), "headers": pa.array([[{"key": "a", "value": 1}]])},
            "headers",
        ),
        (
            {"value": pa.array([b""]), "headers": pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)},
            "headers",
        ),
        (
            {"value": pa.array([b""]), "headers": pa.array([[None]], HEADERS_TYPE)},
            "headers",
        ),
    ],
)
def test_a_column_that_cannot_be_cast_is_refused_by_name(fields: dict[str, pa.Array], named: str) -> None:
    """A missing, unknown or wrong column is an invalid record whose detail names the column."""
    with refuses("invalid_record", *named.split()):
        canonical(pa.table(fields), NOW_US)


def test_a_column_that_is_there_twice_is_refused() -> None:
    """A table in which two columns have the same name, which Arrow allows, is refused as ambiguous."""
    table = column([b"a"], pa.binary())

    with refuses("invalid_record"):
        canonical(table.append_column("value", table.column(0)), NOW_US)


def test_a_column_beyond_two_gigabytes_is_refused() -> None:
    """A column larger than two gigabytes is refused before it is copied, because Arrow's offsets have 32 bits."""
    chunk = pa.array([bytes(64 << 20)])

    with refuses("invalid_record", "value", 2147483647):
        canonical(pa.table({"value": pa.chunked_array([chunk] * 32)}), NOW_US)


@pytest.mark.parametrize("chunks", [[], [[b"a"]], [[b"a"], [b"b", None]]])
def test_tables_become_one_piece(chunks: list[list[bytes | None]]) -> None:
    """A table with any number of chunks becomes one batch, even if it has no rows."""
    values = [value for chunk in chunks for value in chunk]
    batch = canonical(pa.table({"value": pa.chunked_array(chunks, pa.binary())}), NOW_US)

    assert batch.column("value").to_pylist() == values


@given(ROWS, st.integers(0, 30), st.integers(0, 30))
def test_a_compact_slice_holds_its_own_rows_and_nothing_else(
    rows: list[tuple[Any, ...]], start: int, size: int
) -> None:
    """A compacted slice is as large as the same rows built from lists."""
    rows = [(b"SECRET", b"SECRET", None, [("SECRET", b"SECRET")]), *rows, (b"SECRET", b"SECRET", None, None)]
    start = min(start, len(rows) - 3) + 1
    stop = min(start + size + 1, len(rows) - 1)
    piece = compact(built(rows).slice(start, stop - start))
    again = built(rows[start:stop])
    piece.validate(full=True)

    assert listed(piece) == listed(again)
    assert b"SECRET" not in message_bytes(piece)
    assert len(message_bytes(piece)) == len(message_bytes(again))


def test_what_is_compact_is_not_touched() -> None:
    """Columns from lists, from casts and from received batches are already compact and are not copied."""
    batch = built([(b"a", None, 1, None), (b"b", b"k", 2, [("h", b"v")])])
    read = pa.ipc.read_record_batch(batch.serialize(), SCHEMA)

    assert compact(batch) is batch
    assert compact(read) is read


def test_nulls_of_arrow_are_made_compact() -> None:
    """A column of Arrow's null type is rewritten, because Arrow would send offsets for children that do not exist."""
    values = pa.array([b"x"] * 1000)
    times = pa.array([1] * 1000, TIMESTAMP_TYPE)
    loose = pa.RecordBatch.from_arrays(
        [pa.nulls(1000, pa.binary()), values, times, pa.nulls(1000, HEADERS_TYPE)], schema=SCHEMA
    )
    tight = record_batch([b"x"] * 1000, default_timestamp_us=1)

    assert len(message_bytes(compact(loose))) == len(message_bytes(tight))


@pytest.mark.parametrize("first", [0, 1])
def test_loose_offsets_and_children_are_made_compact(first: int) -> None:
    """Columns whose offsets start above zero, or whose buffers and children have unused data, are compacted."""
    base = built([(b"abc", b"k", 1, [("h", b"v"), ("i", b"w")])])
    offsets = pa.py_buffer(struct.pack("<2i", first, 2))
    value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(b"abcdef")])
    times = pa.Array.from_buffers(TIMESTAMP_TYPE, 1, [pa.py_buffer(b"\x01" * 8), pa.py_buffer(bytes(64))])
    items = base.column("headers").values
    headers = pa.ListArray.from_buffers(
        HEADERS_TYPE, 1, [None, offsets], 0, 0, [pa.concat_arrays([items, items])]
    )
    wide = pa.ListArray.from_buffers(
        HEADERS_TYPE, 1, [None, pa.py_buffer(struct.pack("<3i", 0, 2, 2))], 0, 0, [items]
    )
    for lists in (headers, wide):
        loose = pa.RecordBatch.from_arrays([base.column("key"), value, times, lists], schema=SCHEMA)
        piece = compact(loose)

        assert piece is not loose
        assert listed(piece) == listed(loose)
        assert piece.column("value").buffers()[2].size == 2 - first
        assert piece.column("timestamp").buffers()[1].size == 8
        assert len(piece.column("headers").values) == lists.value_lengths()[0].as_py()


def test_children_of_a_slice_are_made_compact() -> None:
    """A list column over a slice of items contains no items outside the slice after compaction."""
    base = built([(b"a", None, 1, [("h", b"v"), ("i", b"w"), ("j", b"x")])])
    items = base.column("headers").values.slice(1, 2)
    lists = pa.ListArray.from_buffers(
        HEADERS_TYPE, 1, [None, pa.py_buffer(struct.pack("<2i", 0, 2))], 0, 0, [items]
    )
    piece = compact(base.set_column(3, "headers", lists))

    assert piece.column("headers").values.offset == 0
    assert listed(piece)[0][3] == [("i", b"w"), ("j", b"x")]


@given(ROWS, st.integers(1, 400))
def test_pieces_are_small_and_together_the_whole(rows: list[tuple[Any, ...]], bytes_max: int) -> None:
    """Each piece of a batch is within the size limit or has one record, and all pieces together equal the batch."""
    batch = built(rows)
    pieces = split(batch, bytes_max)

    assert [row for piece in pieces for row in listed(piece)] == listed(batch)
    assert all(piece.nbytes <= bytes_max or piece.num_rows == 1 for piece in pieces)


def test_nothing_has_no_pieces() -> None:
    """A batch without rows is split into no pieces."""
    assert split(record_batch([], default_timestamp_us=1), 100) == []


@given(ROWS)
@example([(b"", None, None, [("a", None)])])
@example([(b"", None, None, None), (b"", None, None, [("a", None)])])
def test_headers_are_counted_by_record(rows: list[tuple[Any, ...]]) -> None:
    """A record without headers has a header count of zero, whether its headers are null or empty."""
    counts = header_counts(built(rows)).tolist()

    assert counts == [len(headers or ()) for _, _, _, headers in rows]


@given(ROWS)
@example([(b"abc", None, None, None), (b"", b"d", None, [("a", None), ("\u20ac", b"xy")])])
def test_payloads_are_measured_by_record(rows: list[tuple[Any, ...]]) -> None:
    """The bytes of key, value and headers are counted for each record, even in a slice of a batch."""
    expected = [
        [
            len(key or b""),
            len(value or b""),
            sum(len(name.encode()) + len(each or b"") for name, each in headers or ()),
        ]
        for value, key, _, headers in rows
    ]

    assert payload_sizes(built(rows)).T.tolist() == expected
    assert payload_sizes(built(rows).slice(1)).T.tolist() == expected[1:]


@pytest.mark.parametrize("count", [0, 1, 8, 9])
def test_no_headers_are_valid_columns(count: int) -> None:
    """The column of null headers is built without Arrow's builder, but passes Arrow's validation at any length."""
    column = null_headers(count)
    column.validate(full=True)

    assert column.to_pylist() == [None] * count


def test_values_of_a_slice_are_not_copied() -> None:
    """Compacting a slice without nulls computes new offsets and does not copy the values."""
    whole = record_batch([b"%d" % row for row in range(100)], default_timestamp_us=1)
    piece = compact(whole.slice(40, 20)).column("value")
    theirs, ours = whole.column("value").buffers()[2], piece.buffers()[2]

    assert theirs is not None
    assert ours is not None
    assert theirs.address < ours.address < theirs.address + theirs.size
    assert piece.to_pylist() == whole.column("value").to_pylist()[40:60]


def test_a_table_in_one_piece_is_not_copied() -> None:
    """The value column of a table with one chunk is not copied."""
    values = pa.array([b"a", b"b"], pa.binary())
    found = canonical(pa.table({"value": values}), 1).column("value").buffers()[2]

    assert found is not None
    assert found.address == values.buffers()[2].address
