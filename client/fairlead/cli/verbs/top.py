"""`fairlead top`: the rates of topics and the lag of groups, updated at an interval."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fairlead import Admin, OffsetAndTimestamp, TopicPartition, clock
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_rows
from fairlead.cli.session import RETRY_TIMEOUT, run
from fairlead.errors import (
    ClusterError,
    FairleadError,
    PartitionNotFoundError,
    TopicNotFoundError,
    TopicRecreatedError,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

TOPIC_COLUMNS = ("TOPIC", "PARTITIONS", "RECORDS/S", "RECORDS")
GROUP_COLUMNS = ("GROUP", "COORDINATOR", "LAG", "LAG SECONDS")


@dataclass(frozen=True, slots=True)
class _Look:
    """State of the cluster at one moment."""

    at: float
    partitions: Mapping[str, int]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    groups: Sequence[tuple[str, int | None, int, float]]


def top(
    interval: Annotated[
        float, typer.Option("-i", "--interval", min=0.2, help="Seconds between two updates.")
    ] = 2.0,
    count: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--count",
            min=1,
            help="Stop after this many tables; 1 if standard output is not a terminal.",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Watch the rates of topics and the lag of groups; Ctrl-C stops.

    Example: fairlead top -i 5
    """
    live = sys.stdout.isatty() and output is OutputFormat.TABLE
    tables = count if count is not None or live else 1

    async def work() -> None:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            if live:
                await _watch(admin, interval, tables)
            else:
                await _print(admin, interval, tables, output)

    run(work(), is_endless=True)


async def _print(admin: Admin, interval: float, tables: int | None, output: OutputFormat) -> None:
    before = await _look(admin)
    for _ in range(tables or 1):
        await asyncio.sleep(interval)  # noqa: TID251 - a rate is measured over an interval
        now = await _look(admin)
        topics, groups = _topic_rows(before, now), now.groups
        if output is OutputFormat.TABLE:
            print_rows(TOPIC_COLUMNS, topics)
            print_rows(GROUP_COLUMNS, groups)
        else:
            names = [column.lower().replace("/", "_per_").replace(" ", "_") for column in TOPIC_COLUMNS]
            group_names = [column.lower().replace(" ", "_") for column in GROUP_COLUMNS]
            print_document(
                {
                    "topics": [dict(zip(names, row, strict=True)) for row in topics],
                    "groups": [dict(zip(group_names, row, strict=True)) for row in groups],
                },
                output,
            )
        before = now


async def _watch(admin: Admin, interval: float, tables: int | None) -> None:
    from rich.live import Live

    before = await _look(admin)
    picture = _picture(_topic_rows(before, before), before.groups)
    with Live(picture, screen=tables is None, auto_refresh=False) as live:
        shown = 0
        while tables is None or shown < tables:
            await asyncio.sleep(interval)  # noqa: TID251 - a rate is measured over an interval
            try:
                now = await _look(admin)
            except FairleadError as error:
                # Brokers may stop and return while the command runs: the last rates are shown until the brokers return.
                live.update(_with_trouble(picture, error), refresh=True)
            else:
                picture = _picture(_topic_rows(before, now), now.groups)
                live.update(picture, refresh=True)
                before = now
            shown += 1


def _with_trouble(picture: RenderableType, error: FairleadError) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    return Group(picture, "", Text(f"error: {error}"))


def _picture(topics: Sequence[Sequence[object]], groups: Sequence[Sequence[object]]) -> RenderableType:
    from rich.console import Group

    return Group(_table(TOPIC_COLUMNS, topics), "", _table(GROUP_COLUMNS, groups))


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(
            *("-" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        )
    return table


async def _look(admin: Admin) -> _Look:
    """Return the end offsets of all logs, with one call per broker, and the lag of each group."""
    topics = (await admin.metadata()).topics
    starts, ends = await _ends(
        admin,
        [
            TopicPartition(topic.name, each.partition)
            for topic in topics
            for each in topic.partitions
            if each.leader is not None
        ],
    )
    groups = []
    for group in await admin.list_groups():
        # A group that was deleted after the list was read, or whose coordinator is changing, is omitted from one table.
        with suppress(ClusterError):
            lag = await admin.group_lag(group.group)
            groups.append((group.group, group.coordinator, lag.total_records, round(lag.max_seconds, 1)))
    return _Look(
        clock.monotonic(), {topic.name: len(topic.partitions) for topic in topics}, starts, ends, groups
    )


async def _ends(
    admin: Admin, places: Sequence[TopicPartition]
) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
    """Return the start and end offsets of logs, except those of topics deleted since the list was read."""
    while True:
        try:
            starts = await admin.offsets_for(dict.fromkeys(places, "earliest"))
            ends = await admin.offsets_for(dict.fromkeys(places, "latest"))
        except (TopicNotFoundError, TopicRecreatedError, PartitionNotFoundError) as gone:
            left = [place for place in places if place.topic != gone.data.get("topic")]
            if len(left) == len(places):
                raise
            places = left
        else:
            return _known(starts), _known(ends)


def _known(found: Mapping[TopicPartition, OffsetAndTimestamp | None]) -> Mapping[TopicPartition, int]:
    return {place: each.offset for place, each in found.items() if each is not None}


def _topic_rows(before: _Look, now: _Look) -> list[tuple[str, int, int, int]]:
    seconds = now.at - before.at
    grown, kept = dict.fromkeys(now.partitions, 0), dict.fromkeys(now.partitions, 0)
    for place, end in now.ends.items():
        grown[place.topic] += end - before.ends.get(place, end)
        kept[place.topic] += end - now.starts.get(place, end)
    rates = {name: round(records / seconds) if seconds else 0 for name, records in grown.items()}
    rows = [(name, count, rates[name], kept[name]) for name, count in now.partitions.items()]
    # The busiest topics come first.
    return sorted(rows, key=lambda row: (-row[2], row[0]))
