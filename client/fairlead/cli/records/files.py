"""Files that `produce --file` can load: CSV and NDJSON (plain, gzipped or zipped), Parquet, and Arrow.

The module reads a file block by block into Arrow batches with the columns `key` and `value`, and reports how many bytes
of the file each block used, for the progress bar. The module must not depend on brokers.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, cast

import msgspec
import pyarrow as pa
import pyarrow.csv as pa_csv

from fairlead.cli.records.column_files import (
    COLUMN_FORMATS,
    ColumnFileError,
    as_records,
    column_batches,
    holds_records,
)
from fairlead.cli.records.json_rows import RowsError, rows_as_json
from fairlead.cli.records.lines import without_mark
from fairlead.cli.session import UsageError
from fairlead_api.bodies.json_bodies import number_beyond

BLOCK_BYTES = 4 * 1024 * 1024  # A block fills a record batch, and is small enough for a smooth progress bar.
LINE_FORMATS = (".csv", ".ndjson", ".jsonl")
FORMATS = (*LINE_FORMATS, *COLUMN_FORMATS)
# zipfile raises RuntimeError for a member that needs a password, and Arrow raises UnicodeDecodeError for column names
# that are not UTF-8.
_UNREADABLE = (OSError, EOFError, RuntimeError, UnicodeDecodeError, zlib.error, zipfile.BadZipFile)


class FileError(UsageError):
    """A file cannot be loaded; the message names the file, the position of the error and the allowed values."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of a file that can be produced."""

    records: pa.RecordBatch
    bytes_read: int


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file to load: `format` is one of FORMATS, and `size_bytes` is the uncompressed size, if known."""

    path: Path
    format: str
    size_bytes: int | None

    def blocks(self, key_column: str | None, line_bytes_max: int = BLOCK_BYTES) -> Iterator[Block]:
        """Yield the file's records in order; the key is the text of `key_column`, or null if there is no key column.

        Raises: FileError: the content is damaged or does not match the format, lacks the column, or contains a line of
        more than `line_bytes_max` bytes. The records before the invalid line are yielded first.
        """
        if self.format in COLUMN_FORMATS:
            yield from _column_blocks(self, key_column)
            return
        with _readable(self.path), _opened(self.path) as stream:
            if self.format == ".csv":
                yield from _csv_blocks(self, stream, key_column)
            else:
                yield from _ndjson_blocks(self, stream, key_column, line_bytes_max)


def table_file(path: Path) -> TableFile:
    """Return the file at `path` with the format that the suffix of its name selects.

    Suffixes are `.parquet`, `.arrow`, `.arrows` (a stream), `.csv`, `.ndjson` and `.jsonl`. CSV, NDJSON and JSONL
    suffixes may be followed by `.gz` or `.zip`.

    Raises:
        FileError: the file does not exist, or its name has no known suffix.
    """
    if not path.is_file():
        msg = f"there is no file {path}"
        raise FileError(msg)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in (".gz", ".zip") else ""
    if not suffixes or suffixes[-1] not in (LINE_FORMATS if packed else FORMATS):
        allowed = f"{', '.join(COLUMN_FORMATS)}; {', '.join(LINE_FORMATS)}, also with .gz or .zip"
        msg = f"{path.name}: unknown kind of file; allowed: {allowed}"
        raise FileError(msg)
    with _readable(path):
        size = _unpacked_bytes(path, packed)
    return TableFile(path, suffixes[-1], size)


def _unpacked_bytes(path: Path, packed: str) -> int | None:
    if packed == ".zip":
        with zipfile.ZipFile(path) as archive:
            return _only_member(path, archive).file_size
    return None if packed == ".gz" else path.stat().st_size


def _only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if len(members) != 1:
        msg = f"{path.name} contains {len(members)} files; exactly one is expected"
        raise FileError(msg)
    return members[0]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Convert the exceptions of a damaged or unreadable file to a FileError that names the file."""
    try:
        yield
    except _UNREADABLE as error:
        msg = f"{path.name}: {error}"
        raise FileError(msg) from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path) as archive, archive.open(_only_member(path, archive)) as stream:
            yield stream
    elif path.suffix.lower() == ".gz":
        with gzip.open(path) as stream:
            yield stream  # type: ignore[misc]
    else:
        with path.open("rb") as stream:
            yield stream


def _csv_blocks(file: TableFile, stream: IO[bytes], key_column: str | None) -> Iterator[Block]:
    # A single thread is used, because with several threads an error does not contain the number of the row.
    options = pa_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)
    rows_read, read_before, schema = 0, 0, None
    try:
        reader = pa_csv.open_csv(stream, read_options=options, convert_options=_CONVERT)
        schema = reader.schema
        for rows in reader:
            position = min(stream.tell(), file.size_bytes or stream.tell())
            yield Block(_as_records(file, rows, key_column), position - read_before)
            rows_read += rows.num_rows
            read_before = position
    except pa.ArrowInvalid as error:
        for rows in _rows_before(file, rows_read, str(error), schema):
            yield Block(_as_records(file, rows, key_column), 0)
        msg = f"{file.path.name}: {error}"
        raise FileError(msg) from error


