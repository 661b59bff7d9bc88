"""Candidates for the leadership of a partition, and the partition record that makes a broker the leader.

`partition_changes` and the other moves of leaders use this module. All functions are pure. The rule is protocol section
4, rule 7 (modelled on KIP-966): a candidate is a replica that has kept every record since it was in the ISR or ELR.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import (
    BrokerRegistration,
    BrokerState,
    Directory,
    DurabilityState,
    InSync,
    PartitionRecord,
)

Brokers: TypeAlias = Mapping[BrokerId, Versioned[BrokerRegistration]]


def is_live(entry: InSync, brokers: Brokers) -> bool:
    """Return whether an entry of the isr or elr names the current incarnation of its broker."""
    registered = brokers.get(entry.broker)
    return registered is not None and broker_epoch(registered) == entry.broker_epoch


def broker_epoch(registered: Versioned[BrokerRegistration]) -> BrokerEpoch:
    """Return the current incarnation of a broker: the create revision of the broker's key."""
    return BrokerEpoch(registered.create_revision)


def in_sync_brokers(record: PartitionRecord, brokers: Brokers) -> tuple[BrokerId, ...]:
    """Return the brokers in the isr, or the live voters of a partition with a quorum (quorum Q18)."""
    if record.quorum is None:
        return tuple(entry.broker for entry in record.isr)
    return tuple(voter.broker for voter in record.quorum.voters if is_live(voter, brokers))


def elect(
    key: PartitionKey, record: PartitionRecord, brokers: Brokers, avoiding: Collection[BrokerId] = ()
) -> PartitionRecord | None:
    """Return the partition record with its next leader, or None while no replica can lead without a loss of records.

    The first candidate of the isr in assignment order becomes the leader. If the isr has no candidate, the first
    candidate of the elr becomes the leader. A broker in `avoiding` becomes the leader only if there is no other
    candidate.
    """
    found = list(candidates(key, record, brokers))
    wanted = [entry for entry in found if entry.broker not in avoiding] or found
    return led_by(key, record, wanted[0].broker, brokers) if wanted else None


def move_leader(
    key: PartitionKey, record: PartitionRecord, brokers: Brokers, avoiding: Collection[BrokerId]
) -> PartitionRecord | None:
    """Return the partition record that replaces a live leader, or None if no other replica can take over.

    Only a live member of the isr can take over, since an isr member has every record that the current leader has
    acknowledged.
    """
    isr = {entry.broker: entry for entry in record.isr}
    for replica in record.replicas:
        entry = isr.get(replica.broker)
        if (
            entry is not None
            and entry != record.leader
            and entry.broker not in avoiding
            and can_stay(key, entry, brokers)
            and registered_directory(brokers[entry.broker].value, replica.directory) is not None
        ):
            return led_by(key, record, entry.broker, brokers)
    return None


def led_by(key: PartitionKey, record: PartitionRecord, broker: BrokerId, brokers: Brokers) -> PartitionRecord:
    """Return the partition record with this leader.

    The new isr consists of the leader and the old members that can stay.
    """
    leader = InSync(broker=broker, broker_epoch=broker_epoch(brokers[broker]))
    old = next((entry for entry in (*record.isr, *record.elr) if entry.broker == broker), leader)
    leader = msgspec.structs.replace(old, broker_epoch=leader.broker_epoch)
    staying = (entry for entry in record.isr if entry.broker != broker and can_stay(key, entry, brokers))
    return msgspec.structs.replace(
        with_isr(
            record,
            isr=(leader, *staying),
            min_isr=record.min_isr,
            quarantined=quarantined(key, record, brokers),
        ),
        leader=leader,
        leader_epoch=LeaderEpoch(record.leader_epoch + 1),
    )


def can_stay(key: PartitionKey, entry: InSync, brokers: Brokers) -> bool:
    """Return whether a replica can stay in the isr: its broker is live and not stopping, and its disk is trusted.

    A registered broker without a registered directory has a failed disk, so its replica no longer copies records.
    """
    if not is_live(entry, brokers):
        return False
    registration = brokers[entry.broker].value
    return bool(registration.directories) and takes_part(key, registration)


def quarantined(key: PartitionKey, record: PartitionRecord, brokers: Brokers) -> frozenset[BrokerId]:
    """Return the brokers that have quarantined their replica of this partition."""
    return frozenset(
        replica.broker
        for replica in record.replicas
        if replica.broker in brokers and distrusts(key, brokers[replica.broker].value)
    )


def candidates(key: PartitionKey, record: PartitionRecord, brokers: Brokers) -> Iterator[InSync]:
    """Yield the replicas that have kept every record since they were in the ISR or ELR, best candidate first."""
    alone = len(record.replicas) == 1
    for entries in (record.isr, record.elr):
        by_broker = {entry.broker: entry for entry in entries}
        for replica in record.replicas:
            entry, registered = by_broker.get(replica.broker), brokers.get(replica.broker)
            if entry is None or registered is None:
                continue
            directory = registered_directory(registered.value, replica.directory)
            if directory is None or not takes_part(key, registered.value):
                continue
            if is_live(entry, brokers) or kept_everything(entry, record, registered, directory, alone):
                yield entry


def registered_directory(registration: BrokerRegistration, directory_id: str) -> Directory | None:
    """Return the broker's healthy directory with this id, or None."""
    return next((each for each in registration.directories if each.id == directory_id), None)


def takes_part(key: PartitionKey, registration: BrokerRegistration) -> bool:
    """Return whether the broker is not stopping and its replica of this partition is not quarantined."""
    return registration.state is not BrokerState.STOPPING and not distrusts(key, registration)


def distrusts(key: PartitionKey, registration: BrokerRegistration) -> bool:
    """Return whether the broker has quarantined its replica of this partition."""
    return any(
        (each.topic_id, each.partition) == (key.topic_id, key.partition) for each in registration.quarantined
    )


def kept_everything(
    entry: InSync,
    record: PartitionRecord,
    registered: Versioned[BrokerRegistration],
    directory: Directory,
    alone: bool,
) -> bool:
    """Return whether a restarted broker still has all records of the incarnation that its entry names.

    An older epoch in the directory means that the disk is an old copy. Unsynced records survive only a clean restart or
    a restart that kept the page cache. A partition with one replica (`alone`) gives no guarantee for unsynced records,
    so their loss does not disqualify its replica. If there are several replicas, another replica may still have the
    unsynced records.
    """
    if directory.last_broker_epoch < entry.broker_epoch:
        return False
    intact_since = registered.value.intact_since
    if intact_since is None:
        intact_since = broker_epoch(registered)
    return alone or record.durability is DurabilityState.SYNCED or intact_since <= entry.broker_epoch
