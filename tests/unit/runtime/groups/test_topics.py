"""Topics as groups see them: the same object until a change affects assignments."""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionIndex,
    Revision,
    TimestampUs,
    TopicId,
)
from fairlead_broker.groups import Topics, TopicShape
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    DurabilityState,
    InSync,
    PartitionRecord,
    Record,
    Replica,
    TopicRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import KeyValue
from fairlead_broker.runtime.groups.claims import claimant_of
from fairlead_broker.runtime.groups.topics import GroupTopics

KEYS = Keys("test")
T = TopicId("00000000-0000-4000-8000-000000000001")
TOPIC = TopicRecord(
    topic_id=T,
    state=TopicState.CREATING,
    partitions=2,
    replication_factor=1,
    created_us=TimestampUs(1),
)


def registration(rack: str | None) -> BrokerRegistration:
    """Return the registration of a broker in a rack."""
    return BrokerRegistration(
        state=BrokerState.RUNNING,
        addresses=Addresses(data="h:1", peer="h:2", ops="h:3"),
        rack=rack,
        release="0.1.0",
        peer_secret_hash="",
        directories=(),
    )


def kept_on(*brokers: int, epoch: int = 1) -> PartitionRecord:
    """Return the record of a partition with replicas on the given brokers."""
    return PartitionRecord(
        leader=None,
        leader_epoch=LeaderEpoch(epoch),
        replicas=tuple(Replica(broker=BrokerId(broker), directory="d") for broker in brokers),
        isr=(InSync(broker=BrokerId(brokers[0]), broker_epoch=BrokerEpoch(1)),),
        min_isr=1,
        durability=DurabilityState.REPLICATED,
    )


class Followed:
    """Metadata and its observer, changed key by key."""

    def __init__(self) -> None:
        self.metadata = ClusterMetadata(KEYS)
        self.seen: list[Topics] = []
        self.topics = GroupTopics(self.metadata, lambda: self.seen.append(self.topics.topics))

    def put(self, key: str, record: Record | None) -> int:
        """Write or delete a key, and return the number of changes that groups were notified of."""
        revision = Revision(self.metadata.revision + 1)
        item = None if record is None else KeyValue(key, encode(record), revision, revision)
        self.topics.updated(self.metadata.apply(revision, {key: item}))
        return len(self.seen)

    def partition(self, index: int, record: PartitionRecord) -> int:
        """Write a partition of the topic, and return the number of changes that groups were notified of."""
        return self.put(KEYS.partition(T, PartitionIndex(index)), record)


def test_only_what_members_are_assigned_by_is_news() -> None:
    """Groups are notified of ready topics, their partitions and racks, but not of leaders or of missing brokers."""
    followed = Followed()
    for broker, rack in ((1, "a"), (2, "b"), (3, None)):
        followed.put(KEYS.broker(BrokerId(broker)), registration(rack))
    followed.put(KEYS.topic("t"), TOPIC)
    followed.partition(0, kept_on(1, 2))
    assert followed.partition(1, kept_on(3)) == 0
    ready = msgspec.structs.replace(TOPIC, state=TopicState.READY)
    assert followed.put(KEYS.topic("t"), ready) == 1
    shape = TopicShape(T, 2, (frozenset({"a", "b"}), frozenset()))
    assert dict(followed.topics.topics) == {"t": shape}

    before = followed.topics.topics
    assert followed.partition(0, kept_on(1, 2, epoch=7)) == 1
    assert followed.put(KEYS.broker(BrokerId(2)), None) == 1
    assert followed.put(KEYS.broker(BrokerId(2)), registration("b")) == 1
    assert followed.topics.topics is before
    assert followed.put(KEYS.broker(BrokerId(2)), registration("c")) == 2
    assert followed.topics.topics["t"].racks[0] == frozenset({"a", "c"})
    assert followed.partition(1, kept_on(1)) == 3
    grown = msgspec.structs.replace(ready, partitions=3)
    assert followed.put(KEYS.topic("t"), grown) == 4
    assert followed.topics.topics["t"].racks == (frozenset({"a", "c"}), frozenset({"a"}), frozenset())
    assert followed.put(KEYS.topic("t"), None) == 5
    assert dict(followed.topics.topics) == {}
    assert dict(before) == {"t": shape}, "the topics of a turn do not change"


def test_when_a_broker_goes_only_its_groups_go_elsewhere() -> None:
    """Only the groups of a broker that leaves move to other brokers, and they are spread over all of them."""
    brokers = [BrokerId(broker) for broker in (1, 2, 3)]
    groups = [f"g{number}" for number in range(300)]
    before = {group: claimant_of(group, brokers) for group in groups}
    after = {group: claimant_of(group, brokers[:2]) for group in groups}

    assert all(after[group] == before[group] for group in groups if before[group] != 3)
    assert all(60 <= list(before.values()).count(broker) <= 140 for broker in brokers)
