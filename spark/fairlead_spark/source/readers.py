"""Readers for Spark: one reader for batch reads, and one for streams.

Spark pickles readers into tasks and creates each reader at least twice in separate processes, so readers contain
options but no clients. A task yields Arrow batches from `arrow_rows`.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fairlead import clock
from fairlead.errors import FairleadError
from fairlead.topic_partition import TopicPartition
from fairlead_spark.brief_errors import brief_errors
from fairlead_spark.clients import admin, connection
from fairlead_spark.option_values import OptionError
from fairlead_spark.options import ReadOptions, option_of
from fairlead_spark.planning.limits import TriggerPace, capped, fallen, kept, limited, settled, stopped
from fairlead_spark.planning.losses import DataLoss, Loss
from fairlead_spark.planning.offsets import JsonDict, StreamOffsets, begin_of, first_end
from fairlead_spark.planning.positions import Edge
from fairlead_spark.planning.ranges import OffsetRange, expired, plan_between
from fairlead_spark.planning.tasks import TaskCount, share_out
from fairlead_spark.source.arrow_rows import spark_batches
from fairlead_spark.source.cluster_view import ClusterView
from fairlead_spark.source.range_read import RangeRead, parting_of
from fairlead_spark.worker_process import prepare_worker

if TYPE_CHECKING:
    import pyarrow as pa

_LOG: Final = logging.getLogger("fairlead.spark")


COMMIT_SECONDS: Final = 5.0
"""Maximum time for which a trigger waits until the offsets of its group are published."""


Place = tuple[str, int]
"""Topic and partition, as plain values that Spark pickles."""
PLANS_MAX: Final = 1000
"""Maximum number of plans whose first query a worker process remembers."""
EXECUTION_ID: Final = "spark.sql.execution.id"
"""Property of a task with the id of its query."""
SEE_NEWER: Final = (
    "load it again, or query a table of the catalog (CREATE TABLE ... USING fairlead), which every query reads up to "
    "the current end"
)
_first_queries: dict[str, str] = {}
"""Id of the first query of each plan that this process has read; the oldest plan comes first."""


class TaskRanges(InputPartition):
    """The ranges that one task reads."""

    def __init__(
        self, ranges: tuple[OffsetRange, ...], plan_id: str = "", to_end: tuple[Place, ...] = ()
    ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.plan_id = plan_id
        """Id of the plan of a batch read that ends where its logs ended; empty for other reads."""
        self.to_end = to_end
        """Partitions that the task reads up to the end that the log had at the time of the plan."""


class BatchReader(DataSourceReader):
    """Reader of a batch read: reads the records between two positions, which are fixed when the read is planned.

    Spark plans the read of a frame or a temporary view once, at the first query, and the read of a catalog table for
    each query.
    """

    def __init__(self, options: ReadOptions, *, of_table: bool = False) -> None:
        self._options = options.for_batch()
        self._of_table = of_table

    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the read."""
        with brief_errors():
            return self._planned()

    def _planned(self) -> list[InputPartition]:
        view = ClusterView(self._options)
        starting, ending = self._options.starting or Edge.EARLIEST, self._options.ending or Edge.LATEST
        start = view.offsets(starting, option_of(starting, "starting"))
        end = view.offsets(ending, option_of(ending, "ending"))
        check_order(start, end)
        plan = plan_between(start, end)
        report(self._options, plan.losses)
        tasks = tasks_of(self._options, self.narrowed(view, plan.ranges))
        if ending is Edge.LATEST:
            ends = {(part.topic, part.partition): part.stop for part in plan.ranges}
            plan_id = uuid.uuid4().hex  # noqa: TID251 - planning creates the random id of the read
            for task in tasks:
                task.plan_id = plan_id
                task.to_end = tuple(
                    (part.topic, part.partition)
                    for part in task.ranges
                    if ends[part.topic, part.partition] == part.stop
                )
        if self._options.ending is None and not self._of_table:
            _LOG.warning(
                "later queries of this frame or temporary view read no records newer than now: %s; "
                "set endingOffsets=latest to confirm that this is intended",
                SEE_NEWER,
            )
        return list(tasks)

    def narrowed(self, view: ClusterView, ranges: Sequence[OffsetRange]) -> Sequence[OffsetRange]:
        """Return all ranges, since this reader supports no filters."""
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(EXECUTION_ID)
        return read_task(self._options, partition, query)


