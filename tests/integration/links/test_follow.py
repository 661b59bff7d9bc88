"""Producers follow a topic to the other cluster when it is handed over, if their settings allow it."""

from __future__ import annotations

import asyncio

import pytest

from cluster_kit import Cluster
from fairlead import Admin, Producer
from fairlead.blocking import Producer as BlockingProducer
from fairlead.errors import SettingError, TopicMovedError
from link_kit import link, mirrored, promoted, until, url, values


async def test_a_producer_follows_a_topic_there_and_back(source: Cluster, target: Cluster) -> None:
    """A running producer writes each record once, first in the source, then in the target, then in the source."""
    topic_id = await source.topic("flights", partitions=2, replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target)
    sent: list[bytes] = []
    ends = asyncio.Event()

    async def load(producer: Producer) -> None:
        while not ends.is_set():
            value = b"%d" % len(sent)
            await producer.send_and_wait("flights", value, partition=0)
            sent.append(value)

    async def hand_over(to: Cluster, link_name: str) -> None:
        async with Admin(url(to)) as admin:
            await until(lambda: _is_mirrored(admin, link_name), "the topic is not mirrored")
            await admin.promote_link(link_name, "all")
            await until(lambda: promoted(to, "flights", link_name), "the mirror is not promoted")
        before = len(sent)

        async def written() -> bool:
            return len(sent) > before + 5

        await until(written, "the producer does not follow")

    async with Producer(url(source), follow_moves=True, linger_ms=0) as producer:
        writing = asyncio.get_running_loop().create_task(load(producer))
        await hand_over(target, "east")
        await link(target, source, "back")
        async with Admin(url(source)) as admin:
            await admin.adopt_link("back", ["flights"])
        await hand_over(source, "back")
        ends.set()
        await writing

    assert values(source, topic_id) == sent


async def test_only_a_producer_that_follows_moves_leaves_its_cluster(
    source: Cluster, target: Cluster
) -> None:
    """Without the setting, a producer gets an error that names the other cluster; a blocking producer follows too."""
    topic_id = await source.topic("flights", replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target)
    await mirrored(target, topic_id, 0)
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", "all")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
    async with Producer(url(source)) as producer:
        with pytest.raises(TopicMovedError) as refused:
            await producer.send_and_wait("flights", b"refused")

    def write() -> int:
        with BlockingProducer(url(source), follow_moves=True) as blocking:
            return blocking.send_and_wait("flights", b"followed").offset

    offset = await asyncio.to_thread(write)

    assert refused.value.data["bootstrap"] == [url(target, 1), url(target, 2)]
    assert offset == 0
    assert values(source, topic_id) == []
    with pytest.raises(SettingError):
        Producer(url(source), follow_moves=True, transactional=True)


async def _is_mirrored(admin: Admin, link_name: str) -> bool:
    found = await admin.link_topics(link_name)
    return any(each.state == "mirroring" and each.lag_records is not None for each in found)
