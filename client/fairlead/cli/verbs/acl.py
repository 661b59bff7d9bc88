"""`fairlead acl`: allow and deny operations, list and remove ACLs, explain decisions."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, ExitCode, fail_usage, run
from fairlead_api.access_needs import Kind
from fairlead_api.bodies.security import AclDescription, CheckAnswer, CreatedAcl

Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="A principal, a prefix followed by *, or * alone.")
]
Operations = Annotated[
    str,
    typer.Argument(
        metavar="OPERATIONS", help="describe, create, alter, delete, read, write or all, separated by commas."
    ),
]
Resource = Annotated[
    str | None,
    typer.Argument(
        metavar="KIND:PATTERN", help="topic:orders, group:shop.*, producer:*, cluster:*, security:*."
    ),
]
AllKinds = Annotated[
    bool, typer.Option("--all-kinds", help="Every name of every kind, in place of KIND:PATTERN.")
]

app = typer.Typer(no_args_is_help=True, help="Allow and deny operations, and explain decisions.")


@app.callback()
def acl() -> None:
    """Allow and deny operations, and explain decisions."""


@app.command("allow")
def allow(
    principal: Principal,
    operations: Operations,
    resource: Resource = None,
    all_kinds: AllKinds = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Allow a principal operations on names.

    Example: fairlead acl allow user:orders read,write 'topic:shop.*'

    Example: fairlead acl allow user:admin all --all-kinds
    """
    _create("allow", principal, operations, _resources(resource, all_kinds), bootstrap, output)


@app.command("deny")
def deny(
    principal: Principal,
    operations: Operations,
    resource: Resource = None,
    all_kinds: AllKinds = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Deny a principal operations on names; a deny has precedence over every allow.

    Example: fairlead acl deny user:orders all topic:shop.secret
    """
    _create("deny", principal, operations, _resources(resource, all_kinds), bootstrap, output)


def _resources(resource: str | None, all_kinds: bool) -> list[str]:
    if all_kinds == (resource is not None):
        fail_usage("name one resource, such as topic:orders, or every name of every kind with --all-kinds")
    return [f"{kind}:*" for kind in Kind] if resource is None else [resource]


def _create(
    effect: Literal["allow", "deny"],
    principal: str,
    operations: str,
    resources: list[str],
    bootstrap: str,
    output: OutputFormat,
) -> None:
    parts = [parts_of(resource) for resource in resources]

    async def work() -> list[CreatedAcl]:
        async with Admin(bootstrap) as admin:
            return [
                await admin.create_acl(principal, operations.split(","), kind, pattern, effect=effect)
                for kind, pattern in parts
            ]

    created = run(work())
    if output is not OutputFormat.TABLE:
        print_document(created[0] if len(created) == 1 else created, output)
        return
    for acl, resource in zip(created, resources, strict=True):
        late = "" if acl.applied_everywhere else "; not every broker has applied the change yet"
        typer.echo(f"{acl.acl_id}: {effect} {principal} {operations} {resource}{late}")


@app.command("list")
def list_acls(
    principal: Annotated[
        str | None, typer.Option("--principal", help="List only ACLs of this principal or pattern.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="KIND:NAME", help="Only ACLs that decide about this resource."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the ACLs.

    Example: fairlead acl list --on topic:shop.orders
    """
    kind, name = (None, None) if on is None else parts_of(on)

    async def work() -> list[AclDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.acls(principal, kind=kind, name=name)

    acls = run(work())
    if output is not OutputFormat.TABLE:
        print_document(acls, output)
        return
    rows = [
        (each.acl_id, each.effect, each.principal, ",".join(each.operations), f"{each.kind}:{each.pattern}")
        for each in acls
    ]
    print_rows(["ACL", "EFFECT", "PRINCIPAL", "OPERATIONS", "RESOURCE"], rows)


@app.command("remove")
def remove(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of ACLs.")],
    force: Annotated[bool, typer.Option("--force", help="Also remove ACLs that a program manages.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Remove ACLs.

    Example: fairlead acl remove 0123456789abcdef
    """

    async def work() -> list[bool]:
        async with Admin(bootstrap) as admin:
            return [await admin.remove_acl(each, force=force) for each in ids]

    applied = run(work())
    late = "" if all(applied) else "; not every broker has applied the change yet"
    document = {"acl_ids": ids, "applied_everywhere": all(applied)}
    print_done(f"removed {', '.join(ids)}{late}", document, output)


@app.command("check")
def check(
    principal: Principal,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="One operation.")],
    resource: Annotated[str, typer.Argument(metavar="KIND:NAME", help="One resource, such as topic:orders.")],
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Group of the principal; repeatable.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Explain a decision: the deciding ACL, or another reason; exit with 1 if the operation is not allowed.

    Example: fairlead acl check user:orders write topic:shop.orders
    """
    kind, name = parts_of(resource)

    async def work() -> CheckAnswer:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.check_access(principal, operation, kind, name, groups=groups or ())

    found = run(work())
    if output is OutputFormat.TABLE:
        typer.echo(f"{'allowed' if found.allowed else 'not allowed'}: {found.because}")
    else:
        print_document(found, output)
    if not found.allowed:
        raise typer.Exit(ExitCode.FAILED)


def parts_of(resource: str) -> tuple[str, str]:
    """Return the kind and the name of `KIND:NAME`; end the command if the text does not have this form."""
    kind, colon, name = resource.partition(":")
    if not colon or not name:
        fail_usage(f"{resource!r} is not KIND:NAME, such as topic:orders or cluster:*")
    return kind, name
