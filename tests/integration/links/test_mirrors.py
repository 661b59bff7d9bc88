"""A link copies topics of another cluster byte for byte, and a promoted mirror accepts records."""

from __future__ import annotations

from cluster_kit import Cluster, content
from fairlead import Admin
from link_kit import link, mirrored, promoted, until, url
from refusals import refuses


async def test_a_mirror_has_the_bytes_of_its_source_and_accepts_records_once_promoted(
    source: Cluster, target: Cluster
) -> None:
    """Topic id, offsets, epochs and producers equal those of the source, before and after a hand-over."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    for number in range(20):
        await flights.produce(b"before %d" % number)
    await link(source, target)
    for number in range(20):
        await flights.produce(b"after %d" % number)
    await mirrored(target, topic_id, 40)
    copies = [content(target.log(broker, topic_id)) for broker in (1, 2)]
    mirror = await target.led("flights", topic_id)
    with refuses("topic_is_mirror"):
        await mirror.produce(b"refused")
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", ["flights"])
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
        described = await admin.describe_topic("flights")
    mirror = await target.led("flights", topic_id)
    stored = await mirror.produce(b"accepted")
    with refuses("topic_moved"):
        await flights.produce(b"refused")

    assert copies == [content(source.log(1, topic_id))] * 2
    assert described.topic_id == topic_id
    assert [era.epoch for era in described.eras] == [1 << 20]
    assert stored.base_offset == 40
