"""Write task, which gathers Spark's Arrow batches, splits the rows by partition, and sends them.

The writers in the workers call this module once for each task. The module imports Arrow and the SDK.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from fairlead.errors import FairleadError, PartitionNotFoundError
from fairlead.producing.transactions import HandedOver
from fairlead_spark.sink.columns import SinkColumns
from fairlead_spark.sink.parcels import parcels
from fairlead_spark.sink.producers import borrowed_producer
from fairlead_spark.sink.task_transactions import Query, transactional_producer
from fairlead_spark.sink.write_options import WriteOptions
from fairlead_spark.worker_process import prepare_worker

if TYPE_CHECKING:
    from fairlead.blocking import Producer
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

GATHERED_BYTES: Final = 8 << 20
"""Bytes of rows that are gathered before the split by partition. Spark passes 10,000 rows at a time. If each batch of
10,000 rows were split on its own, the resulting small batches would compress badly, and each would cost a broker as
much as a large batch."""


def write_task(
    options: WriteOptions, columns: SinkColumns, batches: Iterator[pa.RecordBatch], query: Query | None = None
) -> Written:
    """Write the rows of a task. Raises `WriteError` if not all records were acknowledged.

    With `exactlyOnce`, the rows are in a transaction that the driver must commit. `query`: micro-batch of a stream;
    None for a batch write.
    """
    prepare_worker()
    try:
        if options.exactly_once:
            return _write_transaction(options, columns, batches, query)
        with borrowed_producer(options) as producer:
            records = sum(_send(producer, table, options, columns) for table in _gathered(batches))
            producer.flush()
            return Written(records, query)
    except FairleadError as error:
        message = f"not every record of the task was written: {error}"
        raise WriteError(message) from error
    except ExceptionGroup as group:
        message = f"{group.message}: {'; '.join(str(error) for error in group.exceptions[:3])}"
        raise WriteError(message) from group


def _write_transaction(
    options: WriteOptions, columns: SinkColumns, batches: Iterator[pa.RecordBatch], query: Query | None
) -> Written:
    tables = _gathered(batches)
    first = next(tables, None)
    if first is None:
        return Written(0, query)
    with transactional_producer(options, query) as producer, producer.transaction() as transaction:
        records = sum(_send(producer, table, options, columns) for table in chain((first,), tables))
        return Written(records, query, transaction._hand_over(is_followed=query is not None))  # noqa: SLF001 - a method for connectors


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches into tables of about `GATHERED_BYTES`, without copying data."""
    gathered: list[pa.RecordBatch] = []
    nbytes = 0
    for batch in batches:
        gathered.append(batch)
        nbytes += batch.nbytes
        if nbytes >= GATHERED_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, nbytes = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _send(producer: Producer, table: pa.Table, options: WriteOptions, columns: SinkColumns) -> int:
    """Send the rows of a table; return their number."""
    for parcel in parcels(table, columns, options.topic):
        try:
            producer.send_batch(parcel.topic, parcel.records, parcel.partition)
        except PartitionNotFoundError:
            # No record was sent. The producer may be from an earlier task, and the topic may have grown since then.
            producer.refresh_metadata()
            producer.send_batch(parcel.topic, parcel.records, parcel.partition)
    return table.num_rows


class WriteError(RuntimeError):
    """Not all records of a task were acknowledged; unacknowledged records may have been stored as well."""


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """Result of a write task."""

    records: int
    query: Query | None = None
    """Micro-batch to which the records belong; None for a batch write."""
    transaction: HandedOver | None = None
    """Transaction of a write with `exactlyOnce`; None for a task without rows."""
