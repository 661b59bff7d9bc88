"""`fairlead link`: mirror topics of another cluster, and move their writes from one cluster to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Annotated, Final, Literal, TypeVar

import typer
from msgspec import UNSET, UnsetType

from fairlead import Admin
from fairlead.cli.config_values import ConfigOption, UnsetOption, changes
from fairlead.cli.link_options import (
    Acls,
    All,
    DryRun,
    Expiry,
    Factor,
    Groups,
    LogStart,
    Name,
    NewExcluded,
    NewExpiry,
    NewGroups,
    NewRecreation,
    NewSource,
    NewStart,
    NewTopics,
    NewTruncation,
    OnExpiry,
    OnRecreation,
    OnTruncation,
    Rate,
    Recreation,
    Start,
    Topics,
    Truncation,
)
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, fail_usage, is_terminal, run
from fairlead.cli.sizes import parse_size
from fairlead.errors import LinkSourceUnreachableError
from fairlead_api.bodies.links import (
    AlterLinkPolicies,
    AlterLinkRequest,
    AlterNamePatterns,
    CreateLinkRequest,
    LinkDescription,
    LinkPolicies,
    LinkSource,
    LinkTail,
    LinkTopic,
    NamePatterns,
)

HAND_OVER_SECONDS: Final = 5.0
"""Time after which mirrors are promoted without a source that has not handed them over."""
LOOK_SECONDS: Final = 0.1
T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Mirror topics of another cluster.")


@app.callback()
def link() -> None:
    """Mirror topics of another cluster."""


@app.command("create")
def create(
    name: Name,
    source: Annotated[
        list[str],
        typer.Option("--source", metavar="URL", help="Address of a broker of the source; repeatable."),
    ],
    topics: Annotated[
        list[str],
        typer.Option("--topics", metavar="PATTERN", help="Topic, prefix followed by *, or *; repeatable."),
    ],
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="PATTERN", help="Topics to leave out; repeatable."),
    ] = None,
    groups: Groups = None,
    acls: Acls = False,
    prefix: Annotated[str, typer.Option("--prefix", help="Text before the name of each mirror.")] = "",
    config: ConfigOption = None,
    replication_factor: Factor = None,
    rate: Rate = None,
    on_truncation: Truncation = OnTruncation.FOLLOW,
    on_expiry: Expiry = OnExpiry.SKIP,
    on_recreation: Recreation = OnRecreation.STOP,
    log_start: Start = LogStart.SOURCE,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Mirror topics of another cluster, from now on and with their past records.

    Example: fairlead link create east --source http://east.example:9520 --topics 'orders-*'
    """

    async def work() -> LinkDescription:
        request = CreateLinkRequest(
            name=name,
            source=LinkSource(bootstrap=source),
            topics=NamePatterns(include=topics, exclude=exclude or []),
            groups=NamePatterns(include=groups or []),
            acls=acls,
            prefix=prefix,
            config={**changes(config)},
            replication_factor=replication_factor,
            policies=LinkPolicies(
                truncated=on_truncation.value,
                expired=on_expiry.value,
                recreated=on_recreation.value,
                log_start=log_start.value,
            ),
            bytes_per_second=parse_size(rate),
        )
        async with Admin(bootstrap) as admin:
            return await admin.create_link(request, dry_run=dry_run)

    found = run(work())
    done = (
        f"link {name} {'would mirror' if dry_run else 'mirrors'} topics of cluster {found.source_cluster_id}"
    )
    print_done(done, found, output)


