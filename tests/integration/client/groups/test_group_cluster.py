"""Members of a group on three brokers keep their partitions when the coordinator stops."""

from __future__ import annotations

import asyncio

import pytest

from cluster_kit import Cluster, until
from fairlead import Admin, Consumer, Producer, TopicPartition

pytestmark = pytest.mark.slow
PARTITIONS = 4


async def test_a_coordinator_that_stops_moves_no_partition(cluster: Cluster) -> None:
    """A group keeps its members, epochs and commits at the next coordinator."""
    await cluster.topic("flights", partitions=PARTITIONS)
    bootstrap = [f"http://{broker.addresses.data}" for broker in cluster.brokers.values()]
    revoked: list[frozenset[TopicPartition]] = []
    got: list[int] = []

    async def read(consumer: Consumer) -> None:
        """Read until cancelled."""
        async for batch in consumer:
            got.extend(int(value or b"") for value in batch.values)

    def joined() -> Consumer:
        """Return a consumer of the group."""
        return Consumer(
            bootstrap, group="g", topics="flights", on_revoked=revoked.append, auto_commit_interval="100ms"
        )

    async with (
        Admin(bootstrap) as admin, Producer(bootstrap) as producer, joined() as first, joined() as second,
        asyncio.TaskGroup() as tasks,
    ):  # fmt: skip
        reading = [tasks.create_task(read(consumer)) for consumer in (first, second)]
        await until(lambda: len(first.assignment) == len(second.assignment) == 2, "partitions were not split")
        moves = len(revoked)
        described = await admin.describe_group("g")
        await cluster.stop(described.coordinator)
        for number in range(200):
            await producer.send("flights", b"%d" % number, partition=number % PARTITIONS)
        await producer.flush()
        await until(lambda: len(got) >= 200, "records were not read after the coordinator had stopped")
        async with asyncio.timeout(30):
            while sum(entry.offset for entry in (await admin.group_offsets("g")).values()) < 200 - PARTITIONS:
                pass
        after = await admin.describe_group("g")
        for task in reading:
            task.cancel()
        assert len(revoked) == moves

    assert sorted(got) == list(range(200))
    assert after.coordinator != described.coordinator
    assert {member.member_id: member.member_epoch for member in after.members} == {
        member.member_id: member.member_epoch for member in described.members
    }
