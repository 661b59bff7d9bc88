from __future__ import annotations

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId, PartitionIndex, Revision, TimestampUs, TopicId
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import (
    BrokerChange,
    ClusterChange,
    ClusterMetadata,
    ConfigChange,
    ControllerChange,
    DeletedTopicChange,
    PartitionChange,
    TopicChange,
    Versioned,
)
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    ClusterRecord,
    ConfigRecord,
    ControllerEpochRecord,
    ControllerRecord,
    DeletedTopicRecord,
    DurabilityState,
    InSync,
    PartitionRecord,
    Record,
    RecordUnreadable,
    TopicRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import KeyValue
from refusals import raises

KEYS = Keys("test")
ID, OTHER_ID = (
    TopicId("00000000-0000-4000-8000-000000000001"),
    TopicId("00000000-0000-4000-8000-000000000002"),
)
ONE = BrokerId(1)
CLUSTER = ClusterRecord(cluster_id=ID, feature_level=1, created_us=TimestampUs(1))
CONTROLLER = ControllerRecord(broker=ONE, broker_epoch=2)  # type: ignore[arg-type]
CONFIG = ConfigRecord(values={"durability": "replicated"})
BROKER = BrokerRegistration(
    state=BrokerState.RUNNING,
    addresses=Addresses(data="h:1", peer="h:2", ops="h:3"),
    rack=None,
    release="0.1.0",
    peer_secret_hash="",
    directories=(),
)
TOMBSTONE = DeletedTopicRecord(name="t", deleted_us=TimestampUs(1))
PARTITION = PartitionRecord(
    leader=None,
    leader_epoch=0,  # type: ignore[arg-type]
    replicas=(),
    isr=(InSync(broker=ONE, broker_epoch=2),),  # type: ignore[arg-type]
    min_isr=1,
    durability=DurabilityState.SYNCED,
)


def topic(topic_id: TopicId = ID, state: TopicState = TopicState.READY) -> TopicRecord:
    """Return the record of a topic."""
    return TopicRecord(
        topic_id=topic_id, state=state, partitions=1, replication_factor=1, created_us=TimestampUs(1)
    )


def item(key: str, record: Record, revision: int, created: int | None = None) -> KeyValue:
    """Return the key-value pair of a record."""
    return KeyValue(key, encode(record), Revision(created or revision), Revision(revision))


@pytest.fixture
def metadata() -> ClusterMetadata:
    """Return metadata of an empty store."""
    return ClusterMetadata(KEYS)


def apply(metadata: ClusterMetadata, revision: int, *items: KeyValue, gone: tuple[str, ...] = ()) -> object:
    """Apply puts and deletions of one revision."""
    changed: dict[str, KeyValue | None] = {each.key: each for each in items}
    changed.update(dict.fromkeys(gone))
    return metadata.apply(Revision(revision), changed)


def test_every_key_is_shown_with_its_revisions(metadata: ClusterMetadata) -> None:
    """Each value below `meta/` is shown as a typed record, with the revisions of its key."""
    config_key = KEYS.broker_config(ONE)
    apply(
        metadata,
        5,
        item(KEYS.cluster, CLUSTER, 2),
        item(KEYS.controller, CONTROLLER, 3),
        item(KEYS.controller_epoch, ControllerEpochRecord(epoch=4), 3),
        item(KEYS.broker(ONE), BROKER, 4, 2),
        item(KEYS.cluster_config, CONFIG, 5),
        item(config_key, CONFIG, 5),
        item(KEYS.topic("t"), topic(), 5),
        item(KEYS.partition(ID, PartitionIndex(0)), PARTITION, 5),
        item(KEYS.deleted_topic(OTHER_ID), TOMBSTONE, 5),
    )

    assert metadata.cluster == Versioned(CLUSTER, Revision(2), Revision(2))
    assert metadata.controller == Versioned(CONTROLLER, Revision(3), Revision(3))
    assert metadata.controller_epoch is not None
    assert metadata.controller_epoch.value.epoch == 4
    assert metadata.brokers == {ONE: Versioned(BROKER, Revision(2), Revision(4))}
    assert (
        metadata.cluster_config == metadata.broker_config(ONE) == Versioned(CONFIG, Revision(5), Revision(5))
    )
    assert metadata.topics == {"t": Versioned(topic(), Revision(5), Revision(5))}
    assert metadata.topic_by_id(ID) == metadata.topics["t"]
    assert metadata.topic_name(ID) == "t"
    assert metadata.partitions(ID) == {0: Versioned(PARTITION, Revision(5), Revision(5))}
    assert metadata.deleted_topics == {OTHER_ID: Versioned(TOMBSTONE, Revision(5), Revision(5))}


