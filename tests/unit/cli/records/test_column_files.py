"""Parquet and Arrow files, with rows of a table or with records."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlead.cli.records.files import BLOCK_BYTES, FileError, table_file
from refusals import raises

if TYPE_CHECKING:
    from pathlib import Path

TABLE = pa.table(
    {
        "carrier": pa.array(["UA", "AA", None]).dictionary_encode(),
        "delay": pa.array([2.5, float("nan"), None]),
        "day": pa.array([dt.date(2013, 1, 1)] * 3),
        "price": pa.array([decimal.Decimal("1.10")] * 3),
        "stops": pa.array([["JFK", 'a "b"'], [], None]),
        "crew": pa.array([{"n": 2, "share": float("inf")}] * 3),
    }
)
ROWS = [
    {
        "carrier": "UA",
        "delay": 2.5,
        "day": "2013-01-01",
        "price": "1.10",
        "stops": ["JFK", 'a "b"'],
        "crew": {"n": 2, "share": None},
    },
    {
        "carrier": "AA",
        "delay": None,
        "day": "2013-01-01",
        "price": "1.10",
        "stops": [],
        "crew": {"n": 2, "share": None},
    },
    {
        "carrier": None,
        "delay": None,
        "day": "2013-01-01",
        "price": "1.10",
        "stops": None,
        "crew": {"n": 2, "share": None},
    },
]
FORMATS = [".parquet", ".arrow", ".arrows"]


def write(table: pa.Table, path: Path) -> Path:
    """Write a table in the format indicated by the suffix of the file name."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return path
    make = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
    with path.open("wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table)
    return path


def loaded(path: Path, key_column: str | None = None) -> list[dict[str, Any]]:
    """Return all records of a file."""
    return [row for block in table_file(path).blocks(key_column) for row in block.records.to_pylist()]


@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_become_json_objects(tmp_path: Path, suffix: str) -> None:
    """Lists and structures become arrays and objects; keys and values of types that JSON lacks become text."""
    records = loaded(write(TABLE, tmp_path / f"flights{suffix}"), "carrier")

    assert [record["key"] for record in records] == [b"UA", b"AA", None]
    assert [json.loads(record["value"]) for record in records] == ROWS


@pytest.mark.parametrize("suffix", FORMATS)
def test_files_of_records_are_taken_as_they_are(tmp_path: Path, suffix: str) -> None:
    """A file with a binary column `value` contains records: value, key and headers are kept."""
    headers = [[("trace", b"1")], [], None]
    table = pa.table(
        {
            "offset": [0, 1, 2],
            "key": pa.array([b"a", None, b"c"], pa.large_binary()),
            "value": pa.array([b"\xff\x00", b"", None], pa.binary()),
            "headers": pa.array(headers, pa.map_(pa.string(), pa.binary())).cast(
                pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))
            ),
        }
    )
    records = loaded(write(table, tmp_path / f"records{suffix}"))

    assert [(record["key"], record["value"]) for record in records] == [
        (b"a", b"\xff\x00"),
        (None, b""),
        (b"c", None),
    ]
    assert [record["headers"] for record in records] == [[{"key": "trace", "value": b"1"}], [], None]


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_large_batch_is_taken_in_pieces_whose_sizes_make_up_the_file(tmp_path: Path, suffix: str) -> None:
    """No piece is much larger than a block, even if the file consists of a single batch."""
    table = pa.table({"text": [f"{number:0100d}" for number in range(200_000)]})
    file = table_file(write(table, tmp_path / f"large{suffix}"))
    blocks = list(file.blocks(None))

    assert len(blocks) > 3
    assert max(block.records.nbytes for block in blocks) < 2 * BLOCK_BYTES
    assert sum(block.records.num_rows for block in blocks) == 200_000
    # The last bytes of a stream are not part of any batch.
    assert 0 <= (file.size_bytes or 0) - sum(block.bytes_read for block in blocks) < 64


@pytest.mark.parametrize(
    ("table", "key_column", "named"),
    [
        (pa.table({"a": [1]}), "b", "'b' a"),
        (pa.table({"a": [b"\xff"]}), None, "a UTF-8"),
        (pa.table({"value": [b"x"], "key": [[1]]}), None, "key"),
    ],
)
def test_what_cannot_be_a_record_is_refused(
    tmp_path: Path, table: pa.Table, key_column: str | None, named: str
) -> None:
    """The refusal of a missing key column, or of a column that cannot be stored, names the column."""
    path = write(table, tmp_path / "odd.parquet")

    with raises(FileError, *named.split()):
        loaded(path, key_column)


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_files_are_reported_by_name(tmp_path: Path, suffix: str) -> None:
    """A truncated file, and a file with content of a different format, are refused, and the error names the file."""
    path = write(TABLE, tmp_path / f"cut{suffix}")
    path.write_bytes(path.read_bytes()[:300])
    other = tmp_path / f"text{suffix}"
    other.write_text("carrier,delay\nUA,2\n")

    for wrong in (path, other):
        with raises(FileError, wrong.name):
            loaded(wrong)


def test_column_files_are_not_packed_again(tmp_path: Path) -> None:
    """The refusal of a gzipped column file, whose format has its own compression, lists the allowed suffixes."""
    path = tmp_path / "flights.parquet.gz"
    path.write_bytes(b"")

    with raises(FileError, ".parquet", ".arrow", ".arrows", ".csv"):
        table_file(path)
