"""Periodic work of the controller on links: creation of mirrors, changes that follow the source, and promotions.

Every broker runs the keeper; only the broker that holds the term does the work. Two tasks work on each link: one lists
the topics of the source, and the other advances promotions. A source that does not answer therefore delays neither
other links nor a failover of its own link. The facts that the keeper learns about the sources are state of this
process, and are shown by calls about links.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from fairlead_api.bodies.metadata import TopicDescription
from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.configuration import (
    ISR_MODE,
    QUORUM_WRITE_KEY,
    REPLICATION_MODE_KEY,
    ConfigInput,
    ConfigSource,
)
from fairlead_api.excerpts import shortened
from fairlead_api.identifiers import Revision, TopicId
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
from fairlead_broker.registry.metadata import Change, LinkChange, TopicChange
from fairlead_broker.registry.records import MirrorOf, MirrorState, config_texts
from fairlead_broker.sources.source_cluster import SourceCluster, SourceUnreachable
from fairlead_broker.sources.source_topics import flaw_of
from fairlead_broker.sources.sources import Sources

SURVEY_SECONDS: Final = 10.0
"""Seconds between two listings of a source's topics."""
TICK_SECONDS: Final = 1.0
PROMOTION_SECONDS: Final = 0.05
"""Seconds between two checks of a promotion that waits; during the wait, no cluster accepts records for the topic."""
MIN_ISR: Final = "min.insync.replicas"

_log = structlog.get_logger("fairlead.links")


@dataclass(frozen=True, slots=True)
class SurveySeen:
    """State on which the outcome of a survey depends; while nothing changes, the source's topics are not read again."""

    tag: str
    """Entity tag of the source's topics."""
    record: LinkRecord
    revision: Revision
    """Revision of the metadata of this cluster."""


@dataclass(slots=True)
class LinkView:
    """Facts that the controller knows about the source of one link."""

    survey_problem: str | None = None
    """Reason why the last survey of the source failed; None after a survey that succeeded."""
    promotion_problem: str | None = None
    """Reason why the last steps of promotions failed; None after steps that succeeded."""
    blocked: dict[str, tuple[TopicId, str]] = field(default_factory=dict)
    """Topic id and reason for each source topic that cannot be mirrored, by the topic's name in the source."""
    is_surveyed: bool = False
    """Whether a survey has ended, with or without success."""
    seen: SurveySeen | None = None
    """State of the last survey that left nothing to be tried again."""

    @property
    def problem(self) -> str | None:
        """Reason why the link waits; None while it does its work."""
        return self.survey_problem or self.promotion_problem