class RefusedStream(DataSourceStreamReader):
    """Reader of a stream with invalid options, which reports the error when the query starts."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        """Raise the error."""
        with brief_errors():
            raise self._error

    def latestOffset(self, start: JsonDict, limit: ReadLimit) -> NoReturn:
        """Raise the error."""
        self.initialOffset()

    def partitions(self, start: JsonDict, end: JsonDict) -> NoReturn:
        """Raise the error."""
        self.initialOffset()

    def read(self, partition: InputPartition) -> NoReturn:
        """Raise the error."""
        self.initialOffset()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reader of a stream: each trigger reads the records after the end of the previous trigger."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._target: StreamOffsets | None = None
        """Offsets at which a query with the trigger `availableNow` ends; None with other triggers."""
        self._newest: StreamOffsets | None = None
        """Ends of the logs at the last trigger."""
        self._pace = TriggerPace(options.rows_per_trigger_min, options.trigger_delay_seconds_max)
        self._has_begun = False
        """Whether this process has planned a trigger. The first trigger of a process may run long after the last
        trigger of the previous process."""

    def initialOffset(self) -> JsonDict:
        """Return the initial offset of a query without a checkpoint."""
        position = self._options.starting or Edge.LATEST
        with brief_errors():
            found = self._view.offsets(position, option_of(position, "starting"))
        return StreamOffsets(found.topics, initial=True).to_dict()

    def latestOffset(self, start: JsonDict, limit: ReadLimit) -> JsonDict:
        """Return the end of the next trigger."""
        with brief_errors():
            return self._next_end(start, limit)

    def _next_end(self, start: JsonDict, limit: ReadLimit) -> JsonDict:
        begin = StreamOffsets.from_json(start)
        self._newest = self._view.latest(begin)
        end = settled(begin, self._newest)
        if self._target is not None:
            end = capped(begin, end, self._target)
        if not self._options.fail_on_data_loss:
            end = kept(begin, end)
        # Losses are reported before Spark stores the end of the trigger, so that the query can continue after the cause
        # is fixed.
        plan = plan_between(begin, end)
        report(self._options, plan.losses)
        rows = sum(part.size for part in plan.ranges)
        if self._target is None and not self._pace.is_due(rows, clock.monotonic()):
            return first_end(begin, StreamOffsets(begin.topics)).to_dict()
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        is_cut = rows_max is not None and rows > rows_max
        if is_cut or not (self._has_begun or begin.initial):
            beginnings = self._view.beginnings(plan.ranges)
            report(self._options, expired(plan.ranges, beginnings))
            if rows_max is not None:
                end = limited(begin, end, rows_max, beginnings)
        self._has_begun = True
        end = stopped(end, self._partings(begin, end))
        return first_end(begin, end).to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit from the option maxOffsetsPerTrigger."""
        rows = self._options.rows_per_trigger_max
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def reportLatestOffset(self) -> JsonDict | None:
        """Return the ends of the logs at the last trigger, for Spark's progress report."""
        return None if self._newest is None else self._newest.to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the end of the query to the current ends of the logs."""
        with brief_errors():
            self._target = self._view.latest(StreamOffsets())

    def partitions(self, start: JsonDict, end: JsonDict) -> list[InputPartition]:
        """Return the tasks of one trigger."""
        stop = StreamOffsets.from_json(end)
        plan = plan_between(begin_of(StreamOffsets.from_json(start), stop), stop)
        with brief_errors():
            report(self._options, plan.losses)
        return list(tasks_of(self._options, plan.ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one task."""
        return read_task(self._options, partition)

    def commit(self, end: JsonDict) -> None:
        """Publish the end of a finished trigger as the committed offsets of the group; a failure is only logged."""
        group = self._options.group
        if group is None:
            return
        places = StreamOffsets.from_json(end).end_offsets()
        offsets = {
            TopicPartition(name, index): offset
            for name, partitions in places.items()
            for index, offset in partitions.items()
        }
        try:
            options = self._options
            client = admin(options.bootstrap, COMMIT_SECONDS, options.one_address, options.credentials)
            client.commit_group_offsets(group, offsets)
        except FairleadError as error:
            _LOG.warning("the offsets of group %s are not published: %s", group, error)

    def _partings(self, begin: StreamOffsets, end: StreamOffsets) -> dict[tuple[str, int], int]:
        """Return the offsets at which truncated logs diverge from the records read, and where new records may begin."""
        options = self._options
        link = connection(
            options.bootstrap,
            options.retry_timeout_seconds,
            options.one_address,
            options.credentials,
            options.isolation,
            follow_moves=options.follow_moves,
        )
        found = {(part.topic, part.partition): parting_of(link, part) for part in fallen(begin, end)}
        return {place: offset for place, offset in found.items() if offset is not None}

    @property
    def _view(self) -> ClusterView:
        # The options of a stream are checked at the start of every query, not in the constructor: if the constructor
        # failed, Spark would try to stop the missing reader and show the error of that attempt instead.
        return ClusterView(self._options.for_stream())


