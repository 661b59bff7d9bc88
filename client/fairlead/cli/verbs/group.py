"""`fairlead group`: list, describe, measure, reset and delete consumer groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, TypeAlias

import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, IsolationOption, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, ExitCode, fail_usage, is_terminal, run
from fairlead_api.bodies.group_answers import (
    AssignedPartitions,
    GroupDescription,
    GroupSummary,
    LagAnswer,
    PartitionLag,
    ResetAnswer,
    ResetOffset,
)
from fairlead_api.bodies.group_requests import ResetPartition, ResetTarget
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us

app = typer.Typer(no_args_is_help=True, help="List, describe, measure, reset and delete consumer groups.")
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]


@app.callback()
def group() -> None:
    """List, describe, measure, reset and delete consumer groups."""


@app.command("list")
def list_groups(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the groups of the cluster, each with the broker that coordinates it.

    Example: fairlead group list --output json
    """

    async def work() -> list[GroupSummary]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.list_groups()

    groups = run(work())
    if output is OutputFormat.TABLE:
        print_rows(["GROUP", "COORDINATOR"], [(each.group, each.coordinator) for each in groups])
    else:
        print_document(groups, output)


@app.command("describe")
def describe(
    name: GroupName, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Show a group: its state, its members, and the partitions that each of them owns.

    Example: fairlead group describe billing
    """

    async def work() -> GroupDescription:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.describe_group(name)

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    print_pairs(
        {
            "group": found.group,
            "state": found.state,
            "epoch": found.epoch,
            "assignor": found.assignor,
            "coordinator": found.coordinator,
            "members": len(found.members),
        }
    )
    typer.echo()
    columns = ["MEMBER", "INSTANCE", "EPOCH", "READS", "OWNS"]
    rows: list[list[object]] = [
        [
            member.member_id,
            member.instance_id,
            member.member_epoch,
            member.topic_pattern or ",".join(member.topics),
            _cell(member.assignment),
        ]
        for member in found.members
    ]
    if any(member.revoking for member in found.members):
        columns.append("GIVES UP")
        for cells, member in zip(rows, found.members, strict=True):
            cells.append(_cell(member.revoking))
    print_rows(columns, rows)


@app.command("lag")
def lag(
    name: GroupName,
    isolation: IsolationOption = "read_uncommitted",
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the lag of a group in records and seconds, by partition.

    The lag in seconds is the age of the first unread record of a partition. With --isolation read_committed, the lag
    ends before the first record of an open transaction.

    Example: fairlead group lag billing
    """

    async def work() -> LagAnswer:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.group_lag(name, isolation=isolation)

    found = run(work())
    if output is OutputFormat.TABLE:
        print_pairs(
            {
                "group": found.group,
                "total records": found.total_records,
                "longest seconds": f"{found.max_seconds:.1f}",
            }
        )
        typer.echo()
        columns = ["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "SECONDS", "MEMBER"]
        print_rows(columns, [_lag_cells(row) for row in found.lag])
    else:
        print_document(found, output)
    _print_problems(found.lag, ExitCode.FAILED)


def _lag_cells(row: PartitionLag) -> tuple[object, ...]:
    seconds = None if row.lag_seconds is None else f"{row.lag_seconds:.1f}"
    return (
        row.topic,
        row.partition,
        row.committed_offset,
        row.high_watermark,
        row.lag_records,
        seconds,
        row.member_id,
    )


@app.command("reset")
def reset(
    name: GroupName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="POSITION",
            help="earliest, latest, @TIME, a duration ago such as 10m, a shift such as +100 or -100, or an offset.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC[:P,P]",
            help="Only this topic, or only these partitions of the topic; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the result without changing anything.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move the committed offsets of a group that has no members; a group with members is refused with exit code 4.

    Without --topic, every partition with a committed offset is reset; with --topic, a missing group is created. A time
    or a duration selects the first record at or after that time. A shift beyond the log selects the start or end of the
    log.

    Example: fairlead group reset billing --to @2013-01-01T00:00:00Z --topic orders:0,1 --dry-run
    """
    try:
        target, topics = reset_target(to), reset_topics(topic or [])
    except ResetTargetError as error:
        fail_usage(str(error))

    async def work() -> ResetAnswer:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.reset_group_offsets(name, target, topics, dry_run=dry_run)

    answer = run(work())
    if output is OutputFormat.TABLE:
        rows = [(row.topic, row.partition, row.before, row.after) for row in answer.offsets]
        print_rows(["TOPIC", "PARTITION", "BEFORE", "AFTER"], rows)
        if dry_run:
            typer.echo("nothing was changed: --dry-run", err=True)
    else:
        print_document(answer, output)
    _print_problems(answer.offsets, ExitCode.REFUSED)


@app.command("delete")
def delete(
    name: GroupName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a group that has no members, with its committed offsets.

    On a terminal, asks for confirmation unless --yes is given.

    Example: fairlead group delete billing --yes
    """
    question = f"Delete group {name} and its committed offsets?"
    if not yes and is_terminal() and not typer.confirm(question, err=True):
        typer.echo("nothing deleted", err=True)
        raise typer.Exit(ExitCode.FAILED)

    async def work() -> None:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            await admin.delete_group(name)

    run(work())
    print_done(f"deleted group {name}", {"group": name}, output)


def _cell(assignment: Sequence[AssignedPartitions]) -> str:
    """Return partitions as the text of one table cell, in the format that `--topic` accepts."""
    return " ".join(f"{each.topic}:{','.join(map(str, each.partitions))}" for each in assignment) or "-"


def _print_problems(rows: Sequence[PartitionLag | ResetOffset], code: ExitCode) -> None:
    """Print the problem of each failed partition, and exit with `code` if any partition failed."""
    failed = [row for row in rows if row.problem]
    for row in failed:
        assert row.problem, "the row has a problem"
        detail = row.problem.get("detail") or row.problem.get("code")
        typer.echo(f"error: {row.topic}-{row.partition}: {detail}", err=True)
    if failed:
        raise typer.Exit(code)


Target: TypeAlias = Literal["earliest", "latest"] | ResetTarget

ALLOWED: Final = (
    "earliest, latest, @TIME (RFC 3339 or milliseconds), a duration ago (30s, 10m, 2h, 7d), a shift (+100, -100) "
    "or an offset"
)
_DURATION: Final = re.compile(r"[0-9]{1,12}(ms|s|m|h|d)")
_SHIFT: Final = re.compile(r"[+-][0-9]{1,18}")
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_PARTITION: Final = re.compile(r"[0-9]{1,9}")


class ResetTargetError(ValueError):
    """A position or a topic is invalid; the message names the value and the allowed values."""


def reset_target(text: str) -> Target:
    """Return the position that `text` describes.

    Raises: ResetTargetError: `text` is not a position.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.startswith("@"):
        return ResetTarget(timestamp=_timestamp(text[1:], text))
    if _DURATION.fullmatch(text):
        return ResetTarget(duration=text)
    if _SHIFT.fullmatch(text):
        return ResetTarget(shift=int(text))
    if _OFFSET.fullmatch(text):
        return ResetTarget(offset=int(text))
    msg = f"--to {text!r} is not a position; allowed: {ALLOWED}"
    raise ResetTargetError(msg)


def _timestamp(time: str, text: str) -> int | str:
    value = int(time) if _OFFSET.fullmatch(time) else time
    try:
        parse_timestamp_us(value, "to")
    except ProblemError as problem:
        msg = f"--to {text!r} is not a time; a time is RFC 3339 (2013-01-01T00:00:00Z) or milliseconds"
        raise ResetTargetError(msg) from problem
    return value


def reset_topics(texts: Iterable[str]) -> list[str | ResetPartition] | None:
    """Return the topics and partitions of `TOPIC` and `TOPIC:P,P` without duplicates; None for all partitions.

    Raises:
        ResetTargetError: a topic name is invalid, or a partition is not a number.
    """
    chosen: dict[tuple[str, int | None], str | ResetPartition] = {}
    for text in texts:
        topic, colon, partitions = text.partition(":")
        try:
            check_topic_name(topic)
        except ProblemError as problem:
            msg = f"--topic {text!r}: {problem.detail}"
            raise ResetTargetError(msg) from problem
        if not colon:
            chosen[topic, None] = topic
            continue
        for number in partitions.split(","):
            if not _PARTITION.fullmatch(number):
                msg = f"--topic {text!r} names partition {number!r}; give numbers: {topic}:0,1"
                raise ResetTargetError(msg)
            chosen[topic, int(number)] = ResetPartition(topic=topic, partition=int(number))
    return list(chosen.values()) or None
