"""`fairlead topic`: create, list, describe, alter, trim and delete topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from fairlead import Admin, OffsetAndTimestamp, TopicPartition
from fairlead.cli.config_values import ConfigOption, UnsetOption, changes
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat, TopicName
from fairlead.cli.printing import ids_of, print_config, print_document, print_done, print_pairs, print_rows
from fairlead.cli.records.positions import PositionError, moment
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, fail_usage, is_terminal, run
from fairlead.errors import TopicNotFoundError
from fairlead_api.bodies.metadata import TopicDescription, TopicMetadata
from fairlead_api.bodies.operations import TopicSizes
from fairlead_api.bodies.requests import HIGH_WATERMARK

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, change and delete topics.")


@app.command("create")
def create(
    name: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option(
            "-p", "--partitions", min=1, help="Number of partitions; by default the cluster's default."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("-r", "--replication-factor", min=1, help="Replicas of each partition.")
    ] = None,
    config: ConfigOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a topic; creating the same topic again is not an error.

    Example: fairlead topic create orders -p 6 -c durability=synced
    """
    overrides = changes(config)

    async def work() -> tuple[bool, TopicDescription]:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            was_there = await _exists(admin, name)
            return was_there, await admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, config=overrides
            )

    was_there, topic = run(work())
    if output is OutputFormat.TABLE:
        count = f"{topic.partitions} partition{'s' * (topic.partitions != 1)}"
        typer.echo(
            f"topic {topic.name} already exists with {count}"
            if was_there
            else f"created topic {topic.name} with {count}"
        )
    else:
        print_document(topic, output)


async def _exists(admin: Admin, name: str) -> bool:
    try:
        await admin.describe_topic(name)
    except TopicNotFoundError:
        return False
    return True


@app.command("list")
def list_topics(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the topics of the cluster.

    Example: fairlead topic list --output json
    """

    async def work() -> list[TopicDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.list_topics()

    topics = run(work())
    if output is OutputFormat.TABLE:
        rows = [(topic.name, topic.partitions, topic.replication_factor, topic.topic_id) for topic in topics]
        print_rows(["TOPIC", "PARTITIONS", "REPLICAS", "ID"], rows)
    else:
        print_document(topics, output)


@app.command("describe")
def describe(
    name: TopicName, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Show a topic: its partitions with their leaders, and every setting with its source.

    Example: fairlead topic describe orders
    """

    async def work() -> tuple[TopicDescription, TopicMetadata]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            topic = await admin.describe_topic(name)
            metadata = await admin.metadata([name])
            return topic, metadata.topics[0]

    topic, metadata = run(work())
    if output is not OutputFormat.TABLE:
        print_document({"topic": topic, "partitions": metadata.partitions}, output)
        return
    print_pairs({"topic": topic.name, "id": topic.topic_id, "state": topic.state})
    typer.echo()
    columns = ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "ELR"]
    rows = [
        [row.partition, row.leader, row.leader_epoch, ids_of(row.replicas), ids_of(row.isr), ids_of(row.elr)]
        for row in metadata.partitions
    ]
    if any(row.adding or row.removing for row in metadata.partitions):
        columns += ["ADDING", "REMOVING"]
        for cells, row in zip(rows, metadata.partitions, strict=True):
            cells += [ids_of(row.adding), ids_of(row.removing)]
    print_rows(columns, rows)
    typer.echo()
    print_config(topic.config)


