"""`fairlead user`: a principal with its token and its ACLs, created and deleted by one command."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, ExitCode, run
from fairlead.cli.verbs.token import NEVER, Force, applied_in_words, life_of, new_token_file, print_token
from fairlead_api.bodies.security import AclDescription, CreatedToken, TokenDescription
from fairlead_api.principals import check_user
from fairlead_api.problems import ProblemError

SOURCE = "user:"
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user; the principal is user:NAME.")]


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A principal with its tokens and the ACLs that name it, without ACLs for patterns."""

    name: str
    token_ids: list[str]
    expires_at: str | None
    """Expiry of the token that expires last; `never` if a token does not expire, None without tokens."""
    acls: list[str]


app = typer.Typer(no_args_is_help=True, help="Create users with a token and ACLs, list and delete them.")


@app.callback()
def user() -> None:
    """Create users with a token and ACLs, list and delete them."""


@app.command("create")
def create(
    name: Name,
    produce: Annotated[
        list[str] | None,
        typer.Option("--produce", metavar="PATTERN", help="Topics to write; repeatable."),
    ] = None,
    consume: Annotated[
        list[str] | None,
        typer.Option("--consume", metavar="PATTERN", help="Topics to read; repeatable."),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="PATTERN", help="Groups in which the user may consume; repeatable."),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Lifetime of the token, such as 90d, or never.")
    ] = "90d",
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Write the token into a new file that only you can read."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create a token for user:NAME and the ACLs that its topics and groups need.

    With --produce, the user may also use the producer names that the pattern matches.

    Example: fairlead user create orders --produce 'shop.*' --file orders.token

    Example: fairlead user create billing --consume 'shop.*' --group billing
    """
    principal = principal_of(name)
    wanted = [
        *(("write", kind, pattern) for pattern in produce or () for kind in ("topic", "producer")),
        *(("read", "topic", pattern) for pattern in consume or ()),
        *(("read", "group", pattern) for pattern in group or ()),
    ]

    async def work() -> CreatedToken:
        async with Admin(bootstrap) as admin:
            for operation, kind, pattern in wanted:
                await admin.create_acl(principal, [operation], kind, pattern)
            return await admin.create_token(principal, expires_in=life_of(expires))

    with new_token_file(file) as write:
        created = run(work())
        write(created.token)
    print_token(created, file, output)


@app.command("list")
def list_users(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """List the users that have a token, or that an ACL names.

    Example: fairlead user list
    """

    async def work() -> tuple[list[TokenDescription], list[AclDescription]]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.tokens(f"{SOURCE}*"), await admin.acls(f"{SOURCE}*")

    tokens, acls = run(work())
    principals = {each.principal for each in tokens} | {each.principal for each in acls}
    names = sorted(each for each in principals if not each.endswith("*"))
    users = [
        User(
            name=name.removeprefix(SOURCE),
            token_ids=[each.token_id for each in tokens if each.principal == name],
            expires_at=_last_end(each for each in tokens if each.principal == name),
            acls=[_in_words(each) for each in acls if each.principal == name],
        )
        for name in names
    ]
    if output is not OutputFormat.TABLE:
        print_document(users, output)
        return
    rows = [(each.name, len(each.token_ids), each.expires_at, ", ".join(each.acls)) for each in users]
    print_rows(["USER", "TOKENS", "EXPIRES", "ACLS"], rows)


@app.command("delete")
def delete(
    name: Name,
    force: Force = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Revoke the tokens of user:NAME and remove its ACLs. ACLs for patterns such as user:* remain.

    Example: fairlead user delete orders
    """
    principal = principal_of(name)

    async def work() -> tuple[list[str], list[str], bool]:
        async with Admin(bootstrap) as admin:
            tokens = [each.token_id for each in await admin.tokens(principal)]
            acls = [each.acl_id for each in await admin.acls(principal)]
            # Tokens are revoked first: a valid token must not outlive an ACL that denies operations.
            applied = [await admin.revoke_token(each, force=force) for each in tokens]
            applied += [await admin.remove_acl(each, force=force) for each in acls]
            return tokens, acls, all(applied)

    tokens, acls, everywhere = run(work())
    if not tokens and not acls:
        typer.echo(f"error: {principal} has neither tokens nor ACLs", err=True)
        raise typer.Exit(ExitCode.NOT_FOUND)
    document = {"name": name, "token_ids": tokens, "acl_ids": acls, "applied_everywhere": everywhere}
    summary = f"deleted {principal} with {len(tokens)} tokens and {len(acls)} ACLs"
    print_done(f"{summary}{applied_in_words(everywhere)}", document, output)


def principal_of(name: str) -> str:
    """Return the principal of a user; the name may begin with the source `user:`."""
    principal = SOURCE + name.removeprefix(SOURCE)
    try:
        check_user(principal)
    except ProblemError as problem:
        typer.echo(f"error: {problem.detail}", err=True)
        raise typer.Exit(ExitCode.USAGE) from problem
    return principal


def _last_end(tokens: Iterable[TokenDescription]) -> str | None:
    ends = [each.expires_at for each in tokens]
    if not ends:
        return None
    return NEVER if None in ends else max(end for end in ends if end is not None)


def _in_words(acl: AclDescription) -> str:
    denied = "deny " if acl.effect == "deny" else ""
    return f"{denied}{','.join(acl.operations)} {acl.kind}:{acl.pattern}"
