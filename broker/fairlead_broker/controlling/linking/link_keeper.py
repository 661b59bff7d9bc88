"""Periodic work of the controller on links: creation of mirrors, changes that follow the source, and promotions.

Every broker runs the keeper; only the broker that holds the term does the work. The facts that the keeper learns about
the sources are state of this process, and are shown by calls about links.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from fairlead_api.bodies.metadata import Page, TopicDescription
from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.configuration import (
    ISR_MODE,
    QUORUM_WRITE_KEY,
    REPLICATION_MODE_KEY,
    ConfigInput,
    ConfigSource,
)
from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.controlling.linking.acl_copies import AclCopies
from fairlead_broker.controlling.linking.link_admin import LinkAdmin, eras_of
from fairlead_broker.controlling.linking.promotions import CopyGroups, Promotions
from fairlead_broker.controlling.topic_completion import HeldTerm
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.coordination.mirror import Mirror, MirrorUpdate
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationError
from fairlead_broker.links.selection import (
    BlockReason,
    LocalTopics,
    SourceTopic,
    blocked,
    is_chosen,
    is_recreated,
)
from fairlead_broker.registry.link_records import LinkRecord, LinkState
from fairlead_broker.registry.metadata import LinkChange, TopicChange
from fairlead_broker.registry.records import MirrorOf, MirrorState, config_texts
from fairlead_broker.sources.source_cluster import SourceCluster, SourceUnreachable
from fairlead_broker.sources.sources import Sources

SURVEY_SECONDS: Final = 10.0
"""Seconds between two listings of a source's topics."""
TICK_SECONDS: Final = 1.0
PROMOTION_SECONDS: Final = 0.05
"""Seconds between two checks of a promotion that waits; during the wait, no cluster accepts records for the topic."""
MIN_ISR: Final = "min.insync.replicas"

_log = structlog.get_logger("fairlead.links")


