"""A coordination store restored from a backup issues leader epochs again, below those in the logs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster_kit import Cluster, until
from fairlead_api.identifiers import PartitionIndex
from fairlead_broker.clock import SystemClock
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.coordination.embedded import EmbeddedCoordination

STORE = "coordination.sqlite"


async def open_again(cluster: Cluster, backup: Path | None = None) -> None:
    """Restart all brokers, with the backup of the store if there is one."""
    await cluster.close()
    if backup is not None:
        for file in cluster.path.glob(f"{STORE}*"):
            file.unlink()
        shutil.copy(backup, cluster.path / STORE)
    cluster.store = await EmbeddedCoordination.open(cluster.path / STORE, SystemClock())
    await cluster.start(1, 2, 3)


@pytest.mark.slow
async def test_leaders_of_a_restored_store_are_elected_above_the_epochs_of_logs(tmp_path: Path) -> None:
    """After a store is restored, leaders get epochs above those in the logs, and acknowledged records are kept."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        topic_id = await cluster.topic("flights")
        await (await cluster.led("flights", topic_id)).produce(b"before the backup")
        await cluster.in_sync(topic_id, 1, 2, 3)
        await cluster.close()
        shutil.copy(tmp_path / STORE, tmp_path / "backup.sqlite")
        await open_again(cluster)
        await cluster.led("flights", topic_id)
        first = cluster.leader(topic_id)
        assert first is not None
        await cluster.in_sync(topic_id, 1, 2, 3)
        await cluster.stop(first)
        await (await cluster.led("flights", topic_id)).produce(b"after it")
        await cluster.start(first)
        await cluster.in_sync(topic_id, 1, 2, 3)
        await cluster.controller.operations.elect("flights", PartitionIndex(0), ElectionKind.PREFERRED)
        await (await cluster.led("flights", topic_id)).produce(b"later")
        await cluster.copied(topic_id, 3)
        seen = cluster.log(1, topic_id).leader_epochs[-1].epoch
        await open_again(cluster, tmp_path / "backup.sqlite")
        await until(lambda: cluster.record(topic_id).leader_epoch > seen, "the epoch is an old one")
        await cluster.in_sync(topic_id, 1, 2, 3)
        flights = await cluster.led("flights", topic_id)
        appended = await flights.produce(b"after the restore")
        copies = await cluster.copied(topic_id, 4)
    finally:
        await cluster.close()

    assert seen >= 2
    assert appended.base_offset == 3
    assert appended.leader_epoch > seen
    assert copies[0] == copies[1] == copies[2]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["isr", "quorum"])
async def test_records_after_the_backup_are_not_lost(tmp_path: Path, mode: str) -> None:
    """With a restored store, the replica with the longest log leads, although the backup prefers another replica."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        topic_id = await cluster.topic("flights", replication_mode=mode)
        await (await cluster.led("flights", topic_id)).produce(b"before the backup")
        await cluster.in_sync(topic_id, 1, 2, 3)
        preferred = cluster.record(topic_id).replicas[0].broker
        await cluster.close()
        shutil.copy(tmp_path / STORE, tmp_path / "backup.sqlite")
        await open_again(cluster)
        await cluster.stop(preferred)
        other = await (await cluster.led("flights", topic_id)).produce(b"another epoch")
        await cluster.start(preferred)
        await cluster.in_sync(topic_id, 1, 2, 3)
        await cluster.equal(topic_id, other.base_offset)
        await cluster.stop(preferred)
        last = await (await cluster.led("flights", topic_id)).produce(b"acknowledged while it was away")
        seen = cluster.record(topic_id).leader_epoch
        await open_again(cluster, tmp_path / "backup.sqlite")
        await until(lambda: cluster.record(topic_id).leader_epoch > seen, "the epoch is an old one")
        await cluster.in_sync(topic_id, 1, 2, 3)
        copies = await cluster.equal(topic_id, last.base_offset)
        record = cluster.record(topic_id)
    finally:
        await cluster.close()

    assert copies[0] == copies[1] == copies[2]
    assert b"acknowledged while it was away" in copies[0]
    assert not record.restored
