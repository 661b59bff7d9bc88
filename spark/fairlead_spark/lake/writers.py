"""Writers for Spark: tasks write files, and the driver commits the files.

A writer is created for every batch, pickled into tasks and created again for the commit, so a writer contains only
plain values. Spark provides the query id of a batch only to tasks, whose messages pass the id to the commit.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from fairlead_spark.lake import storage
from fairlead_spark.lake.columns import Columns, columns_of
from fairlead_spark.lake.commits import BatchCommit, Outcome, delete_unlisted, folders_of, open_table, sweep
from fairlead_spark.lake.files import DataFile, TaskFiles
from fairlead_spark.lake.maintenance import is_due, maintain
from fairlead_spark.lake.options import LakeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# Property with the job group id, for which Spark uses the run id of a query; the run id changes at a restart.
RUN_ID = "spark.jobGroup.id"
# Ids of the query runs for which this process has committed a batch. Files of earlier runs have already been swept.
_swept: set[str] = set()
# Sweeps that the store refused, which are retried after later commits to the same table. If there are more refused
# sweeps than the limit, the oldest refused sweep is dropped, and a vacuum of the table removes its files.
_refused: deque[Sweep] = deque(maxlen=100)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Task of the driver that finds and deletes the uncommitted files of a committed batch."""

    options: LakeOptions
    folders: frozenset[str]
    prefix: str
    keep: frozenset[str]

    def run(self) -> bool:
        """Delete the uncommitted files; return whether all were deleted.

        A refused sweep is retried after a later commit.
        """
        swept = sweep(self.options, self.folders, self.prefix, self.keep)
        if not swept:
            _refused.append(self)
        return swept


def try_refused_again(options: LakeOptions) -> None:
    """Retry the refused sweeps of a table, oldest first, until one is refused again and moves to the end of the queue.

    A store that refuses one sweep usually refuses all sweeps. A sweep lists every folder of its batch and makes one
    call for each file while Spark waits for the commit. If the role lacks the permission to delete, each commit must
    therefore retry at most one sweep.
    """
    for refused in [each for each in _refused if each.options == options]:
        _refused.remove(refused)
        if not refused.run():
            return


@dataclass
class WrittenFiles(WriterCommitMessage):
    """Message of one task to the driver."""

    query_id: str
    """Id of the streaming query, which stays the same while its checkpoint exists. For a batch write, a unique id."""
    run_id: str
    """Id of the current run of the query. For a batch write, the value of `query_id`."""
    attempt: int
    """Number of earlier attempts of this task."""
    files: list[DataFile] = field(default_factory=list)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeStreamWriter:
    """Return the writer for a stream, without network access. Raises `OptionError` and `SchemaMismatch`."""
    return LakeStreamWriter(*checked(options, schema), overwrite)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeBatchWriter:
    """Return the writer for a batch, without network access. Raises `OptionError` and `SchemaMismatch`."""
    return LakeBatchWriter(*checked(options, schema), overwrite)


def checked(given: Mapping[str, str], schema: StructType) -> tuple[LakeOptions, Columns]:
    """Return the validated options and columns of a write."""
    options = LakeOptions.parse(given)
    return options, columns_of(schema.jsonValue(), options.partition_by)


