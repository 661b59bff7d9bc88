"""Parquet files of one task; each partition has at most one open file at a time.

The number of buffered bytes and open files of a task is bounded for any input. A file is invisible to readers until the
driver commits it, so a failing task only needs to delete its own files.
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

# Maximum number of Arrow bytes that are buffered for row groups: large row groups compress better and are faster to
# read, but a worker has little memory.
BUFFERED_BYTES_MAX = 64 * 1024 * 1024
# Maximum number of open files: each open file keeps an encoder and a part of an upload in memory, and late records may
# have hundreds of dates.
OPEN_FILES_MAX = 32
# Size at which a file is closed: readers distribute the work on a table by files, so files must not be too large.
FILE_BYTES_MAX = 512 * 1024 * 1024
# Characters that are replaced in the folder name of a partition value. Delta's log contains the exact value; the folder
# name is only informative.
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
VALUE_LENGTH_MAX = 64

# Range of Python dates, in days since 1970: readers convert partition values to Python dates, and cannot open a table
# that has a date outside of this range.
DAYS_MIN = date.min.toordinal() - date(1970, 1, 1).toordinal()
DAYS_MAX = date.max.toordinal() - date(1970, 1, 1).toordinal()

Partition = tuple[str | None, ...]
"""Values of the partition columns, as the Delta protocol writes them."""


class PartitionValueError(ValueError):
    """A partition value would be unreadable; the message states the column, the value and the allowed values.

    A single partition with a date outside Python's range prevents deltalake from opening the table.
    """


@dataclass(frozen=True, slots=True)
class DataFile:
    """One finished file, which the driver will commit."""

    path: str
    """Path of the file relative to the table."""
    size: int
    """Size of the file in bytes."""
    rows: int
    partition: Mapping[str, str | None]
    """Value of each partition column, as the Delta protocol writes it."""
    statistics: str
    """Column statistics in the JSON format of the Delta log."""


@dataclass(slots=True)
class OpenFile:
    """One file that is being written."""

    path: str
    partition: Partition
    stream: pa.NativeFile
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    endless: set[str] = field(default_factory=set)
    """Names of the columns that contain NaN or infinity, which the footer of a Parquet file does not report."""
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
    """Files of one task attempt; as a context manager, the object deletes all of these files after an exception."""

    def __init__(
        self,
        files: FileSystem,
        schema: pa.Schema,
        partition_by: Sequence[str],
        name: str,
        compression: Codec,
    ) -> None:
        """Create the files below the root of `files`; `name` is the unique prefix of every file name of the attempt."""
        self._files = files
        self._schema = schema
        self._partition_by = list(partition_by)
        kept = [column for column in schema.names if column not in partition_by]
        self._stored = pa.schema([schema.field(column) for column in kept])
        self._name = name
        self._compression = compression
        # Open files in the order of their last use, so that the least recently used file is closed first.
        self._open: dict[Partition, OpenFile] = {}
        self._begun: list[str] = []
        self._finished: list[DataFile] = []

    def __enter__(self) -> Self:
        """Return this object. No file is opened before the first record is written."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete all files of the attempt after an exception."""
        if kind is not None:
            self.discard()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch of the data frame, whose columns match the schema in order.

        Raises `PartitionValueError` for rows without a readable partition.
        """
        if not batch.num_rows:
            return
        table = pa.Table.from_batches([batch]).rename_columns(self._schema.names).cast(self._schema)
        for partition, part in parts(table, self._partition_by):
            self._append(partition, part.select(self._stored.names))

    def finish(self) -> list[DataFile]:
        """Close all open files, and return all files of the attempt."""
        for partition in list(self._open):
            self._close(partition)
        return self._finished

    def discard(self) -> None:
        """Delete all files of the attempt."""
        for one in self._open.values():
            # Closing fails if the store has failed; a file that was never closed does not appear in the store.
            with suppress(OSError, pa.ArrowException):
                one.writer.close()
                one.stream.close()
        self._open.clear()
        storage.delete(self._files, self._begun)

    def _append(self, partition: Partition, rows: pa.Table) -> None:
        """Buffer rows, and write row groups while the buffers exceed their limit."""
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
        """Close the open file of a partition."""
        one = self._open.pop(partition)
        one.write_group()
        one.writer.close()
        size = one.stream.tell()
        one.stream.close()
        values = dict(zip(self._partition_by, partition, strict=True))
        statistics = statistics_of(one.footers[0], self._stored, one.endless)
        self._finished.append(DataFile(one.path, size, one.rows, values, statistics))


def parts(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.Table]]:
    """Split rows by their values in the given columns, one column at a time.

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
    """Return the error for a partition value that would be unreadable."""
    message = (
        f"column {name}, which the table is partitioned by, is {value}; allowed: {allowed}, or null. "
        "Have the query write null there, and keep the value in another column"
    )
    return PartitionValueError(message)


def equal(column: pa.ChunkedArray, value: Any) -> pa.ChunkedArray:
    """Return a mask of the rows whose column has the value, which may be null."""
    if value is None:
        return pc.call_function("is_null", [column])
    # The mask is null for rows in which the column is null; a filter treats null like false.
    return pc.call_function("equal", [column, pa.scalar(value, column.type)])


def spelt(value: Any) -> str | None:
    """Return a partition value as the Delta protocol writes it. The Delta protocol treats an empty string as null."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def folder_name(value: str | None) -> str:
    """Return a column name or a value as it appears in the name of a folder."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else UNSAFE.sub("_", value)[:VALUE_LENGTH_MAX]