_CONVERT = pa_csv.ConvertOptions(strings_can_be_null=True)
_ROW_NUMBER = re.compile(r"Row #(\d+)")


def _rows_before(
    file: TableFile, rows_read: int, message: str, schema: pa.Schema | None
) -> Sequence[pa.RecordBatch]:
    """Return the valid rows of the block that Arrow refused: the rows between the last row read and the invalid row.

    `schema` is the schema of the rows that were read; without a schema, the column types are inferred. Arrow counts the
    header as row 1 and does not count empty lines.
    """
    found = _ROW_NUMBER.search(message)
    if found is None:
        return ()
    with _opened(file.path) as stream:
        lines = (line for line in stream if line.strip(b"\r\n"))
        header = next(lines, b"")
        wanted = b"".join([header, *islice(lines, rows_read, int(found[1]) - 2)])
    convert = pa_csv.ConvertOptions(strings_can_be_null=True, column_types=schema)
    try:
        table = pa_csv.read_csv(io.BytesIO(wanted), convert_options=convert)
    except pa.ArrowInvalid:
        return ()  # A row that spans several lines shifts the line number.
    return cast("Sequence[pa.RecordBatch]", table.combine_chunks().to_batches())


def _column_blocks(file: TableFile, key_column: str | None) -> Iterator[Block]:
    try:
        for rows, bytes_read in column_batches(file.path, BLOCK_BYTES):
            if holds_records(rows.schema):
                if key_column is not None:
                    _check_column(file, rows, key_column)
                yield Block(as_records(rows, key_column), bytes_read)
            else:
                yield Block(_as_records(file, rows, key_column), bytes_read)
    except ColumnFileError as error:
        raise FileError(str(error)) from error


def _as_records(file: TableFile, rows: pa.RecordBatch, key_column: str | None) -> pa.RecordBatch:
    try:
        values = rows_as_json(rows)
    except RowsError as error:
        msg = f"{file.path.name}: {error}"
        raise FileError(msg) from error
    return pa.RecordBatch.from_arrays([_key_texts(file, rows, key_column), values], names=["key", "value"])


def _key_texts(file: TableFile, rows: pa.RecordBatch, key_column: str | None) -> pa.Array:
    if key_column is None:
        return pa.nulls(rows.num_rows, pa.binary())
    _check_column(file, rows, key_column)
    column = rows.column(key_column)
    try:
        return column.cast(pa.string()).cast(pa.binary())
    except pa.ArrowException as error:
        msg = f"{file.path.name}: column {key_column} is {column.type}, which cannot be a key"
        raise FileError(msg) from error


def _check_column(file: TableFile, rows: pa.RecordBatch, key_column: str) -> None:
    if key_column not in rows.schema.names:
        known = ", ".join(rows.schema.names)
        msg = f"{file.path.name} has no column {key_column!r}; it has {known}"
        raise FileError(msg)


def _ndjson_blocks(
    file: TableFile, stream: IO[bytes], key_column: str | None, line_bytes_max: int
) -> Iterator[Block]:
    line_number = 0
    while lines := _some_lines(stream, line_bytes_max):
        pairs: list[tuple[bytes | None, bytes]] = []
        wrong: FileError | None = None
        for line in lines:
            line_number += 1
            value = line.rstrip(b"\r\n")
            if line_number == 1:
                value = without_mark(value)
            try:
                if len(value) > line_bytes_max:
                    msg = f"{file.path.name}, line {line_number}: longer than {line_bytes_max} bytes"
                    raise FileError(msg)
                key = _ndjson_key(file, line_number, value, key_column)
            except FileError as error:
                wrong = error
                break
            if value.strip():
                pairs.append((key, value))
        columns = [pa.array([pair[column] for pair in pairs], pa.binary()) for column in (0, 1)]
        yield Block(pa.RecordBatch.from_arrays(columns, names=["key", "value"]), sum(map(len, lines)))
        if wrong is not None:
            raise wrong


def _some_lines(stream: IO[bytes], line_bytes_max: int) -> list[bytes]:
    """Return lines of about BLOCK_BYTES in total; a line beyond the limit is read only until the limit is exceeded."""
    lines: list[bytes] = []
    left = BLOCK_BYTES
    while left > 0 and (line := stream.readline(line_bytes_max + 3)):
        lines.append(line)
        left -= len(line)
    return lines


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _ndjson_key(file: TableFile, line_number: int, line: bytes, key_column: str | None) -> bytes | None:
    if not line.strip():
        return None
    try:
        # This call checks strings and numbers, which the raw decoder does not parse.
        msgspec.json.decode(line)
        members = _OBJECT.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        number = number_beyond(line)
        reason = error if number is None else f"{number} is not a number that JSON allows"
        msg = f"{file.path.name}, line {line_number}: not a JSON object ({reason})"
        raise FileError(msg) from error
    if key_column is None:
        return None
    if key_column not in members:
        msg = f"{file.path.name}, line {line_number}: no member {key_column!r}"
        raise FileError(msg)
    member = msgspec.json.decode(members[key_column])
    if member is None:
        return None
    return member.encode() if isinstance(member, str) else bytes(members[key_column])
