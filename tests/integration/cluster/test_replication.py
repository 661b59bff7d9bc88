"""Records on three brokers: all replicas have the same bytes, and a failed leader loses no acknowledged record."""

from __future__ import annotations

from cluster_kit import Cluster


async def test_three_copies_are_the_same_bytes(cluster: Cluster) -> None:
    """All replicas store a record produced with acks=all as the same bytes, including the leader's stamps."""
    topic_id = await cluster.topic("flights")
    flights = await cluster.led("flights", topic_id)
    for number in range(20):
        await flights.produce(b"value %d" % number, b"x" * number * 100)
    copies = await cluster.copied(topic_id, 40)

    assert len(copies) == 3
    assert copies[0] == copies[1] == copies[2]
    assert {entry.broker for entry in cluster.record(topic_id).isr} == {1, 2, 3}


async def test_a_leader_that_stops_hands_over(cluster: Cluster) -> None:
    """A leader that stops is replaced by an in-sync replica with every acknowledged record, and joins again."""
    topic_id = await cluster.topic("flights")
    flights = await cluster.led("flights", topic_id)
    first = cluster.leader(topic_id)
    for number in range(10):
        await flights.produce(b"before %d" % number)
    assert first is not None
    await cluster.stop(first)
    flights = await cluster.led("flights", topic_id)
    second = cluster.leader(topic_id)
    after = await flights.produce(b"after")
    await cluster.start(first)
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.copied(topic_id, 11)

    assert second != first
    assert after.base_offset == 10
    assert copies[0] == copies[1] == copies[2]
