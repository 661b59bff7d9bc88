"""The SDK against three brokers: changes of leaders and brokers, and requests that any broker forwards."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import pytest

from cluster_kit import Cluster, until
from fairlead import Admin, Consumer, Delivery, Producer, TopicPartition
from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Transport
from fairlead.errors import (
    BrokerNotFoundError,
    DeliveryTimeoutError,
    LogTruncatedError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    TopicNotFoundError,
)
from fairlead.settings import ConnectionSettings

pytestmark = pytest.mark.slow
RECORDS = 2_000
PARTITIONS = 3


def url(cluster: Cluster, broker: int) -> str:
    """Return the address of a broker for clients."""
    return f"http://{cluster.brokers[broker].addresses.data}"


async def read_to_the_end(bootstrap: str | list[str], topic: str = "flights") -> dict[int, list[int]]:
    """Return the numbers stored in each partition, in order."""
    found: dict[int, list[int]] = defaultdict(list)
    async with Consumer(bootstrap) as consumer:
        await consumer.assign(topic=topic)
        async for record in consumer.records(until=await consumer.end_offsets()):
            found[record.partition].append(int(record.value or b""))
    return found


async def test_a_topic_is_created_through_any_broker(cluster: Cluster) -> None:
    """With `auto.create.topics.enable`, the first record creates its topic, through any broker."""
    for broker in list(cluster.brokers):
        await cluster.stop(broker)
    await cluster.start(*range(3), config_values={"auto.create.topics.enable": True})

    for broker in cluster.brokers:
        async with Producer(url(cluster, broker)) as producer:
            assert (await producer.send_and_wait(f"topic-{broker}", b"x")).offset == 0


async def test_leader_changes_neither_lose_nor_repeat_nor_reorder(cluster: Cluster) -> None:
    """Records are neither lost, repeated nor reordered while brokers stop, return and lose their leases."""
    topic_id = await cluster.topic("flights", partitions=PARTITIONS)
    bootstrap = [url(cluster, broker) for broker in cluster.brokers]
    seen: dict[int, list[int]] = defaultdict(list)

    async def consume() -> None:
        """Read until every record has been seen."""
        async with Consumer(bootstrap) as consumer:
            await consumer.assign(topic="flights")
            async for record in consumer.records():
                seen[record.partition].append(int(record.value or b""))
                if sum(map(len, seen.values())) >= RECORDS:
                    return

    async def change(row: int) -> None:
        """Take the leadership of partition 0 from its leader, by a graceful stop or without warning."""
        leader = cluster.leader(topic_id)
        assert leader is not None
        epoch = cluster.record(topic_id).leader_epoch
        if row == RECORDS // 3:
            await cluster.stop(leader)
            await cluster.start(leader)
        else:
            await cluster.store.revoke(cluster.broker(leader).entry.incarnation.membership.lease)
        await until(lambda: cluster.record(topic_id).leader_epoch > epoch, "no other leader was elected")

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(90):
        tasks.create_task(consume())
        async with Producer(bootstrap, batch_bytes=1_000) as producer:
            deliveries: list[Delivery] = []
            for row in range(RECORDS):
                deliveries.append(await producer.send("flights", b"%d" % row, partition=row % PARTITIONS))
                if row in (RECORDS // 3, 2 * RECORDS // 3):
                    await change(row)
            offsets = [(await delivery).offset for delivery in deliveries]

    # A restarted broker has a different port.
    stored = await read_to_the_end([url(cluster, broker) for broker in cluster.brokers])
    for partition in range(PARTITIONS):
        written = list(range(partition, RECORDS, PARTITIONS))
        assert stored[partition] == written
        assert seen[partition] == written
        assert offsets[partition::PARTITIONS] == list(range(len(written)))


async def test_one_broker_is_enough_to_find_the_others(cluster: Cluster) -> None:
    """A client learns the addresses of all brokers from any broker in its bootstrap list, which may stop afterwards."""
    await cluster.topic("flights", partitions=PARTITIONS)
    for broker in (1, 2, 3):
        async with Producer(url(cluster, broker)) as producer:
            for partition in range(PARTITIONS):
                await producer.send_and_wait("flights", b"%d" % broker, partition=partition)
    async with Producer(url(cluster, 3)) as producer, Admin(url(cluster, 3)) as admin:
        await producer.send_and_wait("flights", b"4", partition=0)
        named = await admin.brokers()
        await admin.metadata()
        await cluster.stop(3)
        for partition in range(PARTITIONS):
            await producer.send_and_wait("flights", b"5", partition=partition)
    found = await read_to_the_end(url(cluster, 1))

    assert [each.id for each in named] == [1, 2, 3]
    assert found == {0: [1, 2, 3, 4, 5], 1: [1, 2, 3, 5], 2: [1, 2, 3, 5]}


async def test_any_broker_takes_admin_calls(cluster: Cluster) -> None:
    """A change that is made through any broker is visible at every other broker at once."""
    for broker in cluster.brokers:
        async with Admin(url(cluster, broker)) as admin:
            name = f"by-{broker}"
            await admin.create_topic(name, partitions=2, replication_factor=3)
            await admin.alter_topic(name, partitions=3, config={"retention.ms": 60_000})
            described = await admin.describe_topic(name)
            assert described.partitions == 3
            assert described.config["retention.ms"].value == "60000"
            await admin.alter_cluster_config({"num.partitions": 3 + broker})
            assert (await admin.cluster_config())["num.partitions"].value == str(3 + broker)
            assert (await admin.cordon_broker(2)).cordoned
            assert [each.cordoned for each in await admin.brokers()] == [False, True, False]
            assert not (await admin.uncordon_broker(2)).cordoned
            place = TopicPartition(name, 1)
            async with Producer(url(cluster, broker)) as producer:
                await producer.send_and_wait(name, b"1", partition=place.partition)
            assert (await admin.offsets(name, 1)).high_watermark == 1
            assert await admin.delete_records(name, 1) == 1
            await admin.delete_topic(name)
            with pytest.raises(TopicNotFoundError):
                await admin.describe_topic(name)
            with pytest.raises(BrokerNotFoundError):
                await admin.broker_config(99)


async def test_unchanged_metadata_is_not_sent_again(cluster: Cluster) -> None:
    """Unchanged metadata is not sent again, because every broker computes the same ETag; a refresh returns changes."""

    def is_equal() -> bool:
        """Return whether the mirrors of all brokers show the same metadata."""
        return len({each.broker.metadata.metadata_revision for each in cluster.brokers.values()}) == 1

    await cluster.topic("flights", partitions=PARTITIONS)
    await until(is_equal, "a mirror lags")
    addresses = tuple(url(cluster, broker) for broker in cluster.brokers)
    async with Transport(ConnectionSettings(bootstrap=addresses)) as transport:
        cache = MetadataCache(transport)
        await cache.topic("flights")
        first = cache.picture
        for _ in addresses:
            transport._first += 1
            await cache.refresh()
            assert cache.picture.topics is first.topics
            assert cache.picture.taken_at > first.taken_at
        async with Admin(addresses[0]) as admin:
            await admin.alter_topic("flights", partitions=PARTITIONS + 1)
        await until(is_equal, "a mirror lags")
        await cache.refresh()

    assert len(cache.picture.topics["flights"].partitions) == PARTITIONS + 1
    assert cache.picture.etag != first.etag


async def test_a_reader_learns_of_records_lost_by_an_unclean_election(cluster: Cluster) -> None:
    """A consumer gets an error with the next offset after an unclean election and never skips records silently.

    After the election, the producer also gets an error, for its first batch after the lost records.
    """
    await cluster.controller.alter_cluster_config({"unclean.leader.election.delay.ms": 500})
    topic_id = await cluster.topic("flights", min_insync_replicas=1, unclean_leader_election_enable=True)
    addresses = {broker: url(cluster, broker) for broker in cluster.brokers}
    first = cluster.leader(topic_id)
    assert first is not None
    others = [broker for broker in cluster.brokers if broker != first]
    place = TopicPartition("flights", 0)
    async with Producer(addresses.values()) as producer, Consumer(addresses.values()) as consumer:
        await consumer.assign([place])
        await producer.send_and_wait("flights", b"1")
        await cluster.copied(topic_id, 1)
        for other in others:
            await cluster.stop(other)
        await cluster.in_sync(topic_id, first)
        for lost in range(5):
            await producer.send_and_wait("flights", b"%d" % (10 + lost))
        before = [int(record.value or b"") async for record in consumer.records(until={place: 6})]
        await cluster.stop(first)
        for other in others:
            await cluster.start(other, listen=addresses[other].removeprefix("http://"))
        with pytest.raises(LogTruncatedError) as told:
            await consumer.next_batch(timeout="30s")
        with pytest.raises(LogTruncatedError):
            await consumer.next_batch(timeout="30s")
        with pytest.raises(OutOfOrderSequenceError):
            await producer.send_and_wait("flights", b"19")
        for kept in range(8):
            await producer.send_and_wait("flights", b"%d" % (20 + kept))
        await consumer.seek(place, told.value.safe_offset)
        after = [int(record.value or b"") async for record in consumer.records(until={place: 9})]

    assert before == [1, 10, 11, 12, 13, 14]
    assert told.value.safe_offset == 1
    assert after == list(range(20, 28))


async def test_records_wait_for_replicas_that_come_back(cluster: Cluster) -> None:
    """Records with too few in-sync replicas are retried until the delivery timeout, whose error names the cause."""
    topic_id = await cluster.topic("flights", min_insync_replicas=3)
    addresses = [url(cluster, broker) for broker in cluster.brokers]
    async with Producer(addresses) as producer, Producer(addresses, delivery_timeout="1s") as hasty:
        await producer.send_and_wait("flights", b"1")
        follower = next(broker for broker in cluster.brokers if broker != cluster.leader(topic_id))
        await cluster.stop(follower)
        late = await hasty.send("flights", b"2")
        with pytest.raises(DeliveryTimeoutError) as timed_out:
            await late
        waiting = await producer.send("flights", b"3")
        await cluster.start(follower)
        acknowledged = await waiting
    found = await read_to_the_end(url(cluster, follower))

    assert isinstance(timed_out.value.__cause__, NotEnoughReplicasError)
    assert acknowledged.offset == 1
    assert found == {0: [1, 3]}
