"""Losses at the source: expired records and recreated topics are reported, and never skipped silently."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from cluster_kit import Cluster, content
from fairlead import Admin
from fairlead_api.bodies.links import LinkPolicies, LinkTopic, MirrorGap
from fairlead_api.identifiers import TopicId
from fairlead_broker.controlling.linking import promotions
from link_kit import is_writable, link, mirrored, paused, topic_of, until, url

if TYPE_CHECKING:
    import pytest


MIB = 1 << 20


async def test_expired_records_are_skipped_and_counted(source: Cluster, target: Cluster) -> None:
    """A mirror begins at the source's log start, even inside a batch. Its gap is reported until it is accepted."""
    topic_id = await _with_records(source, 2)
    flights = await source.led("flights", topic_id)
    await flights.produce(b"2", b"3", b"4")
    async with Admin(url(source)) as admin:
        await admin.delete_records("flights", 0, 3)
    await link(source, target)
    await mirrored(target, topic_id, 5)
    await until(
        lambda: _starts_at(target, topic_id, 3), "the mirror does not begin at the source's log start"
    )
    async with Admin(url(target)) as admin:
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        for number in range(5):
            await flights.produce(b"later %d" % number)
        async with Admin(url(source)) as at_source:
            await at_source.delete_records("flights", 0, 8)
        await admin.resume_link("east")
    await mirrored(target, topic_id, 10)
    mirror = await target.led("flights", topic_id)

    async def has_all() -> bool:
        return (await mirror.fetch(8)).high_watermark == 10

    await until(has_all, "the high watermark does not reach the end of the mirror")
    found = await mirror.fetch(8)

    await until(lambda: _starts_at(target, topic_id, 8), "the log start does not follow the source")

    async with Admin(url(target)) as admin:
        told, open_gaps = await topic_of(target, "flights"), (await admin.describe_link("east")).gaps
        await admin.acknowledge_link("east")
        accepted, left = await topic_of(target, "flights"), (await admin.describe_link("east")).gaps

    assert told is not None
    assert told.partitions[0].gap == MirrorGap(first_offset=5, end_offset=8, skipped=3, truncated=0)
    assert accepted is not None
    assert accepted.partitions[0].gap is None
    assert (open_gaps, left) == (1, 0)
    assert (found.next_offset, found.high_watermark) == (10, 10)


async def test_retention_that_overtakes_a_paused_link_leaves_a_gap(source: Cluster, target: Cluster) -> None:
    """The gap names exactly the offsets that the source deleted by its retention while the link was paused."""
    config = {"segment_bytes": MIB, "retention_bytes": MIB, "retention_ms": -1, "file_delete_delay_ms": 0}
    topic_id = await source.topic("flights", replication_factor=1, **config)
    flights = await source.led("flights", topic_id)
    await flights.produce(b"copied")
    await link(source, target)
    await mirrored(target, topic_id, 1)
    async with Admin(url(source)) as at_source, Admin(url(target)) as admin:
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        for number in range(12):
            await flights.produce(Random(number).randbytes(MIB // 3))
        await at_source.alter_cluster_config({"log.retention.check.interval.ms": 20})
        log = source.log(1, topic_id)

        async def expired() -> bool:
            return sum(segment.size for segment in log.segments[1:]) < MIB

        await until(expired, "the source keeps its records")
        first = log.log_start_offset
        await admin.resume_link("east")
        await mirrored(target, topic_id, 13)
        found = await topic_of(target, "flights")

    assert found is not None
    assert 1 < first < 13
    assert found.partitions[0].gap == MirrorGap(
        first_offset=1, end_offset=first, skipped=first - 1, truncated=0
    )
    assert content(target.log(1, topic_id)).endswith(content(source.log(1, topic_id)))


async def test_an_acknowledged_loss_is_taken_once(source: Cluster, target: Cluster) -> None:
    """A policy stops a mirror before expired records; each acknowledgement lets the mirror continue after one loss."""
    topic_id = await _with_records(source, 2)
    flights = await source.led("flights", topic_id)
    await link(source, target, policies=LinkPolicies(expired="stop"))
    await mirrored(target, topic_id, 2)
    async with Admin(url(target)) as admin, Admin(url(source)) as at_source:
        for end in (5, 8):
            await admin.pause_link("east")
            await until(lambda: paused(target), "not every broker knows that the link is paused")
            for number in range(3):
                await flights.produce(b"later %d" % number)
            await at_source.delete_records("flights", 0, end - 1)
            await admin.resume_link("east")
            await until(lambda: _stopped(target), "the mirror does not stop")
            found = await topic_of(target, "flights")
            await admin.acknowledge_link("east")
            await mirrored(target, topic_id, end)

            assert found is not None
            assert found.reason == "source_expired"
    mirror = await target.led("flights", topic_id)

    assert mirror.handle().copying.skipped == 4


async def test_a_recreated_topic_stops_its_mirror(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a topic is deleted and created again, the mirror of the old topic keeps its records and can be promoted.

    The new topic, which has the same name, is not handed over.
    """
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    topic_id = await _with_records(source, 2)
    await link(source, target)
    await mirrored(target, topic_id, 2)
    async with Admin(url(source)) as admin:
        await admin.delete_topic("flights")
        created = await admin.create_topic("flights", partitions=1)
    await until(lambda: _stopped(target), "the mirror does not stop")
    found = await topic_of(target, "flights")
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", ["flights"], "failover")

        async def promoted() -> bool:
            left: LinkTopic | None = await topic_of(target, "flights")
            return (left is None or left.state == "blocked") and await is_writable(target, "flights")

        await until(promoted, "the mirror is not promoted")
    mirror = await target.led("flights", topic_id)
    last = await mirror.produce(b"after")
    first = await (await source.led("flights", TopicId(created.topic_id))).produce(b"new")

    assert found is not None
    assert found.reason == "source_gone"
    assert last.base_offset == 2
    assert first.base_offset == 0


async def test_a_recreated_topic_replaces_its_mirror(source: Cluster, target: Cluster) -> None:
    """With the policy `replace`, a topic that is created again is mirrored, and its old mirror is deleted."""
    topic_id = await _with_records(source, 2)
    await link(source, target, policies=LinkPolicies(recreated="replace"))
    await mirrored(target, topic_id, 2)
    async with Admin(url(source)) as at_source, Admin(url(target)) as admin:
        await at_source.delete_topic("flights")
        created = await at_source.create_topic("flights", partitions=1)
        await admin.acknowledge_link("east")
        await (await source.led("flights", TopicId(created.topic_id))).produce(b"new")
    await mirrored(target, TopicId(created.topic_id), 1)

    assert created.topic_id != topic_id
    assert await _topic_id(target) == created.topic_id


async def _topic_id(target: Cluster) -> str | None:
    found = await topic_of(target, "flights")
    return None if found is None else found.topic_id


async def _with_records(source: Cluster, count: int) -> TopicId:
    """Create a topic with one record in each of its batches."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    for number in range(count):
        await flights.produce(b"%d" % number)
    return topic_id


async def _stopped(target: Cluster) -> bool:
    found = await topic_of(target, "flights")
    return found is not None and found.state == "faulted"


async def _starts_at(target: Cluster, topic_id: TopicId, offset: int) -> bool:
    return all(target.log(broker, topic_id).log_start_offset == offset for broker in (1, 2))
