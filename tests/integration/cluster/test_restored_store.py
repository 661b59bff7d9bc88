"""A coordination store restored from a backup issues epochs of leaders and producers again, below those in the logs."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from cluster_kit import Cluster, until
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.errors import ProducerFencedError, TransactionAbortedError, TransactionNotFoundError
from fairlead_api.bodies.transactions import TransactionDescription
from fairlead_api.identifiers import PartitionIndex
from fairlead_broker.clock import SystemClock
from fairlead_broker.controlling.operations import ElectionKind
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.looks import TransactionLooks

STORE = "coordination.sqlite"
NAMES = ("ended", "unfinished", "open")
"""Names of producers, by the state of their last transaction at a partition when the store is restored."""


async def open_again(
    cluster: Cluster, backup: Path | None = None, brokers: tuple[int, ...] = (1, 2, 3), **settings: object
) -> None:
    """Restart all brokers, with the backup of the store if there is one."""
    await cluster.close()
    if backup is not None:
        for file in cluster.path.glob(f"{STORE}*"):
            file.unlink()
        shutil.copy(backup, cluster.path / STORE)
    cluster.store = await EmbeddedCoordination.open(cluster.path / STORE, SystemClock())
    await cluster.start(*brokers, **settings)


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
        await until(
            lambda: cluster.leader(topic_id) == cluster.record(topic_id).replicas[0].broker,
            "the preferred leader does not lead",
        )
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


def url_of(cluster: Cluster) -> str:
    """Return the address of a broker."""
    return f"http://{cluster.brokers[1].addresses.data}"


async def commit(producer: Producer, *values: bytes) -> None:
    """Send each value in a transaction of its own, which is committed."""
    for value in values:
        async with producer.transaction() as transaction:
            await transaction.send("flights", value)


async def committed(url: str, count: int) -> list[bytes]:
    """Return the values that a reader of committed records gets, once it has enough of them, in sorted order."""
    values: list[bytes] = []
    async with Consumer(url, isolation="read_committed") as consumer, asyncio.timeout(60):
        await consumer.assign([TopicPartition("flights", 0)])
        async for record in consumer.records():
            values.append(record.value or b"")
            if len(values) == count:
                break
        ends = await consumer.end_offsets()
        values += [record.value or b"" async for record in consumer.records(until=ends)]
    return sorted(values)


async def write_without_markers(url: str) -> None:
    """Commit a transaction and leave another one open, while no leader ends a transaction."""
    async with Producer(url, transactional="unfinished") as producer:
        await commit(producer, b"unfinished 1")
    killed = await Producer(url, transactional="open").start()
    await killed.transaction().__aenter__()
    await killed.send_and_wait("flights", b"open 1")
    await killed.abort()


async def rounds(url: str, name: str) -> int:
    """Run a block of a starting program again until its transaction is committed; return the number of rounds."""
    async with Producer(url, transactional=name) as producer:
        for number in range(1, 10):
            try:
                await commit(producer, b"%s 2" % name.encode())
            except TransactionAbortedError as error:
                if not isinstance(error.__cause__, ProducerFencedError):
                    raise
            else:
                return number
    raise AssertionError("no transaction is committed")


@pytest.mark.slow
async def test_names_of_transactions_continue_after_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restore aborts transactions without a marker and keeps all others, and producers continue with their names."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        topic_id = await cluster.topic("flights")
        await cluster.led("flights", topic_id)
        for name in NAMES:
            async with Producer(url_of(cluster), transactional=name) as producer:
                await commit(producer, b"%s 0" % name.encode())
        await committed(url_of(cluster), 3)
        await cluster.close()
        shutil.copy(tmp_path / STORE, tmp_path / "backup.sqlite")
        await open_again(cluster)
        await cluster.led("flights", topic_id)
        async with Producer(url_of(cluster), transactional="ended") as producer:
            await commit(producer, *(b"ended 1" for _ in range(5)))
        await committed(url_of(cluster), 8)
        with monkeypatch.context() as without_markers:
            without_markers.setattr(TransactionEnds, "_report", lambda ends, leader, due: None)
            without_markers.setattr(TransactionLooks, "_watch", lambda looks, now: None)
            await write_without_markers(url_of(cluster))
            await cluster.close()
        await open_again(cluster, tmp_path / "backup.sqlite")
        await cluster.led("flights", topic_id)
        kept = await committed(url_of(cluster), 8)
        await until(
            lambda: cluster.metric("fairlead_transactions_total", outcome="abort", reason="restored") == 2,
            "open transactions of the restored store are not aborted",
        )
        async with Admin(url_of(cluster)) as admin:
            found: list[TransactionDescription] = [await admin.describe_transaction(name) for name in NAMES]
        attempts = [await rounds(url_of(cluster), name) for name in NAMES]
        after = await committed(url_of(cluster), 11)
    finally:
        await cluster.close()

    first = [b"ended 0", b"open 0", b"unfinished 0", *(b"ended 1" for _ in range(5))]
    assert kept == sorted(first)
    assert [each.ended and each.ended.reason for each in found] == ["client", "restored", "restored"]
    assert attempts == [2, 1, 1]
    assert after == sorted([*first, b"ended 2", b"unfinished 2", b"open 2"])


@pytest.mark.slow
async def test_a_running_producer_continues_after_a_restore(tmp_path: Path) -> None:
    """A producer with transactions that outlives a restore of the store loses at most one block, and is not fenced."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        topic_id = await cluster.topic("flights", replication_factor=1)
        await cluster.led("flights", topic_id)
        listen = str(cluster.brokers[1].addresses.data)
        async with Producer(f"http://{listen}", transactional="billing") as producer:
            await commit(producer, b"0")
            await committed(url_of(cluster), 1)
            await cluster.stop(1)
            await cluster.store.close()
            shutil.copy(tmp_path / STORE, tmp_path / "backup.sqlite")
            cluster.store = await EmbeddedCoordination.open(tmp_path / STORE, SystemClock())
            await cluster.start(1, listen=listen)
            await commit(producer, b"1", b"2", b"3")
            await committed(url_of(cluster), 4)
            await open_again(cluster, tmp_path / "backup.sqlite", (1,), listen=listen)
            await cluster.led("flights", topic_id)
            failures: list[Exception] = []
            try:
                await commit(producer, b"4")
            except (TransactionAbortedError, TransactionNotFoundError) as error:
                failures.append(error)
                await commit(producer, b"4")
            await commit(producer, b"5")
            values = await committed(url_of(cluster), 6)
    finally:
        await cluster.close()

    assert failures
    assert values == [b"0", b"1", b"2", b"3", b"4", b"5"]
