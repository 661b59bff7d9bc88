"""A failover from the command line hands topics over if the source answers, and otherwise promotes what was copied."""

from __future__ import annotations

import asyncio

import pytest
from typer.testing import CliRunner

from cluster_kit import Cluster
from fairlead.cli.main import app
from fairlead.cli.verbs import link as link_commands
from link_kit import link, mirrored, promoted, until, url
from refusals import refuses


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
    if not answers:
        monkeypatch.setattr(link_commands, "HAND_OVER_SECONDS", 0.5)
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
