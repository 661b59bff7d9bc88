"""`fairlead security`: the security mode, and the operations that `enforce` mode would refuse."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from fairlead import Admin
from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap, Output, OutputFormat
from fairlead.cli.printing import print_document, print_done, print_pairs, print_rows
from fairlead.cli.session import ASK_TIMEOUT, RETRY_TIMEOUT, fail_usage, is_terminal, run
from fairlead_api.bodies.security import SecurityStatus
from fairlead_api.configuration import SECURITY_MODE_KEY

Mode = Literal["open", "observe", "enforce"]
MODES = get_args(Mode)
"""Modes, from the least to the most strict."""

app = typer.Typer(no_args_is_help=True, help="Show and change the security mode.")


@app.callback()
def security() -> None:
    """Show and change the security mode."""


@app.command("status")
def status(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, output: Output = OutputFormat.TABLE) -> None:
    """Show the security mode, and the operations that enforce mode would refuse, as counted by all brokers.

    Example: fairlead security status
    """
    found = _status(bootstrap)
    if output is not OutputFormat.TABLE:
        print_document(found, output)
        return
    print_pairs(
        {
            "mode": found.mode,
            "floor": found.floor,
            "superusers": ", ".join(found.superusers) or None,
            "tokens": found.tokens,
            "acls": found.acls,
            "issuers": ", ".join(each.name for each in found.issuers) or None,
        }
    )
    _print_denied(found)


@app.command("mode")
def mode(
    wanted: Annotated[Mode, typer.Argument(metavar="MODE", help="open, observe or enforce.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Change the security mode of the cluster.

    Before a change to enforce, show the operations that enforce would refuse, and ask for confirmation.

    Example: fairlead security mode observe
    """
    if wanted == "enforce" and not yes:
        _print_denied(_status(bootstrap))
        if not is_terminal():
            fail_usage("enforce mode refuses every operation that no ACL allows; confirm with --yes")
        typer.confirm("Refuse every operation that no ACL allows?", abort=True)

    async def work() -> str:
        async with Admin(bootstrap) as admin:
            await admin.alter_cluster_config({SECURITY_MODE_KEY: wanted})
            return (await admin.security_status()).floor

    floor = run(work())
    print_done(f"the security mode is {wanted}", {"mode": wanted, "floor": floor}, output)
    if MODES.index(floor) > MODES.index(wanted):
        typer.echo(
            f"warning: a broker was started with --security {floor}, and stays in this mode until it is started with "
            "another mode",
            err=True,
        )


def _status(bootstrap: str) -> SecurityStatus:
    async def work() -> SecurityStatus:
        async with Admin(bootstrap, request_timeout=ASK_TIMEOUT, retry_timeout=RETRY_TIMEOUT) as admin:
            return await admin.security_status()

    return run(work())


def _print_denied(status: SecurityStatus) -> None:
    if status.would_be_denied:
        typer.echo()
        rows = [
            (each.principal, each.operation, each.resource, each.count) for each in status.would_be_denied
        ]
        print_rows(["PRINCIPAL", "WOULD BE REFUSED", "RESOURCE", "TIMES"], rows)
    if status.silent_brokers:
        brokers = ", ".join(map(str, status.silent_brokers))
        typer.echo(
            f"warning: brokers {brokers} did not answer; operations that only they counted are missing",
            err=True,
        )
