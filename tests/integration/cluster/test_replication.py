"""Records on three brokers: all replicas have the same bytes, and a failed leader loses no acknowledged record."""

from __future__ import annotations

import pytest

from cluster_kit import Cluster

# The leader of a write quorum first appends a batch that begins its epoch.
pytestmark = pytest.mark.parametrize("mode", ["isr", "quorum"])


async def test_three_copies_are_the_same_bytes(cluster: Cluster, mode: str) -> None:
    """All replicas store a record produced with acks=all as the same bytes, including the leader's stamps."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    stored = [await flights.produce(b"value %d" % number, b"x" * number * 100) for number in range(20)]
    copies = await cluster.copied(topic_id, stored[-1].base_offset + 2)
    await cluster.in_sync(topic_id, 1, 2, 3)

    assert stored[0].base_offset == (0 if mode == "isr" else 1)
    assert len(copies) == 3
    assert copies[0] == copies[1] == copies[2]


async def test_a_leader_that_stops_hands_over(cluster: Cluster, mode: str) -> None:
    """A leader that stops is replaced by an in-sync replica with every acknowledged record, and joins again."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    first = cluster.leader(topic_id)
    before = [await flights.produce(b"before %d" % number) for number in range(10)]
    assert first is not None
    await cluster.stop(first)
    flights = await cluster.led("flights", topic_id)
    second = cluster.leader(topic_id)
    after = await flights.produce(b"after")
    await cluster.start(first)
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.copied(topic_id, after.base_offset + 1)

    assert second != first
    assert after.base_offset == before[-1].base_offset + (1 if mode == "isr" else 2)
    assert copies[0] == copies[1] == copies[2]