def test_what_is_not_there_is_nothing(metadata: ClusterMetadata) -> None:
    """Metadata of an empty store has no records."""
    assert (metadata.cluster, metadata.controller, metadata.cluster_config) == (None, None, None)
    assert metadata.topic_by_id(ID) is None
    assert metadata.topic_name(ID) is None
    assert metadata.partitions(ID) == {}
    assert metadata.broker_config(ONE) is None


def test_changes_say_what_was_and_what_is(metadata: ClusterMetadata) -> None:
    """Each kind of key has its own kind of change, with the previous and the current record."""
    partition = KEYS.partition(ID, PartitionIndex(0))
    put = apply(
        metadata,
        2,
        item(KEYS.cluster, CLUSTER, 2),
        item(KEYS.controller, CONTROLLER, 2),
        item(KEYS.controller_epoch, ControllerEpochRecord(epoch=1), 2),
        item(KEYS.broker(ONE), BROKER, 2),
        item(KEYS.cluster_config, CONFIG, 2),
        item(KEYS.broker_config(ONE), CONFIG, 2),
        item(KEYS.topic("t"), topic(), 2),
        item(partition, PARTITION, 2),
        item(KEYS.deleted_topic(ID), TOMBSTONE, 2),
    )
    gone = apply(
        metadata,
        3,
        gone=(
            KEYS.cluster,
            KEYS.controller,
            KEYS.broker(ONE),
            KEYS.cluster_config,
            KEYS.broker_config(ONE),
            KEYS.topic("t"),
            partition,
            KEYS.deleted_topic(ID),
        ),
    )
    two = Revision(2)

    assert put == (
        ClusterChange(None, Versioned(CLUSTER, two, two)),
        ControllerChange(None, Versioned(CONTROLLER, two, two)),
        BrokerChange(ONE, None, Versioned(BROKER, two, two)),
        ConfigChange(None, None, Versioned(CONFIG, two, two)),
        ConfigChange(ONE, None, Versioned(CONFIG, two, two)),
        TopicChange("t", None, Versioned(topic(), two, two)),
        PartitionChange(ID, PartitionIndex(0), None, Versioned(PARTITION, two, two)),
        DeletedTopicChange(ID, None, Versioned(TOMBSTONE, two, two)),
    )
    assert gone == (
        ClusterChange(Versioned(CLUSTER, two, two), None),
        ControllerChange(Versioned(CONTROLLER, two, two), None),
        BrokerChange(ONE, Versioned(BROKER, two, two), None),
        ConfigChange(None, Versioned(CONFIG, two, two), None),
        ConfigChange(ONE, Versioned(CONFIG, two, two), None),
        TopicChange("t", Versioned(topic(), two, two), None),
        PartitionChange(ID, PartitionIndex(0), Versioned(PARTITION, two, two), None),
        DeletedTopicChange(ID, Versioned(TOMBSTONE, two, two), None),
    )
    assert (metadata.topics, metadata.brokers, metadata.partitions(ID)) == ({}, {}, {})
    assert metadata.topic_by_id(ID) is None


def test_a_recreated_topic_is_another_one(metadata: ClusterMetadata) -> None:
    """The name of a recreated topic maps to its new id, and the old id to no topic."""
    apply(metadata, 2, item(KEYS.topic("t"), topic(), 2))
    apply(metadata, 4, item(KEYS.topic("t"), topic(OTHER_ID), 4))

    assert metadata.topic_by_id(ID) is None
    assert metadata.topic_name(OTHER_ID) == "t"


def test_topics_are_unsettled_until_they_are_ready_or_gone(metadata: ClusterMetadata) -> None:
    """Topics that are being created, enlarged or deleted are unsettled; a ready or removed topic is not."""
    ready = topic()
    unsettled = []
    for revision, record in enumerate(
        (
            topic(state=TopicState.CREATING),
            ready,
            msgspec.structs.replace(ready, growing_to=2),
            ready,
            topic(state=TopicState.DELETING),
        ),
        start=1,
    ):
        apply(metadata, revision, item(KEYS.topic("t"), record, revision, 1))
        unsettled.append(set(metadata.unsettled_topics))
    apply(metadata, 6, gone=(KEYS.topic("t"),))

    assert unsettled == [{"t"}, set(), {"t"}, set(), {"t"}]
    assert metadata.unsettled_topics == set()


