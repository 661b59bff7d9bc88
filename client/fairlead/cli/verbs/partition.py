"""`fairlead partition`: move partitions between brokers, elect leaders, clean logs, accept damage."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated, Final

import typer

from fairlead import Admin, TopicPartition
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat, TopicName
from fairlead.cli.printing import ids_of, print_document, print_done, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, ExitCode, fail_usage, is_terminal, run
from fairlead_api.bodies.cleaning import PartitionCleaning, ReplicaCleaning
from fairlead_api.bodies.metadata import PartitionDescription
from fairlead_api.bodies.operations import (
    PartitionDigest,
    PartitionState,
    ReassignmentDescription,
    ReplicaDigest,
    ReplicaProgress,
    ReplicaSize,
)
from fairlead_api.bodies.producers import PartitionProducer
from fairlead_api.bodies.transactions import PartitionTransactions
from fairlead_api.identifiers import PartitionIndex

app = typer.Typer(no_args_is_help=True, help="Move partitions, elect leaders, clean logs, accept damage.")
LOOK_SECONDS: Final = 0.2
"""Number of seconds between two checks of the rounds of cleaning."""
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Number of the partition.")]


class Kind(StrEnum):
    """Kind of election."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


@app.callback()
def partition() -> None:
    """Move partitions, elect leaders, clean logs, accept damage."""


@app.command("reassign")
def reassign(
    name: TopicName,
    number: Partition,
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="BROKER,BROKER", help="Brokers that get the replicas, the preferred leader first."
        ),
    ] = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel the move in progress.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Move a partition to other brokers: new replicas are added and catch up, then old ones are removed.

    Example: fairlead partition reassign orders 0 --to 2,3,4
    """
    if bool(to) is cancel:
        fail_usage("give the brokers with --to, or cancel a move with --cancel")
    replicas = [_number(text) for text in to.split(",")] if to else []

    async def work() -> PartitionState:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            if cancel:
                return await admin.cancel_reassignment(name, number)
            return await admin.reassign(name, number, replicas)

    _show(run(work()), output)


@app.command("moves")
def moves(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the moves in progress: the records that each new replica lacks, and the share that is copied.

    Example: fairlead partition moves --output json
    """

    async def work() -> list[ReassignmentDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.reassignments()

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    rows = [
        (
            each.topic,
            each.partition,
            ids_of(each.replicas),
            ids_of(each.adding),
            ids_of(each.removing),
            ids_of(each.isr),
            " ".join(f"{one.broker}:{_or_dash(one.lag_records)}" for one in each.progress) or "-",
            " ".join(f"{one.broker}:{_share(one)}" for one in each.progress) or "-",
        )
        for each in found
    ]
    print_rows(["TOPIC", "PARTITION", "TO", "ADDING", "REMOVING", "ISR", "LAG", "COPIED"], rows)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)


def _share(progress: ReplicaProgress) -> str:
    """Return the percentage of the leader's log that a replica has copied."""
    if progress.copied_bytes is None or progress.total_bytes is None:
        return "-"
    share = progress.copied_bytes / progress.total_bytes if progress.total_bytes else 1.0
    # The two sizes come from two requests, between which the log grows.
    return f"{min(100, int(100 * share))}%"