@app.command("sizes")
def sizes(
    name: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic, by partition.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the bytes that topics use on the disks of all brokers; with a topic, those of each replica.

    If a broker does not answer, its replicas are missing from the sums, and are listed without a size.

    Example: fairlead topic sizes orders
    """

    async def work() -> list[TopicSizes]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.replica_sizes(name)

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
    elif name is None:
        found.sort(key=lambda topic: (-_stored_bytes(topic), topic.topic))
        rows = [(topic.topic, len(topic.partitions), _stored_bytes(topic)) for topic in found]
        print_rows(["TOPIC", "PARTITIONS", "BYTES"], rows)
    else:
        print_rows(
            ["PARTITION", "BROKER", "BYTES", "END OFFSET"],
            [
                (each.partition, replica.broker, replica.size_bytes, replica.log_end_offset)
                for topic in found
                for each in topic.partitions
                for replica in each.replicas
            ],
        )


def _stored_bytes(topic: TopicSizes) -> int:
    return sum(replica.size_bytes or 0 for each in topic.partitions for replica in each.replicas)


@app.command("alter")
def alter(
    name: TopicName,
    partitions: Annotated[
        int | None, typer.Option("-p", "--partitions", min=1, help="Increase to this number of partitions.")
    ] = None,
    config: ConfigOption = None,
    unset: UnsetOption = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change settings of a topic, or add partitions; the change takes effect within seconds, without a restart.

    Example: fairlead topic alter orders -c retention.ms=86400000 --unset segment.bytes
    """
    patch = changes(config, unset)
    if partitions is None and not patch:
        fail_usage("nothing to change: give -p, -c or --unset")

    async def work() -> TopicDescription:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.alter_topic(name, partitions=partitions, config=patch)

    topic = run(work())
    if output is not OutputFormat.TABLE:
        print_document(topic, output)
        return
    print_pairs({"topic": topic.name, "partitions": topic.partitions})
    if patch:
        typer.echo()
        print_config({key: entry for key, entry in topic.config.items() if key in patch})


@app.command("offsets")
def offsets(
    name: TopicName,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="TIME", help="Also show the first offset at or after this time (RFC 3339 or ms)."
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show the start and end offset of each partition's log, and the number of records between them.

    Example: fairlead topic offsets orders --at 2026-01-01T00:00:00Z
    """
    try:
        time = None if at is None else moment(at)
    except PositionError as error:
        fail_usage(f"--at {error}")

    async def work() -> list[dict[str, int | None]]:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            topic = await admin.describe_topic(name)
            places = [TopicPartition(name, index) for index in range(topic.partitions)]
            starts = await admin.offsets_for(dict.fromkeys(places, "earliest"))
            ends = await admin.offsets_for(dict.fromkeys(places, "latest"))
            at_time = {} if time is None else await admin.offsets_for(dict.fromkeys(places, time))
        return [_offsets_row(place, starts[place], ends[place], at_time.get(place), time) for place in places]

    rows = run(work())
    if output is OutputFormat.TABLE:
        print_rows([column.upper() for column in rows[0]], [list(row.values()) for row in rows])
    else:
        print_document(rows, output)


def _offsets_row(
    place: TopicPartition,
    start: OffsetAndTimestamp | None,
    end: OffsetAndTimestamp | None,
    found: OffsetAndTimestamp | None,
    time: datetime | None,
) -> dict[str, int | None]:
    assert start is not None, "the lookup of earliest returns an offset"
    assert end is not None, "the lookup of latest returns an offset"
    row: dict[str, int | None] = {
        "partition": place.partition,
        "start": start.offset,
        "end": end.offset,
        "records": end.offset - start.offset,
    }
    return row if time is None else {**row, "at": None if found is None else found.offset}


@app.command("trim")
def trim(
    name: TopicName,
    partition: Annotated[int, typer.Option("--partition", min=0, help="Number of the partition.")],
    before: Annotated[
        int,
        typer.Option(
            "--before",
            metavar="OFFSET",
            min=-1,
            help="First offset to keep; -1 deletes all committed records.",
        ),
    ],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Permanently delete the records of one partition below an offset.

    Example: fairlead topic trim orders --partition 0 --before 500
    """

    async def work() -> int:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.delete_records(name, partition, None if before == HIGH_WATERMARK else before)

    low_watermark = run(work())
    if output is OutputFormat.TABLE:
        typer.echo(f"{name}-{partition} begins at offset {low_watermark}")
    else:
        print_document({"topic": name, "partition": partition, "low_watermark": low_watermark}, output)


@app.command("delete")
def delete(
    name: TopicName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete a topic and every record in it; on a terminal, asks for confirmation unless --yes is given.

    Example: fairlead topic delete orders --yes
    """
    if not yes and is_terminal() and not typer.confirm(f"Delete topic {name} and all its records?", err=True):
        typer.echo("nothing deleted", err=True)
        raise typer.Exit(1)

    async def work() -> None:
        async with Admin(bootstrap, retry_timeout=RETRY_TIMEOUT) as admin:
            await admin.delete_topic(name)

    run(work())
    print_done(f"deleted topic {name}", {"topic": name}, output)
