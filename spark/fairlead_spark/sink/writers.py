"""The two writers that Spark's interface requires; both run the same tasks.

A task succeeds when all its records are acknowledged. Spark repeats a failed task, which writes its records again.
Without `exactlyOnce`, records that were written are never removed, so the sink delivers at least once. With
`exactlyOnce`, the driver commits the transactions of all tasks; Spark passes the id of a streaming query only to tasks,
whose messages pass the id to the commit. Spark creates a writer on the driver
for every micro-batch and sends it to the tasks, so a writer contains options and names but no open resources. Only
tasks import Arrow and the SDK, since these imports would slow down every micro-batch on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from fairlead_spark.option_values import OptionError
from fairlead_spark.sink.columns import SinkColumns, columns_of
from fairlead_spark.sink.task import Written
from fairlead_spark.sink.task_transactions import Query
from fairlead_spark.sink.write_options import WriteOptions
from fairlead_spark.worker_process import spare_collector

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from fairlead_spark.sink.exactly_once import JointWrite

LOG: Final = logging.getLogger(__name__)
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class BatchWriter(DataSourceArrowWriter):
    """Writes the result of a batch query."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    # Spark's own Arrow writers narrow the row type of their base class in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """Write the rows of a task and wait until all of them are acknowledged."""
        from fairlead_spark.sink.task import write_task

        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the transactions of `exactlyOnce`; without it, the records of the tasks are already in the topic."""
        spare_collector()
        if self._options.exactly_once:
            name, number = self._options.application or (None, 0)
            joint_write(self._options, messages).commit(name, number, is_stream=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the transactions of `exactlyOnce`; without it, log the records that stay in the topic."""
        _abort(self._options, messages, "the write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    # Spark's own Arrow writers narrow the row type of their base class in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """Write the rows of a task and wait until all of them are acknowledged."""
        from fairlead_spark.sink.task import write_task

        return write_task(self._options, self._columns, iterator, query_of_task())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Commit the transactions of `exactlyOnce`; without it, the records of the tasks are already in the topic."""
        spare_collector()
        if self._options.exactly_once:
            queries = {
                each.query.id for each in messages if isinstance(each, Written) and each.query is not None
            }
            for query_id in queries:
                joint_write(self._options, messages).commit(query_id, batch_id, is_stream=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Abort the transactions of `exactlyOnce`; without it, log the records that stay in the topic."""
        _abort(self._options, messages, f"micro-batch {batch_id}")


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool, *, to_table: bool = False
) -> BatchWriter:
    """Return the writer of a batch query. Raises `OptionError` and `SchemaError` before anything is written.

    `to_table`: whether the write is an INSERT into a table of the catalog, which refuses rows with offsets.
    """
    if overwrite:
        option, allowed = (
            "mode",
            'append, as in df.write.format("fairlead").mode("append"): a log is not overwritten',
        )
        raise OptionError(option, "overwrite", allowed)
    return BatchWriter(*_checked(options, schema, to_table=to_table))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query. Raises the same errors as `batch_writer`.

    `overwrite` is set in the output mode `complete`, in which every trigger appends its whole result, as in Kafka's
    sink.
    """
    del overwrite
    return StreamWriter(*_checked(options, schema))


def _checked(
    options: Mapping[str, str], schema: StructType, *, to_table: bool = False
) -> tuple[WriteOptions, SinkColumns]:
    spare_collector()
    parsed = WriteOptions.parse(options)
    return parsed, columns_of(schema, parsed.topic, to_table=to_table)


def query_of_task() -> Query:
    """Return the micro-batch of the current task."""
    context = TaskContext.get()
    assert context is not None, "Spark calls this function only in a task"
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    assert query_id, "Spark sets the query id of a streaming task"
    assert batch_id, "Spark sets the batch id of a streaming task"
    return Query(query_id, int(batch_id))


def joint_write(options: WriteOptions, messages: Sequence[WriterCommitMessage | None]) -> JointWrite:
    """Return the transactions that tasks have handed over."""
    from fairlead_spark.sink.exactly_once import JointWrite

    written = [each for each in messages if isinstance(each, Written)]
    return JointWrite(options, [each.transaction for each in written if each.transaction is not None])


def _abort(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    if options.exactly_once:
        joint_write(options, messages).abort()
        return
    written = sum(message.records for message in messages if isinstance(message, Written))
    LOG.warning("%s failed; %d records of its finished tasks stay in the topic", what, written)