@app.command("list")
def list_links(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the links.

    Example: fairlead link list
    """

    async def work() -> list[LinkDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.links()

    links = run(work())
    if output is not OutputFormat.TABLE:
        print_document(links, output)
        return
    rows = [
        (each.name, each.state, each.source_cluster_id, each.mirrors, each.source_problem or "reachable")
        for each in links
    ]
    print_rows(["LINK", "STATE", "SOURCE", "MIRRORS", "SOURCE STATE"], rows)


@app.command("describe")
def describe(
    name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Show a link, and its topics with their lag behind the source.

    Example: fairlead link describe east
    """

    async def work() -> tuple[LinkDescription, list[LinkTopic]]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.describe_link(name), await admin.link_topics(name)

    found, topics = run(work())
    if output is not OutputFormat.TABLE:
        print_document({"link": found, "topics": topics}, output)
        return
    state = found.source_problem or "reachable"
    source = f"{', '.join(found.source.bootstrap)} (cluster {found.source_cluster_id}, {state})"
    print_rows(["LINK", "STATE", "SOURCE"], [(found.name, found.state, source)])
    _print_topics(topics)


@app.command("alter")
def alter(
    name: Name,
    source: NewSource = None,
    topics: NewTopics = None,
    exclude: NewExcluded = None,
    groups: NewGroups = None,
    acls: Annotated[
        bool | None, typer.Option("--acls/--no-acls", help="Copy the ACLs on the mirrors and groups.")
    ] = None,
    config: ConfigOption = None,
    unset: UnsetOption = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", min=1, help="Replicas of each mirror created later.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="SIZE", help="Maximum bytes per second, such as 50MB, or none."),
    ] = None,
    on_truncation: NewTruncation = None,
    on_expiry: NewExpiry = None,
    on_recreation: NewRecreation = None,
    log_start: NewStart = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change a link. Patterns that are given replace all patterns of their kind; topics stay mirrors.

    Example: fairlead link alter east --topics 'orders-*' --topics trips --rate 50MB
    """
    request = AlterLinkRequest(
        source=UNSET if source is None else LinkSource(bootstrap=source),
        topics=AlterNamePatterns(include=_given(topics), exclude=_given(exclude)),
        groups=AlterNamePatterns(include=_given(groups)),
        acls=_given(acls),
        config={**changes(config, unset)},
        replication_factor=_given(replication_factor),
        policies=AlterLinkPolicies(
            truncated=UNSET if on_truncation is None else on_truncation.value,
            expired=UNSET if on_expiry is None else on_expiry.value,
            recreated=UNSET if on_recreation is None else on_recreation.value,
            log_start=UNSET if log_start is None else log_start.value,
        ),
        bytes_per_second=None if rate == "none" else _given(parse_size(rate)),
    )
    if request == AlterLinkRequest():
        fail_usage("nothing to change: give an option")

    async def work() -> LinkDescription:
        async with Admin(bootstrap) as admin:
            return await admin.alter_link(name, request)

    print_done(f"link {name} is changed", run(work()), output)


@app.command("pause")
def pause(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Stop the copying of a link's mirrors.

    Example: fairlead link pause east
    """

    async def work() -> LinkDescription:
        async with Admin(bootstrap) as admin:
            return await admin.pause_link(name)

    print_done(f"link {name} is paused", run(work()), output)


