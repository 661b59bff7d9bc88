"""Parquet files of one task, written one after the other for each partition.

Buffered bytes and open files of a task are bounded for any input. A file is invisible until the driver commits it, so a
failing task only needs to delete its own files.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fairlead_spark.lake import storage
from fairlead_spark.lake.statistics import endless_columns, statistics_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from pyarrow.fs import FileSystem

    from fairlead_spark.lake.options import Codec

# Arrow bytes that are buffered for row groups: large groups compress and read better, but a worker has little memory.
BUFFERED_BYTES_MAX = 64 * 1024 * 1024
# Each open file has an encoder and a part of an upload in memory, and late records may have hundreds of dates.
OPEN_FILES_MAX = 32
# Readers distribute a table by files.
FILE_BYTES_MAX = 512 * 1024 * 1024
# Characters that are replaced in the folder name of a value. The log has the exact value; the name is only informative.
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
VALUE_LENGTH_MAX = 64

# Readers convert each partition to a Python date, and cannot open a table with a date outside of Python's range.
DAYS_MIN = date.min.toordinal() - date(1970, 1, 1).toordinal()
DAYS_MAX = date.max.toordinal() - date(1970, 1, 1).toordinal()

Partition = tuple[str | None, ...]
"""Values of the partition columns in Delta's spelling."""


class PartitionValueError(ValueError):
    """A value of a partition column makes no readable partition; the message states column, value and allowed values.

    A single partition with a date outside of Python's range prevents deltalake from opening the whole table.
    """


@dataclass(frozen=True, slots=True)
class DataFile:
    """One finished file, to be committed by the driver."""

    path: str
    """Path relative to the table."""
    size: int
    """Size in bytes."""
    rows: int
    partition: Mapping[str, str | None]
    """Values by partition column, in Delta's spelling."""
    statistics: str
    """Statistics as JSON, as the Delta log stores them."""


@dataclass(slots=True)
class OpenFile:
    """One file that is being written."""

    path: str
    partition: Partition
    stream: pa.NativeFile
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    endless: set[str] = field(default_factory=set)
    """Columns with NaN or infinity, which a footer does not report."""
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0

    def write_group(self) -> None:
        """Write the buffered rows as one row group."""
        if self.waiting:
            group = pa.concat_tables(self.waiting)
            self.waiting, self.waiting_bytes = [], 0
            self.endless |= endless_columns(group)
            self.writer.write_table(group, row_group_size=max(1, group.num_rows))


