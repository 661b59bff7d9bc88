"""The fields of partition records that are derived from a topic's configuration.

`topics` uses this module. All functions are pure. Only the controller writes the configured fields, except that
the leader changes `syncing` to `synced` (protocol section 4, rule 6).
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from fairlead_api import configuration
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.quorum import write_quorum
from fairlead_broker.registry.records import ConfigRecord, DurabilityState, PartitionRecord, TopicRecord


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The configured fields of a partition record."""

    min_isr: int
    synced: bool
    """Whether only synced offsets count towards the high watermark."""
    unclean: bool
    write: int | None = None
    """Write quorum of new partitions, or None if in-sync replicas commit records."""

    def of_new_partition(self) -> DurabilityState:
        """Return the durability state of a new partition, which cannot have unsynced records."""
        return DurabilityState.SYNCED if self.synced else DurabilityState.REPLICATED

    def applied_to(self, record: PartitionRecord) -> PartitionRecord:
        """Return the partition record with these settings, or the same object if it already has them.

        The durability of a partition with a quorum is fixed, and its leader writes the write quorum (quorum Q10).
        """
        if record.quorum is not None:
            return record
        durability = record.durability
        if not self.synced:
            durability = DurabilityState.REPLICATED
        elif durability is DurabilityState.REPLICATED:
            durability = DurabilityState.SYNCING
        # A partition that was moved to fewer brokers than the other partitions of its topic cannot have more in-sync
        # replicas than brokers. During a move to more brokers, the added replicas are counted only after the move.
        min_isr = min(self.min_isr, len(record.replicas) - max(len(record.adding), len(record.removing)))
        if (record.min_isr, record.durability, record.unclean) == (min_isr, durability, self.unclean):
            return record
        changed = with_isr(record, isr=record.isr, min_isr=min_isr)
        return msgspec.structs.replace(changed, durability=durability, unclean=self.unclean)


def partition_settings(topic: TopicRecord, cluster: ConfigRecord | None) -> PartitionSettings:
    """Return the settings from the configuration of the topic, with the cluster's values and the defaults as fallbacks.

    The configuration of a single broker is not used, since a partition record must not depend on the broker that writes
    it.
    """
    config, _ = configuration.effective_topic_config(
        topic.config,
        {},
        cluster.values if cluster else {},
        replication_factor=topic.replication_factor,
    )
    return PartitionSettings(
        min_isr=min(config.min_insync_replicas, topic.replication_factor),
        synced=config.durability is configuration.Durability.SYNCED,
        unclean=config.unclean_leader_election_enable,
        write=write_quorum(config.quorum_write, topic.replication_factor) if config.has_quorum else None,
    )
