"""Typed records of all keys under `meta/`, all at one revision.

The mirror in `coordination` keeps the metadata up to date; planners and the runtime read the metadata. `apply` is
the only method that changes the metadata. The metadata contains only written records, not planned records.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, TypeAlias, TypeVar

from fairlead_api.identifiers import BrokerId, PartitionIndex, Revision, TopicId
from fairlead_broker.registry.keys import (
    AclKey,
    BrokerConfigKey,
    BrokerKey,
    ClusterConfigKey,
    ClusterKey,
    ControllerEpochKey,
    ControllerKey,
    DeletedTopicKey,
    Keys,
    LinkKey,
    PartitionKey,
    QuotaKey,
    TokenKey,
    TopicKey,
)
from fairlead_broker.registry.link_records import LinkRecord
from fairlead_broker.registry.records import (
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    ControllerEpochRecord,
    ControllerRecord,
    DeletedTopicRecord,
    PartitionRecord,
    Record,
    RecordUnreadable,
    TopicRecord,
    TopicState,
    decode,
)
from fairlead_broker.registry.security_records import AclRecord, QuotaRecord, TokenRecord
from fairlead_broker.registry.store_writes import KeyValue

R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)
K = TypeVar("K")
_NO_PARTITIONS: Final[Mapping[PartitionIndex, Versioned[PartitionRecord]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Versioned(Generic[R_co]):
    """A record with its create revision and mod revision, which conditional writes compare."""

    value: R_co
    create_revision: Revision
    mod_revision: Revision


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """The cluster record was created or changed."""

    before: Versioned[ClusterRecord] | None
    after: Versioned[ClusterRecord] | None


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """A broker's registration was created, changed or removed. A new create revision means a new incarnation."""

    broker: BrokerId
    before: Versioned[BrokerRegistration] | None
    after: Versioned[BrokerRegistration] | None


@dataclass(frozen=True, slots=True)
class ControllerChange:
    """The controller changed, or the cluster has no controller."""

    before: Versioned[ControllerRecord] | None
    after: Versioned[ControllerRecord] | None


@dataclass(frozen=True, slots=True)
class TopicChange:
    """A topic was created, changed or deleted. The topic id of a name may change."""

    name: str
    before: Versioned[TopicRecord] | None
    after: Versioned[TopicRecord] | None


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """A partition was created, changed or deleted."""

    topic_id: TopicId
    partition: PartitionIndex
    before: Versioned[PartitionRecord] | None
    after: Versioned[PartitionRecord] | None


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """The configuration of one broker changed, or the cluster's configuration if `broker` is None."""

    broker: BrokerId | None
    before: Versioned[ConfigRecord] | None
    after: Versioned[ConfigRecord] | None


@dataclass(frozen=True, slots=True)
class DeletedTopicChange:
    """The tombstone of a topic was written or removed. A new tombstone makes brokers delete the topic's folders."""

    topic_id: TopicId
    before: Versioned[DeletedTopicRecord] | None
    after: Versioned[DeletedTopicRecord] | None


@dataclass(frozen=True, slots=True)
class TokenChange:
    """An API token was created or revoked."""

    token_id: str
    before: Versioned[TokenRecord] | None
    after: Versioned[TokenRecord] | None


