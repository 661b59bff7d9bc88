"""A link copies at most its number of bytes per second, and slows down for quotas of its source."""

from __future__ import annotations

import time
from random import Random

from cluster_kit import Cluster
from fairlead import Admin, Producer
from fairlead_api.bodies.links import AlterLinkRequest
from fairlead_api.identifiers import TopicId
from link_kit import link, mirrored, until, url

RATE = 300_000
VALUE_BYTES = 60_000
PARTITIONS = 40
RECORDS = 3
BEHIND_MAX = 4
QUOTA = 200_000
"""Bytes per second that the source lets a caller fetch."""


async def test_mirrors_near_the_end_are_copied_before_mirrors_that_are_behind(
    source: Cluster, target: Cluster
) -> None:
    """A slow link copies new records at once, and old records one partition after another, until its limit is removed.

    At the limit, the old records take 24 seconds.
    """
    old = await source.topic("old", partitions=PARTITIONS, replication_factor=1)
    new = await source.topic("new", replication_factor=1)
    random = Random(26)
    async with Producer(url(source)) as producer, Admin(url(target)) as admin:
        for _ in range(RECORDS):
            for partition in range(PARTITIONS):
                await producer.send("old", random.randbytes(VALUE_BYTES), partition=partition)
            await producer.flush()
        began = time.monotonic()
        await link(source, target, bytes_per_second=RATE)

        async def began_to_copy() -> bool:
            return _copied(target) > 0

        await until(began_to_copy, "no old record is copied")
        for number in range(2):
            await producer.send_and_wait("new", b"%d" % number)
            await mirrored(target, new, number + 1)

            assert max(_unfinished(target, old, broker) for broker in (1, 2)) <= BEHIND_MAX
        copied = _copied(target)
        seconds = time.monotonic() - began
        await admin.alter_link("east", AlterLinkRequest(bytes_per_second=None))
        for partition in range(PARTITIONS):
            await mirrored(target, old, RECORDS, partition=partition)

    assert copied < PARTITIONS * RECORDS * VALUE_BYTES
    # Each broker may begin with the bytes of a second and one more answer.
    assert copied <= RATE * (seconds + 2) + 4 * VALUE_BYTES


async def test_a_link_waits_while_it_is_over_a_quota_of_its_source(source: Cluster, target: Cluster) -> None:
    """A link that has used up its quota at the source copies nothing until the quota admits it, which is no failure."""
    async with Admin(url(source)) as admin:
        await admin.create_acl("anonymous", ["all"], "topic", "*")
        await admin.put_quota("anonymous", each={"fetch_bytes_per_second": QUOTA})
    await source.stop(1)
    await source.start(1, security="enforce", superusers="user:root")
    topic_id = await source.topic("flights", replication_factor=1)
    async with Producer(url(source)) as producer:
        await producer.send_and_wait("flights", Random(26).randbytes(2 * QUOTA))
        began = time.monotonic()
        await link(source, target)
        await mirrored(target, topic_id, 1)
        await producer.send_and_wait("flights", b"later")
        await mirrored(target, topic_id, 2)
        seconds = time.monotonic() - began

    # The first answer leaves a debt of a second.
    assert seconds > 0.8
    assert target.metric("fairlead_link_fetch_failures_total", link="east") == 0


def _unfinished(target: Cluster, topic_id: TopicId, broker: int) -> int:
    """Return the number of partitions of a leader whose copying has begun and has not reached the end."""
    return sum(
        0 < each.log_end_offset < RECORDS for each in target.broker(broker).replicas.of_topic(topic_id)
    )


def _copied(target: Cluster) -> float:
    """Return the number of bytes of old records that were copied."""
    return target.metric("fairlead_link_fetched_bytes_total", link="east", topic="old")
