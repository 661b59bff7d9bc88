"""Moves of leadership back to the preferred leader of a partition: its first replica.

`controlling` uses this module for automatic balancing and for elections requested by operators. The rules are
those of KIP-460 and of Kafka's `auto.leader.rebalance.enable`. All functions are pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.election import broker_epoch, can_stay, is_live, led_by, registered_directory
from fairlead_broker.controller.partition_changes import ClusterView
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.quorum import in_sync, vacated
from fairlead_broker.registry.records import BrokerState, PartitionRecord


def preferred_leader(record: PartitionRecord) -> BrokerId:
    """Return the broker of the preferred leader."""
    return record.replicas[0].broker


def prefer(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the partition record led by its preferred leader, or None if that broker already leads or cannot lead now.

    A partition with a write quorum gets a vacancy instead, which the preferred leader fills if it is near. The
    preferred leader can take over if it is a live member of the isr or a live voter, and its broker is not draining.
    The preferred leader never takes over if the partition record was restored from a backup, because a member of the
    restored isr may lack records that other replicas have.
    """
    if record.restored:
        return None
    first = record.replicas[0]
    entry = next((each for each in in_sync(record) if each.broker == first.broker), None)
    if entry is None or entry == record.leader or not can_stay(key, entry, view.brokers):
        return None
    if first.broker in view.draining or first.broker in record.removing:
        return None
    registration = view.brokers[first.broker].value
    if registration.state is not BrokerState.RUNNING:
        return None
    if registered_directory(registration, first.directory) is None:
        return None
    assert broker_epoch(view.brokers[first.broker]) == entry.broker_epoch, "a live entry"
    return vacated(record) if record.quorum is not None else led_by(key, record, first.broker, view.brokers)


def imbalanced(
    partitions: Iterable[tuple[PartitionKey, PartitionRecord]], view: ClusterView, percentage_max: int
) -> dict[PartitionKey, PartitionRecord]:
    """Return the partitions to be moved to their preferred leaders, with their new partition records.

    Partitions are moved to a broker if the percentage of its preferred partitions that it does not lead exceeds
    `percentage_max`.
    """
    preferred: Counter[BrokerId] = Counter()
    astray: dict[BrokerId, dict[PartitionKey, PartitionRecord]] = {}
    for key, record in partitions:
        broker = preferred_leader(record)
        preferred[broker] += 1
        if record.leader is None or not is_live(record.leader, view.brokers):
            continue
        if record.leader.broker != broker:
            astray.setdefault(broker, {})[key] = record
    moves: dict[PartitionKey, PartitionRecord] = {}
    for broker, records in astray.items():
        if _percentage(len(records), preferred[broker]) > percentage_max:
            moves.update(_possible(records, view))
    return moves


def _possible(
    records: Mapping[PartitionKey, PartitionRecord], view: ClusterView
) -> dict[PartitionKey, PartitionRecord]:
    steps = {key: prefer(key, record, view) for key, record in records.items()}
    return {key: step for key, step in steps.items() if step is not None}


def _percentage(part: int, whole: int) -> float:
    return 100 * part / whole
