"""Sizes of the replicas on all brokers, requested from any broker."""

from __future__ import annotations

import asyncio
import os

import pytest

from cluster_kit import Cluster
from command_line_kit import CommandLine
from fairlead import Admin
from fairlead.errors import TopicNotFoundError
from warm_programs import search_path


async def test_the_size_of_each_replica_is_shown(cluster: Cluster) -> None:
    """The size of each replica is the size of its log; the size of a replica on a stopped broker is unknown."""
    topic_id = await cluster.topic("flights", replication_factor=2)
    await cluster.led("empty", await cluster.topic("empty", replication_factor=1))
    flights = await cluster.led("flights", topic_id)
    for number in range(10):
        await flights.produce(b"value %d" % number * 50)
    brokers = [replica.broker for replica in cluster.record(topic_id).replicas]
    await cluster.in_sync(topic_id, *brokers)
    stored = {broker: cluster.log(broker, topic_id).size_bytes for broker in brokers}
    [other] = set(cluster.brokers) - set(brokers)
    address = f"http://{cluster.brokers[other].addresses.data}"
    command = CommandLine({**os.environ, "PATH": search_path(), "FAIRLEAD_BOOTSTRAP": address})
    async with Admin(address) as admin:
        empty, every = await admin.replica_sizes()
        lines = (await asyncio.to_thread(command, "topic", "sizes")).splitlines()
        rows = (await asyncio.to_thread(command, "topic", "sizes", "flights")).splitlines()
        await cluster.stop(brokers[1])
        [left] = await admin.replica_sizes("flights")
        with pytest.raises(TopicNotFoundError):
            await admin.replica_sizes("absent")

    assert [each.size_bytes for part in empty.partitions for each in part.replicas] == [0]
    [partition] = every.partitions
    assert {each.broker: each.size_bytes for each in partition.replicas} == stored
    assert all(size > 10 * 300 for size in stored.values())
    assert {each.log_end_offset for each in partition.replicas} == {10}
    assert lines[1].split("\t") == ["flights", "1", str(sum(stored.values()))]
    assert [row.split("\t") for row in rows[1:]] == [
        ["0", str(broker), str(stored[broker]), "10"] for broker in brokers
    ]
    gone = {each.broker: each.size_bytes for each in left.partitions[0].replicas}
    assert gone == {brokers[0]: stored[brokers[0]], brokers[1]: None}
