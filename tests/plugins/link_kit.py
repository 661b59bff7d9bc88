"""Two clusters with a link between them, for tests of links."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import waiting
from cluster_kit import SECONDS_MAX, Cluster, content
from fairlead import Admin
from fairlead_api.batch.batches import decode_records
from fairlead_api.batch.header import iterate_headers
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, LinkTopic, NamePatterns
from fairlead_api.identifiers import TopicId
from fairlead_broker.registry.link_records import LinkState


def url(cluster: Cluster, broker: int = 1) -> str:
    """Return the base URL of a broker."""
    return f"http://{cluster.brokers[broker].addresses.data}"


async def link(source: Cluster, target: Cluster, name: str = "east", *topics: str, **fields: Any) -> None:
    """Create a link of the target for topics of the source."""
    request = CreateLinkRequest(
        name=name,
        source=LinkSource(bootstrap=[url(source)]),
        topics=NamePatterns(include=list(topics or ("*",))),
        **fields,
    )
    async with Admin(url(target)) as admin:
        await admin.create_link(request)


def values(cluster: Cluster, topic_id: TopicId, broker: int = 1, partition: int = 0) -> list[bytes | None]:
    """Return the values in a broker's log."""
    data = memoryview(content(cluster.log(broker, topic_id, partition)))
    return [
        record.value
        for at, header in iterate_headers(data)
        for record in decode_records(data[at : at + header.total_bytes])
    ]


async def topic_of(target: Cluster, name: str, link_name: str = "east") -> LinkTopic | None:
    """Return a topic of a link; None if the link does not have it."""
    async with Admin(url(target)) as admin:
        found = await admin.link_topics(link_name)
    return next((each for each in found if each.topic == name), None)


async def until(met: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until a condition holds, by polling, because no event announces it to the test."""
    try:
        async with asyncio.timeout(SECONDS_MAX):
            while not await met():
                await waiting.pause(waiting.LOOK_SECONDS)
    except TimeoutError:
        raise AssertionError(what) from None


async def mirrored(target: Cluster, topic_id: TopicId, end: int, *brokers: int, partition: int = 0) -> None:
    """Wait until the logs of brokers of the target end at an offset; for all brokers, until it is committed too."""

    def committed() -> bool:
        leader = target.leader(topic_id, partition)
        return leader in target.brokers and any(
            each.index == partition and each.high_watermark == end
            for each in target.broker(leader).replicas.of_topic(topic_id)
        )

    async def met() -> bool:
        try:
            copied = all(
                target.log(broker, topic_id, partition).end_offset == end
                for broker in brokers or target.brokers
            )
        except KeyError:
            return False
        return copied and (bool(brokers) or committed())

    await until(met, f"the mirror does not end at {end}")


async def paused(target: Cluster, link_name: str = "east") -> bool:
    """Return whether every broker of the target knows that a link is paused."""
    return all(
        each.broker.metadata.links[link_name].value.state is LinkState.PAUSED
        for each in target.brokers.values()
    )


async def promoted(target: Cluster, name: str, link_name: str = "east") -> bool:
    """Return whether a mirror was promoted, and every broker accepts records for the partitions that it leads."""
    found = await topic_of(target, name, link_name)
    return (found is None or found.state == "promoted") and await is_writable(target, name)


async def is_writable(target: Cluster, name: str) -> bool:
    """Return whether no running broker takes a topic for a mirror."""
    for each in target.brokers.values():
        topic = each.broker.metadata.topics.get(name)
        if topic is not None and topic.value.mirror is not None:
            return False
        await each.broker.replicas.settled()
    return True


async def handed_over(target: Cluster, name: str, link_name: str = "east") -> None:
    """Hand a topic over to the target of a link when it is mirrored, and wait until its mirror is promoted."""

    async def is_mirrored() -> bool:
        found = await topic_of(target, name, link_name)
        return found is not None and found.state == "mirroring" and found.lag_records is not None

    await until(is_mirrored, "the topic is not mirrored")
    async with Admin(url(target)) as admin:
        await admin.promote_link(link_name, [name])
    await until(lambda: promoted(target, name, link_name), "the mirror is not promoted")
