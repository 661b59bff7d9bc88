"""The driver's view of the topics of a read: their partitions, and the start and end of each partition.

The readers use this module when they plan. Metadata is not cached between triggers, since topics may get partitions, be
created or be deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final, assert_never

from fairlead import clock
from fairlead.errors import PartitionNotFoundError, TopicNotFoundError
from fairlead.reading.offsets import Position as LookupPosition
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.metadata import TopicMetadata
from fairlead_spark.clients import connection
from fairlead_spark.option_values import OptionError
from fairlead_spark.options import ReadOptions
from fairlead_spark.planning.limits import falls_back
from fairlead_spark.planning.offsets import NO_EPOCH, PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.positions import (
    Assign,
    AtTime,
    EachPartition,
    Edge,
    Position,
    Subscribe,
    SubscribePattern,
)
from fairlead_spark.planning.ranges import OffsetRange

MICROSECONDS: Final = 1000
FALLEN_BACK_SECONDS: Final = 10.0
"""Time for which a log may end before the position of the query, or a topic may be missing, before records count as
lost."""
FALLEN_BACK_PAUSE_SECONDS: Final = 0.5


class ClusterView:
    """Reads the metadata and offsets of the topics of one read from the cluster."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection = connection(
            options.bootstrap,
            options.retry_timeout_seconds,
            options.one_address,
            options.credentials,
            options.isolation,
            follow_moves=options.follow_moves,
        )

    def offsets(self, position: Position, option: str) -> StreamOffsets:
        """Return the offset of a position in every partition of the read; error messages name the option `option`.

        Raises `OptionError` if the position does not match the partitions. If a log has no record at or after the time
        of a position, the offset is the end of the log; as the start of a read, this offset is refused unless the
        options of the read allow it.
        """
        return self._connection.run(self._found(position, option))

    def latest(self, begin: StreamOffsets) -> StreamOffsets:
        """Return the current ends of the logs for a query at position `begin`; missing topics are omitted.

        If a log ends before `begin`, the end is looked up again for a while: such an end is normal shortly after a
        leader change, and only counts as a loss if it persists. A leader with an older epoch than the query has seen
        refuses to answer.
        """
        return self._connection.run(self._latest(begin))

    def beginnings(self, ranges: Iterable[OffsetRange]) -> StreamOffsets:
        """Return the start offsets of the logs in the ranges; empty if one of the topics has just been deleted."""
        return self._connection.run(self._beginnings(ranges))

    async def _found(self, position: Position, option: str) -> StreamOffsets:
        topics = await self._topics(missing_ok=False)
        return await self._located(topics, self._places(topics), position, option)

    async def _latest(self, begin: StreamOffsets) -> StreamOffsets:
        deadline = clock.monotonic() + FALLEN_BACK_SECONDS
        while True:
            topics = await self._topics(missing_ok=True)
            try:
                end = await self._located(topics, self._places(topics), Edge.LATEST, "startingOffsets", begin)
            except (TopicNotFoundError, PartitionNotFoundError):
                # The topic was deleted or recreated after the metadata was read, so the next round reads the metadata
                # again.
                if clock.monotonic() > deadline:
                    raise
            else:
                if not falls_back(begin, end) or clock.monotonic() > deadline:
                    return end
            await asyncio.sleep(FALLEN_BACK_PAUSE_SECONDS)  # noqa: TID251 - the pause before the metadata is read again

    async def _beginnings(self, ranges: Iterable[OffsetRange]) -> StreamOffsets:
        ids = {TopicPartition(part.topic, part.partition): part.topic_id for part in ranges}
        try:
            found = await self._asked(dict.fromkeys(ids, "earliest"), {})
        except (TopicNotFoundError, PartitionNotFoundError):
            # The next trigger plans without the topic and reports the loss.
            return StreamOffsets()
        by_topic: dict[str, dict[int, PartitionOffset]] = {}
        for place, begin in found.items():
            by_topic.setdefault(place.topic, {})[place.partition] = begin
        return StreamOffsets({place.topic: TopicOffsets(ids[place], by_topic[place.topic]) for place in ids})

    async def _located(
        self,
        topics: Mapping[str, TopicMetadata],
        places: list[TopicPartition],
        position: Position,
        option: str,
        seen: StreamOffsets | None = None,
    ) -> StreamOffsets:
        fixed: dict[TopicPartition, PartitionOffset] = {}
        asked: dict[TopicPartition, LookupPosition] = {}
        for place, where in _each(places, position, option).items():
            if isinstance(where, int):
                fixed[place] = PartitionOffset(where)
            elif isinstance(where, AtTime):
                asked[place] = where.timestamp_ms * MICROSECONDS
            else:
                asked[place] = "earliest" if where is Edge.EARLIEST else "latest"
        if fixed:
            await self._check(fixed, option)
        strict = option.startswith("starting") and self._options.late_start is None
        fixed |= await self._asked(
            asked, {} if seen is None else _epochs(topics, seen), late_in=option if strict else None
        )
        by_topic: dict[str, dict[int, PartitionOffset]] = {}
        for place in places:
            by_topic.setdefault(place.topic, {})[place.partition] = fixed[place]
        return StreamOffsets(
            {name: TopicOffsets(topics[name].topic_id, offsets) for name, offsets in by_topic.items()}
        )

    async def _asked(
        self,
        asked: Mapping[TopicPartition, LookupPosition],
        epochs: Mapping[TopicPartition, int],
        late_in: str | None = None,
    ) -> dict[TopicPartition, PartitionOffset]:
        """Return the offsets of positions. `late_in` is the option that the error names if a time is too late."""
        if not asked:
            return {}
        answers = await self._connection.reads.lookup.lookup(asked, epochs)
        late = [place for place, answer in answers.items() if answer is None]
        if late and late_in is not None:
            allowed = (
                f"a time at or before the last record of {', '.join(map(str, sorted(late)))}, or "
                "startingOffsetsByTimestampStrategy=latest, with which the read begins at the end of such a log"
            )
            raise OptionError(late_in, _milliseconds(asked[late[0]]), allowed)
        if late:
            # No record has a time at or after the requested time, so the position is the end of the log.
            answers |= await self._connection.reads.lookup.lookup(dict.fromkeys(late, "latest"), epochs)
        return {
            place: PartitionOffset(
                answer.offset, NO_EPOCH if answer.leader_epoch is None else answer.leader_epoch
            )
            for place, answer in answers.items()
            if answer is not None
        }

    async def _check(self, fixed: Mapping[TopicPartition, PartitionOffset], option: str) -> None:
        """Raise `OptionError` for offsets after the log's end; offsets before the log's start are reported later."""
        ends = await self._connection.reads.lookup.offsets(dict.fromkeys(fixed, "latest"))
        for place, end in ends.items():
            if fixed[place].offset > end:
                raise OptionError(
                    option, f"{place}: {fixed[place].offset}", f"offsets up to {end}, the log's end"
                )

    def _named(self) -> frozenset[str]:
        """Return the names of the topics that must exist."""
        match self._options.selection:
            case Subscribe(topics):
                return frozenset(topics)
            case SubscribePattern():
                return frozenset()
            case Assign(partitions):
                return frozenset(partitions)
            case never:
                assert_never(never)

    async def _topics(self, *, missing_ok: bool) -> Mapping[str, TopicMetadata]:
        """Return the current metadata of the topics of the read."""
        selection, reads = self._options.selection, self._connection.reads
        if isinstance(selection, SubscribePattern):
            matching = [name for name in await reads.topic_names() if selection.matches(name)]
            # A matching topic may be deleted between the two calls.
            return await reads.topics(matching, missing_ok=True)
        return await reads.topics(self._named(), missing_ok=missing_ok)

    def _places(self, topics: Mapping[str, TopicMetadata]) -> list[TopicPartition]:
        selection = self._options.selection
        if not isinstance(selection, Assign):
            return [
                TopicPartition(name, index)
                for name in sorted(topics)
                for index in range(len(topics[name].partitions))
            ]
        chosen = {name: each for name, each in sorted(selection.partitions.items()) if name in topics}
        for name, indexes in chosen.items():
            count = len(topics[name].partitions)
            if max(indexes) >= count:
                allowed = f"partitions 0 to {count - 1} of {name}"
                raise OptionError("assign", f"{name}-{max(indexes)}", allowed)
        return [TopicPartition(name, index) for name, indexes in chosen.items() for index in indexes]


def _milliseconds(position: LookupPosition) -> int:
    assert isinstance(position, int), "only a position by time can be after all records"
    return position // MICROSECONDS


def _epochs(topics: Mapping[str, TopicMetadata], seen: StreamOffsets) -> dict[TopicPartition, int]:
    return {
        TopicPartition(name, index): epoch
        for name, topic in topics.items()
        for index, epoch in seen.epochs(topic.topic_id, name).items()
    }


def _each(
    places: list[TopicPartition], position: Position, option: str
) -> Mapping[TopicPartition, int | Edge | AtTime]:
    if not isinstance(position, EachPartition):
        return dict.fromkeys(places, position)
    named = {TopicPartition(*place) for place in position.offsets}
    if missing := sorted(map(str, set(places) - named)):
        raise OptionError(option, "JSON", f"every partition of the read; missing: {', '.join(missing)}")
    if unknown := sorted(map(str, named - set(places))):
        raise OptionError(option, "JSON", f"partitions of the read; not among them: {', '.join(unknown)}")
    return {TopicPartition(*place): where for place, where in position.offsets.items()}
