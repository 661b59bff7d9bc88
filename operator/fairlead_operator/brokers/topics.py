"""Topics of each cluster: one listing that concurrent passes share, and changes to single topics.

The reconciler of Topics calls this module. Hundreds of passes may read their topics in the same second; they share one
listing of brokers, topics and metadata. Changes made by this module update the listing. Passes also share a failed
listing; otherwise, every pass would call a cluster that does not answer. The module must not depend on the Kubernetes
resources.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, assert_never

from fairlead import Admin
from fairlead.errors import (
    ConflictError,
    FixError,
    NotPossibleNowError,
    PartitionNotFoundError,
    ReassignmentInProgressError,
    TopicExistsError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from fairlead_api.bodies.metadata import BrokerDescription, Metadata, PartitionMetadata, TopicDescription
from fairlead_api.bodies.operations import PartitionState
from fairlead_api.configuration import ConfigSource
from fairlead_operator.brokers.calls import BrokerCalls, BrokersUnavailable, broker_deadline
from fairlead_operator.clock import Clock
from fairlead_operator.plan.topic import (
    MIN_ISR,
    AlterConfig,
    CancelMove,
    CreateTopic,
    GrowPartitions,
    MovePartition,
    SetReplicationFactor,
    TopicAction,
)
from fairlead_operator.plan.topic_observed import LiveBroker, LivePartition, LiveTopic, LiveTopics, placed

LISTING_SECONDS: Final = 3.0
"""Maximum age of a listing. A change made by another client is corrected only at the next resync, and resyncs are far
less frequent than listings."""
LIST_TIMEOUT_SECONDS: Final = 15.0
"""Deadline for all calls of one listing together, since thousands of topics are returned in pages."""
CHANGES_MAX: Final = 8
"""Maximum number of concurrent changes in one cluster; the controller of the cluster applies changes one at a time."""


class TopicRefused(Exception):
    """The cluster permanently refuses the change. The error contains the brokers' message."""

    def __init__(self, code: str, message: str, key: str) -> None:
        super().__init__(message)
        self.code = code
        """Problem code of the refusal."""
        self.key = key
        """Invalid configuration key or field; empty if unknown."""


class TopicChanged(Exception):
    """The topic differs from the listing: the caller must list the topics again and make a new plan."""


class Deletion(Enum):
    """Result of the deletion of a topic."""

    DELETED = auto()
    ABSENT = auto()
    """The topic no longer existed."""
    ANOTHER = auto()
    """Another topic with the same name exists and was not deleted."""


@dataclass(slots=True)
class _Cluster:
    """State of one cluster's topics."""

    listing: asyncio.Lock = field(default_factory=asyncio.Lock)
    changes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CHANGES_MAX))
    listed_at: float | None = None
    brokers: tuple[LiveBroker, ...] = ()
    topics: dict[str, LiveTopic] = field(default_factory=dict)
    changed_at: dict[str, float] = field(default_factory=dict)
    """Time at which this module last changed each topic. A listing that was requested before this time may not include
    the change."""
    failure: str | None = None

    def enter(self, topic: LiveTopic, now: float) -> None:
        """Store the topic from the answer to a change, but keep the known placement, since the answer contains none."""
        self.changed_at[topic.name] = now
        self.topics[topic.name] = topic.placed_as(self.topics.get(topic.name))

    def place(self, name: str, partition: LivePartition, now: float) -> None:
        """Store the new placement of a partition."""
        topic = self.topics[name]
        placement = tuple(partition if each.index == partition.index else each for each in topic.placement)
        self.changed_at[name] = now
        self.topics[name] = replace(topic, placement=placement)

    def remove(self, name: str, now: float) -> None:
        """Remove a deleted topic."""
        self.changed_at[name] = now
        self.topics.pop(name, None)

    def relist(self, brokers: tuple[LiveBroker, ...], topics: dict[str, LiveTopic], asked_at: float) -> None:
        """Store a listing of all topics, except for topics that were changed after `asked_at`."""
        self.changed_at = {name: at for name, at in self.changed_at.items() if at >= asked_at}
        for name in self.changed_at:
            topics.pop(name, None)
            if name in self.topics:
                topics[name] = self.topics[name]
        self.brokers, self.topics, self.failure = brokers, topics, None


