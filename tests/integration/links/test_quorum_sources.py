"""Mirrors of topics with a write quorum, whose leaders begin each epoch with a batch."""

from __future__ import annotations

from cluster_kit import Cluster, content
from fairlead import Admin
from fairlead_api.bodies.links import AlterLinkRequest, LinkSource
from link_kit import link, mirrored, paused, promoted, until, url


async def test_a_hand_over_survives_a_new_leader_of_its_source(source: Cluster, target: Cluster) -> None:
    """A mirror has the same bytes, and is promoted although the end of its source moved after the source told it."""
    topic_id = await source.topic("flights", replication_factor=1, replication_mode="quorum")
    flights = await source.led("flights", topic_id)
    await flights.produce(b"before")
    await link(source, target)
    await mirrored(target, topic_id, 2)
    async with Admin(url(target)) as admin:
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        last = await flights.produce(b"last")
        await admin.promote_link("east", "all")

        async def has_answered() -> bool:
            labels = {"route": "hand_over_topic", "status": "200"}
            return source.metric("fairlead_request_duration_seconds_count", **labels) > 0

        await until(has_answered, "the source does not tell its ends")
        await source.stop(1)
        await source.start(1)
        await source.led("flights", topic_id)
        await admin.alter_link("east", AlterLinkRequest(source=LinkSource(bootstrap=[url(source)])))
        await admin.resume_link("east")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
        described = await admin.describe_topic("flights")
    copies = [content(target.log(broker, topic_id)) for broker in (1, 2)]
    stored = await (await target.led("flights", topic_id)).produce(b"accepted")

    assert described.config["replication.mode"].value == "isr"
    assert copies == [content(source.log(1, topic_id))] * 2
    assert stored.base_offset == last.base_offset + 2