def test_the_metadata_revision_grows_with_changes_only(metadata: ClusterMetadata) -> None:
    """The metadata revision rises with each change or deletion of metadata, but not with other changes in the store."""
    seen = []
    apply(metadata, 2, item(KEYS.topic("t"), topic(), 2))
    seen.append((metadata.revision, metadata.metadata_revision))
    apply(metadata, 7)
    seen.append((metadata.revision, metadata.metadata_revision))
    apply(metadata, 9, gone=(KEYS.topic("t"),))
    seen.append((metadata.revision, metadata.metadata_revision))

    assert seen == [(2, 2), (7, 2), (9, 9)]


def test_keys_of_a_later_release_are_passed_over(metadata: ClusterMetadata) -> None:
    """Keys of a later release are skipped without reading their values."""
    later = KeyValue(f"{KEYS.meta}later/x", b"?", Revision(2), Revision(2))

    assert metadata.apply(Revision(2), {later.key: later}) == ()


def test_a_value_that_cannot_be_read_is_not_passed_over(metadata: ClusterMetadata) -> None:
    """An unreadable value causes an error, so that no decision is made without the value."""
    broken = KeyValue(KEYS.topic("t"), b"?", Revision(2), Revision(2))

    with raises(RecordUnreadable, KEYS.topic("t")):
        metadata.apply(Revision(2), {broken.key: broken})


def test_an_unreadable_partition_record_is_named(metadata: ClusterMetadata) -> None:
    """An unreadable partition record removes only its partition, and is named until the record can be read."""
    key = KEYS.partition(ID, PartitionIndex(0))
    apply(metadata, 2, item(key, PARTITION, 2))
    [change] = metadata.apply(Revision(3), {key: KeyValue(key, b"?", Revision(2), Revision(3))})
    named, partitions = dict(metadata.unreadable_partitions), dict(metadata.partitions(ID))
    apply(metadata, 4, item(key, PARTITION, 4, created=2))

    assert isinstance(change, PartitionChange)
    assert change.after is None
    assert (set(named), partitions) == ({key}, {})
    assert (metadata.unreadable_partitions, len(metadata.partitions(ID))) == ({}, 1)


@pytest.mark.parametrize("key", [KEYS.token("t"), KEYS.acl("a")])
def test_an_unreadable_token_or_acl_is_named(metadata: ClusterMetadata, key: str) -> None:
    """An unreadable token or ACL does not end the mirror, which reports its key until the key is gone (rule Z11)."""
    metadata.apply(Revision(2), {key: KeyValue(key, b"?", Revision(2), Revision(2))})
    named, revision = set(metadata.unreadable_security), metadata.security_revision
    metadata.apply(Revision(3), {key: None})

    assert (named, revision) == ({key}, 2)
    assert (metadata.unreadable_security, metadata.security_revision) == (set(), 3)


def test_revisions_do_not_go_back(metadata: ClusterMetadata) -> None:
    """A revision below the last applied revision is rejected."""
    apply(metadata, 5)
    with raises(AssertionError, 5):
        apply(metadata, 4)


def test_views_cannot_be_written(metadata: ClusterMetadata) -> None:
    """Views are read-only."""
    with pytest.raises(TypeError):
        metadata.topics["t"] = None  # type: ignore[index]
    with pytest.raises(TypeError):
        metadata.partitions(ID)[PartitionIndex(0)] = None  # type: ignore[index]


def test_the_configuration_of_brokers_outlives_their_registrations(metadata: ClusterMetadata) -> None:
    """The configuration of a broker outlives the broker's registration, and the view of configurations is read-only."""
    apply(metadata, 5, item(KEYS.broker(ONE), BROKER, 4), item(KEYS.broker_config(ONE), CONFIG, 5))
    configs = metadata.broker_configs
    apply(metadata, 6, gone=(KEYS.broker(ONE),))

    assert metadata.brokers == {}
    assert configs == {ONE: Versioned(CONFIG, Revision(5), Revision(5))}
    with pytest.raises(TypeError):
        configs[ONE] = Versioned(CONFIG, Revision(6), Revision(6))  # type: ignore[index]

    apply(metadata, 7, gone=(KEYS.broker_config(ONE),))

    assert configs == {}
