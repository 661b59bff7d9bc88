"""A source that accepts connections and does not answer delays neither other links nor failovers of its own link."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cluster_kit import Cluster
from fairlead import Admin
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns
from fairlead_broker.controlling.linking import promotions
from fairlead_broker.runtime.linking import link_fetcher
from fairlead_broker.sources import source_cluster
from link_kit import link, mirrored, promoted, topic_of, until, url
from refusals import refuses
from tcp_relay import tcp_relay

if TYPE_CHECKING:
    import pytest

NEVER_SECONDS = 3600.0


async def test_a_silent_source_delays_neither_other_links_nor_failovers(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a survey and a hand-over wait for the source of one link, another link hands over, and a failover ends."""
    boats, flights, trains = [
        await source.topic(name, replication_factor=1) for name in ("boats", "flights", "trains")
    ]
    monkeypatch.setattr(source_cluster, "CALL_SECONDS_MAX", NEVER_SECONDS)
    monkeypatch.setattr(promotions, "HAND_OVER_SECONDS_MAX", 3.0)
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    async with tcp_relay(_port(source)) as relay, Admin(url(target)) as admin:
        await link(source, target, "east", "flights")
        slow = LinkSource(bootstrap=[relay.url])
        topics = NamePatterns(include=["boats", "trains"])
        await admin.create_link(CreateLinkRequest(name="slow", source=slow, topics=topics))
        for topic_id in (boats, flights, trains):
            await mirrored(target, topic_id, 0)
        relay.hold_all()
        await admin.promote_link("slow", ["boats"])
        await admin.pause_link("slow")
        await admin.resume_link("slow")
        await relay.held.wait()
        await admin.promote_link("east", ["flights"])
        await until(lambda: promoted(target, "flights"), "the other link waits for the silent source")
        await admin.promote_link("slow", ["trains"], "failover")
        await until(lambda: promoted(target, "trains", "slow"), "the failover waits for the silent source")
        waits = await topic_of(target, "boats", "slow")
        relay.mend()
        await until(lambda: promoted(target, "boats", "slow"), "the hand-over does not continue")
        last = await (await target.led("boats", boats)).produce(b"after")

    assert waits is not None
    assert waits.state == "handing_over"
    assert last.base_offset == 0
    with refuses("topic_moved"):
        await (await source.led("boats", boats)).produce(b"late")


async def test_records_are_copied_while_the_bootstrap_address_is_silent(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leaders that the link knows are fetched from, while a call for the source's metadata waits for an answer."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    monkeypatch.setattr(source_cluster, "CALL_SECONDS_MAX", NEVER_SECONDS)
    monkeypatch.setattr(link_fetcher, "METADATA_SECONDS", 0.05)
    async with tcp_relay(_port(source)) as relay, Admin(url(target)) as admin:
        request = CreateLinkRequest(
            name="east", source=LinkSource(bootstrap=[relay.url]), topics=NamePatterns(include=["flights"])
        )
        await admin.create_link(request)
        await flights.produce(b"before")
        await mirrored(target, topic_id, 1)
        relay.hold_all()
        await relay.held.wait()
        await flights.produce(b"after")
        await mirrored(target, topic_id, 2)


async def test_a_call_leaves_a_silent_broker_for_another_broker_of_the_source(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one broker of the source does not answer, a failover still hands the topic over through another broker."""
    topic_id = await source.topic("flights", replication_factor=1)
    monkeypatch.setattr(source_cluster, "OTHER_SECONDS", 0.2)
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", NEVER_SECONDS)
    async with (
        tcp_relay(_port(source)) as first,
        tcp_relay(_port(source)) as second,
        Admin(url(target)) as admin,
    ):
        both = LinkSource(bootstrap=[first.url, second.url])
        request = CreateLinkRequest(name="east", source=both, topics=NamePatterns(include=["flights"]))
        await admin.create_link(request)
        await mirrored(target, topic_id, 0)
        first.hold_all()
        await admin.promote_link("east", ["flights"], "failover")
        await until(lambda: promoted(target, "flights"), "the hand-over waits for the silent broker")

    with refuses("topic_moved"):
        await (await source.led("flights", topic_id)).produce(b"late")


def _port(cluster: Cluster) -> int:
    port = urlsplit(url(cluster)).port
    assert port is not None, "a broker has a port"
    return port
