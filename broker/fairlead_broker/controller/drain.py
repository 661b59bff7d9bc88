"""Where the replicas of draining brokers go.

For the controllership, which asks for each partition that a draining broker keeps. Pure. A drain is nothing but
reassignments that nobody has to write down: what is left to do follows from who is draining and who keeps what.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.identifiers import BrokerId, PartitionIndex, Revision
from fairlead_broker.controller import reassignment
from fairlead_broker.controller.partition_changes import ClusterView, has_live_leader
from fairlead_broker.controller.reassignment import Target
from fairlead_broker.controller.replacement import replace_replicas
from fairlead_broker.controller.topics import placeable
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import PartitionRecord


def drained(
    key: PartitionKey,
    record: PartitionRecord,
    revision: Revision,
    view: ClusterView,
    load: Mapping[BrokerId, int],
) -> PartitionRecord | None:
    """Return the record on its way off the draining brokers; None where nothing can or has to be moved.

    A partition that is being moved already, or that nobody leads, waits: there would be nobody to catch up with.
    """
    if reassignment.is_under_way(record) or not has_live_leader(record, view.brokers):
        return None
    current = tuple(replica.broker for replica in record.replicas)
    wanted = _off_the_draining(current, view, load)
    if wanted == current:
        return None
    return reassignment.start(record, places_of(wanted, key.partition, view), revision)


def taken_back(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the record on its way back from a move to a broker that is gone and drained; None for other moves.

    Such a broker is never in sync, so that the move, and every drain that waits for it, would never end. One that
    lives catches up, and is emptied then. None also while the way back has to wait, or the leader is one of those that
    were added: off the others, which drain, it would only be moved to it again.
    """
    if not any(broker in view.draining and broker not in view.brokers for broker in record.adding):
        return None
    if record.leader is not None and record.leader.broker in record.adding:
        return None
    return reassignment.cancel(key, record, view.brokers)


def draining_that_begin_again(
    record: PartitionRecord, view: ClusterView, load: Mapping[BrokerId, int]
) -> tuple[BrokerId, ...]:
    """Return the draining brokers whose drains would begin the very same move again, were it taken back now.

    All that was copied would be copied anew, for nothing. Empty where the partition would stay, or go elsewhere.
    """
    current = tuple(each.broker for each in record.replicas if each.broker not in record.adding)
    before = {broker: count - (broker in record.adding) for broker, count in load.items()}
    wanted = _off_the_draining(current, view, before)
    if wanted == current or set(wanted) != set(reassignment.target(record)):
        return ()
    return tuple(broker for broker in current if broker not in wanted)


def has_nowhere_to_go(broker: BrokerId, record: PartitionRecord, view: ClusterView) -> bool:
    """Say whether the replica on a draining broker has to stay there: nobody else can be given the partition."""
    if broker in record.removing:
        return False
    kept = {replica.broker for replica in record.replicas}
    return all(each.broker in kept for each in placeable(view.brokers, view.cordoned))


def places_of(
    brokers: tuple[BrokerId, ...], partition: PartitionIndex, view: ClusterView
) -> tuple[Target, ...]:
    """Return where the brokers would keep the partition: they go round their directories with the partitions."""
    return tuple(Target(broker, _directory(broker, partition, view)) for broker in brokers)


def _off_the_draining(
    current: tuple[BrokerId, ...], view: ClusterView, load: Mapping[BrokerId, int]
) -> tuple[BrokerId, ...]:
    return replace_replicas(
        current,
        view.draining,
        placeable(view.brokers, view.cordoned),
        {broker: each.value.rack for broker, each in view.brokers.items()},
        load,
    )


def _directory(broker: BrokerId, partition: PartitionIndex, view: ClusterView) -> str:
    registered = view.brokers.get(broker)
    directories = registered.value.directories if registered else ()
    # Of a broker that is gone nothing is used but the place that it has already.
    return directories[partition % len(directories)].id if directories else ""