class TopicCalls:
    """Lists and changes topics. All passes of the operator share one instance."""

    def __init__(self, calls: BrokerCalls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._clusters: dict[tuple[str, str], _Cluster] = {}

    async def topics(self, cluster: dict[str, Any], *, fresh: bool = False) -> LiveTopics:
        """Return the topics of a Cluster from a recent or `fresh` listing. Raises `BrokersUnavailable`."""
        known = self._known(cluster)
        asked_at = self._clock.monotonic()
        async with known.listing:
            if not self._is_usable(known, asked_at, fresh=fresh):
                await self._list(cluster, known)
        if known.failure is not None:
            raise BrokersUnavailable(known.failure)
        return LiveTopics(known.brokers, known.topics)

    async def run(
        self, cluster: dict[str, Any], name: str, topic_id: str | None, action: TopicAction
    ) -> None:
        """Make one change to a topic.

        `topic_id` is the id of the topic in the plan; None if the topic does not exist yet.

        Raises `TopicRefused`, `TopicChanged`, `BrokersUnavailable`.
        """
        async with self._change(cluster, f"change topic {name}") as admin:
            known = self._known(cluster)
            if isinstance(action, MovePartition | CancelMove):
                moved = await _move(admin, name, action)
                known.place(name, _live_partition(moved), self._clock.monotonic())
                return
            altered = await _alter(admin, name, topic_id, action)
            known.enter(_live_topic(altered), self._clock.monotonic())
            if isinstance(action, GrowPartitions):
                # The brokers' answer does not contain the placement of the new partitions.
                known.listed_at = None

    async def delete(self, cluster: dict[str, Any], name: str, topic_id: str) -> Deletion:
        """Delete the topic with this name and id. Raises `TopicRefused`, `BrokersUnavailable`."""
        try:
            async with self._change(cluster, f"delete topic {name}") as admin:
                await admin.delete_topic(name, topic_id=topic_id)
        except TopicChanged as error:
            return Deletion.ANOTHER if isinstance(error.__cause__, TopicRecreatedError) else Deletion.ABSENT
        self._known(cluster).remove(name, self._clock.monotonic())
        return Deletion.DELETED

    def forget(self, namespace: str, cluster: str) -> None:
        """Drop the state of a deleted Cluster."""
        self._clusters.pop((namespace, cluster), None)

    def _known(self, cluster: dict[str, Any]) -> _Cluster:
        metadata = cluster["metadata"]
        return self._clusters.setdefault((metadata["namespace"], metadata["name"]), _Cluster())

    def _is_usable(self, known: _Cluster, asked_at: float, *, fresh: bool) -> bool:
        if known.listed_at is None:
            return False
        # A listing that another pass made while this pass waited also counts as fresh.
        return known.listed_at >= asked_at or (
            not fresh and self._clock.monotonic() - known.listed_at <= LISTING_SECONDS
        )

    async def _list(self, cluster: dict[str, Any], known: _Cluster) -> None:
        name = cluster["metadata"]["name"]
        started = self._clock.monotonic()
        try:
            async with broker_deadline(f"list the topics of cluster {name}", LIST_TIMEOUT_SECONDS):
                admin = await self._calls.admin(cluster)
                descriptions = await admin.list_topics()
                metadata = await admin.metadata()
        except BrokersUnavailable as error:
            known.failure = str(error)
        else:
            brokers = tuple(_live_broker(each) for each in metadata.brokers)
            known.relist(brokers, _live_topics(descriptions, metadata), started)
        known.listed_at = self._clock.monotonic() if known.failure is not None else started

    @contextlib.asynccontextmanager
    async def _change(self, cluster: dict[str, Any], what: str) -> AsyncIterator[Admin]:
        known = self._known(cluster)
        async with known.changes:
            try:
                async with broker_deadline(what):
                    try:
                        yield await self._calls.admin(cluster)
                    except (TopicExistsError, TopicNotFoundError, TopicRecreatedError) as error:
                        raise TopicChanged(str(error)) from error
                    except (
                        ConflictError,
                        NotPossibleNowError,
                        PartitionNotFoundError,
                        ReassignmentInProgressError,
                    ) as error:
                        # The change may succeed later, after brokers have returned or replica moves have completed.
                        raise BrokersUnavailable(str(error)) from error
                    except FixError as error:
                        key = error.data.get("key", "")
                        raise TopicRefused(error.code, error.detail, str(key)) from error
            except BaseException:
                known.listed_at = None
                raise


async def _move(admin: Admin, name: str, action: MovePartition | CancelMove) -> PartitionState:
    if isinstance(action, MovePartition):
        return await admin.reassign(name, action.partition, action.replicas)
    return await admin.cancel_reassignment(name, action.partition)


async def _alter(
    admin: Admin,
    name: str,
    topic_id: str | None,
    action: CreateTopic | AlterConfig | GrowPartitions | SetReplicationFactor,
) -> TopicDescription:
    match action:
        case CreateTopic(partitions, replicas, config):
            return await admin.create_topic(
                name, partitions=partitions, replication_factor=replicas, config=config, wait=False
            )
        case AlterConfig(changes):
            return await admin.alter_topic(name, config=changes, topic_id=topic_id)
        case GrowPartitions(partitions):
            return await admin.alter_topic(name, partitions=partitions, topic_id=topic_id)
        case SetReplicationFactor(replicas):
            return await admin.alter_topic(name, replication_factor=replicas, topic_id=topic_id)
        case _:
            assert_never(action)


def _live_broker(description: BrokerDescription) -> LiveBroker:
    return LiveBroker(description.id, description.rack, description.state, description.cordoned)


def _live_topics(descriptions: list[TopicDescription], metadata: Metadata) -> dict[str, LiveTopic]:
    placements = {topic.topic_id: topic.partitions for topic in metadata.topics}
    topics = {}
    for description in descriptions:
        placement = placed(_live_partition(each) for each in placements.get(description.topic_id, ()))
        topics[description.name] = replace(_live_topic(description), placement=placement)
    return topics


def _live_topic(description: TopicDescription) -> LiveTopic:
    return LiveTopic(
        name=description.name,
        topic_id=description.topic_id,
        state=description.state,
        partitions=description.partitions,
        replication_factor=description.replication_factor,
        link=None if description.mirror is None else description.mirror.link,
        config={
            key: entry
            for key, entry in description.config.items()
            if entry.source is ConfigSource.TOPIC or key == MIN_ISR
        },
    )


def _live_partition(described: PartitionMetadata | PartitionState) -> LivePartition:
    return LivePartition(
        described.partition,
        tuple(described.replicas),
        tuple(described.adding),
        tuple(described.removing),
        tuple(described.isr),
    )
