"""`fairlead transaction`: list, describe and abort transactions of producers, and find hanging transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from msgspec import to_builtins

from fairlead import Admin, TopicPartition
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, ExitCode, is_terminal, run
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.transactions import (
    TIMEOUT_MS_DEFAULT,
    NamedPartitions,
    PartitionTransaction,
    TransactionDescription,
)

PARTITIONS_AT_ONCE: Final = 20
"""Number of partitions whose leaders are queried at the same time."""
HANGING_SECONDS: Final = 60
"""Number of seconds beyond its timeout after which an open transaction counts as hanging."""

app = typer.Typer(no_args_is_help=True, help="List, describe and abort transactions of producers.")
TransactionName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the producer, or id of a transaction such as 17.4.")
]


@app.callback()
def transaction() -> None:
    """List, describe and abort transactions of producers."""


@app.command("list")
def list_transactions(
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Only names that begin with this text.")
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="Only producers with commits that partitions have not confirmed."),
    ] = False,
    is_open: Annotated[
        bool, typer.Option("--open", help="Only producers with a transaction that is open in a partition.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the producers with transactions, each with its newest transaction.

    --open asks every broker.

    Example: fairlead transaction list --unfinished
    """

    async def work() -> list[TransactionDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.list_transactions(name, unfinished=unfinished, is_open=is_open)

    found = run(work())
    if output is OutputFormat.TABLE:
        rows = [
            (each.transaction, each.name, each.timeout_ms, _last(each), len(each.unfinished))
            for each in found
        ]
        print_rows(["TRANSACTION", "NAME", "TIMEOUT MS", "LAST", "UNFINISHED"], rows)
    else:
        print_document(found, output)


@app.command("describe")
def describe(
    name: TransactionName, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Show a transaction, and the partitions in which it is open.

    Example: fairlead transaction describe billing
    """

    async def work() -> TransactionDescription:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.describe_transaction(name)

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    print_pairs(
        {
            "transaction": found.transaction,
            "name": found.name,
            "state": found.state,
            "timeout ms": found.timeout_ms,
            "last": _last(found),
            "named": _cell(found.named),
            "unfinished": " ".join(
                f"{each.transaction} ({_cell(each.partitions)})" for each in found.unfinished
            )
            or "-",
            "metadata": found.metadata,
        }
    )
    if isinstance(found.open_at, list) and found.open_at:
        typer.echo()
        print_rows(
            ["TRANSACTION", "TOPIC", "PARTITION", "FIRST OFFSET", "AGE S", "LEADER"],
            [
                (
                    each.transaction,
                    each.topic,
                    each.partition,
                    each.first_offset,
                    each.age_seconds,
                    each.leader,
                )
                for each in found.open_at
            ],
        )
    if isinstance(found.silent_brokers, list) and found.silent_brokers:
        typer.echo(f"no answer from brokers {', '.join(map(str, found.silent_brokers))}", err=True)


@app.command("abort")
def abort(
    name: TransactionName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Abort the open transaction of a producer: readers of committed records never see its records.

    The producer learns of the abort at its next commit, and can begin again. On a terminal, asks for confirmation
    unless --yes is given.

    Example: fairlead transaction abort billing --yes
    """
    if not yes and is_terminal() and not typer.confirm(f"Abort the transaction of {name}?", err=True):
        typer.echo("nothing aborted", err=True)
        raise typer.Exit(ExitCode.FAILED)

    async def work() -> DecidedTransaction:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.abort_transaction(name)

    done = run(work())
    print_done(f"aborted transaction {done.transaction}", {"transaction": done.transaction}, output)


@app.command("hanging")
def hanging(
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Only partitions of this topic.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the transactions that are open in a partition for a minute longer than their timeout.

    Such a transaction should have ended: its partition may have no leader, too few in-sync replicas, or no connection
    to the coordination store. The exit code is 1 if a transaction hangs. The leader of every partition is asked.

    Example: fairlead transaction hanging --topic orders
    """

    async def work() -> list[tuple[TopicPartition, PartitionTransaction]]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return [each for each in await _open_transactions(admin, topic) if _hangs(each[1])]

    found = run(work())
    if output is OutputFormat.TABLE:
        rows = [
            (
                each.transaction,
                place.topic,
                place.partition,
                each.first_offset,
                each.age_seconds,
                each.timeout_ms,
            )
            for place, each in found
        ]
        print_rows(["TRANSACTION", "TOPIC", "PARTITION", "FIRST OFFSET", "AGE S", "TIMEOUT MS"], rows)
    else:
        documents = [
            {"topic": place.topic, "partition": place.partition, **to_builtins(each)} for place, each in found
        ]
        print_document(documents, output)
    if found:
        raise typer.Exit(ExitCode.FAILED)


async def _open_transactions(
    admin: Admin, topic: str | None
) -> list[tuple[TopicPartition, PartitionTransaction]]:
    """Return the open transactions of all partitions, or of one topic's partitions."""
    topics = await admin.list_topics() if topic is None else [await admin.describe_topic(topic)]
    places = [TopicPartition(each.name, number) for each in topics for number in range(each.partitions)]
    found = []
    for at in range(0, len(places), PARTITIONS_AT_ONCE):
        part = places[at : at + PARTITIONS_AT_ONCE]
        answers = await asyncio.gather(*map(admin.partition_transactions, part))
        found += [(place, each) for place, answer in zip(part, answers, strict=True) for each in answer.items]
    return found


def _hangs(each: PartitionTransaction) -> bool:
    """Return whether a transaction is open for a minute longer than its timeout, or than the default if it has none."""
    timeout_ms = TIMEOUT_MS_DEFAULT if each.timeout_ms is None else each.timeout_ms
    return each.age_seconds > timeout_ms / 1000 + HANGING_SECONDS


def _last(found: TransactionDescription) -> str:
    ended = found.ended
    return "-" if ended is None else f"{ended.transaction} {ended.state} ({ended.reason})"


def _cell(partitions: Sequence[NamedPartitions]) -> str:
    named = (f"{each.topic or each.topic_id}:{','.join(map(str, each.partitions))}" for each in partitions)
    return " ".join(named) or "-"
