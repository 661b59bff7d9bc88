"""The admin client against a real broker."""

from __future__ import annotations

import asyncio

import pytest

from fairlead import Admin, Producer, TopicPartition
from fairlead.errors import (
    InvalidConfigError,
    InvalidTopicNameError,
    PartitionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    TopicRecreatedError,
    UnreachableError,
)
from refusals import raises


async def test_a_created_topic_can_be_written_at_once(bootstrap: str, admin: Admin) -> None:
    """A new topic has a leader for every partition when its creation returns."""
    created = await admin.create_topic("flights", partitions=12, config={"segment.bytes": 1 << 20})
    metadata = await admin.metadata(["flights"])

    assert (created.partitions, created.config["segment.bytes"].value) == (12, str(1 << 20))
    assert all(partition.leader is not None for partition in metadata.topics[0].partitions)
    async with Producer(bootstrap) as producer:
        assert (await producer.send_and_wait("flights", b"x", partition=11)).offset == 0


async def test_a_topic_under_creation_has_all_its_partitions(bootstrap: str, admin: Admin) -> None:
    """A topic that is being created has all its partitions in metadata, so that keys always get the same partition."""
    async with Admin(bootstrap) as other:
        creation = asyncio.create_task(admin.create_topic("flights", partitions=300))
        seen: list[int] = []
        while not creation.done():
            metadata = await other.metadata()
            seen += [len(topic.partitions) for topic in metadata.topics]
        await creation
        seen += [len(topic.partitions) for topic in (await other.metadata()).topics]

    assert set(seen) == {300}


async def test_the_same_topic_again_is_accepted(admin: Admin) -> None:
    """Creating an existing topic is accepted with the same specification and refused with a different one."""
    first = await admin.create_topic("flights", partitions=2)
    again = await admin.create_topic("flights", partitions=2)

    assert again.topic_id == first.topic_id
    with raises(TopicExistsError, "flights"):
        await admin.create_topic("flights", partitions=3)


async def test_a_dry_run_creates_nothing(admin: Admin) -> None:
    """A dry run checks the request and creates no topic."""
    await admin.create_topic("flights", dry_run=True)

    assert await admin.list_topics() == []
    with pytest.raises(InvalidConfigError):
        await admin.create_topic("flights", config={"segment.bytes": "many"}, dry_run=True)


async def test_topics_are_listed_over_pages(admin: Admin) -> None:
    """Topics are listed completely and in order of their names, over any number of pages, with the wanted settings."""
    names = [f"topic-{index:03}" for index in range(120)]
    for name in names:
        await admin.create_topic(name, wait=False)

    assert [topic.name for topic in await admin.list_topics()] == names
    few = await admin.list_topics(settings=["retention.ms", "cleanup.policy"])
    assert {frozenset(topic.config) for topic in few} == {frozenset(("retention.ms", "cleanup.policy"))}
    with pytest.raises(InvalidConfigError):
        await admin.list_topics(settings=["retention.minutes"])


async def test_topics_are_changed_and_deleted(admin: Admin) -> None:
    """A topic's configuration is changed and reset by None, its partitions grow, and the topic is deleted."""
    await admin.create_topic("flights")
    altered = await admin.alter_topic("flights", partitions=3, config={"max.message.bytes": 5000})
    assert (altered.partitions, altered.config["max.message.bytes"].value) == (3, "5000")
    reset = await admin.alter_topic("flights", config={"max.message.bytes": None})
    assert reset.config["max.message.bytes"].source == "default"
    with pytest.raises(InvalidConfigError):
        await admin.alter_topic("flights", partitions=1)
    await admin.delete_topic("flights")

    with pytest.raises(TopicNotFoundError):
        await admin.describe_topic("flights")
    with pytest.raises(TopicNotFoundError):
        await admin.delete_topic("flights")


async def test_another_topic_of_the_name_is_left_alone(admin: Admin) -> None:
    """If a change also names the topic id, a later topic with the same name is not changed."""
    first = await admin.create_topic("flights")
    await admin.delete_topic("flights", topic_id=first.topic_id)
    second = await admin.create_topic("flights")

    with pytest.raises(TopicRecreatedError):
        await admin.alter_topic("flights", partitions=9, topic_id=first.topic_id)
    with pytest.raises(TopicRecreatedError):
        await admin.delete_topic("flights", topic_id=first.topic_id)
    assert (await admin.describe_topic("flights")).topic_id == second.topic_id


async def test_unsupported_configuration_is_refused(admin: Admin) -> None:
    """A value of a topic setting that is not supported yet is refused."""
    with pytest.raises(InvalidConfigError):
        await admin.create_topic("flights", config={"compression.type": "gzip"})


async def test_the_cluster_is_described(bootstrap: str, admin: Admin) -> None:
    """A cluster is described with ids, brokers and versions."""
    cluster = await admin.cluster()
    versions = await admin.versions()
    [broker] = await admin.brokers()

    assert cluster.cluster_id == versions.cluster_id
    assert [found.id for found in cluster.brokers] == [broker.id]
    assert broker.address == bootstrap
    assert versions.batch_formats == [1]


async def test_offsets_of_a_partition(bootstrap: str, admin: Admin) -> None:
    """Offsets of a partition are returned for earliest, latest and a time."""
    await admin.create_topic("flights", partitions=2)
    async with Producer(bootstrap) as producer:
        for _ in range(3):
            await producer.send_and_wait("flights", b"x", partition=1)
    offsets = await admin.offsets("flights", 1)
    place = TopicPartition("flights", 1)
    found = await admin.offsets_for({place: "latest"})
    answer = found[place]

    assert (offsets.log_start_offset, offsets.high_watermark, offsets.log_end_offset) == (0, 3, 3)
    assert answer is not None
    assert answer.offset == 3
    with pytest.raises(PartitionNotFoundError):
        await admin.offsets("flights", 2)
    with pytest.raises(TopicNotFoundError):
        await admin.offsets("trains", 0)


async def test_names_are_checked_before_any_call(admin: Admin) -> None:
    """A topic name that cannot exist is refused before it becomes part of a path."""
    for name in ("", ".", "..", "a/b", "a" * 250, "\u00e9t\u00e9"):
        with pytest.raises(InvalidTopicNameError):
            await admin.create_topic(name)
        with pytest.raises(InvalidTopicNameError):
            await admin.describe_topic(name)


async def test_an_unreachable_cluster_is_refused_in_time() -> None:
    """An unreachable cluster fails the call within the time allowed for retries."""
    async with Admin("http://127.0.0.1:1", retry_timeout="100ms") as admin:
        with raises(UnreachableError, "http://127.0.0.1:1"):
            await admin.versions()