@dataclass(frozen=True, slots=True)
class AclChange:
    """An ACL was created or removed."""

    acl_id: str
    before: Versioned[AclRecord] | None
    after: Versioned[AclRecord] | None


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """A quota was created, changed or removed."""

    subject: str
    before: Versioned[QuotaRecord] | None
    after: Versioned[QuotaRecord] | None


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A link was created, changed or removed."""

    name: str
    before: Versioned[LinkRecord] | None
    after: Versioned[LinkRecord] | None


Change: TypeAlias = (
    ClusterChange
    | BrokerChange
    | ControllerChange
    | TopicChange
    | PartitionChange
    | ConfigChange
    | DeletedTopicChange
    | TokenChange
    | AclChange
    | QuotaChange
    | LinkChange
)


class ClusterMetadata:
    """Records of the cluster, keyed by topic, broker or partition.

    The mappings are live views. A caller must not await between two reads that must be consistent.
    """

    def __init__(self, keys: Keys) -> None:
        """Create the metadata without records, at revision 0."""
        self.keys = keys
        self.revision = Revision(0)
        """Revision of the last change that has been applied."""
        self.metadata_revision = Revision(0)
        """Number that increases only when a record of the metadata changes. The number identifies one state of the
        metadata, as an ETag requires.
        """
        self.cluster: Versioned[ClusterRecord] | None = None
        self.controller: Versioned[ControllerRecord] | None = None
        self.controller_epoch: Versioned[ControllerEpochRecord] | None = None
        self.cluster_config: Versioned[ConfigRecord] | None = None
        self._brokers: dict[BrokerId, Versioned[BrokerRegistration]] = {}
        self._broker_configs: dict[BrokerId, Versioned[ConfigRecord]] = {}
        self._topics: dict[str, Versioned[TopicRecord]] = {}
        self._unsettled_topics: set[str] = set()
        self._names: dict[TopicId, str] = {}
        self._partitions: dict[TopicId, dict[PartitionIndex, Versioned[PartitionRecord]]] = {}
        self._deleted_topics: dict[TopicId, Versioned[DeletedTopicRecord]] = {}
        self._tokens: dict[str, Versioned[TokenRecord]] = {}
        self._acls: dict[str, Versioned[AclRecord]] = {}
        self._quotas: dict[str, Versioned[QuotaRecord]] = {}
        self._links: dict[str, Versioned[LinkRecord]] = {}
        self.unreadable_partitions: dict[str, str] = {}
        """Keys of partition records that cannot be read, with the reasons. The mirror continues without the partition,
        so that other partitions are served, and brokers keep the logs of the partition.
        """
        self.unreadable_security: set[str] = set()
        """Keys of tokens, ACLs and quotas that this release cannot read. The effect of these records is unknown (rule
        Z11)."""
        self.security_revision = Revision(0)
        """Number that increases when tokens, ACLs, quotas or the cluster's configuration change; access decisions
        cached at a lower number are not used.
        """

    @property
    def brokers(self) -> Mapping[BrokerId, Versioned[BrokerRegistration]]:
        """Registered brokers. The create revision of a registration is the broker epoch."""
        return MappingProxyType(self._brokers)

    @property
    def broker_configs(self) -> Mapping[BrokerId, Versioned[ConfigRecord]]:
        """Configurations that were set for individual brokers, registered or not."""
        return MappingProxyType(self._broker_configs)

    @property
    def topics(self) -> Mapping[str, Versioned[TopicRecord]]:
        """Topics by name, in every state."""
        return MappingProxyType(self._topics)

    @property
    def unsettled_topics(self) -> AbstractSet[str]:
        """Names of the topics that are being created, enlarged or deleted."""
        return self._unsettled_topics

    @property
    def deleted_topics(self) -> Mapping[TopicId, Versioned[DeletedTopicRecord]]:
        """Tombstones of deleted topics, by topic id."""
        return MappingProxyType(self._deleted_topics)

    @property
    def tokens(self) -> Mapping[str, Versioned[TokenRecord]]:
        """API tokens by id."""
        return MappingProxyType(self._tokens)

    @property
    def acls(self) -> Mapping[str, Versioned[AclRecord]]:
        """ACLs by id."""
        return MappingProxyType(self._acls)

    @property
    def quotas(self) -> Mapping[str, Versioned[QuotaRecord]]:
        """Quotas by subject."""
        return MappingProxyType(self._quotas)

    @property
    def links(self) -> Mapping[str, Versioned[LinkRecord]]:
        """Links by name."""
        return MappingProxyType(self._links)

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Return the name of an existing topic."""
        return self._names.get(topic_id)

    def topic_by_id(self, topic_id: TopicId) -> Versioned[TopicRecord] | None:
        """Return the topic with this id, in any state."""
        name = self._names.get(topic_id)
        return None if name is None else self._topics[name]

    def partitions(self, topic_id: TopicId) -> Mapping[PartitionIndex, Versioned[PartitionRecord]]:
        """Return the written partitions of a topic, including those of an unfinished creation."""
        return MappingProxyType(self._partitions.get(topic_id, _NO_PARTITIONS))

    def broker_config(self, broker: BrokerId) -> Versioned[ConfigRecord] | None:
        """Return the configuration that was set for one broker."""
        return self._broker_configs.get(broker)

    def apply(self, revision: Revision, changed: Mapping[str, KeyValue | None]) -> tuple[Change, ...]:
        """Apply all changes up to a revision. `changed` maps keys to their current items, or to None for a deleted key.

        Raises `RecordUnreadable`, after which the metadata must not be used. Unreadable partition and security records
        are recorded instead.
        """
        assert revision >= self.revision, f"revision {revision} is below {self.revision}"
        changes = [self._change(key, item) for key, item in changed.items()]
        self.revision = revision
        if changes:
            self.metadata_revision = revision
        if any(
            isinstance(change, TokenChange | AclChange | QuotaChange | ConfigChange) for change in changes
        ):
            self.security_revision = revision
        return tuple(change for change in changes if change is not None)

    def _change(self, key: str, item: KeyValue | None) -> Change | None:
        match self.keys.parse(key):
            case BrokerKey(broker):
                return BrokerChange(broker, *_set(self._brokers, broker, _read(item, BrokerRegistration)))
            case BrokerConfigKey(broker):
                return ConfigChange(broker, *_set(self._broker_configs, broker, _read(item, ConfigRecord)))
            case TopicKey(name):
                return self._topic(name, _read(item, TopicRecord))
            case PartitionKey(topic_id, partition):
                return self._partition(topic_id, partition, self._partition_record(key, item))
            case DeletedTopicKey(topic_id):
                deleted = _read(item, DeletedTopicRecord)
                return DeletedTopicChange(topic_id, *_set(self._deleted_topics, topic_id, deleted))
            case TokenKey(token_id):
                return TokenChange(
                    token_id, *_set(self._tokens, token_id, self._security(key, item, TokenRecord))
                )
            case AclKey(acl_id):
                return AclChange(acl_id, *_set(self._acls, acl_id, self._security(key, item, AclRecord)))
            case QuotaKey(subject):
                return QuotaChange(
                    subject, *_set(self._quotas, subject, self._security(key, item, QuotaRecord))
                )
            case LinkKey(name):
                return LinkChange(name, *_set(self._links, name, _read(item, LinkRecord)))
            case None:
                return None
            case single:
                return self._single(single, item)

    def _partition_record(self, key: str, item: KeyValue | None) -> Versioned[PartitionRecord] | None:
        """Return a partition record. The key of an unreadable record is recorded, and the mirror continues."""
        self.unreadable_partitions.pop(key, None)
        try:
            return _read(item, PartitionRecord)
        except RecordUnreadable as error:
            self.unreadable_partitions[key] = str(error)
            return None

    def _security(self, key: str, item: KeyValue | None, record_type: type[R]) -> Versioned[R] | None:
        """Return a security record. The key of an unreadable record is recorded, and the mirror continues."""
        self.unreadable_security.discard(key)
        try:
            return _read(item, record_type)
        except RecordUnreadable:
            self.unreadable_security.add(key)
            return None

    def _single(
        self, key: ClusterKey | ControllerKey | ControllerEpochKey | ClusterConfigKey, item: KeyValue | None
    ) -> Change | None:
        match key:
            case ClusterKey():
                cluster, self.cluster = self.cluster, _read(item, ClusterRecord)
                return ClusterChange(cluster, self.cluster)
            case ControllerKey():
                controller, self.controller = self.controller, _read(item, ControllerRecord)
                return ControllerChange(controller, self.controller)
            case ControllerEpochKey():
                self.controller_epoch = _read(item, ControllerEpochRecord)
                return None
            case _:
                config, self.cluster_config = self.cluster_config, _read(item, ConfigRecord)
                return ConfigChange(None, config, self.cluster_config)

    def _topic(self, name: str, after: Versioned[TopicRecord] | None) -> TopicChange:
        before, after = _set(self._topics, name, after)
        if before is not None:
            self._names.pop(before.value.topic_id, None)
        self._unsettled_topics.discard(name)
        if after is not None:
            self._names[after.value.topic_id] = name
            if after.value.state is not TopicState.READY or after.value.growing_to is not None:
                self._unsettled_topics.add(name)
        return TopicChange(name, before, after)

    def _partition(
        self, topic_id: TopicId, partition: PartitionIndex, after: Versioned[PartitionRecord] | None
    ) -> PartitionChange:
        of_topic = self._partitions.setdefault(topic_id, {})
        change = PartitionChange(topic_id, partition, *_set(of_topic, partition, after))
        if not of_topic:
            del self._partitions[topic_id]
        return change


def _read(item: KeyValue | None, record_type: type[R]) -> Versioned[R] | None:
    if item is None:
        return None
    return Versioned(decode(item.key, item.value, record_type), item.create_revision, item.mod_revision)


def _set(
    table: dict[K, Versioned[R]], key: K, after: Versioned[R] | None
) -> tuple[Versioned[R] | None, Versioned[R] | None]:
    """Put or remove a row, and return the previous row and the new row."""
    before = table.pop(key, None)
    if after is not None:
        table[key] = after
    return before, after
