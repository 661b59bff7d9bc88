"""Altering topics and configuring brokers on the command line: output and exit codes."""

from __future__ import annotations

import asyncio
import json

import pytest

from warm_programs import warm_program


async def fairlead(api, *arguments: str) -> tuple[int | None, str]:
    """Run the program against the broker; return its exit code and its output."""
    running = await asyncio.create_subprocess_exec(
        warm_program(), *arguments, "--bootstrap", api.url,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(60):
        printed, _ = await running.communicate()
    return running.returncode, printed.decode()


async def test_a_topic_is_altered(api) -> None:
    """A topic gets more partitions and settings with one command, whose JSON output is the whole topic."""
    await api.admin.create_topic("flights")
    code, printed = await fairlead(
        api, "topic", "alter", "flights", "-p", "3", "-c", "retention.ms=5", "--output", "json"
    )
    topic = json.loads(printed)

    assert code == 0
    assert topic["partitions"] == 3
    assert topic["config"]["retention.ms"] == {"value": "5", "source": "topic"}


async def test_a_topic_is_created_with_the_clusters_defaults(api) -> None:
    """A topic that is created without `-p` gets the cluster's number of partitions."""
    await api.admin.alter_cluster_config({"num.partitions": 4})

    assert await fairlead(api, "topic", "create", "flights") == (
        0,
        "created topic flights with 4 partitions\n",
    )


async def test_a_broker_is_configured(api) -> None:
    """A broker is configured with `--broker`, and the output contains every key of a broker."""
    code, printed = await fairlead(
        api, "cluster", "config", "--broker", "0", "-c", "flush.ms=7", "--output", "json"
    )
    shown = await fairlead(api, "cluster", "config", "--broker", "0", "--output", "json")

    assert code == 0
    assert json.loads(printed)["flush.ms"] == {"value": "7", "source": "broker"}
    assert shown == (0, printed)


@pytest.mark.slow
async def test_exit_codes(api) -> None:
    """A failed command prints nothing to stdout, and exits with 2 (wrong usage), 3 (not found) or 4 (refused)."""
    await api.admin.create_topic("flights")
    codes = [
        await fairlead(api, *arguments)
        for arguments in (
            ("topic", "alter", "flights"),
            ("topic", "alter", "flights", "-c", "retention.ms"),
            ("topic", "alter", "ghost", "-c", "retention.ms=5"),
            ("cluster", "config", "--broker", "7"),
            ("topic", "alter", "flights", "-c", "retention.ms=soon"),
            ("cluster", "config", "-c", "no.such.key=1"),
        )
    ]

    assert codes == [(code, "") for code in (2, 2, 3, 3, 4, 4)]
