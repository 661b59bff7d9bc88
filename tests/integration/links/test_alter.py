"""A link is changed while it runs: patterns, overrides, limits, and addresses of its source."""

from __future__ import annotations

import pytest

from cluster_kit import Cluster
from fairlead import Admin
from fairlead.errors import (
    InvalidConfigError,
    InvalidLinkError,
    LinkSourceChangedError,
    LinkSourceUnreachableError,
)
from fairlead_api.bodies.links import AlterLinkPolicies, AlterLinkRequest, AlterNamePatterns, LinkSource
from link_kit import link, mirrored, topic_of, until, url


async def test_a_changed_link_mirrors_other_topics_and_keeps_its_mirrors(
    source: Cluster, target: Cluster
) -> None:
    """Added patterns add mirrors, overrides reach every mirror, and members that are left out stay as they are."""
    flights = await source.topic("flights", replication_factor=1)
    trips = await source.topic("trips", replication_factor=1)
    await link(
        source, target, "east", "flights", bytes_per_second=1_000_000, config={"retention.ms": 5_000_000}
    )
    await mirrored(target, flights, 0)
    async with Admin(url(target)) as admin:
        created = await admin.describe_link("east")
        unchanged = await admin.alter_link("east", AlterLinkRequest())
        changed = await admin.alter_link(
            "east",
            AlterLinkRequest(
                topics=AlterNamePatterns(include=["tri*"]),
                config={"retention.ms": None, "retention.bytes": 7_000_000},
                policies=AlterLinkPolicies(expired="stop"),
                acls=True,
                bytes_per_second=None,
            ),
        )
        await mirrored(target, trips, 0)

        async def follows() -> bool:
            config = (await admin.describe_topic("flights")).config
            return (config["retention.bytes"].value, config["retention.ms"].source) == ("7000000", "default")

        await until(follows, "the mirror does not have the changed overrides")
        kept = await topic_of(target, "flights")
        with pytest.raises(InvalidLinkError):
            await admin.alter_link("east", AlterLinkRequest(topics=AlterNamePatterns(include=[])))
        with pytest.raises(InvalidConfigError):
            await admin.alter_link("east", AlterLinkRequest(config={"retention": 1}))

    assert unchanged == created
    assert (changed.topics.include, changed.topics.exclude, changed.groups.include) == (["tri*"], [], [])
    assert changed.acls
    assert (changed.policies.truncated, changed.policies.expired) == ("follow", "stop")
    assert (created.bytes_per_second, changed.bytes_per_second) == (1_000_000, None)
    assert kept is not None
    assert kept.state == "mirroring"


async def test_the_addresses_of_a_source_change_and_its_cluster_does_not(
    source: Cluster, target: Cluster
) -> None:
    """New addresses are used only if the cluster of the link answers there."""
    flights = await source.topic("flights", replication_factor=1)
    await link(source, target)
    await mirrored(target, flights, 0)
    await source.start(2)
    moved = [url(source, 2)]
    async with Admin(url(target), retry_timeout="100ms") as admin:
        with pytest.raises(LinkSourceChangedError):
            await admin.alter_link("east", AlterLinkRequest(source=LinkSource(bootstrap=[url(target)])))
        with pytest.raises(LinkSourceUnreachableError):
            await admin.alter_link(
                "east", AlterLinkRequest(source=LinkSource(bootstrap=["http://127.0.0.1:1"]))
            )
        changed = await admin.alter_link("east", AlterLinkRequest(source=LinkSource(bootstrap=moved)))
        producer = await source.led("flights", flights)
        await producer.produce(b"after the change")
        await mirrored(target, flights, 1)

    assert changed.source.bootstrap == moved
