"""`fairlead token`: create, list and revoke API tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, run
from fairlead_api.bodies.security import CreatedToken, TokenDescription

NEVER = "never"
Force = Annotated[
    bool, typer.Option("--force", help="Also revoke tokens and remove ACLs that a program manages.")
]

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API tokens.")


@app.callback()
def token() -> None:
    """Create, list and revoke API tokens."""


@app.command("create")
def create(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="user:NAME.")],
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="Lifetime of the token, such as 90d, or never.")
    ] = "90d",
    note: Annotated[str, typer.Option("--note", help="Text that is stored with the token.")] = "",
    file: Annotated[
        Path | None,
        typer.Option("--file", help="Write the token into a new file that only you can read."),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Create an API token. The token is printed or written to a file only once, and cannot be shown again.

    Example: fairlead token create user:orders --file orders.token
    """

    async def work() -> CreatedToken:
        async with Admin(bootstrap) as admin:
            return await admin.create_token(principal, expires_in=life_of(expires), note=note)

    with new_token_file(file) as write:
        created = run(work())
        write(created.token)
    print_token(created, file, output)


@contextmanager
def new_token_file(file: Path | None) -> Iterator[Callable[[str], None]]:
    """Open a new file that only the user can read, and return a function that writes the text of a token.

    The file is opened before the token is created, so that a token is created only if it can be written. After an
    error, the file is removed. Without a file name, the function writes nothing.
    """
    if file is None:
        yield lambda _text: None
        return
    with os.fdopen(
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
    ) as opened:
        try:
            yield lambda text: print(text, file=opened)
        except BaseException:
            file.unlink()
            raise


def print_token(created: CreatedToken, file: Path | None, output: OutputFormat) -> None:
    """Print a new token, or the name of the file that contains it."""
    if file is not None:
        hidden = {"token_id": created.token_id, "principal": created.principal, "file": str(file)}
        print_done(f"token {created.token_id} of {created.principal} is in {file}", hidden, output)
    elif output is OutputFormat.TABLE:
        typer.echo(created.token)
    else:
        print_document(created, output)


@app.command("list")
def list_tokens(
    principal: Annotated[
        str | None, typer.Option("--principal", help="List only tokens of this principal or pattern.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """List the tokens, without their secrets.

    Example: fairlead token list --principal 'user:shop.*'
    """

    async def work() -> list[TokenDescription]:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.tokens(principal)

    tokens = run(work())
    if output is OutputFormat.TABLE:
        rows = [(each.token_id, each.principal, each.expires_at or NEVER, each.note) for each in tokens]
        print_rows(["TOKEN", "PRINCIPAL", "EXPIRES", "NOTE"], rows)
    else:
        print_document(tokens, output)


@app.command("revoke")
def revoke(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of tokens.")],
    force: Force = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Revoke tokens; every broker refuses a revoked token.

    Example: fairlead token revoke 0a1b2c3d4e5f
    """

    async def work() -> list[bool]:
        async with Admin(bootstrap) as admin:
            return [await admin.revoke_token(each, force=force) for each in ids]

    applied = run(work())
    document = {"token_ids": ids, "applied_everywhere": all(applied)}
    print_done(f"revoked {', '.join(ids)}{applied_in_words(all(applied))}", document, output)


def life_of(text: str) -> str | timedelta | None:
    """Return the lifetime of a token: None for `never`, a timedelta for days such as `90d`, else the text."""
    if text == NEVER:
        return None
    days = text.removesuffix("d")
    return timedelta(days=int(days)) if days != text and days.isdecimal() and len(days) < 6 else text


def applied_in_words(everywhere: bool) -> str:
    """Return the end of a message about a change that some brokers might not have applied yet."""
    return "" if everywhere else "; not every broker has applied the change yet"
