"""Plans that create, grow, change and delete topics, as transactions of at most 60 partitions.

`controlling.topics` calls these planners. All functions are pure. A plan writes the desired state to the topic's key,
then the partitions, then the final state:

    (absent) ──creating──▶ ready ──deleting──▶ (absent, tombstone)
                           ready ──growing_to──▶ ready

Every transaction leaves a valid state. After a crash at any point, `plan_completion` plans the remaining steps to
the same final state.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from fairlead_api.identifiers import BrokerId, LeaderEpoch, PartitionIndex, TimestampUs, TopicId
from fairlead_broker.controller.election import Brokers, broker_epoch, is_live
from fairlead_broker.controller.partition_limits import as_assigned, placed
from fairlead_broker.controller.partition_settings import PartitionSettings, partition_settings
from fairlead_broker.controller.round_robin import PlaceableBroker
from fairlead_broker.controller.term import PARTITIONS_MAX, ControllerTerm, portions
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    BrokerRegistration,
    BrokerState,
    ConfigRecord,
    ConfigScalar,
    DeletedTopicRecord,
    DurabilityState,
    InSync,
    PartitionRecord,
    Quorum,
    Replica,
    TopicRecord,
    TopicState,
    encode,
)
from fairlead_broker.registry.store_writes import (
    Compare,
    Delete,
    Put,
    Transaction,
    absent,
    created_at,
    has_value,
    unchanged_since,
)

TOMBSTONE_SECONDS = 14 * 24 * 3600
"""Number of seconds that the tombstone of a deleted topic is kept, for brokers that were not running when the topic was
deleted.
"""

Partitions = Mapping[PartitionIndex, Versioned[PartitionRecord]]


@dataclass(frozen=True, slots=True)
class Planning:
    """Inputs of a plan in addition to the topic itself."""

    term: ControllerTerm
    brokers: Brokers
    cluster_config: ConfigRecord | None
    now_us: TimestampUs
    start_index: int = 0
    """Index at which the placement of new partitions begins. Any integer is a valid index."""
    partitions_max: int = PARTITIONS_MAX
    """Maximum number of partitions in one transaction. The plan runner halves this number if the store refuses a
    transaction as too large.
    """
    cordoned: frozenset[BrokerId] = frozenset()
    """Brokers that get no new replicas."""
    load: Mapping[BrokerId, int] = field(default_factory=dict)
    """Number of replicas on each broker, including replicas that other operations in progress will add."""

    @property
    def placeable(self) -> list[PlaceableBroker]:
        """Brokers that can get new replicas."""
        return placeable(self.brokers, self.cordoned)


def plan_creation(planning: Planning, name: str, record: TopicRecord) -> tuple[Transaction, ...]:
    """Return the steps that create a topic. The state of `record` must be `creating`."""
    assert record.state is TopicState.CREATING, f"a new topic is {record.state}"
    keys = planning.term.keys
    announcement = Transaction(
        # A topic id is used only once, since brokers delete every folder of a topic id that has a tombstone.
        (planning.term.guard, absent(keys.topic(name)), absent(keys.deleted_topic(record.topic_id))),
        (Put(keys.topic(name), encode(record)),),
    )
    return (announcement, *_completion(planning, _announced(planning, name, record), {}))


def plan_alteration(
    planning: Planning,
    name: str,
    topic: Versioned[TopicRecord],
    partitions: Partitions,
    *,
    partition_count: int,
    config: Mapping[str, ConfigScalar],
    replication_factor: int | None = None,
    assigned: Mapping[PartitionIndex, tuple[BrokerId, ...]] | None = None,
) -> tuple[Transaction, ...]:
    """Return the steps that add partitions to a ready topic and change its configuration.

    `replication_factor` applies only to new partitions, and `assigned` names their brokers.
    """
    assert partition_count >= topic.value.partitions, f"{name} would shrink to {partition_count} partitions"
    growing_to = partition_count if partition_count > topic.value.partitions else None
    record = msgspec.structs.replace(
        topic.value,
        config=dict(config),
        growing_to=growing_to,
        assigned=None if assigned is None else dict(assigned),
        replication_factor=replication_factor or topic.value.replication_factor,
    )
    return _announce(planning, name, topic, partitions, record)


def plan_growth(
    planning: Planning, name: str, topic: Versioned[TopicRecord], partitions: Partitions, partition_count: int
) -> tuple[Transaction, ...]:
    """Return the steps that add partitions to a ready topic."""
    return plan_alteration(
        planning, name, topic, partitions, partition_count=partition_count, config=topic.value.config
    )


def plan_deletion(
    planning: Planning, name: str, topic: Versioned[TopicRecord], partitions: Partitions
) -> tuple[Transaction, ...]:
    """Return the steps that delete a topic in any state and write its tombstone.

    The first step of a deletion cannot be undone.
    """
    record = msgspec.structs.replace(topic.value, state=TopicState.DELETING, growing_to=None)
    return _announce(planning, name, topic, partitions, record)


def plan_completion(
    planning: Planning, name: str, topic: Versioned[TopicRecord], partitions: Partitions
) -> tuple[Transaction, ...]:
    """Return the remaining steps of the operation that the topic's key names, or no steps if the operation is complete.

    New partitions are not planned while too few brokers can get new replicas.
    """
    guard = unchanged_since(planning.term.keys.topic(name), topic.mod_revision)
    return _completion(planning, _Subject(name, topic.value, guard), partitions)


def plan_forgetting(
    planning: Planning, deleted: Mapping[TopicId, Versioned[DeletedTopicRecord]]
) -> tuple[Transaction, ...]:
    """Return the steps that remove the tombstones older than `TOMBSTONE_SECONDS`."""
    keys = planning.term.keys
    over = planning.now_us - TOMBSTONE_SECONDS * 1_000_000
    old = [(keys.deleted_topic(id_), each) for id_, each in deleted.items() if each.value.deleted_us <= over]
    return tuple(
        Transaction(
            (planning.term.guard, *(unchanged_since(key, each.mod_revision) for key, each in portion)),
            tuple(Delete(key) for key, _ in portion),
        )
        for portion in portions(old, planning.partitions_max)
    )


def plan_placement(
    planning: Planning, record: TopicRecord, partitions: Partitions
) -> dict[PartitionIndex, tuple[BrokerId, ...]] | None:
    """Return the replicas of the partitions that the topic lacks, or None while too few brokers can get them."""
    missing = _missing(record, partitions)
    if not missing:
        return {}
    if record.assigned is not None:
        return as_assigned(missing, record.assigned, planning.placeable, planning.brokers, planning.load)
    return placed(
        missing,
        record.replication_factor,
        planning.placeable,
        planning.brokers,
        planning.load,
        planning.start_index,
    )


def placeable(brokers: Brokers, cordoned: Collection[BrokerId] = ()) -> list[PlaceableBroker]:
    """Return the brokers that can get new replicas: running, not cordoned, with a healthy directory."""
    return [
        PlaceableBroker(broker, each.value.rack)
        for broker, each in brokers.items()
        if each.value.state is BrokerState.RUNNING and each.value.directories and broker not in cordoned
    ]


@dataclass(frozen=True, slots=True)
class _Subject:
    """A topic with a running operation, and a compare that succeeds while the topic's key names this operation."""

    name: str
    record: TopicRecord
    guard: Compare