def tasks_of(options: ReadOptions, ranges: Sequence[OffsetRange]) -> list[TaskRanges]:
    """Return the Spark tasks for the ranges."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = TaskCount(cores, options.tasks_min, options.tasks_max, options.rows_per_task_max)
    return [TaskRanges(share) for share in share_out(ranges, count)]


def check_order(start: StreamOffsets, end: StreamOffsets) -> None:
    """Raise `OptionError` for a batch read that ends before it begins."""
    for topic, partitions in start.end_offsets().items():
        for index, offset in partitions.items():
            stop = end.get(topic, index)
            if stop is not None and stop.offset < offset:
                allowed = f"at least {offset}, the first offset of this read in the partition"
                raise OptionError("endingOffsets", f"{topic}-{index}: {stop.offset}", allowed)


def report(options: ReadOptions, losses: Sequence[Loss]) -> None:
    """Raise `DataLoss` for losses, or log a warning if `failOnDataLoss` is false."""
    if losses and options.fail_on_data_loss:
        raise DataLoss(losses)
    for loss in losses:
        _LOG.warning("%s; %s", loss, loss.kind.otherwise)


def read_task(
    options: ReadOptions, partition: InputPartition, query: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the records of one task; yield nothing for the empty partition that Spark creates if there are no tasks.

    `query` is the id of the query, by which a later query of the same plan is recognised.
    """
    prepare_worker()
    if isinstance(partition, TaskRanges):
        link = connection(
            options.bootstrap,
            options.retry_timeout_seconds,
            options.one_address,
            options.credentials,
            options.isolation,
            follow_moves=options.follow_moves,
        )
        read = RangeRead(link, partition.ranges, fail_on_data_loss=options.fail_on_data_loss)
        with brief_errors():
            yield from spark_batches(read.batches(), options.columns)
        if _is_later(partition.plan_id, query) and (
            newer := read.newer(starmap(TopicPartition, partition.to_end))
        ):
            _LOG.warning(
                "%d newer records of %s are left out: this frame or view ends where its first query ended; %s",
                newer,
                ", ".join(sorted({topic for topic, _ in partition.to_end})),
                SEE_NEWER,
            )


def _is_later(plan_id: str, query: str | None) -> bool:
    """Return whether this process has read a plan for another query before."""
    if not plan_id or query is None:
        return False
    first = _first_queries.setdefault(plan_id, query)
    if len(_first_queries) > PLANS_MAX:
        del _first_queries[next(iter(_first_queries))]
    return first != query
