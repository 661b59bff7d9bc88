"""Topics as clients see them: the mirrored topic and partition records with the effective configuration.

A view is created when it is first used and is cached until one of its records changes, because resolving a
configuration takes longer than appending a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fairlead_api.batch.validation import UNLIMITED_US, ValidationLimits
from fairlead_api.configuration import (
    ConfigEntry,
    ConfigInput,
    TimestampType,
    TopicConfig,
    effective_topic_config,
)
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.metadata import (
    Change,
    ClusterMetadata,
    ConfigChange,
    PartitionChange,
    TopicChange,
)
from fairlead_broker.registry.records import (
    Era,
    HandedOver,
    MirrorOf,
    PartitionRecord,
    TopicRecord,
    TopicState,
)
from fairlead_broker.runtime import refusals


@dataclass(frozen=True, slots=True)
class TopicView:
    """State of one topic at a point in time."""

    name: str
    topic_id: TopicId
    state: TopicState
    partition_count: int
    replication_factor: int
    config: TopicConfig
    config_entries: Mapping[str, ConfigEntry]
    partitions: Mapping[PartitionIndex, PartitionRecord]
    mirror: MirrorOf | None = None
    """Origin of a topic that a link writes; None for a topic that accepts records."""
    eras: tuple[Era, ...] = ()
    """Promotions of the topic in all clusters, oldest first."""
    handed_over: HandedOver | None = None
    """Cluster that accepts the topic's records instead of this cluster; None for most topics."""


class TopicViews:
    """Cache of the views of mirrored topics."""

    __slots__ = ("_broker", "_broker_defaults", "_metadata", "_views")

    def __init__(
        self, metadata: ClusterMetadata, broker: BrokerId, broker_defaults: Mapping[str, ConfigInput]
    ) -> None:
        """`broker_defaults`: topic keys from the broker's own settings.

        Values stored in coordination take precedence.
        """
        self._metadata = metadata
        self._broker = broker
        self._broker_defaults = broker_defaults
        self._views: dict[str, TopicView] = {}

    def by_name(self, name: str) -> TopicView:
        """Return the topic with this name. Raises `topic_not_found`, even for a topic that is being deleted."""
        view = self._views.get(name)
        if view is not None:
            return view
        topic = self._metadata.topics.get(name)
        if topic is None or topic.value.state is TopicState.DELETING:
            raise refusals.topic_not_found(name)
        view = self._views[name] = self._make(name, topic.value)
        return view

    def by_id(self, topic_id: TopicId) -> TopicView:
        """Return the topic with this id.

        Raises `topic_not_found`, or `topic_recreated` if a new topic has the name of the deleted topic.
        """
        name = self._metadata.topic_name(topic_id)
        if name is not None:
            return self.by_name(name)
        deleted = self._metadata.deleted_topics.get(topic_id)
        successor = deleted and self._metadata.topics.get(deleted.value.name)
        if deleted and successor:
            raise refusals.topic_recreated(deleted.value.name, topic_id, successor.value.topic_id)
        raise refusals.topic_id_not_found(topic_id)

    def all(self) -> list[TopicView]:
        """Return every topic that is not being deleted, ordered by name."""
        topics = self._metadata.topics
        return [
            self.by_name(name)
            for name in sorted(topics)
            if topics[name].value.state is not TopicState.DELETING
        ]

    def why_not_led(
        self, topic_id: TopicId, index: PartitionIndex, leads: Callable[[PartitionRecord], bool]
    ) -> ProblemError:
        """Return the problem that explains why this broker does not serve a partition as leader.

        `leads` returns whether a partition record makes this broker the leader, even if its role has not started yet.
        """
        try:
            view = self.by_id(topic_id)
        except ProblemError as problem:
            return problem
        if not 0 <= index < view.partition_count:
            return refusals.partition_not_found(view.name, index, view.partition_count)
        record = view.partitions.get(index)
        if record is None or record.leader is None or leads(record):
            return refusals.no_leader(view.name, index)
        leader = self._metadata.brokers.get(record.leader.broker)
        address = leader.value.addresses.any_data if leader else None
        return refusals.not_leader(view.name, index, record.leader_epoch, address)

    def preview(self, name: str, record: TopicRecord) -> TopicView:
        """Return an uncached view, without partitions, of the topic that this record would create."""
        return self._make(name, record)

    def changed(self, change: Change) -> None:
        """Drop the views that a change makes outdated."""
        match change:
            case TopicChange(name=name):
                self._views.pop(name, None)
            case PartitionChange(topic_id=topic_id):
                owner = self._metadata.topic_name(topic_id)
                if owner is not None:
                    self._views.pop(owner, None)
            case ConfigChange():
                self._views.clear()
            case _:
                pass

    def _make(self, name: str, record: TopicRecord) -> TopicView:
        metadata = self._metadata
        own = metadata.broker_config(self._broker)
        cluster = metadata.cluster_config
        config, entries = effective_topic_config(
            record.config,
            {**self._broker_defaults, **(own.value.values if own else {})},
            cluster.value.values if cluster else {},
            replication_factor=record.replication_factor,
        )
        partitions = {
            index: partition.value
            for index, partition in sorted(metadata.partitions(record.topic_id).items())
            if index < record.partitions
        }
        return TopicView(
            name=name,
            topic_id=record.topic_id,
            state=record.state,
            partition_count=record.partitions,
            replication_factor=record.replication_factor,
            config=config,
            config_entries=MappingProxyType(entries),
            partitions=MappingProxyType(partitions),
            mirror=record.mirror,
            eras=record.eras or (),
            handed_over=record.handed_over,
        )


def limits_of(config: TopicConfig, decompressed_bytes_max: int) -> ValidationLimits:
    """Return the limits for a topic's batches.

    As in Kafka, timestamps that the append time replaces are not checked.
    """
    kept = config.message_timestamp_type is not TimestampType.LOG_APPEND_TIME

    def window_us(milliseconds: int) -> int:
        return min(milliseconds * 1000, UNLIMITED_US) if kept else UNLIMITED_US

    return ValidationLimits(
        batch_bytes_max=config.max_message_bytes,
        decompressed_bytes_max=decompressed_bytes_max,
        timestamp_before_max_us=window_us(config.message_timestamp_before_max_ms),
        timestamp_after_max_us=window_us(config.message_timestamp_after_max_ms),
        create_times_kept=kept,
        keys_required=config.compacts,
    )
