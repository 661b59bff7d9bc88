"""Ranges of one read: the offsets to read from each partition, and the records that are known to be lost.

The module compares two positions of a query, or the start and end of a batch read, without I/O. The readers call this
module when they plan tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead_spark.planning.losses import Loss, LossKind
from fairlead_spark.planning.offsets import NO_EPOCH, PartitionOffset, StreamOffsets, TopicOffsets

BEGINNING = PartitionOffset(0)
"""Start of a partition that is new to the query: the partition is read from offset 0, so that no record is skipped."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition with `start` <= offset < `stop`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    last_epoch: int = NO_EPOCH
    """Epoch of a leader that had all records before `start`; a leader whose log has diverged refuses the fetch."""
    stop_epoch: int = NO_EPOCH
    """Epoch of a leader that had all records before `stop`."""

    @property
    def size(self) -> int:
        """Number of offsets in the range: the number of its records, or more after compaction."""
        return self.stop - self.start

    def within(self, start: int, stop: int) -> OffsetRange:
        """Return a part of the range; `last_epoch` is kept only if the part begins at the start of the range."""
        epoch = self.last_epoch if start == self.start else NO_EPOCH
        return replace(self, start=start, stop=stop, last_epoch=epoch)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The ranges of one read, ordered by topic and partition, and the losses that are known before the read."""

    ranges: Sequence[OffsetRange]
    losses: Sequence[Loss]


def plan_between(start: StreamOffsets, end: StreamOffsets) -> ReadPlan:
    """Return the plan of a read from one position of a query to another."""
    ranges: list[OffsetRange] = []
    losses: list[Loss] = [
        Loss(LossKind.TOPIC_GONE, topic, detail=_gone(start.topics[topic]))
        for topic in sorted(start.topics.keys() - end.topics.keys())
    ]
    for name, topic in sorted(end.topics.items()):
        before = start.topics.get(name)
        if before is not None and before.topic_id not in ("", topic.topic_id):
            losses.append(recreated(name, before, topic.topic_id))
            before = None
        seen = {} if before is None else before.partitions
        for index, stop in sorted(topic.partitions.items()):
            begin = seen.get(index, BEGINNING)
            if stop.offset < begin.offset:
                losses.append(truncated(name, index, begin.offset, stop.offset))
            elif stop.offset > begin.offset:
                ranges.append(
                    OffsetRange(
                        name, topic.topic_id, index, begin.offset, stop.offset, begin.epoch, stop.epoch
                    )
                )
    return ReadPlan(ranges, losses)


def expired(ranges: Sequence[OffsetRange], beginnings: StreamOffsets) -> Sequence[Loss]:
    """Return a loss for each range whose log begins after the start of the range."""
    return [
        Loss(
            LossKind.LOG_START,
            part.topic,
            part.partition,
            f"offset {part.start} of {part} is below log start {begin.offset}",
        )
        for part in ranges
        if (begin := beginnings.get(part.topic, part.partition)) is not None and part.start < begin.offset
    ]


def unexpired(ranges: Sequence[OffsetRange], beginnings: StreamOffsets) -> Sequence[OffsetRange]:
    """Return the ranges without expired offsets; a range is unchanged if the start of its log is unknown."""
    left = []
    for part in ranges:
        begin = beginnings.get(part.topic, part.partition)
        start = part.start if begin is None else max(part.start, begin.offset)
        if start < part.stop:
            left.append(part.within(start, part.stop))
    return left


def recreated(name: str, before: TopicOffsets, topic_id: str) -> Loss:
    """Return the loss for a topic that was deleted and created again."""
    detail = f"its id was {before.topic_id} and is {topic_id}; {_gone(before)}"
    return Loss(LossKind.TOPIC_RECREATED, name, detail=detail)


def truncated(name: str, partition: int, offset: int, end: int) -> Loss:
    """Return the loss for a log that ends before the offset up to which the query has read."""
    detail = f"the query has read up to offset {offset}, and the log ends at {end}"
    return Loss(LossKind.LOG_TRUNCATED, name, partition, detail)


def _gone(topic: TopicOffsets) -> str:
    places = ", ".join(f"{index}:{place.offset}" for index, place in sorted(topic.partitions.items()))
    return f"the query was at partition:offset {places}"