class LakeWriter:
    """Common base of the writers for streams and batches."""

    def __init__(self, options: LakeOptions, columns: Columns, overwrite: bool) -> None:
        """Create a writer, which stores only plain values, since Spark pickles writers."""
        self.options = options
        self.columns = columns
        self.overwrite = overwrite

    def write_files(self, batches: Iterator[pa.RecordBatch], query_id: str, prefix: str) -> WrittenFiles:
        """Write the rows of a task to files; after a failure, delete these files."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this method only in a task"
        # File names are never reused, even if the same batch is repeated, since the earlier files may be in the table.
        unique = uuid.uuid4().hex[:12]  # noqa: TID251 - a Spark task creates a random file name
        name = f"{prefix}{context.partitionId():05d}-{context.attemptNumber()}-{unique}"
        system = storage.file_system(self.options.path, self.options.storage_options)
        options = self.options
        with TaskFiles(system, self.columns.arrow, options.partition_by, name, options.compression) as files:
            for batch in batches:
                files.write(batch)
            run_id = context.getLocalProperty(RUN_ID) or query_id
            return WrittenFiles(query_id, run_id, context.attemptNumber(), files.finish())

    def commit_files(
        self,
        messages: Sequence[WrittenFiles],
        application: tuple[str, int] | None,
        *,
        is_stream: bool = False,
    ) -> Outcome:
        """Commit the files of all tasks in one commit."""
        files = [file for message in messages for file in message.files]
        now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - the commit on the driver needs the current time
        commit = BatchCommit(
            self.options, self.columns, files, application, now_ms, self.overwrite, is_stream
        )
        return commit.run()

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> frozenset[str] | None:
        """Delete the files of finished tasks after another task failed, if no commit was started.

        Returns the folders of the files. Returns None and deletes nothing if the table cannot be read or if all
        messages are present: if all messages are present, the commit itself raised an exception, and its result is
        unknown. Files that stay uncommitted are deleted when the batch is repeated, or by a vacuum of the table.
        """
        if None not in messages:
            logger.warning("commit to %s failed; the batch's files are not deleted", self.options.path)
            return None
        files = [file for message in messages if isinstance(message, WrittenFiles) for file in message.files]
        try:
            table = open_table(self.options)
        except storage.STORE_ERRORS as error:
            # Spark raises the error that failed the batch, so a failure to read the table is only logged.
            logger.warning("%s cannot be read, so no files are deleted: %s", self.options.path, error)
            return None
        delete_unlisted(self.options, files, table)
        return folders_of(files)


class LakeStreamWriter(LakeWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query, each batch exactly once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:  # type: ignore[override] # Spark's signature
        """Write the files of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this method only in a task"
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        assert query_id, "Spark sets the query id of a streaming task"
        assert batch_id, "Spark sets the batch id of a streaming task"
        return self.write_files(iterator, query_id, file_prefix(query_id, int(batch_id)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the batch to the table, unless the table already has it."""
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        if not written:
            return
        query_id = written[0].query_id
        outcome = self.commit_files(written, (query_id, batchId), is_stream=True)
        logger.info("batch %d of query %s: %s", batchId, query_id, outcome.value)
        try_refused_again(self.options)
        first = written[0].run_id not in _swept
        _swept.add(written[0].run_id)
        if outcome is Outcome.COMMITTED and (first or any(message.attempt for message in written)):
            # The batch is in the table, so no other driver can still commit other files of the same batch.
            files = [file for message in written for file in message.files]
            paths = frozenset(file.path for file in files)
            Sweep(self.options, folders_of(files), file_prefix(query_id, batchId), paths).run()
        if is_due(self.options, batchId):
            maintain(self.options, time.monotonic())  # noqa: TID251 - the driver limits the number of vacuums

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the files of finished tasks in a failed batch; files of killed tasks are deleted after a repetition.

        Unlike `abort` of a batch write, this method does not delete files of killed tasks: a driver that is presumed
        dead may be about to commit files of this batch.
        """
        self.discard(messages)


class LakeBatchWriter(LakeWriter, DataSourceArrowWriter):
    """Writes one data frame in one commit; `txnAppId` and `txnVersion` prevent a second commit."""

    def __init__(self, options: LakeOptions, columns: Columns, overwrite: bool) -> None:
        """Create the writer with a unique id, which is part of the names of its files."""
        super().__init__(options, columns, overwrite)
        self.write_id = str(uuid.uuid4())  # noqa: TID251 - planning creates the random id of the write
        self.prefix = f"part-{self.write_id}-"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:  # type: ignore[override] # Spark's signature
        """Write the files of one task."""
        return self.write_files(iterator, self.write_id, self.prefix)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the files of the data frame to the table."""
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        self.commit_files(written, self.options.application)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of a failed write, including the files of killed tasks.

        Spark kills the worker of a failing task, so the partitions of its files are unknown. The files of killed tasks
        are searched for in the folders of the other tasks, and in the root folder of the table.
        """
        folders = self.discard(messages)
        if folders is not None:
            sweep(self.options, {"", *folders}, self.prefix)


def file_prefix(query_id: str, batch_id: int) -> str:
    """Return the prefix of the names of all files in a batch."""
    return f"part-{query_id}-{batch_id:08d}-"