@dataclass(slots=True)
class _Watch:
    """Facts about one link, and the events that wake its tasks."""

    view: LinkView = field(default_factory=LinkView)
    survey: asyncio.Event = field(default_factory=asyncio.Event)
    promote: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: tuple[asyncio.Task[None], ...] = ()


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
        self._creating = asyncio.Lock()
        """Lock without which two links could create mirrors with the same topic id under different names."""
        self._clock = clock
        self._report = report
        self._watches: dict[str, _Watch] = {}
        """Links that this broker works on; empty without the term."""
        self._wake = asyncio.Event()
        mirror.subscribe(self._changed)

    def view(self, link: str) -> LinkView:
        """Return the controller's facts about the source of a link."""
        found = self._watches.get(link)
        return LinkView() if found is None else found.view

    async def run(self) -> None:
        """Work on all links until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                try:
                    while True:
                        self._wake.clear()
                        self._watch_links(tasks)
                        if self._term() is not None:
                            await self._release_acls()
                        self._report(
                            {link: self._reported(link, each.view) for link, each in self._watches.items()}
                        )
                        await _happened(self._wake, TICK_SECONDS)
                finally:
                    self._watches.clear()
        except* CoordinationClosed as closed:
            raise closed.exceptions[0] from None

    def _watch_links(self, tasks: asyncio.TaskGroup) -> None:
        """Start the tasks of new links, and end the tasks of links that are gone, or of all links without the term."""
        links = set(self._metadata.links) if self._term() is not None else set()
        for link in self._watches.keys() - links:
            for task in self._watches.pop(link).tasks:
                task.cancel()
            self._promotions.forget(link)
        for link in links - self._watches.keys():
            watch = self._watches[link] = _Watch()
            watch.tasks = (
                tasks.create_task(self._keep_surveying(link, watch), name=f"survey for link {link}"),
                tasks.create_task(self._keep_promoting(link, watch), name=f"promotions of link {link}"),
            )

    def _reported(self, link: str, view: LinkView) -> LinkReport:
        record = self._metadata.links.get(link)
        is_running = record is not None and record.value.state is LinkState.RUNNING
        states = Counter(
            topic.value.mirror.state.value
            for topic in self._admin.mirrors(link).values()
            if topic.value.mirror is not None
        )
        states.update(
            "promoted" if reason == BlockReason.PROMOTED else "blocked" for _, reason in view.blocked.values()
        )
        return LinkReport(view.survey_problem is None if is_running and view.is_surveyed else None, states)

    def _changed(self, update: MirrorUpdate) -> None:
        is_relevant = False
        for each in update.changes:
            is_relevant |= isinstance(each, LinkChange | TopicChange)
            link = _concerned(each)
            if isinstance(each, LinkChange):
                self._released_at = float("-inf")
            if link is not None and (watch := self._watches.get(link)) is not None:
                watch.survey.set()
        if is_relevant:
            self._wake.set()
            for watch in self._watches.values():
                watch.promote.set()

    async def _keep_surveying(self, link: str, watch: _Watch) -> None:
        """Survey the source of a running link again and again, until the link is gone."""
        while self._watches.get(link) is watch:
            watch.survey.clear()
            record = self._metadata.links.get(link)
            if record is not None and record.value.state is LinkState.RUNNING:
                try:
                    with _contained(link):
                        await self._survey(link, record.value, watch.view)
                        await self._copy_groups(link)
                        await self._acls.copy(link)
                    watch.view.survey_problem = None
                except CoordinationClosed:
                    raise
                except (SourceUnreachable, ProblemError, CoordinationError) as error:
                    watch.view.survey_problem = _noted(link, error, watch.view.survey_problem)
                watch.view.is_surveyed = True
            await _happened(watch.survey, SURVEY_SECONDS)

    async def _keep_promoting(self, link: str, watch: _Watch) -> None:
        """Advance the promotions of a link again and again, until the link is gone."""
        while self._watches.get(link) is watch:
            watch.promote.clear()
            record, waits = self._metadata.links.get(link), False
            if record is not None:
                try:
                    waits, failure = await self._promote(link, record.value)
                except CoordinationClosed:
                    raise
                except CoordinationError as error:
                    failure = error
                view = watch.view
                view.promotion_problem = (
                    None if failure is None else _noted(link, failure, view.promotion_problem)
                )
            await _happened(watch.promote, PROMOTION_SECONDS if waits else TICK_SECONDS)

    async def _release_acls(self) -> None:
        now = self._clock.monotonic()
        if now - self._released_at >= SURVEY_SECONDS:
            self._released_at = now
            try:
                await self._acls.release()
            except (ProblemError, CoordinationError) as error:
                _log.warning("copied ACLs not released", reason=str(error))

    async def _promote(self, link: str, record: LinkRecord) -> tuple[bool, Exception | None]:
        """Advance every promotion of a link; return whether a promotion waits, and the last failure.

        Failovers come first, so that they do not wait for a hand-over that the source does not answer.
        """
        failure: Exception | None = None

        async def source() -> SourceCluster:
            if isinstance(failure, SourceUnreachable):
                raise failure  # Each promotion would wait in vain for the same source.
            return await self._sources.checked(link, record)

        waits = False
        mirrors = {
            name: topic.value.mirror
            for name, topic in self._admin.mirrors(link).items()
            if topic.value.mirror is not None and topic.value.mirror.state is not MirrorState.MIRRORING
        }
        self._promotions.notice(link, {name: mirror.state for name, mirror in mirrors.items()})
        for name in sorted(mirrors, key=lambda name: not mirrors[name].failover):
            try:
                with _contained(link):
                    async with self._admin.switching(name):
                        waits |= await self._promotions.advance(name, source, self._copy_groups)
            except (SourceUnreachable, ProblemError) as error:
                failure = error
                # A failover ends soon, although its source does not answer.
                waits |= mirrors[name].failover is True and isinstance(error, SourceUnreachable)
        return waits, failure

    # -- the topics of a source

    async def _survey(self, link: str, record: LinkRecord, view: LinkView) -> None:
        source = await self._sources.checked(link, record)
        seen = view.seen
        is_same = seen is not None and (seen.record, seen.revision) == (
            record,
            self._metadata.metadata_revision,
        )
        found = await source.topics(seen.tag if seen is not None and is_same else None)
        if found is None:
            return
        view.seen, is_settled = None, True
        waiting: dict[str, tuple[TopicId, str]] = {}
        begun = revision = self._metadata.metadata_revision
        local = self._local(link)
        for topic in found.items:
            if (flaw := flaw_of(topic)) is not None:
                _log.warning("topic of a source ignored", link=link, topic=shortened(topic.name), reason=flaw)
                continue
            name = record.prefix + topic.name
            if self._metadata.metadata_revision != revision:
                local, revision = self._local(link), self._metadata.metadata_revision
            if TopicId(topic.topic_id) in local.mirrored:
                try:
                    async with self._admin.switching(name):
                        await self._follow(name, topic, record)
                except ProblemError as problem:
                    is_settled = False
                    _log.warning("mirror does not follow its source", topic=name, reason=problem.detail)
            elif is_chosen(record.topics, topic.name) and topic.state == "ready":
                async with self._creating:
                    reason = await self._created(link, name, topic, record)
                if reason is not None:
                    is_settled &= not reason.startswith(BlockReason.REFUSED)
                    waiting[topic.name] = (TopicId(topic.topic_id), reason)
        view.blocked = waiting
        if found.tag is not None and is_settled:
            view.seen = SurveySeen(found.tag, record, begun)

    async def _created(self, link: str, name: str, topic: TopicDescription, record: LinkRecord) -> str | None:
        """Create the mirror of a topic; return the reason why the topic is blocked instead."""
        lineage = topic.mirror.lineage if topic.mirror is not None else []
        found = SourceTopic(topic.name, TopicId(topic.topic_id), lineage)
        reason = blocked(found, name, self._local(link))
        if reason is BlockReason.NAME_TAKEN and await self._replaced(link, name, found, record):
            reason = None
        if reason is not None:
            return str(reason)
        try:
            await self._create(link, name, topic, record)
        except ProblemError as problem:
            return f"{BlockReason.REFUSED}: {problem.code}: {problem.detail}"
        return None

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
        if found is None or found.value.topic_id != topic.topic_id or found.value.mirror is None:
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


@contextmanager
def _contained(link: str) -> Iterator[None]:
    """Raise `SourceUnreachable` for an unexpected error, because a source may send anything.

    The exception for a broken invariant is raised unchanged, and stops the broker.
    """
    try:
        yield
    except (SourceUnreachable, ProblemError, CoordinationError, AssertionError):
        raise
    except Exception as error:
        _log.exception("unexpected error contained", work="link", subject=link, reason=repr(error))
        msg = f"an answer of the source was not understood: {error!r}"
        raise SourceUnreachable(msg) from error


def _concerned(change: Change | None) -> str | None:
    """Return the link whose source is to be surveyed after a change: a changed link, or that of a promoted mirror."""
    if isinstance(change, LinkChange):
        return change.name
    if isinstance(change, TopicChange) and change.before is not None:
        mirror, after = change.before.value.mirror, change.after
        if mirror is not None and (after is None or after.value.mirror is None):
            return mirror.link
    return None


def _noted(link: str, error: Exception, known: str | None) -> str:
    """Return the reason of a failure; log the first of several failures. `known`: reason of the previous failure."""
    reason = error.detail if isinstance(error, ProblemError) else str(error)
    if known is None:
        _log.warning("link waits for its source", link=link, reason=reason)
    return reason


async def _happened(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for at most the given time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _config_of(topic: TopicDescription, record: LinkRecord, replication_factor: int) -> dict[str, str]:
    """Return the configuration of a mirror: the keys set on the source topic itself, overridden by the link's keys."""
    config = {
        key: entry.value
        for key, entry in topic.config.items()
        if entry.source == ConfigSource.TOPIC and key != QUORUM_WRITE_KEY
    }
    # The batches of a quorum topic are copied like other batches; the mirror itself always uses in-sync replicas.
    config[REPLICATION_MODE_KEY] = ISR_MODE
    if config.get(MIN_ISR, "").isdecimal():
        config[MIN_ISR] = str(min(int(config[MIN_ISR]), replication_factor))
    return {**config, **config_texts(record.config)}
