"""Notices at a start that the data directory is an older copy of the one that was counted on.

For `cluster_entry`, before the new broker epoch is written to the directory (protocol section 2): a partition record
that names this broker and this directory in a life newer than the directory remembers was written when the directory
held more than it does. From the moment the new epoch is on disk nobody could tell any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead_api.identifiers import BrokerEpoch, BrokerId, TopicIdPartition
from fairlead_broker.coordination.membership import Membership, MembershipLost
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log.documents import Identity
from fairlead_broker.registry.isr import taken_out
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import PartitionRecord, decode, encode
from fairlead_broker.registry.transactions import Get, Put, created_at, unchanged_since


def names_a_newer_life(
    record: PartitionRecord, broker: BrokerId, present: BrokerEpoch, identity: Identity
) -> bool:
    """Say whether the record counts on a life of this directory that the directory has never seen.

    The present life of the broker, which the directory does not know yet, is none of those.
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
    """Find the partitions whose records count on more than the directory holds."""
    for topic in metadata.topics.values():
        for index, partition in metadata.partitions(topic.value.topic_id).items():
            if names_a_newer_life(partition.value, broker, present, identity):
                yield TopicIdPartition(topic.value.topic_id, index)


async def take_out(
    coordination: Coordination, keys: Keys, membership: Membership, identity: Identity, key: TopicIdPartition
) -> bool:
    """Take this broker's entries out of a record; False where nobody else is left, so that they have to stay.

    Guards: the record's revision and our own registration. Raises `MembershipLost`, and what coordination raises;
    to be called again after `UnknownOutcome`.
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
        if not names_a_newer_life(record, membership.broker_id, membership.broker_epoch, identity):
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
