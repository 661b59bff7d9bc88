"""Clients follow a topic to the other cluster when it is handed over, if their settings allow it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster_kit import Cluster
from command_line_kit import CommandLine
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.blocking import Producer as BlockingProducer
from fairlead.errors import TopicMovedError, TransactionAbortedError
from fairlead.reading.connection import ReadConnection
from fairlead_api.bodies.links import NamePatterns
from link_kit import handed_over, link, until, url, values


async def test_a_producer_follows_a_topic_there_and_back(source: Cluster, target: Cluster) -> None:
    """A running producer writes each record once: in the source, in the target, and again in the source.

    The former source is a mirror before the producer has followed with each partition.
    """
    topic_id = await source.topic("flights", partitions=2, replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target)
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    ends = asyncio.Event()

    async def load(producer: Producer, partition: int) -> None:
        while not ends.is_set():
            value = b"%d" % len(sent[partition])
            await producer.send_and_wait("flights", value, partition=partition)
            sent[partition].append(value)

    async def followed() -> None:
        before = [len(each) for each in sent]

        async def written() -> bool:
            return all(len(now) > then + 5 for now, then in zip(sent, before, strict=True))

        await until(written, "the producer does not follow")

    async with (
        Producer(url(source), follow_moves=True, linger_ms=0) as producer,
        asyncio.TaskGroup() as writing,
    ):
        for partition in range(2):
            writing.create_task(load(producer, partition))
        await handed_over(target, "flights")
        await link(target, source, "back")
        async with Admin(url(source)) as admin:
            await admin.adopt_link("back", ["flights"])
        await followed()
        await handed_over(source, "flights", "back")
        await followed()
        ends.set()

    assert values(source, topic_id) == sent[0]
    assert values(source, topic_id, partition=1) == sent[1]


async def test_only_clients_that_follow_moves_leave_their_cluster(
    source: Cluster, target: Cluster, tmp_path: Path
) -> None:
    """Without the setting, a producer gets an error that names the other cluster; a profile may contain the setting."""
    topic_id = await source.topic("flights", replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target)
    await handed_over(target, "flights")
    async with Producer(url(source)) as producer:
        with pytest.raises(TopicMovedError) as refused:
            await producer.send_and_wait("flights", b"refused")

    def write() -> tuple[int, str]:
        with BlockingProducer(url(source), follow_moves=True) as blocking:
            offset = blocking.send_and_wait("flights", b"followed").offset
        fairlead = CommandLine({"XDG_CONFIG_HOME": str(tmp_path)})
        fairlead("profile", "create", "east", "--bootstrap", url(source), "--follow-moves")
        fairlead("produce", "flights", typed=b"by a command\n")
        return offset, fairlead("consume", "flights", "--from-beginning", "--exit")

    offset, read = await asyncio.to_thread(write)

    assert refused.value.data["bootstrap"] == [url(target, 1), url(target, 2)]
    assert offset == 0
    assert read.split("\n") == ["followed", "by a command", ""]
    assert values(source, topic_id) == []


async def test_consumers_follow_a_topic(source: Cluster, target: Cluster) -> None:
    """A reader of partitions, a member of a group and a connector find each record once, in whichever cluster it is."""
    topic_id = await source.topic("flights", replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target, groups=NamePatterns(include=["*"]))
    async with (
        Producer(url(source), follow_moves=True, linger_ms=0) as producer,
        Consumer(url(source), follow_moves=True) as reader,
        Consumer(url(source), follow_moves=True, group="delays", topics="flights", commit="manual") as member,
    ):
        await reader.assign(topic="flights")
        first = await producer.send_and_wait("flights", b"in the source")
        read, taken = [await _next(reader)], [await _next(member)]
        await member.commit()
        await handed_over(target, "flights")
        second = await producer.send_and_wait("flights", b"in the target")
        read.append(await _next(reader))
        taken.append(await _next(member))
        await member.commit()
        async with ReadConnection(url(source), follow_moves=True) as connector:
            await connector.topics(["flights"])
            end = await connector.lookup.offsets({TopicPartition("flights", 0): "latest"})
        async with Admin(url(target)) as admin:
            committed = (await admin.group_offsets("delays")).values()

    assert (first.offset, second.offset) == (0, 1)
    assert read == taken == [(0, b"in the source"), (1, b"in the target")]
    assert [each.offset for each in committed] == [2]
    assert end == {TopicPartition("flights", 0): 2}


async def test_a_producer_with_transactions_follows_its_topics(source: Cluster, target: Cluster) -> None:
    """A transaction that meets the hand-over is aborted, and the next transaction is committed in the other cluster."""
    topic_id = await source.topic("flights", replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target)
    async with Producer(url(source), follow_moves=True, transactional="billing", linger_ms=0) as producer:
        async with producer.transaction() as transaction:
            await transaction.send("flights", b"in the source")
        await handed_over(target, "flights")
        with pytest.raises(TransactionAbortedError):
            async with producer.transaction() as transaction:
                await transaction.send("flights", b"aborted")
        async with producer.transaction() as transaction:
            await transaction.send("flights", b"in the target")
    async with Consumer(url(target), isolation="read_committed") as consumer:
        await consumer.assign(topic="flights")
        read = [(await _next(consumer))[1], (await _next(consumer))[1]]

    assert read == [b"in the source", b"in the target"]


async def _next(consumer: Consumer) -> tuple[int, bytes | None]:
    """Return the offset and the value of the next record, which is alone in its batch."""
    batch = await consumer.next_batch(timeout="60s")
    assert batch is not None, "no record arrives"
    (record,) = batch
    return record.offset, record.value
