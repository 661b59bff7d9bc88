"""The files that one task writes: Parquet, one after the other for each partition it meets.

The memory of a task is bounded in bytes and in open files, for any input. A file is invisible until the driver commits
it, so a failing task only needs to delete its own files.
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

# Arrow bytes that wait to become a row group: large groups compress and read better, and a worker has little memory.
BUFFERED_BYTES_MAX = 64 * 1024 * 1024
# Each open file holds an encoder, and a part of an upload. Late records may meet hundreds of dates.
OPEN_FILES_MAX = 32
# Readers share a table out by files.
FILE_BYTES_MAX = 512 * 1024 * 1024
# What a folder's name keeps of a value. The log says which value it is; the name is for people.
UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
VALUE_LENGTH_MAX = 64

# Readers make a date of Python's out of each partition, and do not open a table with one that Python has not.
DAYS_MIN = date.min.toordinal() - date(1970, 1, 1).toordinal()
DAYS_MAX = date.max.toordinal() - date(1970, 1, 1).toordinal()

Partition = tuple[str | None, ...]
"""The values of the columns to partition by, as Delta spells them."""


class PartitionValueError(ValueError):
    """A value of a column to partition by makes no partition that readers can read: column, value, what is allowed.

    One partition with a date beyond Python's calendar keeps the whole table from being opened by deltalake.
    """


@dataclass(frozen=True, slots=True)
class DataFile:
    """One finished file, as the driver commits it."""

    path: str
    """Below the table."""
    size: int
    """Bytes."""
    rows: int
    partition: Mapping[str, str | None]
    """Column to value, as Delta spells it."""
    statistics: str
    """JSON, as Delta's log keeps it."""


@dataclass(slots=True)
class OpenFile:
    """One file that is being written."""

    path: str
    partition: Partition
    stream: pa.NativeFile
    writer: pq.ParquetWriter
    footers: list[pq.FileMetaData]
    endless: set[str] = field(default_factory=set)
    """Columns that hold NaN or infinity, of which a footer tells nothing."""
    waiting: list[pa.Table] = field(default_factory=list)
    waiting_bytes: int = 0
    rows: int = 0

    def write_group(self) -> None:
        """Write what waits as one row group."""
        if self.waiting:
            group = pa.concat_tables(self.waiting)
            self.waiting, self.waiting_bytes = [], 0
            self.endless |= endless_columns(group)
            self.writer.write_table(group, row_group_size=max(1, group.num_rows))


class TaskFiles:
    """What one attempt of a task writes; used as a context, which deletes everything when it ends in an exception."""

    def __init__(
        self,
        files: FileSystem,
        schema: pa.Schema,
        partition_by: Sequence[str],
        name: str,
        compression: Codec,
    ) -> None:
        """Write below the root of `files`; `name` begins every file name and is unique to the attempt."""
        self._files = files
        self._schema = schema
        self._partition_by = list(partition_by)
        kept = [column for column in schema.names if column not in partition_by]
        self._stored = pa.schema([schema.field(column) for column in kept])
        self._name = name
        self._compression = compression
        # In the order of use, so that the first one is the one to close.
        self._open: dict[Partition, OpenFile] = {}
        self._begun: list[str] = []
        self._finished: list[DataFile] = []

    def __enter__(self) -> Self:
        """Nothing is opened before the first record."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete what was begun, unless everything went well."""
        if kind is not None:
            self.discard()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take a batch of the frame, whose columns are those of the schema in their order.

        Raises `PartitionValueError` for rows that have no partition.
        """
        if not batch.num_rows:
            return
        table = pa.Table.from_batches([batch]).rename_columns(self._schema.names).cast(self._schema)
        for partition, part in parts(table, self._partition_by):
            self._append(partition, part.select(self._stored.names))

    def finish(self) -> list[DataFile]:
        """Close what is open and return every file."""
        for partition in list(self._open):
            self._close(partition)
        return self._finished

    def discard(self) -> None:
        """Delete every file that was begun."""
        for one in self._open.values():
            # The store may be what failed. What it keeps of a file that was not closed has no name.
            with suppress(OSError, pa.ArrowException):
                one.writer.close()
                one.stream.close()
        self._open.clear()
        storage.delete(self._files, self._begun)

    def _append(self, partition: Partition, rows: pa.Table) -> None:
        """Let rows wait for their row group, and write groups while too much waits."""
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
    """Share rows out by their values in some columns, one column after the other.

    Not by `group_by`, which imports pandas: seconds in every worker. Raises `PartitionValueError`.
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
    """Return the values of a column to partition by, each once. Raises `PartitionValueError`."""
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
    """Return why rows have no partition."""
    message = (
        f"column {name}, which the table is partitioned by, is {value}; allowed: {allowed}, or null. "
        "Have the query write null there, and keep the value in another column"
    )
    return PartitionValueError(message)


def equal(column: pa.ChunkedArray, value: Any) -> pa.ChunkedArray:
    """Return where a column has this value, which may be null."""
    if value is None:
        return pc.call_function("is_null", [column])
    # Null where the column is null, which a filter drops as it drops false.
    return pc.call_function("equal", [column, pa.scalar(value, column.type)])


def spelt(value: Any) -> str | None:
    """Return a value of a partition as Delta's protocol spells it; an empty text is null there."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def folder_name(value: str | None) -> str:
    """Return what stands in the name of a folder for a column or value."""
    return "__HIVE_DEFAULT_PARTITION__" if value is None else UNSAFE.sub("_", value)[:VALUE_LENGTH_MAX]
