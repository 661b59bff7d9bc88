"""The writers that Spark runs: tasks write files, the driver commits them.

A writer is created for every batch, pickled into tasks and created once more for the commit, so it holds only values.
Only tasks know the query of a batch (Spark sets it there, and not at the commit): their messages carry it to the
commit.
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
from fairlead_spark.lake.options import LakeOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
# Spark names the jobs of a stream after the run of its query, which a restart changes.
RUN_ID = "spark.jobGroup.id"
# Runs of which this process has committed a batch: what the run before it left behind has been looked for.
_swept: set[str] = set()
# Sweeps that the store refused, to be tried again after later commits to their table. What is beyond the limit is left
# to the table's vacuum.
_refused: deque[Sweep] = deque(maxlen=100)


@dataclass(frozen=True, slots=True)
class Sweep:
    """Where a batch that is in the table may have files which are not."""

    options: LakeOptions
    folders: frozenset[str]
    prefix: str
    keep: frozenset[str]

    def run(self) -> bool:
        """Delete them, and say whether none is left; where the store refuses, after a later commit to this table."""
        swept = sweep(self.options, self.folders, self.prefix, self.keep)
        if not swept:
            _refused.append(self)
        return swept


def try_refused_again(options: LakeOptions) -> None:
    """Run the refused sweeps of a table, oldest first, until one is refused again, which then is the newest.

    A store that refuses one, refuses all as a rule. Each takes a look into every folder of its batch and a call a file,
    and Spark waits for the commit: one a commit is what a role without the permission may cost.
    """
    for refused in [each for each in _refused if each.options == options]:
        _refused.remove(refused)
        if not refused.run():
            return


@dataclass
class WrittenFiles(WriterCommitMessage):
    """What one task tells the driver."""

    query_id: str
    """Id of a streaming query, the same as long as its checkpoint exists; for a batch write, a name of its own."""
    run_id: str
    """Id of the query's present run; for a batch write, the same as `query_id`."""
    attempt: int
    """Attempts of this task before this one."""
    files: list[DataFile] = field(default_factory=list)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeStreamWriter:
    """Return the writer of a stream. Raises `OptionError` and `SchemaMismatch`; needs no network."""
    return LakeStreamWriter(*checked(options, schema), overwrite)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> LakeBatchWriter:
    """Return the writer of a batch. Raises `OptionError` and `SchemaMismatch`; needs no network."""
    return LakeBatchWriter(*checked(options, schema), overwrite)


def checked(given: Mapping[str, str], schema: StructType) -> tuple[LakeOptions, Columns]:
    """Return options and columns of a write."""
    options = LakeOptions.parse(given)
    return options, columns_of(schema.jsonValue(), options.partition_by)


class LakeWriter:
    """What streams and batches have in common."""

    def __init__(self, options: LakeOptions, columns: Columns, overwrite: bool) -> None:
        """Take values only: a writer is pickled."""
        self.options = options
        self.columns = columns
        self.overwrite = overwrite

    def write_files(self, batches: Iterator[pa.RecordBatch], query_id: str, prefix: str) -> WrittenFiles:
        """Write what a task is given; nothing stays when the writing fails."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        # A name is never used twice, not even by the same batch run again: its files may be in the table.
        unique = uuid.uuid4().hex[:12]  # noqa: TID251 - a task is an edge
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
        """Make one commit of all that the tasks wrote."""
        files = [file for message in messages for file in message.files]
        now_ms = time.time_ns() // 1_000_000  # noqa: TID251 - the driver's commit is an edge
        commit = BatchCommit(
            self.options, self.columns, files, application, now_ms, self.overwrite, is_stream
        )
        return commit.run()

    def discard(self, messages: Sequence[WriterCommitMessage | None]) -> frozenset[str] | None:
        """Delete what tasks wrote to the end, when another one failed and so no commit was begun.

        Returns the folders in which they wrote. None, and nothing is deleted, where the table cannot be read, and with
        every message there: then it was the commit that ended in an exception, and what it did is not known. Files that
        are in no table are found when the batch runs again, or by the table's vacuum.
        """
        if None not in messages:
            logger.warning(
                "commit to %s ended in an error; the batch's files are left alone", self.options.path
            )
            return None
        files = [file for message in messages if isinstance(message, WrittenFiles) for file in message.files]
        try:
            table = open_table(self.options)
        except storage.STORE_ERRORS as error:
            # The error of the batch is raised, not this one.
            logger.warning("%s cannot be read, so files are left alone: %s", self.options.path, error)
            return None
        delete_unlisted(self.options, files, table)
        return folders_of(files)


class LakeStreamWriter(LakeWriter, DataSourceStreamArrowWriter):
    """Writes the batches of a query, each exactly once."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:  # type: ignore[override] # as Spark says
        """Write the files of one task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        assert query_id, "Spark names the query of a streaming task"
        assert batch_id, "Spark numbers the batch of a streaming task"
        return self.write_files(iterator, query_id, file_prefix(query_id, int(batch_id)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the batch to the table, unless it is there."""
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
            # The batch is in the table, so no other driver can commit files of its name any more.
            files = [file for message in written for file in message.files]
            paths = frozenset(file.path for file in files)
            Sweep(self.options, folders_of(files), file_prefix(query_id, batchId), paths).run()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete what the tasks of a failed batch wrote; what killed ones left goes when the batch has run again.

        Not at once, as for a batch write: a driver that is thought dead may be about to commit files of this batch.
        """
        self.discard(messages)


class LakeBatchWriter(LakeWriter, DataSourceArrowWriter):
    """Writes one frame in one commit; with `txnAppId` and `txnVersion` not a second time."""

    def __init__(self, options: LakeOptions, columns: Columns, overwrite: bool) -> None:
        """Give the write a name, which its files have."""
        super().__init__(options, columns, overwrite)
        self.write_id = str(uuid.uuid4())  # noqa: TID251 - the planner of a write is an edge
        self.prefix = f"part-{self.write_id}-"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFiles:  # type: ignore[override] # as Spark says
        """Write the files of one task."""
        return self.write_files(iterator, self.write_id, self.prefix)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the frame to the table."""
        written = [message for message in messages if isinstance(message, WrittenFiles)]
        self.commit_files(written, self.options.application)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the files of a failed write, including files of killed tasks.

        Spark kills the worker of a failing task. The partitions of its files are unknown: they are searched in the
        folders of the other tasks, and in the table's own folder.
        """
        folders = self.discard(messages)
        if folders is not None:
            sweep(self.options, {"", *folders}, self.prefix)


def file_prefix(query_id: str, batch_id: int) -> str:
    """Return how the names of all files of a batch begin."""
    return f"part-{query_id}-{batch_id:08d}-"
