"""Checks at a start whether a data directory can be trusted.

The directory may be an older copy of the directory that other brokers count on, or lie on a mount that was absent for a
time. `cluster_entry` checks before the new broker epoch is written to the directory (protocol section 2). A partition
record that names this broker and this directory in a newer incarnation than the directory's was written when the
directory had more records. Once the new epoch is on disk, the difference can no longer be detected.
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
from fairlead_broker.registry.records import PartitionRecord, decode, encode
from fairlead_broker.registry.transactions import Get, Put, created_at, unchanged_since


def names_a_newer_incarnation(
    record: PartitionRecord, broker: BrokerId, present: BrokerEpoch, identity: Identity
) -> bool:
    """Return whether the record counts on an incarnation that this directory has never seen.

    The current incarnation of the broker is ignored, because the directory does not know it yet.
    """
    here = any(
        replica.broker == broker and replica.directory == identity.directory_id for replica in record.replicas
    )
    return here and any(
        entry.broker == broker and identity.last_broker_epoch < entry.broker_epoch != present
        for entry in (*record.isr, *record.elr)
    )


def newer_lives(
    metadata: ClusterMetadata, broker: BrokerId, present: BrokerEpoch, identity: Identity
) -> Iterator[TopicIdPartition]:
    """Yield the partitions whose records count on a newer copy of the directory."""
    for topic in metadata.topics.values():
        for index, partition in metadata.partitions(topic.value.topic_id).items():
            if names_a_newer_incarnation(partition.value, broker, present, identity):
                yield TopicIdPartition(topic.value.topic_id, index)


async def take_out(
    coordination: Coordination, keys: Keys, membership: Membership, identity: Identity, key: TopicIdPartition
) -> bool:
    """Remove this broker from isr and elr of a record; return False if both would be empty.

    A record that would become empty is not changed. The write is conditional on the record's revision and on the own
    registration. Raises `MembershipLost` and coordination errors; the call must be repeated after `UnknownOutcome`.
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
    """Return ids of the running kernel and a directory's volume; None if the system does not report them; blocks."""
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
        volume = os.statvfs(data).f_fsid
        device = data.stat().st_dev
    except OSError:
        return None
    return f"{boot}/{device:x}-{volume:x}"


def kept_since(identity: Identity, *, was_clean: bool, residence: str | None) -> BrokerEpoch | None:
    """Return the oldest epoch whose writes are all still present; None if this start may have lost some.

    `was_clean`: whether the last stop synced everything. A clean start does not repair the losses of an earlier one,
    which is why the directory stores the epoch.
    """
    same_kernel = residence is not None and residence == identity.residence
    if not identity.last_broker_epoch or not (was_clean or same_kernel):
        return None
    since = identity.intact_since
    if since is None or since > identity.last_broker_epoch:
        # The value was written by an earlier release, or in the numbers of a store from which coordination has moved.
        since = identity.last_broker_epoch
    return BrokerEpoch(since)
