"""Parquet and Arrow files that `produce --file` can load, batch by batch.

A file with records has a binary column `value`, and optionally `key` (binary) and `headers`. Any other file is a table
whose rows become JSON objects, like the rows of a CSV file. The module must not depend on brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from fairlead.cli.session import UsageError

COLUMN_FORMATS = (".parquet", ".arrow", ".arrows")
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]))
RECORD_COLUMNS = {"key": pa.binary(), "value": pa.binary(), "headers": HEADERS}
_FILE_MAGIC = b"ARROW1"


class ColumnFileError(UsageError):
    """The content of a file does not match its name, or is truncated; the message describes the error."""


def column_batches(path: Path, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a file in batches of about `bytes_max`, each with its share of the file in bytes.

    Raises: ColumnFileError: the content is damaged, or is neither a Parquet file nor an Arrow file or stream.
    """
    size, before = path.stat().st_size, 0
    try:
        for batch, share in _shares(path, bytes_max):
            until = int(size * share)
            yield batch, until - before
            before = until
    except (pa.ArrowException, OSError) as error:
        message = f"{path.name}: {' '.join(str(error).split())}"
        raise ColumnFileError(message) from error


def holds_records(schema: pa.Schema) -> bool:
    """Return whether a file contains records rather than the rows of a table."""
    return "value" in schema.names and _is_binary(schema.field("value").type)


def as_records(batch: pa.RecordBatch, key_column: str | None) -> pa.RecordBatch:
    """Return the record columns of a batch of records; `key_column`, if given, is the name of the key column.

    Raises: ColumnFileError: a column has a type that is not allowed.
    """
    wanted = {"key": key_column or "key", "value": "value", "headers": "headers"}
    found = {}
    for name, column in wanted.items():
        if column not in batch.schema.names:
            continue
        try:
            found[name] = batch.column(column).cast(RECORD_COLUMNS[name])
        except pa.ArrowException as error:
            message = f"column {column} is {batch.schema.field(column).type}; allowed: {RECORD_COLUMNS[name]}"
            raise ColumnFileError(message) from error
    return pa.RecordBatch.from_arrays(list(found.values()), names=list(found))


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _shares(path: Path, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    """Yield the batches of a Parquet or Arrow file, each with the fraction of the file that has been read so far."""
    if path.suffix.lower() == ".parquet":
        yield from _parquet_shares(path, bytes_max)
        return
    with pa.OSFile(str(path), "rb") as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    share = (number + 1) / reader.num_record_batches
                    yield from ((part, share) for part in _sliced(reader.get_batch(number), bytes_max))
        else:
            with pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    share = source.tell() / source.size()
                    yield from ((part, share) for part in _sliced(batch, bytes_max))


def _parquet_shares(path: Path, bytes_max: int) -> Iterator[tuple[pa.RecordBatch, float]]:
    with pq.ParquetFile(path) as file:
        # Parquet reports the uncompressed sizes of row groups.
        unpacked = sum(file.metadata.row_group(each).total_byte_size for each in range(file.num_row_groups))
        rows_in_all = file.metadata.num_rows
        done = 0
        for batch in file.iter_batches(max(1, bytes_max * rows_in_all // max(1, unpacked))):
            done += batch.num_rows
            yield batch, done / rows_in_all


def _sliced(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    # A file that consists of a single large batch must not be sent as one batch.
    rows = max(1, bytes_max * batch.num_rows // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
