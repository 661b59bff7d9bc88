"""Clients that reach a single address: three brokers advertise addresses that no client can reach."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import Cluster, until
from command_line_kit import CommandLine
from fairlead import Admin, Consumer, Delivery, Producer, TopicPartition, blocking
from fairlead.errors import DeliveryTimeoutError

pytestmark = pytest.mark.slow
UNREACHABLE = f"{'x' * 64}.invalid:9520"
"""Advertised host name with a label longer than DNS allows, so that no lookup leaves the machine."""
RECORDS = 1_000
PARTITIONS = 3
ENTRY = 1


@pytest.fixture
async def hidden(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield three brokers that advertise an unreachable address to clients."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3, advertise=UNREACHABLE)
        yield cluster
    finally:
        await cluster.close()


def entry(cluster: Cluster) -> str:
    """Return the only address that the clients of these tests know."""
    return f"http://{cluster.brokers[ENTRY].addresses.data}"


async def test_one_address_serves_producers_groups_and_admins(hidden: Cluster) -> None:
    """Through one address, each record is stored and read once and in order while leaders and coordinators change."""
    topic_id = await hidden.topic("flights", partitions=PARTITIONS)
    address = entry(hidden)
    got: dict[int, list[int]] = defaultdict(list)

    async def read() -> None:
        """Read as a member of a group until every record has been read."""
        async with Consumer(
            address, group="g", topics="flights", auto_commit_interval="100ms", one_address=True
        ) as consumer:
            async for record in consumer.records():
                got[record.partition].append(int(record.value or b""))
                if sum(map(len, got.values())) >= RECORDS:
                    return

    async def change() -> None:
        """End the leadership of a partition that is led by a broker other than the entry broker."""
        partition = next(each for each in range(PARTITIONS) if hidden.leader(topic_id, each) != ENTRY)
        leader = hidden.leader(topic_id, partition)
        assert leader is not None
        epoch = hidden.record(topic_id, partition).leader_epoch
        await hidden.store.revoke(hidden.broker(leader).entry.incarnation.membership.lease)
        await until(
            lambda: hidden.record(topic_id, partition).leader_epoch > epoch, "no other leader was elected"
        )

    async with Admin(address, one_address=True) as admin:
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(90):
            reading = tasks.create_task(read())
            async with Producer(address, batch_bytes=1_000, one_address=True) as producer:
                deliveries: list[Delivery] = []
                for row in range(RECORDS):
                    partition = row % PARTITIONS
                    deliveries.append(await producer.send("flights", b"%d" % row, partition=partition))
                    if row in (RECORDS // 3, 2 * RECORDS // 3):
                        await change()
                offsets = [(await delivery).offset for delivery in deliveries]
            await reading
        committed = await admin.group_offsets("g")
        kept = [await admin.delete_records("flights", partition, before=3) for partition in range(PARTITIONS)]
        ends = [(await admin.offsets("flights", each)).high_watermark for each in range(PARTITIONS)]

    for partition in range(PARTITIONS):
        written = list(range(partition, RECORDS, PARTITIONS))
        assert got[partition] == written
        assert offsets[partition::PARTITIONS] == list(range(len(written)))
        assert committed[TopicPartition("flights", partition)].offset == ends[partition] == len(written)
    assert kept == [3] * PARTITIONS


async def test_blocking_clients_and_commands_use_one_address(hidden: Cluster, tmp_path: Path) -> None:
    """Blocking clients, and commands with `--one-address` or with a profile that sets it, reach every partition."""
    await hidden.topic("flights", partitions=PARTITIONS)
    address = entry(hidden)
    variables = {"XDG_CONFIG_HOME": str(tmp_path / "home")}

    def work() -> tuple[list[str], list[str], int]:
        """Write with the SDK and a command; read with the address in an option, and in a profile."""
        with blocking.Producer(address, one_address=True) as producer:
            for partition in range(PARTITIONS):
                producer.send_and_wait("flights", b"%d" % partition, partition=partition)
        fairlead = CommandLine(variables)
        told = ("--bootstrap", address, "--one-address")
        fairlead("produce", "flights", *told, typed=b"3\n4\n5\n")
        read = fairlead("consume", "flights", "--from-beginning", "--exit", *told)
        fairlead("profile", "create", "outside", *told)
        again = fairlead("consume", "flights", "--group", "g", "--from-beginning", "-n", "6")
        with blocking.Admin(address, one_address=True) as admin:
            lag = sum(each.lag_records or 0 for each in admin.group_lag("g").lag)
        return sorted(read.split()), sorted(again.split()), lag

    read, again, lag = await asyncio.to_thread(work)

    assert read == again == ["0", "1", "2", "3", "4", "5"]
    assert lag == 0


async def test_an_unreachable_leader_names_the_setting(hidden: Cluster) -> None:
    """A client that cannot reach an advertised address gets an error that names the setting `one_address`."""
    await hidden.topic("flights")
    async with Producer(entry(hidden), delivery_timeout="1s") as producer:
        with pytest.raises(DeliveryTimeoutError) as told:
            await producer.send_and_wait("flights", b"1")

    assert "one_address" in str(told.value.__cause__)
