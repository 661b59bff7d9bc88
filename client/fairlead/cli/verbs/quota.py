"""`fairlead quota`: set, list and remove limits on what callers may use."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, fail_usage, run
from fairlead.cli.sizes import parse_size
from fairlead_api.bodies.quotas import ChangedQuota, QuotaDescription
from fairlead_api.quota_limits import TOPICS, Limit

_ORDER: Final = tuple(Limit)

Subject = Annotated[
    str,
    typer.Argument(
        metavar="SUBJECT",
        help="A principal, a prefix followed by *, or *; or topics: followed by a topic pattern.",
    ),
]

app = typer.Typer(no_args_is_help=True, help="Limit what callers may use.")


@app.callback()
def quota() -> None:
    """Limit what callers may use."""


@app.command("set")
def set_quota(
    subject: Subject,
    shared: Annotated[
        bool, typer.Option("--shared", help="Limit all matching principals together, not each of them.")
    ] = False,
    produce: Annotated[
        str | None,
        typer.Option("--produce", metavar="SIZE", help="Produced bytes per second, such as 10MiB."),
    ] = None,
    fetch: Annotated[
        str | None, typer.Option("--fetch", metavar="SIZE", help="Fetched bytes per second, such as 10MiB.")
    ] = None,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Requests per second.")] = None,
    concurrent: Annotated[
        int | None, typer.Option("--concurrent", min=1, help="Requests in flight at a time.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, help="Partitions of all matching topics.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also change a quota that a program manages.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Set limits of a subject, and keep its other limits. A limit applies to the whole cluster.

    Example: fairlead quota set 'user:shop.*' --shared --produce 50MiB
    """
    given = {
        Limit.PRODUCE_BYTES: parse_size(produce),
        Limit.FETCH_BYTES: parse_size(fetch),
        Limit.REQUESTS: requests,
        Limit.CONCURRENT_REQUESTS: concurrent,
        Limit.PARTITIONS: partitions,
    }
    limits = {str(limit): value for limit, value in given.items() if value is not None}
    if not limits:
        fail_usage("give at least one limit: --produce, --fetch, --requests, --concurrent or --partitions")
    is_shared = shared or subject.startswith(TOPICS)

    async def work() -> ChangedQuota:
        async with Admin(bootstrap) as admin:
            stored = {found.subject: found for found in await admin.quotas(subject)}.get(subject)
            each = {} if stored is None else dict(stored.each)
            together = {} if stored is None else dict(stored.shared)
            (together if is_shared else each).update(limits)
            return await admin.put_quota(subject, each=each, shared=together, force=force)

    changed = run(work())
    late = "" if changed.applied_everywhere else "; not every broker has applied the change yet"
    print_done(f"{subject}: {_text(changed)}{late}", changed, output)


@app.command("list")
def list_quotas(
    usage: Annotated[bool, typer.Option("--usage", help="Show the usage of each limit.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the quotas.

    Example: fairlead quota list --usage
    """

    async def work() -> list[QuotaDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.quotas(usage=usage)

    quotas = run(work())
    if output is not OutputFormat.TABLE:
        print_document(quotas, output)
        return
    if usage:
        rows = [
            (each.subject, use.limit, use.principal or "(shared)", f"{use.per_second:g}")
            for each in quotas
            for use in each.usage or ()
        ]
        print_rows(["SUBJECT", "LIMIT", "PRINCIPAL", "USE"], rows)
        return
    limits = [
        (each.subject, scope, limit, values[limit])
        for each in quotas
        for scope, values in (("each", each.each), ("shared", each.shared))
        for limit in _ORDER
        if limit in values
    ]
    print_rows(["SUBJECT", "SCOPE", "LIMIT", "VALUE"], limits)


@app.command("remove")
def remove(
    subject: Subject,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove a quota that a program manages.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove all limits of a subject.

    Example: fairlead quota remove 'user:shop.*'
    """

    async def work() -> bool:
        async with Admin(bootstrap) as admin:
            return await admin.remove_quota(subject, force=force)

    applied = run(work())
    late = "" if applied else "; not every broker has applied the change yet"
    print_done(f"removed {subject}{late}", {"subject": subject, "applied_everywhere": applied}, output)


def _text(quota: QuotaDescription) -> str:
    parts = [
        f"{scope} {limit} {values[limit]}"
        for scope, values in (("each", quota.each), ("shared", quota.shared))
        for limit in _ORDER
        if limit in values
    ]
    return ", ".join(parts)
