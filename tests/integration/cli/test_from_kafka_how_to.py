"""The page for users of Kafka: its commands run, and the settings and metrics that it names exist."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest

from fairlead import Consumer, Producer, testing
from fairlead_api.metrics import METRICS
from page_kit import PageShell, blocks, sections, words

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS = sections("how-to/from-kafka.md")
CODE = re.compile(r"`([^`]+)`")
TYPED = r"printf 'anna:1 book\nben:2 pens\n' | "
"""Lines typed into the producer."""


def cells(text: str, column: int) -> list[str]:
    """Return the code in a column of a section's tables, from top to bottom."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [code for row in rows if len(row) > column for code in CODE.findall(row[column])]


@pytest.mark.slow
async def test_every_command_of_the_table(tmp_path: Path) -> None:
    """Every command of the page's table runs in order: create, describe, write, read, measure and delete."""
    commands = cells(SECTIONS["Commands"], 1)
    async with testing.cluster() as bootstrap:
        shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": bootstrap})
        printed = {
            command: await shell.run(TYPED + command if "produce orders --key" in command else command)
            for command in commands
        }

    assert len(printed) == len(commands) > 25
    read = printed["fairlead consume orders --from-beginning -n 2"].splitlines()
    assert sorted(read) == ["1 book", "2 pens"]
    assert ["billing", "0"] in words(printed["fairlead group list"])
    assert ["retention.ms", "3600000", "topic"] in words(
        printed["fairlead topic alter orders -c retention.ms=3600000"]
    )
    assert "deleted topic orders" in printed[commands[-1]]


@pytest.mark.slow
async def test_a_group_begins_after_the_copied_records(tmp_path: Path) -> None:
    """A group reads only records that were written after the steps of the migration."""
    create, reset = (block.text for block in blocks(SECTIONS["Move a topic over"], "sh"))
    async with testing.cluster() as bootstrap:
        shell = PageShell(tmp_path, {"FAIRLEAD_BOOTSTRAP": bootstrap})
        await shell.run(create)
        await shell.run("seq 100 | fairlead produce orders")
        await shell.run(reset)
        await shell.run("echo new | fairlead produce orders")
        read = await shell.run("fairlead consume orders -g billing -e")

    assert read == "new\n"


def test_the_settings_and_metrics_that_are_named_exist() -> None:
    """Each setting of the page is a parameter of the named client, and each metric is one that a broker exposes."""
    producer, consumer = SECTIONS["Settings of clients"].split("| Kafka's consumer |")
    wrong = [name for name in cells(producer, 1)[1:] if name not in inspect.signature(Producer).parameters]
    wrong += [name for name in cells(consumer, 1) if name not in inspect.signature(Consumer).parameters]
    told = {metric.name for metric in METRICS}
    named = cells(SECTIONS["Metrics to watch"], 1)

    assert wrong == []
    assert len(named) > 10
    assert [name for name in named if name not in told] == []
