"""A failover hands topics over if the source answers, and otherwise promotes what was copied."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from typer.testing import CliRunner

from cluster_kit import SECONDS_MAX, Cluster
from fairlead import Admin, Consumer, Producer
from fairlead.cli.main import app
from fairlead.cli.verbs import link as link_commands
from fairlead_broker.controlling.linking import promotions
from link_kit import is_writable, link, mirrored, promoted, until, url
from refusals import refuses


class _Abort(Exception):
    """Reason to abort a transaction."""


@pytest.mark.parametrize("answers", [True, False])
async def test_a_failover_first_tries_a_hand_over(
    source: Cluster, target: Cluster, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that answers refuses records from then on; a source that does not answer is not waited for."""
    topic_id = await source.topic("flights", replication_factor=1)
    flights = await source.led("flights", topic_id)
    await flights.produce(b"copied")
    await link(source, target)
    await mirrored(target, topic_id, 1)
    # A source that answers has more time than a busy machine needs.
    seconds = SECONDS_MAX if answers else 0.5
    monkeypatch.setattr(link_commands, "HAND_OVER_SECONDS", seconds)
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", seconds)
    if not answers:
        await source.stop(1)
    command = ["link", "promote", "east", "--all", "--failover", "--yes", "--bootstrap", url(target)]
    done = await asyncio.to_thread(CliRunner().invoke, app, command)
    await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
    last = await (await target.led("flights", topic_id)).produce(b"after")

    assert done.exit_code == 0
    assert last.base_offset == 1
    if answers:
        with refuses("topic_moved"):
            await flights.produce(b"late")


async def test_a_failover_over_http_hands_over_and_ends_without_the_source(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that answers hands over. Without a source, a failover ends although a planned promotion waits for it."""
    first, second, third = [
        await source.topic(name, replication_factor=1) for name in ("boats", "flights", "trains")
    ]
    await link(source, target)
    for topic_id in (first, second, third):
        await mirrored(target, topic_id, 0)
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", SECONDS_MAX)
    async with Admin(url(target)) as admin:
        [begun] = await admin.promote_link("east", ["flights"], "failover")
        await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
        with refuses("topic_moved"):
            await (await source.led("flights", second)).produce(b"late")
        monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
        await source.stop(1)
        await admin.promote_link("east", ["boats"])
        await admin.promote_link("east", ["trains"], "failover")
        await until(lambda: promoted(target, "trains"), "the mirror is not promoted")
        left = {each.topic: each.state for each in await admin.link_topics("east")}
    last = await (await target.led("trains", third)).produce(b"after")

    assert begun.state == "handing_over"
    assert left.get("boats") == "handing_over"
    assert last.base_offset == 0


async def test_a_transaction_that_is_open_at_a_failover_is_aborted_in_the_mirror(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of committed records go on after the promotion, without the records whose commit was not copied."""
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    topic_id = await source.topic("flights", replication_factor=1)
    await source.led("flights", topic_id)
    await link(source, target)
    async with Producer(url(source), transactional="billing", linger_ms=0) as producer:
        with suppress(_Abort):
            async with producer.transaction() as transaction:
                await transaction.send("flights", b"open")
                await mirrored(target, topic_id, 1)
                async with Admin(url(target)) as admin:
                    await admin.promote_link("east", ["flights"], "failover")
                await until(lambda: promoted(target, "flights"), "the mirror is not promoted")
                await (await target.led("flights", topic_id)).produce(b"after")
                raise _Abort
    async with Consumer(url(target), isolation="read_committed") as consumer:
        await consumer.assign(topic="flights")
        batch = await consumer.next_batch(timeout="60s")
        read = [] if batch is None else [record.value for record in batch]

    assert read == [b"after"]


async def test_a_failover_survives_its_controller(
    source: Cluster, target: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is in the topic record, so the next controller promotes the mirror, which has the copied records."""
    topic_id = await source.topic("flights", replication_factor=1)
    await (await source.led("flights", topic_id)).produce(b"copied")
    await link(source, target)
    await mirrored(target, topic_id, 1)
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 3600.0)
    await source.stop(1)
    async with Admin(url(target)) as admin:
        await admin.promote_link("east", "all", "failover")
    controller = target.any.peer_side.controller
    assert controller is not None
    await target.stop(controller)
    waiting = target.any.metadata.topics["flights"].value.mirror
    monkeypatch.setattr(promotions, "FAILOVER_SECONDS", 0.5)
    await until(lambda: is_writable(target, "flights"), "the next controller does not promote the mirror")
    last = await (await target.led("flights", topic_id)).produce(b"after")

    assert waiting is not None
    assert waiting.failover
    assert last.base_offset == 1