@app.command("elect")
def elect(
    name: TopicName,
    number: Partition,
    kind: Annotated[
        Kind,
        typer.Option("--kind", help="The preferred leader, or an unclean election, which may lose records."),
    ] = Kind.PREFERRED,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before records may be lost.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Elect a leader of a partition now.

    On a terminal, an unclean election shows how far the log of each replica reaches, and asks unless --yes is given.

    Example: fairlead partition elect orders 0 --kind preferred
    """
    if kind is Kind.UNCLEAN and not yes and is_terminal():
        _confirm_unclean(name, number, bootstrap)

    async def work() -> PartitionState:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.elect(name, number, kind.value)

    _show(run(work()), output)


def _confirm_unclean(name: str, number: int, bootstrap: str) -> None:
    """Show the logs that remain for an unclean election, and ask; end the command if the answer is no."""

    async def work() -> list[ReplicaSize]:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            [sizes] = await admin.replica_sizes(name)
        return next((each.replicas for each in sizes.partitions if each.partition == number), [])

    typer.echo("BROKER  LOG END", err=True)
    for each in run(work()):
        end = "no answer" if each.log_end_offset is None else each.log_end_offset
        typer.echo(f"{each.broker:<6}  {end}", err=True)
    question = "Records that only the missing replicas have are lost. Elect the replica with the longest log?"
    if not typer.confirm(question, err=True):
        typer.echo("no leader elected", err=True)
        raise typer.Exit(1)


@app.command("accept-damage")
def accept_damage(
    name: TopicName,
    number: Partition,
    first_offset: Annotated[
        int, typer.Option("--first-offset", min=0, help="first_offset as reported by log_damaged.")
    ],
    next_good_offset: Annotated[
        int, typer.Option("--next-good-offset", min=0, help="next_good_offset as reported by log_damaged.")
    ],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Accept the loss of the records in a damaged range, which readers then skip. The acceptance cannot be undone.

    Example: fairlead partition accept-damage readings 0 --first-offset 1200 --next-good-offset 1260
    """

    async def work() -> None:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            await admin.accept_damage(name, number, first_offset, next_good_offset)

    run(work())
    sentence = f"readers of {name}-{number} skip from {first_offset} to {next_good_offset}"
    lost = {"first_offset": first_offset, "next_good_offset": next_good_offset}
    print_done(sentence, {"topic": name, "partition": number, **lost}, output)


@app.command("describe")
def describe(
    name: TopicName,
    number: Partition,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the replicas of a partition, and how far each one of a compacted topic is cleaned.

    Example: fairlead partition describe accounts 0
    """

    async def work() -> PartitionCleaning:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.describe_cleaning(name, number)

    _show_cleaning(run(work()), output)


@app.command("voters")
def voters(
    name: TopicName,
    number: Partition,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show each replica of a partition with a write quorum: the offset up to which it counts, and whether it is near.

    Example: fairlead partition voters payments 0
    """

    async def work() -> PartitionDescription:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.describe_partition(name, number)

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    print_pairs({"leader": found.leader, "write quorum": found.write})
    typer.echo()
    rows = [
        (
            each.broker,
            _yes_or_no(each.broker in found.voters),
            _or_dash(each.counted),
            _yes_or_no(each.near),
            _yes_or_no(each.entry_is_current),
        )
        for each in found.standings
    ]
    print_rows(["BROKER", "VOTER", "COUNTED", "NEAR", "CURRENT"], rows)


def _yes_or_no(value: bool | None) -> str:
    return "-" if value is None else "yes" if value else "no"


@app.command("clean")
def clean(
    name: TopicName,
    number: Partition,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until every replica is cleaned, or its round failed.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Clean every replica of a compacted partition now, whatever its dirty ratio.

    Records younger than min.compaction.lag.ms stay. With --wait, the command exits with code 1 if a replica is not
    cleaned.

    Example: fairlead partition clean accounts 0 --wait
    """

    async def work() -> PartitionCleaning:
        # A broker that does not answer for a while must not end the wait.
        admin = Admin(bootstrap) if wait else Admin(bootstrap, retry_timeout=RETRY_TIMEOUT)
        async with admin:
            found = await admin.clean_partition(name, number)
            while wait and any(each.requested_offset is not None for each in found.replicas):
                await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251 - no event announces the end of a round
                found = await admin.describe_cleaning(name, number)
            return found

    found = run(work())
    _show_cleaning(found, output)
    if wait and not all(_is_cleaned(each) for each in found.replicas):
        typer.echo(f"error: not every replica of {name}-{number} was cleaned", err=True)
        raise typer.Exit(ExitCode.FAILED)


def _is_cleaned(replica: ReplicaCleaning) -> bool:
    if replica.state != "held":
        return False
    return not replica.dirty_bytes or (
        replica.last_round is not None and replica.last_round.outcome == "done"
    )


def _show_cleaning(found: PartitionCleaning, output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    rows = [_cleaning_cells(found, replica) for replica in found.replicas]
    print_rows(["BROKER", "STATE", "END", "CLEANED", "REMOVED", "DIRTY", "REQUESTED", "LAST ROUND"], rows)


def _cleaning_cells(found: PartitionCleaning, replica: ReplicaCleaning) -> tuple[object, ...]:
    """Return the table cells of one replica."""
    last = replica.last_round
    state = "leader" if replica.state == "held" and replica.broker == found.leader else str(replica.state)
    return (
        replica.broker,
        state,
        replica.log_end_offset,
        replica.cleaned_offset,
        replica.removed_offset,
        None if replica.dirty_ratio is None else f"{100 * replica.dirty_ratio:.0f}%",
        replica.requested_offset,
        replica.detail
        if last is None
        else f"{last.outcome} at {last.ended_at}, {last.dropped_records} dropped",
    )


@app.command("transactions")
def transactions(
    name: TopicName,
    number: Partition,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the open transactions of a partition, oldest first, and the offset at which committed readers stop.

    Example: fairlead partition transactions orders 0
    """

    async def work() -> PartitionTransactions:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.partition_transactions(TopicPartition(name, PartitionIndex(number)))

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    print_pairs({"last stable offset": found.last_stable_offset, "high watermark": found.high_watermark})
    if found.items:
        typer.echo()
        rows = [
            (each.transaction, each.first_offset, each.age_seconds, each.timeout_ms) for each in found.items
        ]
        print_rows(["TRANSACTION", "FIRST OFFSET", "AGE S", "TIMEOUT MS"], rows)


@app.command("producers")
def producers(
    name: TopicName,
    number: Partition,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the idempotent producers that a partition remembers, with the last record of each.

    Example: fairlead partition producers orders 0
    """

    async def work() -> list[PartitionProducer]:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.partition_producers(TopicPartition(name, PartitionIndex(number)))

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    rows = [
        (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            each.last_offset,
            each.last_written_at,
            each.open_from_offset,
        )
        for each in found
    ]
    print_rows(["PRODUCER", "EPOCH", "SEQUENCE", "OFFSET", "LAST WRITTEN", "OPEN FROM"], rows)


@app.command("digest")
def digest(
    name: TopicName,
    number: Partition,
    first: Annotated[
        int | None, typer.Option("--from", min=0, help="First offset; by default the start of the partition.")
    ] = None,
    end: Annotated[
        int | None,
        typer.Option(
            "--to", min=0, help="Offset after the last record to compare; by default the high watermark."
        ),
    ] = None,
    latest: Annotated[
        bool,
        typer.Option("--latest", help="Compare the newest record of each key of a compacted topic instead."),
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Compare the replicas of a partition by checksums of their stored records.

    Exits with code 1 unless all replicas have reported the same checksum.

    Example: fairlead partition digest orders 0 --from 1000 --to 2000
    """
    if latest and not (first is None and end is None):
        fail_usage("--latest compares the whole partition; leave out --from and --to")

    async def work() -> list[PartitionDigest]:
        parts: list[PartitionDigest] = []
        at: int | None = first
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            if latest:
                return [await admin.compare_newest(name, number)]
            while not parts or at is not None:
                parts.append(await admin.compare_replicas(name, number, at, end))
                at = parts[-1].next_offset if parts[-1].identical else None
        return parts

    parts = run(work())
    if output is not OutputFormat.TABLE:
        print_document(parts, output)
    else:
        rows = [_compared(part, replica) for part in parts for replica in part.replicas]
        print_rows(["FROM", "TO", "BROKER", "STATE", "DIGEST", "HELD", "DETAIL"], rows)
    if not all(part.identical for part in parts):
        typer.echo(f"error: the replicas of {name}-{number} differ, or not every replica answered", err=True)
        raise typer.Exit(ExitCode.FAILED)
    if parts[-1].next_offset is not None:
        typer.echo(
            f"error: replicas of {name}-{number} were cleaned in between: compare them again", err=True
        )
        raise typer.Exit(ExitCode.FAILED)


def _compared(part: PartitionDigest, replica: ReplicaDigest) -> tuple[object, ...]:
    """Return the table cells of one replica."""
    held = None
    if replica.log_end_offset is not None:
        held = f"{replica.log_start_offset}..{replica.log_end_offset}"
    state, detail = str(replica.state), replica.detail
    if replica.state == "compared" and replica.broker == part.leader:
        state = "leader"
    elif replica.first_difference is not None:
        state, detail = "differs", f"first in the piece that begins at {replica.first_difference}"
    if replica.damaged_offset is not None:
        detail = f"damaged at {replica.damaged_offset}"
    shown = None if replica.digest is None else replica.digest[:16]
    return part.first_offset, part.end_offset, replica.broker, state, shown, held, detail


def _show(state: PartitionState, output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        print_document(state, output)
        return
    print_rows(
        ["TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ADDING", "REMOVING", "ISR"],
        [
            (
                state.topic,
                state.partition,
                state.leader,
                state.leader_epoch,
                ids_of(state.replicas),
                ids_of(state.adding),
                ids_of(state.removing),
                ids_of(state.isr),
            )
        ],
    )


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        fail_usage(f"--to names {text!r}, which is not a broker id; separate ids with commas: --to 1,2,3")
    return int(text)
