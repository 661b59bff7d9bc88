"""Two clusters that mirror each other: every record is in each cluster once, and both clusters have the same bytes."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from cluster_kit import Cluster
from fairlead import Admin, Producer
from fairlead_api.bodies.operations import PartitionDigest
from fairlead_broker.controlling.linking import promotions
from fairlead_broker.links.selection import BlockReason
from link_kit import link, mirrored, paused, promoted, until, url, values

if TYPE_CHECKING:
    import pytest

Shown = dict[str, tuple[str, str | None]]

EAST: Shown = {
    "flights": ("mirroring", None),
    "shared": ("blocked", BlockReason.NAME_TAKEN),
    "west-shared": ("blocked", BlockReason.CYCLE),
    "west-trips": ("blocked", BlockReason.CYCLE),
}
"""Topics of the link without a prefix, each with its state and reason."""
WEST: Shown = {
    "west-flights": ("blocked", BlockReason.CYCLE),
    "west-shared": ("mirroring", None),
    "west-trips": ("mirroring", None),
}
"""Topics of the link in the other direction, which has the prefix `west-`."""


async def test_links_in_both_directions_copy_each_record_once(source: Cluster, target: Cluster) -> None:
    """With `*` in both directions, each cluster mirrors the other's own topics, and no mirror returns to its origin.

    One link has a prefix, so only the other link cannot mirror a topic whose name both clusters use.
    """
    flights = await source.topic("flights", partitions=2, replication_factor=1)
    trips = await target.topic("trips", replication_factor=2)
    shared = [
        await source.topic("shared", replication_factor=1),
        await target.topic("shared", replication_factor=2),
    ]
    sent = {name: [b"%s %d" % (name.encode(), number) for number in range(40)] for name in ("east", "west")}

    async def load(cluster: Cluster, name: str, own: str) -> None:
        async with Producer(url(cluster), linger_ms=0) as producer:
            for value in sent[name]:
                await producer.send_and_wait(own, value, partition=0)
                await producer.send_and_wait("shared", value)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load(source, "east", "flights"))
        tasks.create_task(load(target, "west", "trips"))
        tasks.create_task(link(source, target, "east"))
        tasks.create_task(link(target, source, "west", prefix="west-"))
    async with Admin(url(source)) as there, Admin(url(target)) as here:
        await until(
            lambda: _shows(here, "east", EAST), "`east` does not mirror exactly the source's own topics"
        )
        await until(
            lambda: _shows(there, "west", WEST), "`west` does not mirror exactly the target's own topics"
        )
        names = [{each.name: each.topic_id for each in await admin.list_topics()} for admin in (there, here)]
    await mirrored(target, flights, 40)
    await mirrored(target, flights, 0, partition=1)
    await mirrored(source, trips, 40)
    await mirrored(source, shared[1], 40)

    assert names == [
        {"flights": flights, "shared": shared[0], "west-trips": trips, "west-shared": shared[1]},
        {"flights": flights, "shared": shared[1], "trips": trips},
    ]
    for broker in (1, 2):
        assert values(target, flights, broker) == sent["east"]
        assert values(target, trips, broker) == sent["west"]
        assert values(target, shared[1], broker) == sent["west"]
    assert values(source, flights) == values(source, shared[0]) == sent["east"]
    assert values(source, trips) == values(source, shared[1]) == sent["west"]


async def test_a_mirror_and_its_source_have_equal_digests_where_their_histories_are_equal(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each range below the mirror's end has one digest in both clusters; a range with other records has two.

    The mirror has smaller segments, and its source goes on while the link is paused.
    """
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    topic_id = await source.topic("flights", replication_factor=1)
    async with Producer(url(source), transactional="billing", linger_ms=0) as producer:
        for number in range(6):
            async with producer.transaction() as transaction:
                await transaction.send("flights", Random(number).randbytes(300_000))
    # Each transaction has a record and a marker, which may be written after the answer to the commit.
    end = 12
    await mirrored(source, topic_id, end)
    await link(source, target, config={"segment.bytes": 1 << 20})
    await mirrored(target, topic_id, end)
    async with Admin(url(source)) as there, Admin(url(target)) as here:
        await here.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        await (await source.led("flights", topic_id)).produce(b"only there")

        async def digests(first: int, last: int) -> list[PartitionDigest]:
            return [await admin.compare_replicas("flights", 0, first, last) for admin in (there, here)]

        for first, last in ((0, end), (0, 1), (3, 7), (end - 1, end)):
            compared = await digests(first, last)

            assert all(each.identical for each in compared)
            assert [(each.first_offset, each.end_offset) for each in compared] == [(first, last)] * 2
            assert [len(each.replicas) for each in compared] == [1, 2]
            assert len(_reported(compared)) == 1
        await here.promote_link("east", "all", "failover")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
        ended = target.log(1, topic_id).end_offset
        await (await target.led("flights", topic_id)).produce(b"only here")
        common, parted = await digests(0, end), await digests(0, end + 1)

    assert ended >= end
    assert len(list((target.path / "1" / topic_id / "0").glob("*.log"))) > 1
    assert len(_reported(common)) == 1
    assert all(each.identical for each in parted)
    assert len(_reported(parted)) == 2


async def _shows(admin: Admin, name: str, topics: Shown) -> bool:
    """Return whether a link has exactly these topics, each with its state and reason; then survey its source again."""
    found = {each.topic: (each.state, each.reason) for each in await admin.link_topics(name)}
    await admin.acknowledge_link(name)
    return found == topics


def _reported(compared: list[PartitionDigest]) -> set[str | None]:
    """Return the digests that the replicas of both clusters report."""
    return {replica.digest for each in compared for replica in each.replicas}
