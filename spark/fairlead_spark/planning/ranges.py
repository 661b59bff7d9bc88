"""What one read covers: a range of offsets of each partition, and what is missing from it.

Pure: compares two states of a query, or the two ends of a batch read. Called by the readers when they plan tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairlead_spark.planning.losses import Loss, LossKind
from fairlead_spark.planning.offsets import NO_EPOCH, PartitionOffset, StreamOffsets, TopicOffsets

BEGINNING = PartitionOffset(0)
"""Start of a partition that is new to the query: no record of it may be missed."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The records of one partition with `start` <= offset < `stop`."""

    topic: str
    topic_id: str
    partition: int
    start: int
    stop: int
    last_epoch: int = NO_EPOCH
    """Leader epoch that vouches for what is before `start`; a leader with another past refuses the fetch."""
    stop_epoch: int = NO_EPOCH
    """Leader epoch that vouched for all that is before `stop`."""

    @property
    def size(self) -> int:
        """Offsets in it: as many records or, after compaction, fewer."""
        return self.stop - self.start

    def within(self, start: int, stop: int) -> OffsetRange:
        """Return a part of it. The first epoch vouches for what is before this range alone, not for what is in it."""
        epoch = self.last_epoch if start == self.start else NO_EPOCH
        return replace(self, start=start, stop=stop, last_epoch=epoch)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """The ranges of one read, in order of topics and partitions, and what is known to be missing before them."""

    ranges: Sequence[OffsetRange]
    losses: Sequence[Loss]


def plan_between(start: StreamOffsets, end: StreamOffsets) -> ReadPlan:
    """Return what is read to get from one state of a query to another."""
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
    """Return what is missing from ranges whose logs begin behind their start."""
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
    """Return what is left of ranges where their logs begin; logs whose beginning is not known are left alone."""
    left = []
    for part in ranges:
        begin = beginnings.get(part.topic, part.partition)
        start = part.start if begin is None else max(part.start, begin.offset)
        if start < part.stop:
            left.append(part.within(start, part.stop))
    return left


def recreated(name: str, before: TopicOffsets, topic_id: str) -> Loss:
    """Return the loss of a topic that was deleted and created again."""
    detail = f"its id was {before.topic_id} and is {topic_id}; {_gone(before)}"
    return Loss(LossKind.TOPIC_RECREATED, name, detail=detail)


def truncated(name: str, partition: int, offset: int, end: int) -> Loss:
    """Return the loss of a partition that ends before an offset that was read already."""
    detail = f"the query has read up to offset {offset}, and the log ends at {end}"
    return Loss(LossKind.LOG_TRUNCATED, name, partition, detail)


def _gone(topic: TopicOffsets) -> str:
    places = ", ".join(f"{index}:{place.offset}" for index, place in sorted(topic.partitions.items()))
    return f"the query stood at partition:offset {places}"
