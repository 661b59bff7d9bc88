"""Creation, change and deletion of links, and orders to promote mirrors, at the request of operators.

The runtime calls this module on the broker that holds the controller's term. Each change is one conditional write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from fairlead_api.bodies.links import (
    AlterLinkRequest,
    CreateLinkRequest,
    HandOverRequest,
    PromotionMode,
)
from fairlead_api.bodies.metadata import TopicDescription
from fairlead_api.identifiers import LeaderEpoch
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.linking.link_changes import altered, new_link, same_link
from fairlead_broker.controlling.operation_refusals import topic_is_mirror
from fairlead_broker.controlling.plan_runner import PlanRunner
from fairlead_broker.controlling.topic_completion import HeldTerm, required_term
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.links.eras import Kinship, kinship, parting
from fairlead_broker.links.producer_ranges import first_producer_id
from fairlead_broker.registry.link_records import (
    LinkRecord,
    LinkSource,
    LinkState,
)
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    Era,
    HandedOver,
    MirrorOf,
    MirrorState,
    TopicRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import Delete, Put, Transaction, absent, unchanged_since
from fairlead_broker.sources.source_cluster import SourceCluster, SourceUnreachable
from fairlead_broker.sources.sources import Sources, check_source, unreachable

LINK_LEVEL: Final = 3
"""First feature level with links."""
NAMED_MAX: Final = 20
"""Maximum number of topics that a refusal names."""

Chosen = Sequence[str] | Literal["all"]
"""Names of mirrors, or all mirrors of a link."""


class LinkAdmin:
    """Operations on links. Every call may raise `ProblemError`."""

    def __init__(
        self, coordination: Coordination, mirror: Mirror, term: HeldTerm, clock: Clock, sources: Sources
    ) -> None:
        self._metadata = mirror.metadata
        self._term = term
        self._clock = clock
        self._sources = sources
        self._runner = PlanRunner(coordination, mirror)
        self._switching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def required(self, link: str) -> Versioned[LinkRecord]:
        """Return a link. Raises `link_not_found`."""
        found = self._metadata.links.get(link)
        if found is None:
            raise ProblemError("link_not_found", f"there is no link {link}", data={"link": link})
        return found

    def switching(self, topic: str) -> asyncio.Lock:
        """Return the lock that serializes the steps of a topic's promotion.

        Without the lock, a hand-over in progress could take effect after the call that abandons it.
        """
        return self._switching.setdefault(topic, asyncio.Lock())

    def mirrors(self, link: str) -> dict[str, Versioned[TopicRecord]]:
        """Return the topics that a link mirrors, by name."""
        return {
            name: topic
            for name, topic in sorted(self._metadata.topics.items())
            if topic.value.mirror is not None
            and topic.value.mirror.link == link
            and topic.value.state is not TopicState.DELETING
        }

    async def create(self, request: CreateLinkRequest, *, dry_run: bool = False) -> tuple[LinkRecord, bool]:
        """Create a link; return it, and whether this call created it.

        The source is called once, so that a wrong address is refused at once. Raises `link_exists`,
        `link_source_unreachable`, `invalid_link` for a source that is this cluster, and `not_possible_now`.
        """
        cluster = self._metadata.cluster
        assert cluster is not None, "a running broker knows its cluster"
        if cluster.value.feature_level < LINK_LEVEL:
            raise ProblemError(
                "not_possible_now",
                f"links need feature level {LINK_LEVEL}, the cluster is at {cluster.value.feature_level}",
            )
        wanted = await self._resolved(request)
        if wanted.source.cluster_id == cluster.value.cluster_id:
            detail = f"the source of link {request.name} is this cluster"
            raise ProblemError("invalid_link", detail, data={"field": "source.bootstrap"})
        if first_producer_id(wanted.source.cluster_id) == first_producer_id(cluster.value.cluster_id):
            detail = f"the source of link {request.name} has the same range of producer ids as this cluster"
            raise ProblemError("invalid_link", detail, data={"field": "source.bootstrap"})
        existing = self._metadata.links.get(request.name)
        if existing is not None:
            return same_link(request.name, existing.value, wanted), False
        if dry_run:
            return wanted, True
        created = False

        def plan(size: int) -> Sequence[Transaction]:
            nonlocal created
            del size
            now = self._metadata.links.get(request.name)
            if now is not None:
                same_link(request.name, now.value, wanted)
                return ()
            created = True
            key = self._metadata.keys.link(request.name)
            return (Transaction((required_term(self._term).guard, absent(key)), (Put(key, encode(wanted)),)),)

        await self._runner.complete(plan)
        return self.required(request.name).value, created

    async def alter(self, link: str, request: AlterLinkRequest) -> LinkRecord:
        """Change a link; return it.

        New addresses of the source are called once before the change. Raises `link_not_found`, `invalid_link`,
        `link_source_unreachable` and `link_source_changed`.
        """
        source = self.required(link).value.source
        if request.source is not UNSET:
            source = msgspec.structs.replace(source, bootstrap=tuple(request.source.bootstrap))
            try:
                versions = await self._sources.versions_at(link, source.bootstrap)
                check_source(link, source, versions.cluster_id)
            except (SourceUnreachable, ProblemError) as error:
                raise unreachable(link, error) from error
        return await self._change(link, partial(altered, request, source))

    async def set_state(self, link: str, state: LinkState) -> LinkRecord:
        """Pause or resume a link. Raises `link_not_found`."""
        return await self._change(link, lambda record: msgspec.structs.replace(record, state=state))

    async def acknowledge(self, link: str) -> LinkRecord:
        """Let the stopped mirrors of a link continue. Raises `link_not_found`."""
        return await self._change(
            link,
            lambda record: msgspec.structs.replace(record, acknowledgements=record.acknowledgements + 1),
            once=True,
        )

    async def _change(
        self, link: str, change: Callable[[LinkRecord], LinkRecord], *, once: bool = False
    ) -> LinkRecord:
        """Write a changed link, unless the change has already been made; return it. Raises `link_not_found`.

        `once`: whether the change must not be made again after its write has succeeded.
        """

        def plan(size: int) -> Sequence[Transaction]:
            del size
            found = self.required(link)
            record = change(found.value)
            if record == found.value:
                return ()
            key = self._metadata.keys.link(link)
            compares = (required_term(self._term).guard, unchanged_since(key, found.mod_revision))
            changed = msgspec.structs.replace(record, changed_us=self._clock.now_us())
            return (Transaction(compares, (Put(key, encode(changed)),)),)

        await (self._runner.begin(plan) if once else self._runner.complete(plan))
        return self.required(link).value

    async def delete(self, link: str) -> None:
        """Delete a link. Raises `link_not_found`, and `link_in_use` while the link has mirrors."""
        self.required(link)

        def plan(size: int) -> Sequence[Transaction]:
            del size
            found = self._metadata.links.get(link)
            if found is None:
                return ()
            if mirrors := self.mirrors(link):
                named = list(mirrors)[:NAMED_MAX]
                detail = f"link {link} has {len(mirrors)} mirrors: {', '.join(named)}"
                raise ProblemError("link_in_use", detail, data={"link": link, "topics": named})
            key = self._metadata.keys.link(link)
            compares = (required_term(self._term).guard, unchanged_since(key, found.mod_revision))
            return (Transaction(compares, (Delete(key),)),)

        await self._runner.complete(plan)
        self._sources.forget(link)

    async def promote(self, link: str, chosen: Chosen, mode: PromotionMode) -> list[str]:
        """Begin the promotion of mirrors; return their names. Raises `link_not_found` and `topic_not_found`."""
        names, failover = self._chosen(link, chosen), mode == "failover"
        allowed = frozenset({MirrorState.MIRRORING, MirrorState.HANDING_OVER})
        for name in names:
            await self._move(link, name, MirrorState.HANDING_OVER, allowed, failover=failover)
        return names

    async def take_back(self, link: str, chosen: Chosen) -> list[str]:
        """Abandon hand-overs: the link copies the mirrors again, and then the source accepts records (rule L18).

        Raises `link_not_found`, `topic_not_found`, `not_handed_over` for a mirror whose promotion has begun, and
        `link_source_unreachable`, after which the call may be repeated.
        """
        record, names = self.required(link).value, self._chosen(link, chosen)
        for name in names:
            async with self.switching(name):
                await self._take_back(link, record, name)
        return names

    async def _take_back(self, link: str, record: LinkRecord, name: str) -> None:
        await self._move(link, name, MirrorState.MIRRORING, frozenset({MirrorState.HANDING_OVER}))
        found = self.mirrors(link).get(name)
        if found is None:
            return
        assert found.value.mirror is not None, "mirrors have an origin"
        try:
            source = await self._sources.checked(link, record)
            await _take_topic_back(source, found.value.mirror.source_name)
        except (SourceUnreachable, ProblemError) as error:
            raise unreachable(link, error) from error

    async def adopt(self, link: str, topics: Sequence[str]) -> list[str]:
        """Make topics of this cluster mirrors of their copies in the source; return their names (rule L20).

        Raises `link_not_found`, `topic_not_found`, `topic_is_mirror`, `histories_diverged`, `not_possible_now` for a
        topic that is still a mirror in the source, and `link_source_unreachable`.
        """
        found = self.required(link).value
        names = list(dict.fromkeys(topics))
        source: SourceCluster | None = None
        for name in names:
            try:
                source = source or await self._sources.checked(link, found)
                copy = await source.topic(name.removeprefix(found.prefix))
            except (SourceUnreachable, ProblemError) as error:
                raise unreachable(link, error) from error
            await self._change_topic(name, partial(self._adopted, link, name, found, copy))
        return names

    def _adopted(
        self, link: str, name: str, found: LinkRecord, copy: TopicDescription, record: TopicRecord
    ) -> TopicRecord:
        """Return the record of a topic as the mirror of its copy in the source."""
        if record.mirror is not None:
            if record.mirror.link == link:
                return record
            raise topic_is_mirror(name, record.mirror)
        if copy.mirror is not None:
            detail = f"topic {copy.name} is a mirror in the source of link {link}: promote it there first"
            raise ProblemError("not_possible_now", detail, data={"topic": name})
        eras = eras_of(copy)
        own_eras = record.eras or ()
        if (
            copy.topic_id != record.topic_id
            or kinship(own_eras, eras) is not Kinship.SAME_OR_OLDER
            or own_eras == eras
        ):
            parted = parting(own_eras, eras)
            raise ProblemError(
                "histories_diverged",
                f"topic {name} cannot continue as a mirror of topic {copy.name} in the source of link {link}",
                data={
                    "topic": name,
                    "link": link,
                    "era": min((each.epoch for each in parted), default=None),
                    "both": [each.cluster_id for each in parted],
                },
            )
        mirror = MirrorOf(
            link=link,
            source_cluster_id=found.source.cluster_id,
            source_name=copy.name,
            state=MirrorState.MIRRORING,
            lineage=(found.source.cluster_id,),
            since_us=self._clock.now_us(),
        )
        return msgspec.structs.replace(record, mirror=mirror, eras=eras, handed_over=None)

    async def hand_over(self, topic: str, request: HandOverRequest) -> None:
        """Make this cluster refuse records for a topic in favour of another cluster (rule L18).

        Raises `topic_is_mirror`, and `topic_moved` for a topic that was handed over to a third cluster.
        """

        def change(record: TopicRecord) -> TopicRecord:
            if record.mirror is not None:
                raise topic_is_mirror(topic, record.mirror)
            standing = record.handed_over
            if standing is not None and standing.cluster_id != request.cluster_id:
                raise ProblemError(
                    "topic_moved",
                    f"topic {topic} is handed over to cluster {standing.cluster_id} already",
                    data={
                        "topic": topic,
                        "cluster_id": standing.cluster_id,
                        "bootstrap": list(standing.bootstrap),
                    },
                )
            if standing is not None:
                return record
            handed_over = HandedOver(
                cluster_id=request.cluster_id,
                bootstrap=tuple(request.bootstrap),
                since_us=self._clock.now_us(),
            )
            return msgspec.structs.replace(record, handed_over=handed_over)

        await self._change_topic(topic, change)

    async def take_topic_back(self, topic: str) -> None:
        """Accept records for a topic again. Raises `not_handed_over` for a topic that accepts records."""

        def change(record: TopicRecord) -> TopicRecord:
            if record.handed_over is None:
                raise ProblemError(
                    "not_handed_over", f"topic {topic} is not handed over", data={"topic": topic}
                )
            return msgspec.structs.replace(record, handed_over=None)

        await self._change_topic(topic, change, once=True)

    async def set_eras(self, name: str, eras: tuple[Era, ...]) -> None:
        """Set the eras of a mirror to the eras of its source, which was itself promoted."""

        def change(record: TopicRecord) -> TopicRecord:
            mirror = record.mirror
            is_mirrored = mirror is not None and mirror.state is MirrorState.MIRRORING
            if not is_mirrored or (record.eras or ()) == eras:
                return record
            return msgspec.structs.replace(record, eras=eras or None)

        await self._change_topic(name, change)

    async def _resolved(self, request: CreateLinkRequest) -> LinkRecord:
        """Return the record of a link whose source answers."""
        now_us = self._clock.now_us()
        bootstrap = tuple(request.source.bootstrap)
        try:
            versions = await self._sources.versions_at(request.name, bootstrap)
        except (SourceUnreachable, ProblemError) as error:
            raise unreachable(request.name, error) from error
        if versions.feature_level < LINK_LEVEL:
            raise ProblemError(
                "not_possible_now",
                f"the source of link {request.name} is at feature level {versions.feature_level}, and links need "
                f"level {LINK_LEVEL}",
            )
        return new_link(request, LinkSource(bootstrap=bootstrap, cluster_id=versions.cluster_id), now_us)

    def _chosen(self, link: str, chosen: Chosen) -> list[str]:
        self.required(link)
        mirrors = self.mirrors(link)
        if chosen == "all":
            return list(mirrors)
        for name in chosen:
            if name not in mirrors:
                detail = f"topic {name} is not a mirror of link {link}"
                raise ProblemError("topic_not_found", detail, data={"topic": name})
        return list(dict.fromkeys(chosen))

    async def _move(
        self,
        link: str,
        name: str,
        state: MirrorState,
        allowed: frozenset[MirrorState],
        *,
        failover: bool = False,
    ) -> None:
        """Change the state of a mirror. Raises `not_handed_over` if its current state does not allow it."""

        def change(record: TopicRecord) -> TopicRecord:
            mirror = record.mirror
            if mirror is None or mirror.link != link:
                return record
            if mirror.state is state and (mirror.failover or not failover):
                return record
            if mirror.state not in allowed:
                if state is not MirrorState.MIRRORING:
                    return record
                raise ProblemError(
                    "not_handed_over", f"topic {name} is {mirror.state} already", data={"topic": name}
                )
            moved = msgspec.structs.replace(mirror, state=state, failover=failover or None)
            return msgspec.structs.replace(record, mirror=moved)

        await self._change_topic(name, change)

    async def _change_topic(
        self, name: str, change: Callable[[TopicRecord], TopicRecord], *, once: bool = False
    ) -> None:
        """Write a changed topic record, unless the change has already been made. Raises `topic_not_found`.

        `once`: whether the change must not be made again after its write has succeeded.
        """

        def plan(size: int) -> Sequence[Transaction]:
            del size
            topic = self._metadata.topics.get(name)
            if topic is None or topic.value.state is TopicState.DELETING:
                raise ProblemError("topic_not_found", f"there is no topic {name}", data={"topic": name})
            record = change(topic.value)
            if record is topic.value:
                return ()
            key = self._metadata.keys.topic(name)
            compares = (required_term(self._term).guard, unchanged_since(key, topic.mod_revision))
            return (Transaction(compares, (Put(key, encode(record)),)),)

        await (self._runner.begin(plan) if once else self._runner.complete(plan))


def eras_of(topic: TopicDescription) -> tuple[Era, ...]:
    """Return the eras of a topic in the form of its record."""
    return tuple(Era(epoch=LeaderEpoch(each.epoch), cluster_id=each.cluster_id) for each in topic.eras)


async def _take_topic_back(source: SourceCluster, topic: str) -> None:
    """Make the source accept records for a topic, unless the topic is not handed over."""
    try:
        await source.take_back(topic)
    except ProblemError as problem:
        if problem.code != "not_handed_over":
            raise
