"""Calls about links and hand-overs: requests from operators and other clusters to the controller.

The controller knows the topics of each source, and asks the leaders of mirrors for their progress.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from fairlead_api.bodies import links as bodies
from fairlead_api.bodies.links import (
    AdoptRequest,
    AlterLinkRequest,
    CreateLinkRequest,
    HandedOverPartition,
    HandOverAnswer,
    HandOverRequest,
    LinkDescription,
    LinkTail,
    LinkTopic,
    MirrorPartition,
    PromoteRequest,
    TakeBackRequest,
)
from fairlead_api.identifiers import PartitionIndex, TopicIdPartition
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.linking.link_admin import LinkAdmin
from fairlead_broker.controlling.linking.link_keeper import LinkKeeper
from fairlead_broker.links.gaps import is_open
from fairlead_broker.links.selection import BlockReason
from fairlead_broker.links.switching import CopiedTo
from fairlead_broker.peers.positions import PositionAsked, PositionFound
from fairlead_broker.registry.link_records import LinkRecord, LinkState
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import TopicRecord
from fairlead_broker.runtime.peer_serving.positions import Positions
from fairlead_broker.runtime.peer_serving.reports import Reports

N = TypeVar("N", int, float)

DRAIN_SECONDS_MAX: Final = 2.0
"""Maximum number of seconds for which a hand-over waits until the ends of the partitions are final."""
DRAIN_LOOK_SECONDS: Final = 0.02


class Links:
    """Links of the cluster, for the server."""

    def __init__(
        self,
        admin: LinkAdmin,
        keeper: LinkKeeper,
        positions: Positions,
        reports: Reports,
        metadata: ClusterMetadata,
        clock: Clock,
    ) -> None:
        self._admin = admin
        self._keeper = keeper
        self._positions = positions
        self._reports = reports
        self._metadata = metadata
        self._clock = clock

    async def create(
        self, request: CreateLinkRequest, *, dry_run: bool = False
    ) -> tuple[LinkDescription, bool]:
        """Create a link; return it, and whether it is new. Raises the problems of `LinkAdmin.create`."""
        record, created = await self._admin.create(request, dry_run=dry_run)
        return self._described(request.name, record), created

    def all(self) -> list[LinkDescription]:
        """Return every link, ordered by name."""
        links = self._metadata.links
        return [self._described(name, links[name].value) for name in sorted(links)]

    def describe(self, link: str) -> LinkDescription:
        """Return a link. Raises `link_not_found`."""
        return self._described(link, self._admin.required(link).value)

    async def alter(self, link: str, request: AlterLinkRequest) -> LinkDescription:
        """Change a link. Raises the problems of `LinkAdmin.alter`."""
        return self._described(link, await self._admin.alter(link, request))

    async def delete(self, link: str) -> None:
        """Delete a link. Raises `link_not_found` and `link_in_use`."""
        await self._admin.delete(link)

    async def set_state(self, link: str, state: LinkState) -> LinkDescription:
        """Pause or resume a link. Raises `link_not_found`."""
        return self._described(link, await self._admin.set_state(link, state))

    async def acknowledge(self, link: str) -> LinkDescription:
        """Let the stopped mirrors of a link continue. Raises `link_not_found`."""
        return self._described(link, await self._admin.acknowledge(link))

    async def promote(self, link: str, request: PromoteRequest) -> list[LinkTopic]:
        """Begin promotions; return the mirrors. Raises `link_not_found` and `topic_not_found`."""
        names = await self._admin.promote(link, request.topics, request.mode)
        return [each for each in await self.topics(link) if each.topic in names]

    async def take_back(self, link: str, request: TakeBackRequest) -> list[LinkTopic]:
        """Abandon hand-overs; return the mirrors. Raises the problems of `LinkAdmin.take_back`."""
        names = await self._admin.take_back(link, request.topics)
        return [each for each in await self.topics(link) if each.topic in names]

    async def adopt(self, link: str, request: AdoptRequest) -> list[LinkTopic]:
        """Make topics mirrors of their copies in the source. Raises the problems of `LinkAdmin.adopt`."""
        names = await self._admin.adopt(link, request.topics)
        return [each for each in await self.topics(link) if each.topic in names]

    async def topics(self, link: str) -> list[LinkTopic]:
        """Return the topics of a link with their progress, ordered by name. Raises `link_not_found`."""
        record = self._admin.required(link).value
        mirrors = {name: topic.value for name, topic in self._admin.mirrors(link).items()}
        found = await self._found(list(mirrors.values()))
        topics = [self._mirrored(name, topic, found) for name, topic in mirrors.items()]
        mirrored = {topic.topic_id for topic in mirrors.values()}
        for source_topic, (topic_id, reason) in self._keeper.view(link).blocked.items():
            if topic_id in mirrored:
                continue  # The topic was adopted after the last list of the source's topics.
            topics.append(
                LinkTopic(
                    topic=record.prefix + source_topic,
                    topic_id=topic_id,
                    source_topic=source_topic,
                    state="promoted" if reason == BlockReason.PROMOTED else "blocked",
                    reason=None if reason == BlockReason.PROMOTED else reason,
                )
            )
        return sorted(topics, key=lambda each: each.topic)

    async def tails(self, link: str) -> list[LinkTail]:
        """Return the files with records that were cut from the topics of a link. Raises `link_not_found`."""
        names = {each.topic_id: each.topic for each in await self.topics(link)}
        found = [
            LinkTail(
                topic=names[tail.topic_id],
                broker=report.broker,
                partition=tail.partition,
                first_offset=tail.first_offset,
                size_bytes=tail.size_bytes,
                path=tail.path,
            )
            for report in await self._reports.all()
            for tail in report.tails
            if tail.topic_id in names
        ]
        return sorted(found, key=lambda tail: (tail.topic, tail.partition, tail.first_offset, tail.broker))

    async def hand_over(self, topic: str, request: HandOverRequest) -> HandOverAnswer:
        """Refuse further records for a topic in favour of another cluster; return the partitions' ends (rule L18).

        The call waits, for a short time at most, until no append can move an end. Raises the problems of
        `LinkAdmin.hand_over`.
        """
        await self._admin.hand_over(topic, request)
        record = self._metadata.topics[topic].value
        deadline = self._clock.monotonic() + DRAIN_SECONDS_MAX
        while True:
            found = await self._found([record])
            answer = HandOverAnswer(
                partitions=[
                    HandedOverPartition(
                        partition=each.partition,
                        end_offset=each.high_watermark,
                        last_epoch=each.last_epoch,
                        is_final=each.problem is None and each.is_drained,
                    )
                    for each in found.values()
                ]
            )
            if all(each.is_final for each in answer.partitions) or self._clock.monotonic() >= deadline:
                return answer
            await asyncio.sleep(DRAIN_LOOK_SECONDS)  # noqa: TID251 - leaders of other brokers announce no drained partition

    async def take_topic_back(self, topic: str) -> None:
        """Accept records for a topic again. Raises `not_handed_over` and `topic_not_found`."""
        await self._admin.take_topic_back(topic)

    async def ends(self, keys: Sequence[TopicIdPartition]) -> Mapping[TopicIdPartition, CopiedTo]:
        """Return the ends of the committed records of partitions whose leaders answer."""
        return await mirror_ends(self._positions, keys)

    async def _found(self, topics: Sequence[TopicRecord]) -> dict[TopicIdPartition, PositionFound]:
        keys = [
            TopicIdPartition(topic.topic_id, index)
            for topic in topics
            for index in self._metadata.partitions(topic.topic_id)
            if index < topic.partitions
        ]
        return await _positions_of(self._positions, keys)

    def _mirrored(
        self, name: str, topic: TopicRecord, found: Mapping[TopicIdPartition, PositionFound]
    ) -> LinkTopic:
        assert topic.mirror is not None, "mirrors have an origin"
        gaps = self._gaps(topic)
        partitions = [
            _progress(each, gaps.get(key.partition))
            for key, each in found.items()
            if key.topic_id == topic.topic_id
        ]
        progress = [
            each.mirror
            for key, each in found.items()
            if key.topic_id == topic.topic_id and each.mirror is not None
        ]
        faults = [each.fault for each in progress if each.fault is not None]
        problems = [each.problem for each in progress if each.problem is not None]
        return LinkTopic(
            topic=name,
            topic_id=topic.topic_id,
            source_topic=topic.mirror.source_name,
            state="faulted" if faults else topic.mirror.state.value,
            reason=next(iter((*faults, *problems)), None),
            lag_records=_greatest([each.lag_records for each in partitions]),
            lag_seconds=_greatest([each.lag_seconds for each in partitions]),
            partitions=partitions,
        )

    def _gaps(self, topic: TopicRecord) -> dict[PartitionIndex, bodies.MirrorGap]:
        """Return the open gaps of a mirror by partition."""
        assert topic.mirror is not None, "mirrors have an origin"
        link = self._metadata.links.get(topic.mirror.link)
        acknowledgements = 0 if link is None else link.value.acknowledgements
        return {
            index: bodies.MirrorGap(
                first_offset=gap.first_offset,
                end_offset=gap.end_offset,
                skipped=gap.skipped,
                truncated=gap.truncated,
            )
            for index, record in self._metadata.partitions(topic.topic_id).items()
            if (gap := record.value.gap) is not None and is_open(gap, acknowledgements)
        }

    def _described(self, name: str, record: LinkRecord) -> LinkDescription:
        mirrors = self._admin.mirrors(name)
        return LinkDescription(
            name=name,
            source=bodies.LinkSource(bootstrap=list(record.source.bootstrap)),
            source_cluster_id=record.source.cluster_id,
            topics=bodies.NamePatterns(
                include=list(record.topics.include), exclude=list(record.topics.exclude)
            ),
            groups=bodies.NamePatterns(
                include=list(record.groups.include), exclude=list(record.groups.exclude)
            ),
            acls=record.acls,
            prefix=record.prefix,
            config=dict(record.config),
            replication_factor=record.replication_factor,
            policies=msgspec.convert(
                {
                    "truncated": record.policies.truncated,
                    "expired": record.policies.expired,
                    "recreated": record.policies.recreated,
                    "log_start": record.policies.log_start,
                },
                bodies.LinkPolicies,
            ),
            bytes_per_second=record.bytes_per_second,
            state=record.state.value,
            mirrors=len(mirrors),
            gaps=sum(len(self._gaps(topic.value)) for topic in mirrors.values()),
            source_problem=self._keeper.view(name).problem,
        )


async def mirror_ends(
    positions: Positions, keys: Sequence[TopicIdPartition]
) -> Mapping[TopicIdPartition, CopiedTo]:
    """Return the ends of the committed records of partitions whose leaders answer."""
    return {
        key: CopiedTo(each.high_watermark, each.last_epoch)
        for key, each in (await _positions_of(positions, keys)).items()
        if each.problem is None
    }


async def _positions_of(
    positions: Positions, keys: Sequence[TopicIdPartition]
) -> dict[TopicIdPartition, PositionFound]:
    """Return the partition leaders' answers about the ends of their logs."""
    asked = [PositionAsked(topic_id=key.topic_id, partition=key.partition, with_end=True) for key in keys]
    return dict(zip(keys, await positions.ask(asked), strict=True))


def _progress(found: PositionFound, gap: bodies.MirrorGap | None) -> MirrorPartition:
    """Return the progress of a partition, with unknown numbers as None.

    The lag in seconds is the time since the mirror last had every record of the source.
    """
    mirror = found.mirror
    source = None if mirror is None else mirror.source_high_watermark
    if found.problem is not None or mirror is None or source is None:
        high_watermark = None if found.problem is not None else int(found.high_watermark)
        return MirrorPartition(
            partition=found.partition,
            source_high_watermark=None,
            high_watermark=high_watermark,
            lag_records=None,
            lag_seconds=None,
            gap=gap,
        )
    seconds, age = mirror.behind_seconds, mirror.answer_age_seconds
    return MirrorPartition(
        partition=found.partition,
        source_high_watermark=source,
        high_watermark=found.high_watermark,
        lag_records=max(0, source - found.high_watermark),
        lag_seconds=None if seconds is None else round(seconds, 3),
        last_contact_seconds=None if age is None else round(age, 3),
        gap=gap,
    )


def _greatest(values: Sequence[N | None]) -> N | None:
    """Return the greatest number; None if any number is unknown."""
    known = [each for each in values if each is not None]
    return max(known) if known and len(known) == len(values) else None
