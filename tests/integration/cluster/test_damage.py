"""Damaged replicas are dropped when other replicas are complete, and kept otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster_kit import Cluster, until
from fairlead_api.identifiers import Offset, TopicId
from runtime_kit import TopicClient

pytestmark = pytest.mark.parametrize("mode", ["isr", "quorum"])


def flip(folder: Path, share: float) -> None:
    """Flip a bit in the first segment."""
    [segment] = folder.glob("*.log")
    content = bytearray(segment.read_bytes())
    content[int(len(content) * share)] ^= 1
    segment.write_bytes(content)


async def produced(flights: TopicClient, *numbers: int) -> Offset:
    """Produce one record for each number; return the last offset."""
    last = [await flights.produce(b"value %d" % number * 50) for number in numbers][-1]
    return last.base_offset


async def damaged_after_a_kill(cluster: Cluster, broker: int, topic_id: TopicId) -> None:
    """Stop a broker, and start it with a flipped bit in its synced data and without its clean-shutdown marker."""
    await cluster.stop(broker)
    data = cluster.path / str(broker)
    flip(data / topic_id / "0", 0.5)
    (data / ".fairlead" / "clean").unlink()
    (data / ".fairlead" / "checkpoint").unlink()
    await cluster.start(broker)


async def test_a_damaged_follower_is_fetched_again(cluster: Cluster, mode: str) -> None:
    """A damaged follower leaves the in-sync replicas, drops the damage, and joins again with the same bytes."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    last = await produced(flights, *range(30))
    await cluster.equal(topic_id, last)
    follower = next(each for each in cluster.brokers if each != cluster.leader(topic_id))
    await damaged_after_a_kill(cluster, follower, topic_id)
    await until(
        lambda: any(
            replica.broker == follower and replica.generation == 1
            for replica in cluster.record(topic_id).replicas
        ),
        "the follower has not left the in-sync replicas or voters",
    )
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.equal(topic_id, last)

    assert copies[0] == copies[1] == copies[2]
    assert not cluster.log(follower, topic_id).damaged


async def test_an_acknowledged_end_that_changed_is_fetched_again(cluster: Cluster, mode: str) -> None:
    """A follower whose last synced batch changed after its checkpoint leaves the in-sync replicas before truncating."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    follower = next(each for each in cluster.brokers if each != cluster.leader(topic_id))
    data = cluster.path / str(follower)
    old_checkpoint = (data / ".fairlead" / "checkpoint").read_bytes()
    last = await produced(flights, *range(30))
    await cluster.equal(topic_id, last)
    await cluster.stop(follower)
    flip(data / topic_id / "0", 0.999)
    (data / ".fairlead" / "clean").unlink()
    (data / ".fairlead" / "checkpoint").write_bytes(old_checkpoint)
    await cluster.start(follower)
    await until(
        lambda: any(
            replica.broker == follower and replica.generation == 1
            for replica in cluster.record(topic_id).replicas
        ),
        "the follower has not left the in-sync replicas or voters",
    )
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.equal(topic_id, last)

    assert copies[0] == copies[1] == copies[2]
    assert not cluster.log(follower, topic_id).damaged


async def test_a_start_that_cut_off_records_is_reported(cluster: Cluster, mode: str) -> None:
    """With `replicated`, a start that truncates at a bad batch reports the loss before the replica is in sync again."""
    topic_id = await cluster.topic("flights", durability="replicated", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    last = await produced(flights, *range(30))
    await cluster.equal(topic_id, last)
    follower = next(each for each in cluster.brokers if each != cluster.leader(topic_id))
    await damaged_after_a_kill(cluster, follower, topic_id)
    await until(
        lambda: any(
            replica.broker == follower and replica.generation == 1
            for replica in cluster.record(topic_id).replicas
        ),
        "the follower has not left the in-sync replicas or voters",
    )
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.equal(topic_id, last)

    assert copies[0] == copies[1] == copies[2]


async def test_a_leader_with_damage_hands_over(cluster: Cluster, mode: str) -> None:
    """A leader with damage hands over to another replica, from which clients read the whole range."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    last = await produced(flights, *range(30))
    first = cluster.leader(topic_id)
    assert first is not None
    await cluster.equal(topic_id, last)
    flip(cluster.path / str(first) / topic_id / "0", 0.5)
    log = cluster.log(first, topic_id)
    segment = log.segments[0]
    damage = segment.first_damage(log.log_start_offset)
    assert damage is not None
    log.note_damage([damage])
    await until(lambda: cluster.leader(topic_id) not in (None, first), "the first broker still leads")
    flights = await cluster.led("flights", topic_id)
    last = await produced(flights, 30)
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.equal(topic_id, last)

    assert copies[0] == copies[1] == copies[2]


async def test_a_leader_that_sends_damage_is_reported(cluster: Cluster, mode: str) -> None:
    """A follower reports damage in bytes that the leader has not verified, and another replica leads."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    first = cluster.leader(topic_id)
    assert first is not None
    last = await produced(flights, *range(10))
    await cluster.equal(topic_id, last)
    follower = next(each for each in cluster.brokers if each != first)
    await cluster.stop(follower)
    await produced(flights, *range(10, 30))
    flip(cluster.path / str(first) / topic_id / "0", 0.9)
    await cluster.start(follower)
    await until(lambda: cluster.leader(topic_id) not in (None, first), "the first broker still leads")
    await cluster.in_sync(topic_id, 1, 2, 3)
    last = await produced(await cluster.led("flights", topic_id), 30)
    copies = await cluster.equal(topic_id, last)

    assert copies[0] == copies[1] == copies[2]
    assert not cluster.log(first, topic_id).damaged