def _announce(
    planning: Planning,
    name: str,
    topic: Versioned[TopicRecord],
    partitions: Partitions,
    record: TopicRecord,
) -> tuple[Transaction, ...]:
    if record == topic.value:
        return plan_completion(planning, name, topic, partitions)
    unchanged = unchanged_since(planning.term.keys.topic(name), topic.mod_revision)
    announcement = _write_topic(planning, name, unchanged, record)
    return (announcement, *_completion(planning, _announced(planning, name, record), partitions))


def _announced(planning: Planning, name: str, record: TopicRecord) -> _Subject:
    """Return a topic whose later steps compare the value of its key, since its revision is unknown before the write."""
    return _Subject(name, record, has_value(planning.term.keys.topic(name), encode(record)))


def _completion(planning: Planning, subject: _Subject, partitions: Partitions) -> tuple[Transaction, ...]:
    if subject.record.state is TopicState.DELETING:
        return _removal(planning, subject, partitions)
    record = subject.record
    settings = partition_settings(record, planning.cluster_config)
    steps = _settings_written(planning, subject, partitions, settings)
    if record.state is TopicState.READY and record.growing_to is None:
        return steps
    placement = plan_placement(planning, record, partitions)
    if placement is None:
        # New partitions cannot be placed now. The controller completes the topic when enough brokers have joined.
        return steps
    steps += _partitions_written(planning, subject, placement, settings)
    done = msgspec.structs.replace(
        record,
        state=TopicState.READY,
        partitions=record.growing_to or record.partitions,
        growing_to=None,
        assigned=None,
    )
    return (*steps, _write_topic(planning, subject.name, subject.guard, done))


def _write_topic(planning: Planning, name: str, guard: Compare, record: TopicRecord) -> Transaction:
    return Transaction((planning.term.guard, guard), (Put(planning.term.keys.topic(name), encode(record)),))


def _removal(planning: Planning, subject: _Subject, partitions: Partitions) -> tuple[Transaction, ...]:
    """Remove the partitions, then delete the topic's key and write the tombstone in one transaction.

    Brokers delete folders as soon as the tombstone exists, so all partition records must be removed first.
    """
    term, topic_id = planning.term, subject.record.topic_id
    rows = [(term.keys.partition(topic_id, index), each) for index, each in sorted(partitions.items())]
    removals = (
        Transaction(
            (
                term.guard,
                subject.guard,
                *(unchanged_since(key, each.mod_revision) for key, each in portion),
            ),
            tuple(Delete(key) for key, _ in portion),
        )
        for portion in portions(rows, planning.partitions_max)
    )
    tombstone = encode(DeletedTopicRecord(name=subject.name, deleted_us=planning.now_us))
    farewell = Transaction(
        (term.guard, subject.guard),
        (
            Delete(term.keys.topic(subject.name)),
            Put(term.keys.deleted_topic(topic_id), tombstone),
        ),
    )
    return (*removals, farewell)


