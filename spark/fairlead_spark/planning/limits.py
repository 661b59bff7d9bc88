"""End offsets of one trigger, limited by numbers of records and by a fixed target.

The module does no I/O and is called by the stream reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead_spark.planning.offsets import NO_EPOCH, PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.ranges import OffsetRange, plan_between, unexpired


def settled(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return the end offsets; every partition without new records keeps its entry of `start`.

    A new leader epoch alone is not new data, but Spark compares offsets as text and would run a trigger for the new
    epoch. A missing partition also keeps its entry of `start`: topics never lose partitions, but the metadata of a
    lagging broker may not contain all partitions yet.
    """
    return StreamOffsets(
        {name: _settled(start.topics.get(name), topic) for name, topic in end.topics.items()}
    )


def _settled(before: TopicOffsets | None, topic: TopicOffsets) -> TopicOffsets:
    if before is None or before.topic_id != topic.topic_id:
        return topic
    partitions = dict(before.partitions)
    for index, place in topic.partitions.items():
        known = before.partitions.get(index)
        partitions[index] = known if known is not None and known.offset == place.offset else place
    return TopicOffsets(topic.topic_id, partitions)


def falls_back(start: StreamOffsets, end: StreamOffsets) -> bool:
    """Return whether a log ends before the position of the query, or a topic is missing.

    A log may briefly appear too short after a leader change, and the metadata of a broker may not contain a new topic
    yet.
    """
    return not start.topics.keys() <= end.topics.keys() or any(
        place.offset < known.offset
        for name, topic in end.topics.items()
        if (before := start.topics.get(name)) is not None and before.topic_id == topic.topic_id
        for index, place in topic.partitions.items()
        if (known := before.partitions.get(index)) is not None
    )


def kept(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return the end offsets without positions that move backwards, except for positions with a newer leader epoch.

    Only an election can remove records from a log. A smaller end offset with an epoch that the query has already seen
    is therefore an outdated answer, and a query that moved back to this offset would read records twice.
    """
    return StreamOffsets({name: _kept(start.topics.get(name), topic) for name, topic in end.topics.items()})


def _kept(before: TopicOffsets | None, topic: TopicOffsets) -> TopicOffsets:
    if before is None or before.topic_id != topic.topic_id:
        return topic
    partitions = dict(topic.partitions)
    for index, known in before.partitions.items():
        place = partitions.get(index)
        if place is not None and place.offset < known.offset and place.epoch <= known.epoch:
            partitions[index] = known
    return TopicOffsets(topic.topic_id, partitions)


def fallen(start: StreamOffsets, end: StreamOffsets) -> Sequence[OffsetRange]:
    """Return the positions of the query that are beyond the ends of the logs, each with its leader epoch."""
    return [
        OffsetRange(name, topic.topic_id, index, known.offset, known.offset + 1, known.epoch)
        for name, topic in sorted(end.topics.items())
        if (before := start.topics.get(name)) is not None and before.topic_id == topic.topic_id
        for index, place in sorted(topic.partitions.items())
        if (known := before.partitions.get(index)) is not None
        and place.offset < known.offset
        and known.epoch != NO_EPOCH
    ]


def limited(
    start: StreamOffsets, end: StreamOffsets, rows_max: int, beginnings: StreamOffsets | None = None
) -> StreamOffsets:
    """Return an end that is at most `rows_max` records after the start or, if later, after the log start.

    Half of the records are distributed equally among the partitions, so that no partition waits for a larger partition.
    The second half of the records is distributed in proportion to the unread records. If there are more partitions than
    records, the partitions take turns. Expired records are not counted as unread.
    """
    ranges = unexpired(plan_between(start, end).ranges, beginnings or StreamOffsets())
    total = sum(part.size for part in ranges)
    if total <= rows_max:
        return end
    shares = _equal_shares(ranges, rows_max)
    rest = rows_max - sum(shares)
    wanted = [part.size - share for part, share in zip(ranges, shares, strict=True)]
    more = [size * rest // sum(wanted) for size in wanted]
    # The records lost by rounding down go to the partitions that lost the largest fractions, then to the partitions
    # with the largest lag.
    by_rest = sorted(
        range(len(ranges)), key=lambda index: (-(wanted[index] * rest % sum(wanted)), -wanted[index])
    )
    for index in by_rest[: rest - sum(more)]:
        more[index] += 1
    stops = {
        (part.topic, part.partition): part.start + share + extra
        for part, share, extra in zip(ranges, shares, more, strict=True)
    }
    return stopped(end, stops)


def _equal_shares(ranges: Sequence[OffsetRange], rows_max: int) -> list[int]:
    """Return the part of each partition's share that is distributed equally."""
    count = len(ranges)
    if rows_max < count:
        # The sum of the start offsets selects the partitions: a trigger that reads a record from each of n partitions
        # increases the sum by n, so the next trigger selects the partitions after them.
        turn = sum(part.start for part in ranges) % count
        chosen = {(turn + number) % count for number in range(rows_max)}
        return [int(index in chosen) for index in range(count)]
    return [min(part.size, max(1, rows_max // (2 * count))) for part in ranges]


def stopped(end: StreamOffsets, stops: Mapping[tuple[str, int], int]) -> StreamOffsets:
    """Return the end offsets, each replaced by the offset in `stops` if `stops` contains the partition."""
    return StreamOffsets(
        {
            name: TopicOffsets(
                topic.topic_id,
                {
                    index: PartitionOffset(stops.get((name, index), place.offset), place.epoch)
                    for index, place in topic.partitions.items()
                },
            )
            for name, topic in end.topics.items()
        }
    )


def capped(start: StreamOffsets, end: StreamOffsets, target: StreamOffsets) -> StreamOffsets:
    """Return an end that is neither after the target nor before the start.

    Records after the target, new topics, new partitions and recreated topics are left for another run.
    """
    topics: dict[str, TopicOffsets] = {}
    for name, topic in end.topics.items():
        aim, before = target.topics.get(name), start.topics.get(name)
        if aim is not None and aim.topic_id == topic.topic_id:
            topics[name] = _capped(topic, aim, before)
        elif before is not None:
            topics[name] = before
    return StreamOffsets(topics)


def _capped(topic: TopicOffsets, aim: TopicOffsets, before: TopicOffsets | None) -> TopicOffsets:
    same = before is not None and before.topic_id == topic.topic_id
    partitions: dict[int, PartitionOffset] = {}
    for index, place in topic.partitions.items():
        known = before.partitions.get(index) if same and before is not None else None
        stop = aim.partitions.get(index, known)
        if stop is None:
            continue
        # The end gets the epoch of the current leader, since the leader that reported the target may have lost records.
        aimed = PartitionOffset(stop.offset, place.epoch)
        stop = known if known is not None and known.offset >= stop.offset else aimed
        partitions[index] = stop if stop.offset <= place.offset else place
    return TopicOffsets(topic.topic_id, partitions)


@dataclass(slots=True)
class TriggerPace:
    """Decides whether a trigger reads the new records, or waits for more records."""

    rows_min: int | None
    """Number of new records at which a trigger stops waiting and reads; None if triggers never wait."""
    seconds_max: float
    """Seconds since the last trigger with new records after which a trigger no longer waits."""
    _last_at: float | None = None

    def is_due(self, rows: int, now: float) -> bool:
        """Return whether a trigger reads `rows` new records at the time `now`. The first trigger never waits."""
        if (
            self.rows_min is not None
            and self._last_at is not None
            and rows < self.rows_min
            and now - self._last_at < self.seconds_max
        ):
            return False
        if rows or self._last_at is None:
            self._last_at = now
        return True
