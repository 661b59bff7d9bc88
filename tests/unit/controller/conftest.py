"""A small cluster as the input of planners, and a store of keys in which plans are executed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    Revision,
    TimestampUs,
    TopicId,
)
from fairlead_broker.controller.term import ControllerTerm
from fairlead_broker.controller.topics import Planning
from fairlead_broker.registry.keys import Keys, PartitionKey
from fairlead_broker.registry.metadata import ClusterMetadata, Versioned
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    ConfigRecord,
    ControllerRecord,
    Directory,
    DurabilityState,
    InSync,
    PartitionRecord,
    QuarantinedReplica,
    Record,
    Replica,
    TopicRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import (
    Compare,
    CreateRevision,
    Delete,
    KeyValue,
    ModRevision,
    Operation,
    Put,
    Relation,
    Transaction,
)

KEYS = Keys("test")
TOPIC_ID = TopicId("1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b")
NOW_US = TimestampUs(1_700_000_000_000_000)


@dataclass
class World:
    """Keys with revisions, and the metadata that a mirror would have."""

    metadata: ClusterMetadata = field(default_factory=lambda: ClusterMetadata(KEYS))
    items: dict[str, KeyValue] = field(default_factory=dict)
    revision: int = 1
    applied: list[Transaction] = field(default_factory=list)
    term_revision: int = 0

    def put(self, key: str, record: Record) -> int:
        """Write a record and return the revision."""
        assert self.run(Transaction((), (Put(key, encode(record)),)))
        return self.revision

    def delete(self, key: str) -> None:
        """Remove a key."""
        assert self.run(Transaction((), (Delete(key),)))

    def run(self, transaction: Transaction) -> bool:
        """Run a transaction if its compares hold, and return whether they did."""
        assert len(transaction.compares) <= 128, "the limit of compares"
        assert len(transaction.success) <= 128, "the limit of operations"
        assert not transaction.failure, "plans do nothing when a compare fails"
        if not all(self._holds(compare) for compare in transaction.compares):
            return False
        changed = self._apply(transaction.success)
        self.metadata.apply(Revision(self.revision), changed)
        self.applied.append(transaction)
        return True

    def register(self, broker: int, registration: BrokerRegistration) -> int:
        """Register another incarnation of a broker and return its epoch."""
        key = KEYS.broker(BrokerId(broker))
        if key in self.items:
            self.delete(key)
        return self.put(key, registration)

    def start_term(self) -> None:
        """Start the term of a controller."""
        if KEYS.controller in self.items:
            self.delete(KEYS.controller)
        record = ControllerRecord(broker=BrokerId(1), broker_epoch=BrokerEpoch(1))
        self.term_revision = self.put(KEYS.controller, record)

    @property
    def term(self) -> ControllerTerm:
        """The current term of the controller."""
        return ControllerTerm(KEYS, Revision(self.term_revision))

    def planning(self, *, partitions_max: int = 60, start_index: int = 0, now_us: int = NOW_US) -> Planning:
        """Return the input of planners."""
        config = self.metadata.cluster_config
        return Planning(
            term=self.term,
            brokers=self.metadata.brokers,
            cluster_config=config.value if config else None,
            now_us=TimestampUs(now_us),
            start_index=start_index,
            partitions_max=partitions_max,
        )

    def topic(self, name: str = "flights") -> Versioned[TopicRecord]:
        """Return a topic that exists."""
        return self.metadata.topics[name]

    def partitions(self, topic_id: TopicId = TOPIC_ID) -> Mapping[PartitionIndex, Versioned[PartitionRecord]]:
        """Return the partitions of the topic."""
        return self.metadata.partitions(topic_id)

    def partition_keys(self) -> dict[PartitionKey, Versioned[PartitionRecord]]:
        """Return the partitions of the topic by key."""
        return {PartitionKey(TOPIC_ID, index): each for index, each in self.partitions().items()}

    def _apply(self, operations: Sequence[Operation]) -> dict[str, KeyValue | None]:
        self.revision += 1
        revision, changed = Revision(self.revision), dict[str, KeyValue | None]()
        for operation in operations:
            if isinstance(operation, Put):
                before = self.items.get(operation.key)
                created = before.create_revision if before else revision
                changed[operation.key] = KeyValue(operation.key, operation.value, created, revision)
                self.items[operation.key] = changed[operation.key]  # type: ignore[assignment]
            else:
                changed[operation.key] = None
                del self.items[operation.key]
        return changed

    def _holds(self, compare: Compare) -> bool:
        assert compare.relation is Relation.EQUAL, "plans compare for equality"
        item = self.items.get(compare.key)
        if isinstance(compare, CreateRevision):
            return (item.create_revision if item else 0) == compare.revision
        if isinstance(compare, ModRevision):
            return (item.mod_revision if item else 0) == compare.revision
        return item is not None and item.value == compare.value


def registration(
    directory: str = "d1",
    *,
    last_broker_epoch: int = 0,
    intact_since: int | None = None,
    state: BrokerState = BrokerState.RUNNING,
    rack: str | None = None,
    quarantined: Sequence[int] = (),
) -> BrokerRegistration:
    """Register a broker with one directory."""
    return BrokerRegistration(
        state=state,
        addresses=Addresses(data="127.0.0.1:9520", peer="127.0.0.1:9521", ops="127.0.0.1:9522"),
        rack=rack,
        release="0.1.0",
        peer_secret_hash="00",
        directories=(Directory(id=directory, last_broker_epoch=BrokerEpoch(last_broker_epoch)),),
        quarantined=tuple(
            QuarantinedReplica(topic_id=TOPIC_ID, partition=PartitionIndex(n)) for n in quarantined
        ),
        intact_since=None if intact_since is None else BrokerEpoch(intact_since),
    )


def entries(*pairs: tuple[int, int]) -> tuple[InSync, ...]:
    """Return replicas on brokers, given as pairs (broker, epoch)."""
    return tuple(InSync(broker=BrokerId(broker), broker_epoch=BrokerEpoch(epoch)) for broker, epoch in pairs)


def partition(
    isr: tuple[InSync, ...],
    *,
    elr: tuple[InSync, ...] = (),
    replicas: Sequence[int] = (1, 2, 3),
    min_isr: int = 1,
    durability: DurabilityState = DurabilityState.SYNCED,
    leader: InSync | None = None,
) -> PartitionRecord:
    """Return the record of a partition, whose replica on broker n is in the directory dn."""
    return PartitionRecord(
        leader=leader,
        leader_epoch=LeaderEpoch(7),
        replicas=tuple(Replica(broker=BrokerId(n), directory=f"d{n}") for n in replicas),
        isr=isr,
        elr=elr,
        min_isr=min_isr,
        durability=durability,
    )


def new_topic(partitions: int = 3, replication_factor: int = 1, **config: str) -> TopicRecord:
    """Describe a topic that is to be created; underscores of configuration keys stand for dots."""
    return TopicRecord(
        topic_id=TOPIC_ID,
        state=TopicState.CREATING,
        partitions=partitions,
        replication_factor=replication_factor,
        config={key.replace("_", "."): value for key, value in config.items()},
        created_us=NOW_US,
    )


def cluster_config(**values: str) -> ConfigRecord:
    """Describe the cluster's configuration."""
    return ConfigRecord(values={key.replace("_", "."): value for key, value in values.items()})


class Kit:
    """The functions of this module, for tests that cannot import from a conftest."""

    keys = KEYS
    topic_id = TOPIC_ID
    now_us = NOW_US
    registration = staticmethod(registration)
    entries = staticmethod(entries)
    partition = staticmethod(partition)
    new_topic = staticmethod(new_topic)
    cluster_config = staticmethod(cluster_config)


@pytest.fixture
def kit() -> type[Kit]:
    """Return the helpers that make records."""
    return Kit


@pytest.fixture
def world() -> World:
    """Return a cluster with one broker and a controller, and nothing else."""
    made = World()
    made.register(1, registration())
    made.start_term()
    return made
