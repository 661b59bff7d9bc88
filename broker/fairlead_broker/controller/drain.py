"""Reassignments that move replicas away from draining brokers.

The controllership calls `drained` for each partition with a replica on a draining broker. All functions are pure.
A drain is not recorded: its remaining reassignments are derived from the draining brokers and the current
replicas.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.identifiers import BrokerId, PartitionIndex, Revision
from fairlead_broker.controller import reassignment
from fairlead_broker.controller.partition_changes import ClusterView, has_live_leader
from fairlead_broker.controller.partition_limits import has_room
from fairlead_broker.controller.reassignment import Target
from fairlead_broker.controller.replacement import replace_replicas
from fairlead_broker.controller.round_robin import PlaceableBroker
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
    """Return the partition record with a move off the draining brokers, or None if no replica must or can be moved.

    A partition that is being moved or has no leader is not changed, since an added replica could not catch up.
    """
    if reassignment.is_under_way(record) or not has_live_leader(record, view.brokers):
        return None
    current = tuple(replica.broker for replica in record.replicas)
    wanted = _off_the_draining(current, view, load)
    if wanted == current:
        return None
    return reassignment.start(record, places_of(wanted, key.partition, view), revision)


def taken_back(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the partition record that cancels a move to a broker that is gone and draining, or None for other moves.

    A broker that is gone never catches up, so the move, and every drain that waits for the move, would never end. A
    live draining broker catches up, and is drained after the move. The function also returns None while the
    cancellation must wait, or if an added replica is the leader, because a drain of the other replicas would then start
    the same move again.
    """
    if not any(broker in view.draining and broker not in view.brokers for broker in record.adding):
        return None
    if record.leader is not None and record.leader.broker in record.adding:
        return None
    return reassignment.cancel(key, record, view.brokers)


def draining_that_begin_again(
    record: PartitionRecord, view: ClusterView, load: Mapping[BrokerId, int]
) -> tuple[BrokerId, ...]:
    """Return the draining brokers whose drains would start the same move again after a cancellation.

    A cancelled and restarted move would copy all records again. The result is empty if the partition would not be
    moved or would be moved to other brokers.
    """
    current = tuple(each.broker for each in record.replicas if each.broker not in record.adding)
    before = {broker: count - (broker in record.adding) for broker, count in load.items()}
    wanted = _off_the_draining(current, view, before)
    if wanted == current or set(wanted) != set(reassignment.target(record)):
        return ()
    return tuple(broker for broker in current if broker not in wanted)


def has_nowhere_to_go(
    broker: BrokerId, record: PartitionRecord, view: ClusterView, load: Mapping[BrokerId, int]
) -> bool:
    """Return whether the replica must stay on a draining broker, since no other broker can take it."""
    if broker in record.removing:
        return False
    kept = {replica.broker for replica in record.replicas}
    return all(each.broker in kept for each in _takers(view, load))


def places_of(
    brokers: tuple[BrokerId, ...], partition: PartitionIndex, view: ClusterView
) -> tuple[Target, ...]:
    """Return the broker and directory for each new replica of a partition.

    Partitions are assigned to the directories of a broker in turn.
    """
    return tuple(Target(broker, _directory(broker, partition, view)) for broker in brokers)


def _off_the_draining(
    current: tuple[BrokerId, ...], view: ClusterView, load: Mapping[BrokerId, int]
) -> tuple[BrokerId, ...]:
    return replace_replicas(
        current,
        view.draining,
        _takers(view, load),
        {broker: each.value.rack for broker, each in view.brokers.items()},
        load,
    )


def _takers(view: ClusterView, load: Mapping[BrokerId, int]) -> list[PlaceableBroker]:
    """Return the brokers that can get a replica and have not reached their maximum number of replicas."""
    return [
        each for each in placeable(view.brokers, view.cordoned) if has_room(each.broker, view.brokers, load)
    ]


def _directory(broker: BrokerId, partition: PartitionIndex, view: ClusterView) -> str:
    registered = view.brokers.get(broker)
    directories = registered.value.directories if registered else ()
    # A broker that is gone gets no new replica, so the empty directory id is never used.
    return directories[partition % len(directories)].id if directories else ""
