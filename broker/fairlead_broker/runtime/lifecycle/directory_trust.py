"""Checks at the start of a broker: whether its data directory can be trusted.

The directory may be an older copy of the directory that other brokers rely on, or may be on a mount that was
temporarily missing. `cluster_entry` runs these checks before the new broker epoch is written to the directory (protocol
section 2). If a partition record names this broker and this directory in a later incarnation than the directory's own,
the record was written when the directory had more log records. Once the new broker epoch is on disk, an older copy of
the directory can no longer be detected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fairlead_api.identifiers import BrokerEpoch, BrokerId, TopicIdPartition
from fairlead_broker.coordination.membership import Membership, MembershipLost
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log.documents import Identity
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.quorum import relied_on
from fairlead_broker.registry.records import PartitionRecord, decode, encode
from fairlead_broker.registry.store_writes import Get, Put, created_at, unchanged_since


def names_a_newer_incarnation(
    record: PartitionRecord, broker: BrokerId, present: BrokerEpoch, identity: Identity
) -> bool:
    """Return whether a partition record names an incarnation that this directory has never stored.

    The current incarnation of the broker is ignored, because the directory has not stored it yet.
    """
    here = any(
        replica.broker == broker and replica.directory == identity.directory_id for replica in record.replicas
    )
    return here and any(
        entry.broker == broker and identity.last_broker_epoch < entry.broker_epoch != present
        for entry in relied_on(record)
    )


def newer_lives(
    metadata: ClusterMetadata, broker: BrokerId, present: BrokerEpoch, identity: Identity
) -> Iterator[TopicIdPartition]:
    """Yield the partitions whose records rely on a newer copy of the directory."""
    for topic in metadata.topics.values():
        for index, partition in metadata.partitions(topic.value.topic_id).items():
            if names_a_newer_incarnation(partition.value, broker, present, identity):
                yield TopicIdPartition(topic.value.topic_id, index)


async def take_out(
    coordination: Coordination, keys: Keys, membership: Membership, identity: Identity, key: TopicIdPartition
) -> bool:
    """Remove this broker from the isr and the elr of a partition record.

    Returns False and leaves the record unchanged if isr and elr would both become empty. The write is conditional on
    the record's revision and on this broker's registration. Raises `MembershipLost` and coordination errors; the call
    must be repeated after `UnknownOutcome`.
    """
    name, own = keys.partition(key.topic_id, key.partition), keys.broker(membership.broker_id)
    while True:
        read = await coordination.transact((), (Get(name), Get(own)))
        item, registration = read.reads
        if registration is None or BrokerEpoch(registration.create_revision) != membership.broker_epoch:
            message = f"broker {membership.broker_id} lost its registration while it started; start it again"
            raise MembershipLost(message)
        if item is None:
            return True
        record = decode(name, item.value, PartitionRecord)
        if not names_a_newer_incarnation(record, membership.broker_id, membership.broker_epoch, identity):
            return True
        successor = taken_out(record, membership.broker_id, identity.directory_id)
        if successor is None:
            return False
        result = await coordination.transact(
            (unchanged_since(name, item.mod_revision), created_at(own, membership.broker_epoch)),
            (Put(name, encode(successor)),),
        )
        if result.succeeded:
            return True


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def residence_of(data: Path) -> str | None:
    """Return the ids of the running kernel and of a directory's volume; None if the system does not report the ids.

    Blocks.
    """
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
        volume = os.statvfs(data).f_fsid
        device = data.stat().st_dev
    except OSError:
        return None
    return f"{boot}/{device:x}-{volume:x}"


def kept_since(identity: Identity, *, was_clean: bool, residence: str | None) -> BrokerEpoch | None:
    """Return the oldest epoch since which no write was lost; None if writes may have been lost before this start.

    `was_clean`: whether the last stop synced everything. A clean start does not undo the losses of an earlier start, so
    the epoch is stored in the directory.
    """
    same_kernel = residence is not None and residence == identity.residence
    if not identity.last_broker_epoch or not (was_clean or same_kernel):
        return None
    since = identity.intact_since
    if since is None or since > identity.last_broker_epoch:
        # An earlier release did not write `intact_since`, or the stored value is an epoch of a store from which
        # coordination was moved.
        since = identity.last_broker_epoch
    return BrokerEpoch(since)
