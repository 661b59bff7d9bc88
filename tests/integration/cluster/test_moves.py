"""Moves in progress, as operators see them in the request, in the tables and in the topic's description."""

from __future__ import annotations

import asyncio
import os

import pytest

from cluster_kit import Cluster, until
from command_line_kit import CommandLine
from fairlead import Admin
from fairlead_api.bodies.operations import ReplicaProgress
from fairlead_api.identifiers import BrokerId, TopicId
from fairlead_broker.controller.reassignment import Target, start
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Put
from warm_programs import search_path

GONE = BrokerId(9)


async def begin_endless_move(cluster: Cluster, topic_id: TopicId, to: int) -> None:
    """Begin a move to a running broker and to a broker that never starts, so that the move cannot complete."""
    runtime = cluster.controller
    [(index, found)] = runtime.metadata.partitions(topic_id).items()
    directory = cluster.broker(to).entry.directory.identity.directory_id
    [first, *_] = found.value.replicas
    places = (
        Target(first.broker, first.directory),
        Target(BrokerId(to), directory),
        Target(GONE, "nowhere"),
    )
    record = start(found.value, places, found.mod_revision)
    name = runtime.metadata.keys.partition(topic_id, index)
    await cluster.store.transact((), (Put(name, encode(record)),))
    key = PartitionKey(topic_id, index)
    await until(
        lambda: all(key in each.broker.controllership.index.moving for each in cluster.brokers.values()),
        "not every broker has noticed the move",
    )


@pytest.mark.slow
async def test_a_move_is_shown_with_its_progress(cluster: Cluster) -> None:
    """A move shows which added replicas have all records of the leader, and descriptions name all replicas."""
    topic_id = await cluster.topic("flights", replication_factor=2)
    flights = await cluster.led("flights", topic_id)
    for number in range(10):
        await flights.produce(b"value %d" % number * 50)
    before = [replica.broker for replica in cluster.record(topic_id).replicas]
    [other] = set(cluster.brokers) - set(before)
    await begin_endless_move(cluster, topic_id, other)
    address = f"http://{cluster.brokers[before[1]].addresses.data}"
    async with Admin(address) as admin, asyncio.timeout(30):
        while True:
            [move] = await admin.reassignments()
            progress = {each.broker: each for each in move.progress}
            if progress[other].lag_records == 0:
                break
    command = CommandLine({**os.environ, "PATH": search_path(), "FAIRLEAD_BOOTSTRAP": address})
    moves = (await asyncio.to_thread(command, "partition", "moves")).splitlines()
    described = (await asyncio.to_thread(command, "topic", "describe", "flights")).splitlines()
    header = next(line for line in described if line.startswith("PARTITION")).split("\t")
    row = next(line for line in described if line.startswith("0\t")).split("\t")
    shown = dict(zip(header, row, strict=True))
    size = progress[other].total_bytes

    assert size is not None
    assert size > 10 * 300
    assert (progress[other].log_end_offset, progress[other].copied_bytes) == (10, size)
    assert progress[GONE] == ReplicaProgress(
        broker=GONE, log_end_offset=None, lag_records=None, copied_bytes=None, total_bytes=size
    )
    assert moves[0].split("\t")[-2:] == ["LAG", "COPIED"]
    assert set(moves[1].split("\t")[-2].split()) == {f"{other}:0", f"{GONE}:-"}
    assert set(moves[1].split("\t")[-1].split()) == {f"{other}:100%", f"{GONE}:-"}
    assert set(shown["ADDING"].split(",")) == {str(other), str(GONE)}
    assert shown["REMOVING"] == str(before[1])
