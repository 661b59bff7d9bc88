"""Moves of leaderships with a write quorum: the controller writes a vacancy, and another voter is appointed.

`controlling.leader_moves` asks leaders which voters are near, and writes the vacancies. A move begins only if a voter
that should lead is near, since no other voter would be appointed. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.election import is_live, registered_directory, takes_part
from fairlead_broker.controller.partition_changes import ClusterView, has_live_leader
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.quorum import vacated
from fairlead_broker.registry.records import BrokerState, PartitionRecord


def is_leaving(record: PartitionRecord, view: ClusterView) -> bool:
    """Return whether a live leader should be replaced: its broker stops or drains, or its replica is being removed.

    If all current replicas are leaving, their leader stays until the added replicas are voters.
    """
    if record.quorum is None or record.leader is None or not has_live_leader(record, view.brokers):
        return False
    leader = record.leader.broker
    if leader in record.removing:
        kept = {replica.broker for replica in record.replicas}.difference(record.removing)
        return not kept.issubset(record.adding)
    return leader in view.draining or view.brokers[leader].value.state is not BrokerState.RUNNING


def avoided(record: PartitionRecord, view: ClusterView) -> frozenset[BrokerId]:
    """Return the brokers that should not lead a partition, even if they could."""
    unready = {broker for broker, each in view.brokers.items() if each.value.state is not BrokerState.RUNNING}
    return view.draining.union(record.removing, unready)


def moved(
    key: PartitionKey,
    record: PartitionRecord,
    view: ClusterView,
    near: Collection[BrokerId],
    wanted: BrokerId | None = None,
) -> PartitionRecord | None:
    """Return the vacancy that begins a move, or None while no voter that should take over is near.

    `wanted` is the broker that should lead, or None if any other broker may lead.
    """
    takers = [broker for broker in _takers(key, record, view) if broker in near]
    if not takers or (wanted is not None and wanted not in takers):
        return None
    return vacated(record)


def _takers(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> Iterator[BrokerId]:
    """Yield the voters that should take over: live, on a healthy directory, neither stopping nor draining."""
    assert record.quorum is not None, "only a partition with a quorum has voters"
    avoiding = avoided(record, view)
    directories = {replica.broker: replica.directory for replica in record.replicas}
    for voter in record.quorum.voters:
        if voter == record.leader or voter.broker in avoiding or not is_live(voter, view.brokers):
            continue
        registration = view.brokers[voter.broker].value
        if takes_part(key, registration) and registered_directory(registration, directories[voter.broker]):
            yield voter.broker