@app.command("resume")
def resume(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Continue the copying of a link's mirrors.

    Example: fairlead link resume east
    """

    async def work() -> LinkDescription:
        async with Admin(bootstrap) as admin:
            return await admin.resume_link(name)

    print_done(f"link {name} runs", run(work()), output)


@app.command("acknowledge")
def acknowledge(
    name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE
) -> None:
    """Accept the gaps of a link, and let stopped mirrors continue, each with the loss that stopped it.

    Example: fairlead link acknowledge east
    """

    async def work() -> LinkDescription:
        async with Admin(bootstrap) as admin:
            return await admin.acknowledge_link(name)

    print_done(f"the gaps of link {name} are accepted, and stopped mirrors continue", run(work()), output)


@app.command("promote")
def promote(
    name: Name,
    topics: Topics = None,
    every: All = False,
    failover: Annotated[
        bool,
        typer.Option(
            "--failover",
            help="Promote without the source if it does not hand over soon; records that were not copied are lost.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before records may be lost.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make mirrors accept records. Without --failover, the source first refuses records, and none is lost.

    With --failover, the mirrors that the source has not handed over after five seconds are promoted without it.

    Example: fairlead link promote east --all
    """
    chosen = _chosen(topics, every=every)

    async def work() -> list[LinkTopic]:
        async with Admin(bootstrap) as admin:
            begun = await admin.promote_link(name, chosen)
            if failover and (left := await _not_handed_over(admin, name, {each.topic for each in begun})):
                await _fail_over(admin, name, left, asks=not yes and is_terminal())
            return begun

    promoted = run(work())
    print_done(f"promoting {', '.join(each.topic for each in promoted)}", promoted, output)


@app.command("take-back")
def take_back(
    name: Name,
    topics: Topics = None,
    every: All = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Cancel the hand-over of mirrors, so that the source accepts records again.

    Example: fairlead link take-back east --all
    """
    chosen = _chosen(topics, every=every)

    async def work() -> list[LinkTopic]:
        async with Admin(bootstrap) as admin:
            return await admin.take_back_link(name, chosen)

    found = run(work())
    print_done(f"the source accepts records of {', '.join(each.topic for each in found)}", found, output)


@app.command("adopt")
def adopt(
    name: Name,
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics of this cluster.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Make topics mirrors of their promoted copies in the source; records that the source lacks are kept in files.

    Example: fairlead link adopt back orders
    """

    async def work() -> list[LinkTopic]:
        async with Admin(bootstrap) as admin:
            return await admin.adopt_link(name, topics)

    found = run(work())
    print_done(f"link {name} mirrors {', '.join(each.topic for each in found)}", found, output)


@app.command("tails")
def tails(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the files of brokers with records that were cut from topics of a link, because its source lacks them.

    Read a file on its broker with `fairlead consume TOPIC --file PATH`.

    Example: fairlead link tails back
    """

    async def work() -> list[LinkTail]:
        async with Admin(bootstrap) as admin:
            return await admin.link_tails(name)

    found = run(work())
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    rows = [
        (f"{each.topic}-{each.partition}", each.first_offset, each.broker, each.size_bytes, each.path)
        for each in found
    ]
    print_rows(["PARTITION", "FROM OFFSET", "BROKER", "BYTES", "FILE"], rows)


@app.command("delete")
def delete(name: Name, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Delete a link that has no mirrors.

    Example: fairlead link delete east
    """

    async def work() -> None:
        async with Admin(bootstrap) as admin:
            await admin.delete_link(name)

    run(work())
    print_done(f"deleted link {name}", {"link": name}, output)


async def _not_handed_over(admin: Admin, name: str, topics: Collection[str]) -> list[LinkTopic]:
    """Return the mirrors that are not promoted when the time for a hand-over has passed."""
    clock = asyncio.get_running_loop()
    deadline = clock.time() + HAND_OVER_SECONDS
    while True:
        found = await admin.link_topics(name)
        left = [each for each in found if each.topic in topics and each.state != "promoted"]
        if not left or clock.time() >= deadline:
            return left
        await asyncio.sleep(LOOK_SECONDS)  # noqa: TID251 - no event announces a promotion


async def _fail_over(admin: Admin, name: str, left: list[LinkTopic], *, asks: bool) -> None:
    """Promote mirrors without their source, or mirror again if the answer to the question is no."""
    names = [each.topic for each in left]
    typer.echo(f"the source has not handed over {', '.join(names)}", err=True)
    if asks:
        _print_topics(left)
        if not typer.confirm("Records that were not copied are lost. Promote?", err=True):
            # A source that does not answer has handed nothing over.
            with suppress(LinkSourceUnreachableError):
                await admin.take_back_link(name, names)
            raise typer.Abort
    await admin.promote_link(name, names, "failover")


def _given(value: T | None) -> T | UnsetType:
    """Return the value of an option; UNSET for an option that is not given."""
    return UNSET if value is None else value


def _chosen(topics: list[str] | None, *, every: bool) -> list[str] | Literal["all"]:
    """Return the chosen mirrors; end the command unless exactly one of the topics and `--all` is given."""
    if every == bool(topics):
        fail_usage("name topics, or give --all")
    return "all" if every else list(topics or ())


def _print_topics(topics: list[LinkTopic]) -> None:
    rows = [
        (
            each.topic,
            each.state,
            "?" if each.lag_records is None else each.lag_records,
            "?" if each.lag_seconds is None else f"{each.lag_seconds:.1f}",
            each.reason or "",
        )
        for each in topics
    ]
    print_rows(["TOPIC", "STATE", "LAG RECORDS", "LAG SECONDS", "REASON"], rows)
    gaps = [
        (f"{topic.topic}-{each.partition}", gap.first_offset, gap.end_offset, gap.skipped, gap.truncated)
        for topic in topics
        for each in topic.partitions
        if (gap := each.gap) is not None
    ]
    if gaps:
        print_rows(["GAP", "FROM OFFSET", "TO OFFSET", "SKIPPED", "TRUNCATED"], gaps)