def _missing(record: TopicRecord, partitions: Partitions) -> list[PartitionIndex]:
    """Return the partitions without a partition record, up to the topic's planned partition count."""
    count = record.growing_to or record.partitions
    return [PartitionIndex(n) for n in range(count) if PartitionIndex(n) not in partitions]


def _partitions_written(
    planning: Planning,
    subject: _Subject,
    placement: Mapping[PartitionIndex, tuple[BrokerId, ...]],
    settings: PartitionSettings,
) -> tuple[Transaction, ...]:
    """Return the transactions that write the missing partitions with their replicas."""
    record, term = subject.record, planning.term
    return tuple(
        _write_new(
            planning,
            (term.guard, subject.guard),
            {
                term.keys.partition(record.topic_id, n): _new_partition(
                    placement[n], n, planning.brokers, settings
                )
                for n in portion
            },
        )
        for portion in portions(list(placement), planning.partitions_max)
    )


def _write_new(
    planning: Planning, guards: tuple[Compare, ...], records: Mapping[str, PartitionRecord]
) -> Transaction:
    return Transaction(
        (*guards, *(absent(key) for key in records), *_leaders_live(planning, list(records.values()))),
        tuple(Put(key, encode(record)) for key, record in records.items()),
    )


def _new_partition(
    replicas: Sequence[BrokerId], partition: PartitionIndex, brokers: Brokers, settings: PartitionSettings
) -> PartitionRecord:
    """Return the record of a new, empty partition: every replica is in sync, and the first replica is the leader.

    A partition with a quorum begins with leader epoch 1 and all replicas as voters (quorum Q1).
    """
    isr = tuple(InSync(broker=broker, broker_epoch=broker_epoch(brokers[broker])) for broker in replicas)
    placed = tuple(
        Replica(broker=broker, directory=_directory(brokers[broker].value, partition)) for broker in replicas
    )
    if settings.write is not None:
        return PartitionRecord(
            leader=isr[0],
            leader_epoch=LeaderEpoch(1),
            replicas=placed,
            isr=(),
            min_isr=settings.write,
            durability=settings.of_new_partition(),
            quorum=Quorum(write=settings.write, voters=isr),
        )
    return PartitionRecord(
        leader=isr[0],
        leader_epoch=LeaderEpoch(0),
        replicas=placed,
        isr=isr,
        min_isr=settings.min_isr,
        durability=settings.of_new_partition(),
        unclean=settings.unclean,
    )


def _directory(registration: BrokerRegistration, partition: PartitionIndex) -> str:
    """Return a directory of the broker for the partition. Partitions are assigned to the directories in turn."""
    return registration.directories[partition % len(registration.directories)].id


def _settings_written(
    planning: Planning, subject: _Subject, partitions: Partitions, settings: PartitionSettings
) -> tuple[Transaction, ...]:
    """Return the transactions that apply the configuration to the records of existing partitions.

    If the leader of a partition is not live, the partition is updated after a new leader is elected. The durability of
    a partition without a leader is not changed to `replicated`, because a replica that has all synced records would no
    longer be a candidate.
    """
    term = planning.term
    changed = [
        (term.keys.partition(subject.record.topic_id, index), each, settings.applied_to(each.value))
        for index, each in sorted(partitions.items())
        if _may_be_set(each.value, settings, planning.brokers)
    ]
    drifted = [row for row in changed if row[2] is not row[1].value]
    return tuple(
        Transaction(
            (
                term.guard,
                subject.guard,
                *(unchanged_since(key, each.mod_revision) for key, each, _ in portion),
                *_leaders_live(planning, [record for _, _, record in portion]),
            ),
            tuple(Put(key, encode(record)) for key, _, record in portion),
        )
        for portion in portions(drifted, planning.partitions_max)
    )


def _may_be_set(record: PartitionRecord, settings: PartitionSettings, brokers: Brokers) -> bool:
    if record.leader is not None:
        return is_live(record.leader, brokers)
    return settings.synced or record.durability is DurabilityState.REPLICATED


def _leaders_live(planning: Planning, records: Sequence[PartitionRecord]) -> list[Compare]:
    """Return compares for the registrations of all leaders that the partition records install."""
    leaders = {record.leader.broker: record.leader.broker_epoch for record in records if record.leader}
    return [created_at(planning.term.keys.broker(broker), epoch) for broker, epoch in sorted(leaders.items())]
