"""A link copies topics of another cluster byte for byte, and a promoted mirror accepts records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_kit import Calls
from cluster_kit import Cluster, content
from fairlead import Admin
from fairlead_api.batch.batches import encode
from fairlead_api.batch.columns import record_batch
from fairlead_broker.controlling.linking import link_keeper
from link_kit import handed_over, link, mirrored, promoted, topic_of, until, url
from refusals import refuses

if TYPE_CHECKING:
    import pytest


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


async def test_a_source_without_changes_is_not_read_again(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey reads the source's topics only after a change of the source, of the link or of its own cluster."""
    monkeypatch.setattr(link_keeper, "SURVEY_SECONDS", 0.05)
    taken = await target.topic("boats", replication_factor=1)
    boats = await source.topic("boats", replication_factor=1)
    await link(source, target)

    def unchanged() -> float:
        registry = source.any.telemetry.registry
        labels = {"route": "list_topics", "status": "304"}
        return registry.get_sample_value("fairlead_request_duration_seconds_count", labels) or 0.0

    async def unchanged_again() -> bool:
        return unchanged() > before

    for change in ("nothing", "source", "target"):
        if change == "source":
            await mirrored(target, await source.topic("flights", replication_factor=1), 0)
        elif change == "target":
            async with Admin(url(target)) as admin:
                await admin.delete_topic("boats", topic_id=taken)
            await mirrored(target, boats, 0)
        before = unchanged()
        await until(unchanged_again, f"the topics are read again and again after a change of {change}")

    found = await topic_of(target, "boats")

    assert found is not None
    assert found.state == "mirroring"


async def test_refused_records_name_the_link_or_the_other_cluster(source: Cluster, target: Cluster) -> None:
    """A mirror names its link and its source, and a source that was handed over names the other cluster's brokers."""
    batch = encode(record_batch([b"1"], default_timestamp_us=1)).to_bytes()
    await source.led("flights", await source.topic("flights", replication_factor=1))
    await link(source, target)
    async with Calls(url(source)) as there, Calls(url(target)) as here:

        async def answers(expected: int) -> bool:
            return (await here.send("flights", batch)).status == expected

        await until(lambda: answers(409), "the topic is not mirrored")
        accepted = await there.send("flights", batch)
        refused = await here.send("flights", batch)
        await handed_over(target, "flights")
        await until(lambda: answers(200), "the mirror accepts no records")
        moved = await there.send("flights", batch)

    assert accepted.status == 200
    assert (refused.code, refused.json["link"]) == ("topic_is_mirror", "east")
    assert refused.json["source"] == source.any.entry.cluster.cluster_id
    assert (moved.status, moved.code) == (409, "topic_moved")
    assert moved.json["bootstrap"] == [url(target, broker) for broker in (1, 2)]
