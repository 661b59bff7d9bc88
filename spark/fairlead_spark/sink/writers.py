"""The two writers that Spark's interface requires; both run the same tasks, and the driver does almost no work.

A task succeeds when all its records are acknowledged. Spark repeats a failed task, which writes its records again.
Records that were written are never removed, so the sink delivers at least once. Spark creates a writer on the driver
for every micro-batch and sends it to the tasks, so a writer contains options and names but no open resources. Only
tasks import Arrow and the SDK, since these imports would slow down every micro-batch on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from fairlead_spark.option_values import OptionError
from fairlead_spark.sink.columns import SinkColumns, columns_of
from fairlead_spark.sink.task import Written
from fairlead_spark.sink.write_options import WriteOptions
from fairlead_spark.worker_process import spare_collector

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

LOG: Final = logging.getLogger(__name__)


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
        """Do nothing, since the records of the tasks are already in the topic."""
        spare_collector()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the records that an aborted write leaves in the topic."""
        _log_abort(messages, "the write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    # Spark's own Arrow writers narrow the row type of their base class in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """Write the rows of a task and wait until all of them are acknowledged."""
        from fairlead_spark.sink.task import write_task

        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Do nothing, since the records of the tasks are already in the topic."""
        spare_collector()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Log the records that an aborted write leaves in the topic."""
        _log_abort(messages, f"micro-batch {batch_id}")


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


def _log_abort(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    written = sum(message.records for message in messages if isinstance(message, Written))
    LOG.warning("%s failed; %d records of its finished tasks stay in the topic", what, written)
