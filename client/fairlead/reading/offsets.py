"""Lookup of offsets at the leaders: the start and the end of a log, and the first record at or after a time.

The consumer (seek, stop, reset) and the admin client use this module. One call per leader looks up all partitions of
that leader. A retryable refusal is retried after a refresh of the metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, cast

from msgspec import UNSET

from fairlead import clock
from fairlead.connection.metadata import LeaderCalls, MetadataCache, partition_not_found
from fairlead.connection.transport import Transport, decoded, json_call
from fairlead.errors import ClusterError, NoLeaderError, UnreachableError, error_of
from fairlead.settings import OffsetPolicy, ResetPolicy
from fairlead.timestamps import datetime_of, timestamp_us_of
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.metadata import TopicMetadata
from fairlead_api.bodies.requests import (
    Isolation,
    OffsetsLookupAnswer,
    OffsetsLookupRequest,
    PartitionOffsetsLookup,
    TopicOffsetLookup,
)
from fairlead_api.problems import JSON, ProblemError
from fairlead_api.timestamps import YEAR_1_US, format_timestamp, parse_timestamp_us

Position: TypeAlias = Literal["earliest", "latest"] | datetime | int
"""An end of the log, or a time: an aware datetime, or microseconds since 1970 in this module only."""

LOOKUP_PATH: Final = "/v1/offsets:lookup"


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """Offset and time of the first record at or after a time; for `earliest` and `latest`, the time is None."""

    offset: int
    timestamp_us: int | None
    leader_epoch: int | None

    @property
    def timestamp(self) -> datetime | None:
        """Timestamp of the record; None for the positions `earliest` and `latest`."""
        return None if self.timestamp_us is None else datetime_of(self.timestamp_us)


class OffsetLookup:
    """Lookup of offsets at the leaders."""

    def __init__(
        self, transport: Transport, metadata: MetadataCache, isolation: Isolation = "read_uncommitted"
    ) -> None:
        """`isolation`: with `read_committed`, logs end at their last stable offsets."""
        self._transport = transport
        self._metadata = metadata
        self._leader_calls = LeaderCalls(transport, metadata)
        self._isolation = isolation

    async def lookup(
        self, wanted: Mapping[TopicPartition, Position], epochs: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the offset of each position; None for a time if no record has this time or a later one.

        `epochs` contains the highest leader epochs that the caller has seen; a leader with an older epoch refuses the
        lookup. Raises the typed error of a partition whose lookup did not succeed within `retry_timeout`.
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        await self._transport.retry(self._ask, wanted, found, epochs or {})
        return found

    async def offsets(self, wanted: Mapping[TopicPartition, Position]) -> dict[TopicPartition, int]:
        """Return each position's offset; for a time after all records, the log end. Raises the errors of `lookup`."""
        return {place: answer.offset for place, answer in (await self._places(wanted)).items()}

    async def reset(
        self, place: TopicPartition, policy: ResetPolicy, leader_epoch: int | None
    ) -> OffsetAndTimestamp:
        """Return the policy's offset and the answering leader's epoch, at least the epoch seen by the reader."""
        epochs = {} if leader_epoch is None else {place: leader_epoch}
        return (await self._places({place: _position_of(policy)}, epochs))[place]

    async def reset_offsets(
        self, places: Iterable[TopicPartition], policy: ResetPolicy
    ) -> dict[TopicPartition, int]:
        """Return the offsets that a policy selects for partitions; the policy must not be `error`."""
        return await self.offsets(dict.fromkeys(places, _position_of(policy)))

    async def _places(
        self, wanted: Mapping[TopicPartition, Position], epochs: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = await self.lookup(wanted, epochs)
        ends = [place for place, answer in found.items() if answer is None]
        if ends:
            found |= await self.lookup(dict.fromkeys(ends, "latest"), epochs)
        return {place: answer for place, answer in found.items() if answer is not None}

    async def _ask(
        self,
        wanted: Mapping[TopicPartition, Position],
        found: dict[TopicPartition, OffsetAndTimestamp | None],
        epochs: Mapping[TopicPartition, int],
    ) -> None:
        """Fill `found` with the leaders' answers; raise an error only after all leaders were asked."""
        missing = {place: position for place, position in wanted.items() if place not in found}
        error: ClusterError | UnreachableError | None = None
        for leader, places in (await self._by_leader(missing)).items():
            try:
                answers = await self._ask_leader(leader, places, wanted, epochs)
            except (ClusterError, UnreachableError) as refused:
                error = refused
                continue
            for place, answer in zip(places, answers, strict=True):
                if answer.problem is UNSET:
                    found[place] = _offset_of(answer)
                else:
                    problem = ProblemError.from_document(cast("Mapping[str, JSON]", answer.problem))
                    error = error_of(problem, subject=f"offsets of {place}", broker=leader)
        if error is not None:
            if isinstance(error, UnreachableError) or error.retryable:
                # The metadata is refreshed even if the leader only asks for a retry, because a leader that is cut off
                # from the cluster would ask for retries forever.
                await self._metadata.refresh()
            raise error

    async def _by_leader(
        self, wanted: Mapping[TopicPartition, Position]
    ) -> Mapping[str, list[TopicPartition]]:
        await topics_with(self._metadata, wanted)
        by_leader: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for place in wanted:
            leader = self._metadata.picture.leader(place.topic, place.partition)
            if leader is None:
                await self._metadata.refresh()
                problem = ProblemError("no_leader", f"{place} has no leader")
                raise NoLeaderError(problem, subject=f"offsets of {place}")
            by_leader[leader].append(place)
        return by_leader

    async def _ask_leader(
        self,
        leader: str,
        places: Sequence[TopicPartition],
        wanted: Mapping[TopicPartition, Position],
        epochs: Mapping[TopicPartition, int],
    ) -> Sequence[PartitionOffsetsLookup]:
        request = OffsetsLookupRequest(
            isolation=self._isolation,
            partitions=[
                TopicOffsetLookup(
                    topic=place.topic,
                    partition=place.partition,
                    timestamp=_timestamp_of(wanted[place]),
                    leader_epoch=max(self._known_epoch(place), epochs.get(place, 0)),
                )
                for place in places
            ],
        )
        call = json_call("POST", LOOKUP_PATH, f"offsets of {places[0]}", body=request)
        partitions = [(place.topic, place.partition) for place in places]
        answer = await self._leader_calls.send(call, leader, partitions)
        return decoded(answer, OffsetsLookupAnswer, call.subject).partitions

    def _known_epoch(self, place: TopicPartition) -> int:
        """Return the leader epoch of a partition in the current metadata."""
        return self._metadata.picture.topics[place.topic].partitions[place.partition].leader_epoch


async def topics_with(
    metadata: MetadataCache, places: Iterable[TopicPartition], names: Iterable[str] = ()
) -> Mapping[str, TopicMetadata]:
    """Return the topics of these partitions and the named topics.

    A partition that the metadata lacks may be new, so the metadata is refreshed before `PartitionNotFoundError` is
    raised.
    """
    places = list(places)
    wanted = {place.topic for place in places}.union(names)
    topics = await metadata.topics(wanted)
    if not all(_has(topics, place) for place in places):
        await metadata.refresh()
        topics = await metadata.topics(wanted)
    for place in places:
        if not _has(topics, place):
            raise partition_not_found(place, len(topics[place.topic].partitions))
    return topics


def _has(topics: Mapping[str, TopicMetadata], place: TopicPartition) -> bool:
    return 0 <= place.partition < len(topics[place.topic].partitions)


def _position_of(policy: ResetPolicy) -> Position:
    if isinstance(policy, timedelta):
        # A duration that reaches back before the year 1, the earliest valid time, means the whole log.
        return max(clock.now_us() - policy // timedelta(microseconds=1), YEAR_1_US)
    assert policy is not OffsetPolicy.ERROR, "the policy `error` selects no offset"
    return "earliest" if policy is OffsetPolicy.EARLIEST else "latest"


def _timestamp_of(position: Position) -> str:
    if isinstance(position, str):
        return position
    timestamp_us = timestamp_us_of(position, "timestamp") if isinstance(position, datetime) else position
    return format_timestamp(timestamp_us)


def _offset_of(answer: PartitionOffsetsLookup) -> OffsetAndTimestamp | None:
    if answer.offset is None:
        return None
    return OffsetAndTimestamp(
        offset=answer.offset,
        timestamp_us=None if answer.timestamp is None else parse_timestamp_us(answer.timestamp, "timestamp"),
        leader_epoch=None if answer.leader_epoch is UNSET else answer.leader_epoch,
    )
