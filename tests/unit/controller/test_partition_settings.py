from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId
from fairlead_broker.controller.partition_settings import PartitionSettings, partition_settings
from fairlead_broker.registry.records import DurabilityState, Quorum

SYNCED, SYNCING, REPLICATED = DurabilityState.SYNCED, DurabilityState.SYNCING, DurabilityState.REPLICATED


@pytest.mark.parametrize(
    ("replication_factor", "own", "cluster", "min_isr"),
    [
        (1, {}, {}, 1),
        (2, {}, {}, 1),
        (3, {}, {}, 2),
        (3, {"min_insync_replicas": "1"}, {}, 1),
        (3, {"min_insync_replicas": "7"}, {}, 3),
        (3, {}, {"min_insync_replicas": "3"}, 3),
        (3, {"min_insync_replicas": "1"}, {"min_insync_replicas": "3"}, 1),
    ],
)
def test_min_isr_follows_the_configuration_up_to_the_replicas(
    kit: Any, replication_factor: int, own: dict[str, str], cluster: dict[str, str], min_isr: int
) -> None:
    """`min_isr` is set by the topic or the cluster, by default one less than the replicas, and at most all replicas."""
    topic = kit.new_topic(replication_factor=replication_factor, **own)

    assert partition_settings(topic, kit.cluster_config(**cluster)).min_isr == min_isr


def test_durability_and_unclean_election_follow_the_configuration(kit: Any) -> None:
    """Durability is `synced` and elections are clean by default, even without a configuration of the cluster."""
    default = partition_settings(kit.new_topic(), None)
    replicated = partition_settings(kit.new_topic(durability="replicated"), None)

    assert (default.synced, default.unclean) == (True, False)
    assert not replicated.synced


def test_a_partition_without_records_begins_synced() -> None:
    """A new partition begins with durability `synced` if its topic requires it, since there are no records to sync."""
    assert PartitionSettings(1, synced=True, unclean=False).of_new_partition() is SYNCED
    assert PartitionSettings(1, synced=False, unclean=False).of_new_partition() is REPLICATED


@pytest.mark.parametrize(
    ("before", "synced", "after"),
    [
        (REPLICATED, True, SYNCING),
        (SYNCING, True, SYNCING),
        (SYNCED, True, SYNCED),
        (REPLICATED, False, REPLICATED),
        (SYNCING, False, REPLICATED),
        (SYNCED, False, REPLICATED),
    ],
)
def test_durability_becomes_synced_by_way_of_syncing(
    kit: Any, before: DurabilityState, synced: bool, after: DurabilityState
) -> None:
    """The controller changes durability to `syncing` or `replicated`; only the leader changes it to `synced`."""
    record = kit.partition(kit.entries((1, 2)), durability=before)
    applied = PartitionSettings(1, synced=synced, unclean=False).applied_to(record)

    assert applied.durability is after
    assert (applied is record) is (before is after)


def test_a_lower_min_isr_empties_the_elr(kit: Any) -> None:
    """A lower `min_isr` empties the ELR."""
    record = kit.partition(kit.entries((1, 2)), elr=kit.entries((2, 3)), min_isr=2)
    applied = PartitionSettings(1, synced=True, unclean=True).applied_to(record)

    assert (applied.min_isr, applied.elr, applied.unclean) == (1, (), True)


def test_min_isr_is_never_more_than_the_replicas_of_the_partition(kit: Any) -> None:
    """`min_isr` is at most the number of the partition's replicas, which a move may have changed."""
    settings = PartitionSettings(3, synced=True, unclean=False)
    moved = kit.partition(kit.entries((1, 2), (2, 3)), replicas=(1, 2), min_isr=1)
    moving = msgspec.structs.replace(
        kit.partition(kit.entries((1, 2), (2, 3), (3, 4)), min_isr=1), removing=(BrokerId(3),)
    )
    growing = msgspec.structs.replace(
        kit.partition(kit.entries((1, 2)), replicas=(1, 2, 3), min_isr=1), adding=(BrokerId(2), BrokerId(3))
    )
    whole = kit.partition(kit.entries((1, 2), (2, 3), (3, 4)), min_isr=1)

    assert [settings.applied_to(each).min_isr for each in (moved, moving, growing, whole)] == [2, 2, 1, 3]


def test_the_controller_changes_no_setting_of_a_partition_with_a_quorum(kit: Any) -> None:
    """Settings do not change the record of a partition with a quorum, because its leader writes them (quorum Q10)."""
    quorum = Quorum(write=2, voters=kit.entries((1, 2), (2, 3), (3, 4)))
    record = msgspec.structs.replace(kit.partition((), min_isr=2), quorum=quorum)

    assert PartitionSettings(1, synced=False, unclean=True, write=3).applied_to(record) is record
