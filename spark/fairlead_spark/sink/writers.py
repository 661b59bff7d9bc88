"""The two writers of Spark's interface: the same work in the tasks, and almost none on the driver.

A task is done when all its records are acknowledged, and fails otherwise; Spark then runs it again, which writes its
records again. No record is undone: the sink is at least once. Created on the driver for every micro-batch and sent to
the tasks, so writers hold options and names and no open resource; only tasks load Arrow and the SDK, since every
micro-batch would pay for them on the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

from fairlead_spark.options import OptionError
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

    # Spark's own Arrow writers narrow the rows of their base in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """Write the rows of a task; returns when all of them are acknowledged."""
        from fairlead_spark.sink.task import write_task

        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: what tasks wrote is there already."""
        spare_collector()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the records that an aborted write leaves in the topic."""
        _log_abort(messages, "the write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: WriteOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns

    # Spark's own Arrow writers narrow the rows of their base in the same way.
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]
        """Write the rows of a task; returns when all of them are acknowledged."""
        from fairlead_spark.sink.task import write_task

        return write_task(self._options, self._columns, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Do nothing: what tasks wrote is there already."""
        spare_collector()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """Log the records that an aborted write leaves in the topic."""
        _log_abort(messages, f"micro-batch {batch_id}")


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch query. Raises `OptionError` and `SchemaError` before anything is written."""
    if overwrite:
        option, allowed = (
            "mode",
            'append, as in df.write.format("fairlead").mode("append"): a log is not overwritten',
        )
        raise OptionError(option, "overwrite", allowed)
    return BatchWriter(*_checked(options, schema))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query; raises like `batch_writer`.

    `overwrite` is output mode `complete`: as with Kafka's sink every trigger appends its whole result.
    """
    del overwrite
    return StreamWriter(*_checked(options, schema))


def _checked(options: Mapping[str, str], schema: StructType) -> tuple[WriteOptions, SinkColumns]:
    spare_collector()
    parsed = WriteOptions.parse(options)
    return parsed, columns_of(schema, parsed.topic)


def _log_abort(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    written = sum(message.records for message in messages if isinstance(message, Written))
    LOG.warning("%s failed; %d records of its tasks that ended stay in the topic", what, written)
