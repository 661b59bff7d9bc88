"""The next step of a partition record when brokers register, stop or disappear.

The controllership calls `next_record` for every changed partition until no step remains. All functions are pure.
The next step depends on the current state, not on events, so that a new controller continues where the previous
controller stopped (protocol section 4, rules 6, 7, 10 and 11).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from fairlead_api.identifiers import BrokerId, LeaderEpoch
from fairlead_broker.controller.election import (
    Brokers,
    broker_epoch,
    can_stay,
    elect,
    is_live,
    move_leader,
    quarantined,
    registered_directory,
    takes_part,
)
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.reassignment import finish, is_under_way
from fairlead_broker.controller.vacancies import sole_voter, without_dead_leader
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import BrokerState, InSync, PartitionRecord, Replica


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Registered brokers in the mirror, with the ids of the cordoned and draining brokers."""

    brokers: Brokers
    cordoned: frozenset[BrokerId] = frozenset()
    """Brokers that get no new replicas, including the draining brokers."""
    draining: frozenset[BrokerId] = frozenset()
    """Brokers that should have no leaderships and no replicas."""


def next_record(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the next step of the partition record, or None if no step is needed or possible now.

    A partition with a write quorum gets a vacancy when its leader's incarnation has ended; `vacancies` fills it.
    """
    if record.quorum is not None:
        return without_dead_leader(record, view.brokers)
    if not has_live_leader(record, view.brokers):
        return _after_leader(key, record, view)
    return (
        _leader_moved(key, record, view)
        or _isr_shrunk(key, record, view)
        or (finish(key, record, view.brokers) if is_under_way(record) else None)
    )


def has_live_leader(record: PartitionRecord, brokers: Brokers) -> bool:
    """Return whether the partition record names a leader in its current incarnation."""
    return record.leader is not None and is_live(record.leader, brokers)


def elect_unclean(
    key: PartitionKey, record: PartitionRecord, view: ClusterView, ends: Mapping[BrokerId, LogEnd]
) -> PartitionRecord | None:
    """Return the partition record that makes the live replica with the longest log the leader.

    Records that the new leader lacks are lost. The result is None until a replica that can lead has reported its log
    end. For a partition record that was restored from a backup, the result is None until all replicas have reported
    their log ends. The new leader epoch is above all reported epochs.
    """
    if record.restored and any(replica.broker not in ends for replica in record.replicas):
        return None
    heard = [replica for replica in record.replicas if replica.broker in ends]
    able = [replica for replica in heard if _can_lead_unclean(key, replica, view.brokers)]
    if not able:
        return None
    # If several logs are equally long, `max` returns the first in assignment order.
    chosen = max(able, key=lambda replica: ends[replica.broker])
    leader = InSync(broker=chosen.broker, broker_epoch=broker_epoch(view.brokers[chosen.broker]))
    epoch_max = max(record.leader_epoch, *(ends[replica.broker].epoch for replica in heard))
    if record.quorum is not None:
        placed = msgspec.structs.replace(
            record,
            replicas=tuple(
                _at_home(each, view.brokers) if each is chosen else each for each in record.replicas
            ),
        )
        return sole_voter(placed, chosen.broker, leader.broker_epoch, LeaderEpoch(epoch_max + 1))
    return msgspec.structs.replace(
        record,
        leader=leader,
        leader_epoch=LeaderEpoch(epoch_max + 1),
        replicas=tuple(_at_home(each, view.brokers) if each is chosen else each for each in record.replicas),
        isr=(leader,),
        elr=(),
        restored=False,
    )


def _after_leader(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the partition record with another leader, or without a leader if no replica can lead.

    A record without a leader keeps clients from calling a dead broker. If the record was restored from a backup, no
    replica is known to be complete.
    """
    if not record.restored:
        elected = elect(key, record, view.brokers, view.draining.union(record.removing))
        if elected is not None:
            return elected
    return None if record.leader is None else msgspec.structs.replace(record, leader=None)


def _leader_moved(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the partition record with the leadership moved off a stopping or draining broker that is still registered.

    A stopping broker stops serving in any case, so even an eligible leader replica outside the isr may take over. A
    draining broker leads until an in-sync replica can take over.
    """
    assert record.leader is not None, "the partition has a leader"
    state = view.brokers[record.leader.broker].value.state
    avoiding = view.draining.union(record.removing)
    if state is BrokerState.STOPPING:
        return elect(key, record, view.brokers, avoiding)
    if record.leader.broker in view.draining or state is BrokerState.DRAINING:
        # A broker may stay registered as draining for a while after its drain has ended. Brokers registered as draining
        # are avoided as well, because two such brokers would pass the leadership back and forth.
        return move_leader(key, record, view.brokers, avoiding.union(_registered_draining(record, view)))
    return None


def _registered_draining(record: PartitionRecord, view: ClusterView) -> Iterator[BrokerId]:
    for replica in record.replicas:
        registered = view.brokers.get(replica.broker)
        if registered is not None and registered.value.state is BrokerState.DRAINING:
            yield replica.broker


def _isr_shrunk(key: PartitionKey, record: PartitionRecord, view: ClusterView) -> PartitionRecord | None:
    """Return the partition record without isr members that cannot stay in sync: the leader would wait for them."""
    isr = tuple(entry for entry in record.isr if entry == record.leader or can_stay(key, entry, view.brokers))
    if isr == record.isr:
        return None
    doubtful = quarantined(key, record, view.brokers)
    return with_isr(record, isr=isr, min_isr=record.min_isr, quarantined=doubtful)


def _can_lead_unclean(key: PartitionKey, replica: Replica, brokers: Brokers) -> bool:
    registered = brokers.get(replica.broker)
    return registered is not None and takes_part(key, registered.value) and bool(registered.value.directories)


def _at_home(replica: Replica, brokers: Brokers) -> Replica:
    """Return the replica with a registered directory of its broker, to be written when the replica joins the isr."""
    registration = brokers[replica.broker].value
    if registered_directory(registration, replica.directory) is not None:
        return replica
    return msgspec.structs.replace(replica, directory=registration.directories[0].id, generation=0)
