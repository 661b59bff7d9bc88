"""A failover and the return: the old source follows its promoted copy, and keeps the records that only it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

from cluster_kit import Cluster, content
from fairlead import Admin
from fairlead.cli.main import app
from fairlead.cli.session import ExitCode
from fairlead.errors import HistoriesDivergedError
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, MirrorGap, NamePatterns
from fairlead_broker.controlling.linking import promotions
from link_kit import link, mirrored, paused, promoted, topic_of, until, url
from refusals import raises

if TYPE_CHECKING:
    import pytest


async def test_the_old_source_follows_its_promoted_copy_and_keeps_its_tail(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover, the old source is truncated where the histories diverge; its own records are kept in a file."""
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    await flights.produce(b"copied")
    await link(source, target)
    await mirrored(target, topic_id, 1)
    async with Admin(url(target)) as admin:
        await admin.pause_link("east")
        await until(lambda: paused(target), "not every broker knows that the link is paused")
        await flights.produce(b"never copied", b"not either")
        await admin.promote_link("east", "all", "failover")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
        with raises(HistoriesDivergedError) as diverged:
            await admin.adopt_link("east", ["flights"])
    mirror = await target.led("flights", topic_id)
    await mirror.produce(b"after the failover")
    request = CreateLinkRequest(
        name="back",
        source=LinkSource(bootstrap=[url(target)]),
        topics=NamePatterns(include=["flights"]),
    )
    async with Admin(url(source)) as admin:
        await admin.create_link(request)
        [adopted] = await admin.adopt_link("back", ["flights"])
    await mirrored(source, topic_id, 2)
    [tail] = (source.path / "1" / ".fairlead" / "tails").rglob("*.batches")
    told = await topic_of(source, "flights", "back")
    printed = CliRunner().invoke(app, ["consume", "flights", "--file", str(tail), "-f", "%t-%p %o %v\n"])
    renamed = tail.with_name("copy")
    renamed.write_bytes(tail.read_bytes())
    refused = CliRunner().invoke(app, ["consume", "flights", "--file", str(renamed)])
    async with Admin(url(source)) as admin:
        listed = await admin.link_tails("back")
        await admin.promote_link("back", ["flights"])
        await until(lambda: promoted(source, "flights", "back"), "the topic does not return")
        described = await admin.describe_topic("flights")
    flights = await source.led("flights", topic_id)
    last = await flights.produce(b"back again")

    assert diverged.value.data["era"] == described.eras[0].epoch
    assert diverged.value.data["both"] == [described.eras[0].cluster_id]
    assert adopted.state == "mirroring"
    assert told is not None
    assert told.partitions[0].gap == MirrorGap(first_offset=1, end_offset=3, skipped=0, truncated=2)
    assert content(source.log(1, topic_id)).startswith(content(target.log(1, topic_id)))
    assert (tail.parent.name, tail.name) == (topic_id, "0-1.batches")
    assert [(each.topic, each.broker, each.path) for each in listed] == [("flights", 1, str(tail))]
    assert (listed[0].partition, listed[0].first_offset) == (0, 1)
    assert listed[0].size_bytes == tail.stat().st_size
    assert refused.exit_code == ExitCode.USAGE
    assert printed.stdout == "flights-0 1 never copied\nflights-0 2 not either\n"
    assert [era.epoch >> 20 for era in described.eras] == [1, 2]
    assert last.base_offset == 2
