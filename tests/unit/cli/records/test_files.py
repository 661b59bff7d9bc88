"""Files that can be loaded: the format selected by the name, and the rows as records."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlead.cli.records.files import FileError, table_file
from refusals import raises

CSV = b"carrier,delay\nUA,2\nAA,\n"


def rows(path: Path, key_column: str | None) -> list[tuple[bytes | None, bytes | None]]:
    """Return all (key, value) pairs of a file."""
    return [
        (row["key"], row["value"])
        for block in table_file(path).blocks(key_column)
        for row in block.records.to_pylist()
    ]


def test_a_csv_row_becomes_a_json_object_keyed_by_its_column(tmp_path: Path) -> None:
    """Types are inferred, an empty field is null, and the key is the text of the key column."""
    path = tmp_path / "flights.csv"
    path.write_bytes(CSV)

    assert rows(path, "carrier") == [
        (b"UA", b'{"carrier":"UA","delay":2}'),
        (b"AA", b'{"carrier":"AA","delay":null}'),
    ]


@pytest.mark.parametrize("packed", ["gz", "zip"])
def test_packed_files_read_as_if_they_were_not(tmp_path: Path, packed: str) -> None:
    """A gzipped file and a zip archive with one member contain the same records as the plain file."""
    path = tmp_path / f"flights.csv.{packed}"
    if packed == "gz":
        path.write_bytes(gzip.compress(CSV))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("flights.csv", CSV)

    assert [key for key, _ in rows(path, "carrier")] == [b"UA", b"AA"]


def test_the_blocks_use_exactly_the_bytes_of_the_file(tmp_path: Path) -> None:
    """The sizes of all blocks add up to the size of the file, so that the progress bar ends at 100%."""
    path = tmp_path / "big.csv"
    path.write_bytes(b"a,b\n" + b"1234567,some text\n" * 600_000)
    file = table_file(path)

    blocks = list(file.blocks(None))

    assert len(blocks) > 1
    assert sum(block.bytes_read for block in blocks) == file.size_bytes
    assert sum(block.records.num_rows for block in blocks) == 600_000


def test_an_ndjson_line_is_the_value_as_it_is(tmp_path: Path) -> None:
    """An NDJSON line becomes the value of a record, unchanged.

    A key is the text of a JSON string, or the JSON text of any other value.
    """
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"id": "a",  "n": 1}\n\n{"id": 7}\r\n{"id": null}')

    assert rows(path, "id") == [
        (b"a", b'{"id": "a",  "n": 1}'),
        (b"7", b'{"id": 7}'),
        (None, b'{"id": null}'),
    ]


@pytest.mark.parametrize(
    ("name", "content", "key_column", "named"),
    [
        ("a.txt", b"", None, "a.txt"),
        ("a.csv", b"x,y\n1\n", None, "a.csv"),
        ("a.csv", b"x\n1\n", "y", "'y' x"),
        ("a.ndjson", b'{"x": 1}\nnot json\n', None, "2"),
        ("a.ndjson", b'{"x": 1}\n', "y", "'y'"),
        ("a.ndjson", b"[1]\n", None, "1 JSON"),
        ("a.ndjson", b'{"x": "\xff"}\n', None, "1 JSON"),
        ("a.ndjson", b'{"\xff": 1}\n', "x", "1 JSON"),
        ("a.ndjson", b'{"x": [1, -1e999]}\n', None, "1 -1e999"),
        ("a.ndjson", b'{"x": 1e999}\n', "x", "1 1e999"),
        ("a.ndjson", b'{"x": NaN}\n', None, "1 NaN"),
        ("a.ndjson", b'{"x":' + b"[" * 10**5 + b"]" * 10**5 + b"}\n", None, "1 JSON"),
        ("a.csv", b"x,x\n1,2\n", None, "'x'"),
        ("a.csv", "x,y\n1,2\n".encode("utf-16"), None, "a.csv 'utf-8'"),
        ("a.csv.gz", b"x\n1\n", None, "a.csv.gz"),
        ("a.csv.gz", gzip.compress(CSV, mtime=0)[:-9], None, "a.csv.gz"),
        ("a.ndjson.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 9, None, "a.ndjson.gz"),
        ("a.csv.zip", b"x\n1\n", None, "a.csv.zip"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    tmp_path: Path, name: str, content: bytes, key_column: str | None, named: str
) -> None:
    """The refusal of a file that cannot be loaded names the file or the line, and the error."""
    path = tmp_path / name
    path.write_bytes(content)

    with raises(FileError, *named.split()):
        rows(path, key_column)


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    """A byte order mark, which Windows programs write, is not part of the first row."""
    (tmp_path / "a.ndjson").write_bytes(b'\xef\xbb\xbf{"x": 1}\n{"x": 2}\n')
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfx\n1\n")

    assert rows(tmp_path / "a.ndjson", "x") == [(b"1", b'{"x": 1}'), (b"2", b'{"x": 2}')]
    assert rows(tmp_path / "a.csv", "x") == [(b"1", b'{"x":1}')]


def test_a_column_that_is_no_text_is_no_key(tmp_path: Path) -> None:
    """A column of lists is refused as the key, because a list has no text form."""
    pq.write_table(pa.table({"x": [[1, 2]]}), tmp_path / "a.parquet")

    with raises(FileError, "x"):
        rows(tmp_path / "a.parquet", "x")


def test_a_missing_file_and_a_zip_of_two_are_refused(tmp_path: Path) -> None:
    """A missing file, and a zip archive with two members, are refused."""
    with zipfile.ZipFile(tmp_path / "two.csv.zip", "w") as archive:
        archive.writestr("1.csv", CSV)
        archive.writestr("2.csv", CSV)

    with pytest.raises(FileError):
        table_file(tmp_path / "nothing.csv")
    with raises(FileError, 2):
        table_file(tmp_path / "two.csv.zip")


@pytest.mark.parametrize(
    ("name", "start", "good", "bad", "named", "count"),
    [
        ("a.ndjson", b"", b'{"a":1}\n', b"bad\n", "4", 3),
        ("a.ndjson", b"", b'{"a":1}\n', b"bad\n", "700001", 700_000),
        ("a.csv", b"a,b\n", b"1,some\n", b"bad\n", "#5", 3),
        pytest.param(
            "a.csv", b"a,b\n", b"1,some\n", b"bad\n", "#700002", 700_000, marks=pytest.mark.scenario
        ),
        ("a.csv", b"a,b\n\n", b"1,some\n", b"x,not a number\n", "#700002", 700_000),
    ],
)
def test_the_rows_before_a_wrong_one_are_handed_out(
    tmp_path: Path, name: str, start: bytes, good: bytes, bad: bytes, named: str, count: int
) -> None:
    """Rows before a malformed row are returned and later rows are not, in the first block and in a later one."""
    path = tmp_path / name
    path.write_bytes(start + good * count + bad + good)
    came: list[pa.RecordBatch] = []

    with raises(FileError, named):
        came.extend(block.records for block in table_file(path).blocks(None))

    assert sum(records.num_rows for records in came) == count
    assert came[-1].column("value")[-1].as_py().startswith(b'{"a":1')


def test_a_line_of_a_file_is_bounded(tmp_path: Path) -> None:
    """A line beyond the limit is read only up to the limit, and the refusal contains the line's number."""
    path = tmp_path / "long.ndjson"
    path.write_bytes(b'{"a":1}\n{"a":"' + b"x" * 1000 + b'"}\n')
    blocks = table_file(path).blocks(None, line_bytes_max=100)

    assert next(blocks).records.num_rows == 1
    with raises(FileError, 2, 100):
        next(blocks)
