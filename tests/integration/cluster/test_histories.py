"""Logs that diverge, begin later or have producers: the state that followers adopt in addition to records."""

from __future__ import annotations

import pytest

from cluster_kit import Cluster, until
from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.identifiers import BrokerId, Offset, PartitionIndex
from fairlead_broker.runtime import AppendResult
from runtime_kit import TopicClient

MODES = pytest.mark.parametrize("mode", ["isr", "quorum"])


@pytest.mark.slow
async def test_diverged_logs_become_one(cluster: Cluster) -> None:
    """The old leader truncates its own records after an unclean election and adopts the new leader's bytes."""
    await cluster.controller.alter_cluster_config({"unclean.leader.election.delay.ms": 500})
    topic_id = await cluster.topic("flights", min_insync_replicas=1, unclean_leader_election_enable=True)
    flights = await cluster.led("flights", topic_id)
    first = cluster.leader(topic_id)
    assert first is not None
    await flights.produce(b"common")
    others = [each for each in cluster.brokers if each != first]
    await cluster.copied(topic_id, 1)
    for other in others:
        await cluster.stop(other)
    await cluster.in_sync(topic_id, first)
    for number in range(5):
        await flights.produce(b"lost %d" % number)
    await cluster.stop(first)
    await cluster.start(*others)
    flights = await cluster.led("flights", topic_id)
    answer = await flights.produce(b"kept", b"kept too")
    await cluster.start(first)
    await cluster.in_sync(topic_id, 1, 2, 3)
    copies = await cluster.copied(topic_id, 3)

    assert answer.base_offset == 1
    assert copies[0] == copies[1] == copies[2]


@MODES
async def test_followers_begin_where_the_leader_begins(cluster: Cluster, mode: str) -> None:
    """A deletion is answered once all in-sync replicas, or W voters, begin at the offset, and the others follow."""
    topic_id = await cluster.topic("flights", segment_bytes=1 << 20, replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    follower = next(each for each in cluster.brokers if each != cluster.leader(topic_id))
    for number in range(10):
        await flights.produce(b"value %d" % number)
    await flights.broker.delete_records(flights.handle(), Offset(4))
    starts = [cluster.log(each, topic_id).log_start_offset for each in cluster.brokers]
    await until(
        lambda: all(cluster.log(each, topic_id).log_start_offset == 4 for each in cluster.brokers),
        "not every replica begins at 4",
    )
    await cluster.stop(follower)
    flights = await cluster.led("flights", topic_id)
    end = Offset((await flights.produce(b"next")).base_offset + 1)
    await flights.broker.delete_records(flights.handle(), end)
    await cluster.start(follower)
    await cluster.in_sync(topic_id, 1, 2, 3)

    assert starts.count(4) >= (3 if mode == "isr" else 2)
    # A voter returns before it has every record.
    await until(
        lambda: cluster.log(follower, topic_id).end_offset == end, "the follower lacks the leader's end"
    )
    await until(
        lambda: cluster.log(follower, topic_id).log_start_offset == end, "the follower still begins at 4"
    )


async def produce_again(flights: TopicClient, sequence: int) -> AppendResult:
    """Produce a batch of one idempotent producer."""
    columns = record_batch([b"value"], default_timestamp_us=1_700_000_000_000_000)
    data = encode(columns, producer=ProducerStamp(77, 0, sequence)).to_bytes()
    [answer] = await flights.produce_batch(data)
    assert isinstance(answer, AppendResult), answer
    return answer


@MODES
async def test_a_new_leader_knows_the_producers(cluster: Cluster, mode: str) -> None:
    """The next leader answers a repeated batch as a duplicate and accepts the next sequence."""
    topic_id = await cluster.topic("flights", replication_mode=mode)
    flights = await cluster.led("flights", topic_id)
    first = cluster.leader(topic_id)
    assert first is not None
    stored = [await produce_again(flights, sequence) for sequence in range(3)]
    await cluster.stop(first)
    flights = await cluster.led("flights", topic_id)
    again = await produce_again(flights, 2)
    fresh = await produce_again(flights, 3)

    assert (again.duplicate, again.base_offset) == (True, stored[-1].base_offset)
    # The next leader of a write quorum has begun its epoch with a batch.
    assert (fresh.duplicate, fresh.base_offset) == (
        False,
        stored[-1].base_offset + (1 if mode == "isr" else 2),
    )


async def test_many_partitions_travel_in_one_session(cluster: Cluster) -> None:
    """One fetch session copies many partitions, even empty partitions and partitions of a topic that is added later."""
    topic_id = await cluster.topic("flights", partitions=30)
    for partition in range(0, 30, 3):
        client = await cluster.led("flights", topic_id, partition)
        await client.produce(b"value", b"next", partition=partition)
    other = await cluster.topic("later", partitions=3)
    client = await cluster.led("later", other, 2)
    await client.produce(b"late", partition=2)

    for partition in range(30):
        copies = await cluster.copied(topic_id, 0 if partition % 3 else 2, partition)
        assert copies[0] == copies[1] == copies[2]
    assert len(set(await cluster.copied(other, 1, 2))) == 1


async def test_a_new_copy_begins_amid_a_batch(cluster: Cluster) -> None:
    """A replica that begins inside a batch after a deletion gets the whole batch and joins the ISR."""
    topic_id = await cluster.topic("flights", replication_factor=2)
    flights = await cluster.led("flights", topic_id)
    await flights.produce(*[b"value"] * 10)
    await flights.broker.delete_records(flights.handle(), Offset(5))
    kept = [replica.broker for replica in cluster.record(topic_id).replicas]
    other = next(each for each in cluster.brokers if each not in kept)
    wanted = [*kept, BrokerId(other)]
    await cluster.controller.operations.reassign("flights", PartitionIndex(0), wanted)
    await cluster.in_sync(topic_id, 1, 2, 3)

    assert (cluster.log(other, topic_id).log_start_offset, cluster.log(other, topic_id).end_offset) == (5, 10)