@dataclass(slots=True)
class LinkView:
    """Facts that the controller knows about the source of one link."""

    problem: str | None = None
    """Reason why the source could not be surveyed; None after a survey that succeeded."""
    blocked: dict[str, tuple[TopicId, str]] = field(default_factory=dict)
    """Topic id and reason for each source topic that cannot be mirrored, by the topic's name in the source."""
    surveyed_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What the controller reports about one link in metrics."""

    is_reachable: bool | None
    """Whether the source answered the last calls; None for a paused link, or before the first answer."""
    topics: Mapping[str, int]
    """Number of topics by state."""


class LinkKeeper:
    """Keeper of all links."""

    def __init__(
        self,
        mirror: Mirror,
        term: HeldTerm,
        topics: TopicAdmin,
        admin: LinkAdmin,
        promotions: Promotions,
        sources: Sources,
        copy_groups: CopyGroups,
        acls: AclCopies,
        clock: Clock,
        report: Callable[[Mapping[str, LinkReport]], None],
    ) -> None:
        """`report` is called after each round with a report about each link, or about no link without the term."""
        self._metadata = mirror.metadata
        self._term = term
        self._topics = topics
        self._admin = admin
        self._promotions = promotions
        self._sources = sources
        self._copy_groups = copy_groups
        self._acls = acls
        self._released_at = float("-inf")
        self._clock = clock
        self._report = report
        self._views: dict[str, LinkView] = {}
        self._wake = asyncio.Event()
        mirror.subscribe(self._changed)

    def view(self, link: str) -> LinkView:
        """Return the controller's facts about the source of a link."""
        return self._views.get(link) or LinkView()

    async def run(self) -> None:
        """Work on all links until cancelled."""
        while True:
            self._wake.clear()
            waits = False
            if self._term() is None:
                self._views.clear()
            else:
                waits = await self._round()
            self._report({link: self._reported(link, view) for link, view in self._views.items()})
            try:
                async with asyncio.timeout(PROMOTION_SECONDS if waits else TICK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _reported(self, link: str, view: LinkView) -> LinkReport:
        record = self._metadata.links.get(link)
        is_running = record is not None and record.value.state is LinkState.RUNNING
        is_known = view.problem is not None or view.surveyed_at > float("-inf")
        states = Counter(
            topic.value.mirror.state.value
            for topic in self._admin.mirrors(link).values()
            if topic.value.mirror is not None
        )
        states.update(
            "promoted" if reason == BlockReason.PROMOTED else "blocked" for _, reason in view.blocked.values()
        )
        return LinkReport(view.problem is None if is_running and is_known else None, states)

    def _changed(self, update: MirrorUpdate) -> None:
        for each in update.changes:
            if isinstance(each, LinkChange | TopicChange):
                self._wake.set()
            if isinstance(each, LinkChange):
                self._released_at = float("-inf")
                if (view := self._views.get(each.name)) is not None:
                    view.surveyed_at = float("-inf")

    async def _round(self) -> bool:
        """Work on every link once; return whether a promotion waits."""
        waits = False
        for link in self._views.keys() - self._metadata.links.keys():
            del self._views[link]
        self._promotions.notice(
            {
                name: mirror.state
                for name, topic in self._metadata.topics.items()
                if (mirror := topic.value.mirror) is not None and mirror.state is not MirrorState.MIRRORING
            }
        )
        for link, record in list(self._metadata.links.items()):
            view = self._views.setdefault(link, LinkView())
            try:
                waits |= await self._promote(link, record.value)
                now = self._clock.monotonic()
                if record.value.state is LinkState.RUNNING and now - view.surveyed_at >= SURVEY_SECONDS:
                    view.surveyed_at = now
                    await self._survey(link, record.value, view)
                    await self._copy_groups(link)
                    await self._acls.copy(link)
                    view.problem = None
            except CoordinationClosed:
                raise
            except (SourceUnreachable, ProblemError, CoordinationError) as error:
                reason = error.detail if isinstance(error, ProblemError) else str(error)
                if view.problem is None:
                    _log.warning("link waits for its source", link=link, reason=reason)
                view.problem = reason
        await self._release_acls()
        return waits

    async def _release_acls(self) -> None:
        now = self._clock.monotonic()
        if now - self._released_at >= SURVEY_SECONDS:
            self._released_at = now
            try:
                await self._acls.release()
            except (ProblemError, CoordinationError) as error:
                _log.warning("copied ACLs not released", reason=str(error))

    async def _promote(self, link: str, record: LinkRecord) -> bool:
        """Advance every promotion of a link; return whether a promotion waits. Raises the first failure."""
        waits = False
        failure: SourceUnreachable | ProblemError | None = None

        async def source() -> SourceCluster:
            if isinstance(failure, SourceUnreachable):
                raise failure  # Each promotion would wait in vain for the same source.
            return await self._sources.checked(link, record)

        for name, topic in self._admin.mirrors(link).items():
            assert topic.value.mirror is not None, "mirrors have an origin"
            if topic.value.mirror.state is not MirrorState.MIRRORING:
                try:
                    async with self._admin.switching:
                        waits |= await self._promotions.advance(name, source, self._copy_groups)
                except (SourceUnreachable, ProblemError) as error:
                    failure = error
        if failure is not None:
            raise failure
        return waits

    # -- the topics of a source

    async def _survey(self, link: str, record: LinkRecord, view: LinkView) -> None:
        source = await self._sources.checked(link, record)
        described = await source.items("/v1/topics", Page[TopicDescription])
        view.blocked = {}
        local, revision = self._local(link), self._metadata.metadata_revision
        for topic in described:
            name = record.prefix + topic.name
            if self._metadata.metadata_revision != revision:
                local, revision = self._local(link), self._metadata.metadata_revision
            if TopicId(topic.topic_id) in local.mirrored:
                try:
                    await self._follow(name, topic, record)
                except ProblemError as problem:
                    _log.warning("mirror does not follow its source", topic=name, reason=problem.detail)
                continue
            if not is_chosen(record.topics, topic.name) or topic.state != "ready":
                continue
            lineage = topic.mirror.lineage if topic.mirror is not None else []
            found = SourceTopic(topic.name, TopicId(topic.topic_id), lineage)
            reason = blocked(found, name, local)
            if reason is BlockReason.NAME_TAKEN and await self._replaced(link, name, found, record):
                reason = None
            detail: str | None = None if reason is None else str(reason)
            if reason is None:
                try:
                    await self._create(link, name, topic, record)
                except ProblemError as problem:
                    detail = f"{BlockReason.REFUSED}: {problem.code}: {problem.detail}"
            if detail is not None:
                view.blocked[topic.name] = (TopicId(topic.topic_id), detail)

    def _local(self, link: str) -> LocalTopics:
        cluster = self._metadata.cluster
        assert cluster is not None, "a running broker knows its cluster"
        topics = self._metadata.topics
        return LocalTopics(
            cluster_id=cluster.value.cluster_id,
            names=topics.keys(),
            topic_ids={topic.value.topic_id for topic in topics.values()},
            promoted={
                topic.value.topic_id
                for topic in topics.values()
                if any(era.cluster_id == cluster.value.cluster_id for era in topic.value.eras or ())
            },
            mirrored={topic.value.topic_id for topic in self._admin.mirrors(link).values()},
            deleted=self._metadata.deleted_topics.keys(),
        )

    async def _replaced(self, link: str, name: str, topic: SourceTopic, record: LinkRecord) -> bool:
        """Delete the mirror of a topic that the source created again, if the link replaces such mirrors (rule L15)."""
        local = self._metadata.topics.get(name)
        if (
            record.policies.recreated != "replace"
            or local is None
            or not is_recreated(topic, local.value.mirror, link)
        ):
            return False
        _log.warning("mirror of a recreated topic deleted", topic=name, topic_id=local.value.topic_id)
        await self._topics.delete(name, local.value.topic_id)
        return True

    async def _create(self, link: str, name: str, topic: TopicDescription, record: LinkRecord) -> None:
        lineage = topic.mirror.lineage if topic.mirror is not None else []
        mirror = MirrorOf(
            link=link,
            source_cluster_id=record.source.cluster_id,
            source_name=topic.name,
            state=MirrorState.MIRRORING,
            lineage=(*lineage, record.source.cluster_id),
            since_us=self._clock.now_us(),
        )
        request = CreateTopicRequest(
            name=name,
            partitions=topic.partitions,
            replication_factor=record.replication_factor,
            config={**_config_of(topic, record, record.replication_factor or topic.replication_factor)},
        )
        created = await self._topics.create_mirror(request, TopicId(topic.topic_id), mirror, eras_of(topic))
        _log.info("mirror created", link=link, topic=name, topic_id=created.topic_id)

    async def _follow(self, name: str, topic: TopicDescription, record: LinkRecord) -> None:
        """Apply changes in the source to a mirror: partitions, configuration, and promotions of the source."""
        found = self._metadata.topics.get(name)
        if found is None or found.value.topic_id != topic.topic_id:
            return
        own = found.value
        config = _config_of(topic, record, own.replication_factor)
        before = config_texts(own.config)
        patch: dict[str, ConfigInput] = dict.fromkeys(before.keys() - config.keys())
        patch.update({key: value for key, value in config.items() if before.get(key) != value})
        partitions = topic.partitions if topic.partitions > own.partitions else None
        if patch or partitions:
            await self._topics.alter(name, AlterTopicRequest(partitions=partitions, config=patch))
        eras = eras_of(topic)
        if (own.eras or ()) != eras:
            await self._admin.set_eras(name, eras)


def _config_of(topic: TopicDescription, record: LinkRecord, replication_factor: int) -> dict[str, str]:
    """Return the configuration of a mirror: the keys set on the source topic itself, overridden by the link's keys."""
    config = {
        key: entry.value
        for key, entry in topic.config.items()
        if entry.source == ConfigSource.TOPIC and key != QUORUM_WRITE_KEY
    }
    # The batches of a quorum topic are copied like other batches; the mirror itself always uses in-sync replicas.
    config[REPLICATION_MODE_KEY] = ISR_MODE
    if MIN_ISR in config:
        config[MIN_ISR] = str(min(int(config[MIN_ISR]), replication_factor))
    return {**config, **config_texts(record.config)}
