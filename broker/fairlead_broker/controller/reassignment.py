"""Moves of partitions to other brokers: replicas are added and catch up, and then the leaving replicas are removed.

`partition_changes` completes moves. Drains and requests from users start and cancel moves. All functions are pure
(protocol section 4, rule 11; modelled on KIP-455). During a move, `replicas` lists the target replicas in order,
followed by the leaving replicas. `finish` and `cancel` never bring the isr below its minimum and never remove the
leader.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from fairlead_api.identifiers import BrokerId, Revision
from fairlead_broker.controller.election import Brokers, move_leader, quarantined
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import PartitionRecord, Replica


@dataclass(frozen=True, slots=True)
class Target:
    """Broker and directory of a target replica."""

    broker: BrokerId
    directory: str
    """Directory of the new replica, if the broker has no replica yet."""


def is_under_way(record: PartitionRecord) -> bool:
    """Return whether the partition is being moved."""
    return bool(record.adding or record.removing)


def target(record: PartitionRecord) -> tuple[BrokerId, ...]:
    """Return the brokers that keep the partition after the current move, the preferred leader first."""
    return tuple(each.broker for each in record.replicas if each.broker not in record.removing)


def start(record: PartitionRecord, places: Sequence[Target], revision: Revision) -> PartitionRecord:
    """Return the partition record with a new move to the target replicas, given in assignment order.

    `revision` is the record's mod revision. An added replica begins with a generation that its broker has never
    had for this partition, so that no report from an earlier replica on that broker can count. The mod revision
    is an unused generation: every earlier generation required a put of this record, so the mod revision is above
    all earlier generations.
    """
    assert not is_under_way(record), "a partition has at most one move at a time"
    current = {replica.broker: replica for replica in record.replicas}
    wanted = tuple(
        current.get(place.broker)
        or Replica(broker=place.broker, directory=place.directory, generation=revision)
        for place in places
    )
    kept = {replica.broker for replica in wanted}
    leaving = tuple(replica for replica in record.replicas if replica.broker not in kept)
    return msgspec.structs.replace(
        record,
        replicas=(*wanted, *leaving),
        adding=tuple(replica.broker for replica in wanted if replica.broker not in current),
        removing=tuple(replica.broker for replica in leaving),
    )


def finish(key: PartitionKey, record: PartitionRecord, brokers: Brokers) -> PartitionRecord | None:
    """Return the next step of the move when all added replicas are in sync, or None while the move must wait.

    The first step makes a remaining replica the leader, and the second step removes the leaving replicas in one
    put.
    """
    if not {entry.broker for entry in record.isr}.issuperset(record.adding):
        return None
    return _without(key, record, record.removing, brokers)


def cancel(key: PartitionKey, record: PartitionRecord, brokers: Brokers) -> PartitionRecord | None:
    """Return the next step that cancels a move, or None while the cancellation must wait."""
    return _without(key, record, record.adding, brokers)


def _without_added(record: PartitionRecord) -> PartitionRecord:
    return msgspec.structs.replace(
        record,
        replicas=tuple(replica for replica in record.replicas if replica.broker not in record.adding),
        adding=(),
        removing=(),
    )


def isr_without(record: PartitionRecord, leaving: Collection[BrokerId]) -> int:
    """Return the number of in-sync replicas on brokers that are not leaving."""
    return sum(entry.broker not in leaving for entry in in_sync(record))


def _without(
    key: PartitionKey, record: PartitionRecord, leaving: Collection[BrokerId], brokers: Brokers
) -> PartitionRecord | None:
    if record.quorum is not None:
        # Added replicas of a partition with a quorum are not voters, and its leader finishes the move.
        return _without_added(record)
    if isr_without(record, leaving) < record.min_isr:
        return None
    if record.leader is None or record.leader.broker in leaving:
        # The leader cannot be removed, so another replica becomes the leader first, and the next step removes the
        # replicas.
        return None if record.leader is None else move_leader(key, record, brokers, leaving)
    shrunk = with_isr(
        record,
        isr=tuple(entry for entry in record.isr if entry.broker not in leaving),
        min_isr=record.min_isr,
        leaving=leaving,
        quarantined=quarantined(key, record, brokers),
    )
    return msgspec.structs.replace(
        shrunk,
        replicas=tuple(replica for replica in record.replicas if replica.broker not in leaving),
        adding=(),
        removing=(),
    )