class TaskFiles:
    """Files of one task attempt, as a context manager that deletes all files after an exception."""

    def __init__(
        self,
        files: FileSystem,
        schema: pa.Schema,
        partition_by: Sequence[str],
        name: str,
        compression: Codec,
    ) -> None:
        """Write below the root of `files`; `name` is the prefix of every file name and unique to the attempt."""
        self._files = files
        self._schema = schema
        self._partition_by = list(partition_by)
        kept = [column for column in schema.names if column not in partition_by]
        self._stored = pa.schema([schema.field(column) for column in kept])
        self._name = name
        self._compression = compression
        # Open files in the order of their last use, so that the first file is closed first.
        self._open: dict[Partition, OpenFile] = {}
        self._begun: list[str] = []
        self._finished: list[DataFile] = []

    def __enter__(self) -> Self:
        """Return this object; no file is opened before the first record."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete all started files after an exception."""
        if kind is not None:
            self.discard()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of the frame, whose columns are those of the schema in order.

        Raises `PartitionValueError` for rows without a readable partition.
        """
        if not batch.num_rows:
            return
        table = pa.Table.from_batches([batch]).rename_columns(self._schema.names).cast(self._schema)
        for partition, part in parts(table, self._partition_by):
            self._append(partition, part.select(self._stored.names))

    def finish(self) -> list[DataFile]:
        """Close all open files and return all files."""
        for partition in list(self._open):
            self._close(partition)
        return self._finished

    def discard(self) -> None:
        """Delete every started file."""
        for one in self._open.values():
            # The store itself may have failed. A file that was not closed has no name in the store.
            with suppress(OSError, pa.ArrowException):
                one.writer.close()
                one.stream.close()
        self._open.clear()
        storage.delete(self._files, self._begun)

    def _append(self, partition: Partition, rows: pa.Table) -> None:
        """Buffer rows for their row group, and write groups while the buffers exceed their limit."""
        one = self._open.pop(partition, None) or self._begin(partition)
        self._open[partition] = one
        one.waiting.append(rows)
        one.waiting_bytes += rows.nbytes
        one.rows += rows.num_rows
        while sum(other.waiting_bytes for other in self._open.values()) > BUFFERED_BYTES_MAX:
            fullest = max(self._open.values(), key=lambda other: other.waiting_bytes)
            fullest.write_group()
            if fullest.stream.tell() > FILE_BYTES_MAX:
                self._close(fullest.partition)
        while len(self._open) > OPEN_FILES_MAX:
            self._close(next(iter(self._open)))

    def _begin(self, partition: Partition) -> OpenFile:
        """Open the next file of a partition."""
        folders = [
            f"{folder_name(column)}={folder_name(value)}/"
            for column, value in zip(self._partition_by, partition, strict=True)
        ]
        path = f"{''.join(folders)}{self._name}-{len(self._begun):04d}.{self._compression}.parquet"
        if folders:
            self._files.create_dir("".join(folders).rstrip("/"))
        stream = self._files.open_output_stream(path)
        self._begun.append(path)
        footers: list[pq.FileMetaData] = []
        writer = pq.ParquetWriter(
            stream, self._stored, compression=self._compression, version="2.6", metadata_collector=footers
        )
        return OpenFile(path, partition, stream, writer, footers)

    def _close(self, partition: Partition) -> None:
        """Finish the open file of a partition."""
        one = self._open.pop(partition)
        one.write_group()
        one.writer.close()
        size = one.stream.tell()
        one.stream.close()
        values = dict(zip(self._partition_by, partition, strict=True))
        statistics = statistics_of(one.footers[0], self._stored, one.endless)
        self._finished.append(DataFile(one.path, size, one.rows, values, statistics))


def parts(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """Split rows by their values in the given columns, one column after the other.

    `group_by` is not used, since it imports pandas, which takes seconds in every worker. Raises `PartitionValueError`.
    """
    if not columns:
        yield (), table
        return
    column = table[columns[0]]
    values = partition_values(columns[0], column)
    for value in values:
        same = table if len(values) == 1 else table.filter(equal(column, value))
        for partition, part in parts(same, columns[1:]):
            yield (spelt(value), *partition), part


def partition_values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """Return the distinct values of a partition column. Raises `PartitionValueError`."""
    unique = pc.call_function("unique", [column])
    if pa.types.is_date32(unique.type):
        days = unique.cast(pa.int32())
        known = pc.call_function(
            "and",
            [
                pc.call_function("less_equal", [days, pa.scalar(DAYS_MAX)]),
                pc.call_function("greater_equal", [days, pa.scalar(DAYS_MIN)]),
            ],
        )
        unknown = unique.filter(pc.call_function("invert", [known]))
        if len(unknown):
            raise refused(name, unknown[:1].cast(pa.string())[0].as_py(), "dates of the years 1 to 9999")
    try:
        return unique.to_pylist()
    except UnicodeDecodeError as error:
        raise refused(name, repr(error.object), "text in UTF-8") from error


def refused(name: str, value: str, allowed: str) -> PartitionValueError:
    """Return the error for rows without a readable partition."""
    message = (
        f"column {name}, which the table is partitioned by, is {value}; allowed: {allowed}, or null. "
        "Have the query write null there, and keep the value in another column"
    )
    return PartitionValueError(message)


def equal(column: pa.ChunkedArray, value: Any) -> pa.ChunkedArray:
    """Return a mask of the rows with this value, which may be null."""
    if value is None:
        return pc.call_function("is_null", [column])
    # The mask is null where the column is null; a filter drops null like false.
    return pc.call_function("equal", [column, pa.scalar(value, column.type)])


def spelt(value: Any) -> str | None:
    """Return a partition value as the Delta protocol writes it; an empty string means null there."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def folder_name(value: str | None) -> str:
    """Return the part of a folder's name for a column or value."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else UNSAFE.sub("_", value)[:VALUE_LENGTH_MAX]
