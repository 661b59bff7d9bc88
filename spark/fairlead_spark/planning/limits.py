"""How far one trigger goes: everything, at most so many records, and never past a target that was fixed before.

Pure; called by the stream reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead_spark.planning.offsets import NO_EPOCH, PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.ranges import OffsetRange, plan_between, unexpired


def settled(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return the end in the words of the start wherever nothing has moved.

    A new leader alone is no new data: Spark compares text, and would run a trigger for its epoch. A partition that is
    missing keeps its place: topics lose none, but a broker that lags behind may not have heard of all of them.
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
    """Return whether a log ends before the position of the query, or a topic is gone.

    This may be so for a moment after a change of leaders, and at a broker that does not know a new topic yet.
    """
    return not start.topics.keys() <= end.topics.keys() or any(
        place.offset < known.offset
        for name, topic in end.topics.items()
        if (before := start.topics.get(name)) is not None and before.topic_id == topic.topic_id
        for index, place in topic.partitions.items()
        if (known := before.partitions.get(index)) is not None
    )


def kept(start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
    """Return the end without places that fall back, unless a newer leader vouches for them.

    Only an election takes records away. A smaller end under an epoch that the query has seen is an answer that came
    too early, and a query that went back to it would read the records between a second time.
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
    """Return the offsets at which a query stands behind the end of a log, each with the epoch that vouched for it."""
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
    """Return an end with at most so many records after the start, or after the beginnings of the logs.

    Half of them go to all partitions alike, so that none waits behind a larger one, and the rest as records are there.
    Where there are more partitions than records allowed, they take turns. Records that have expired count for nothing.
    """
    ranges = unexpired(plan_between(start, end).ranges, beginnings or StreamOffsets())
    total = sum(part.size for part in ranges)
    if total <= rows_max:
        return end
    shares = _equal_shares(ranges, rows_max)
    rest = rows_max - sum(shares)
    wanted = [part.size - share for part, share in zip(ranges, shares, strict=True)]
    more = [size * rest // sum(wanted) for size in wanted]
    # The remainder of rounding goes to the partitions that lost most by it; among equals to the one furthest behind.
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
    """Return the part that each partition gets whatever the others have."""
    count = len(ranges)
    if rows_max < count:
        # Each trigger moves the sum of the starts by as many records as partitions have their turn.
        turn = sum(part.start for part in ranges) % count
        chosen = {(turn + number) % count for number in range(rows_max)}
        return [int(index in chosen) for index in range(count)]
    return [min(part.size, max(1, rows_max // (2 * count))) for part in ranges]


def stopped(end: StreamOffsets, stops: Mapping[tuple[str, int], int]) -> StreamOffsets:
    """Return the end with these offsets in place of its own."""
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
    """Return an end that does not pass a target, nor falls behind the start.

    Later records wait for another run: new topics and partitions, also a topic that was created again.
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
        # The present leader must confirm a target: the leader that named it may have lost records.
        aimed = PartitionOffset(stop.offset, place.epoch)
        stop = known if known is not None and known.offset >= stop.offset else aimed
        partitions[index] = stop if stop.offset <= place.offset else place
    return TopicOffsets(topic.topic_id, partitions)
