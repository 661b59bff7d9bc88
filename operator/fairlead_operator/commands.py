"""The command `fairlead operator start`.

The command is an entry point of the group `fairlead.commands`, so that the command line of the base install finds the
command if the extra `operator` is installed. Without the extra, the import of uvloop at the top of the module fails.
Heavy modules are imported only when the command runs.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

USAGE_EXIT = 2
FAILED_EXIT = 1

Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="Kubeconfig file for access from outside a pod.", show_default="as kubectl does"),
]
Context = Annotated[
    str | None, typer.Option(help="Kubeconfig context to use.", show_default="its current one")
]
Namespaces = Annotated[
    str | None,
    typer.Option(metavar="A,B", help="Namespaces to watch; * for all.", show_default="the operator's own"),
]
MetricsListen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Address on which metrics and health are served.", show_default="[::]:8080"
    ),
]
LogFormat = Annotated[str | None, typer.Option(help="json, console or auto.", show_default="auto")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default="info")]


def operator_start(
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespaces: Namespaces = None,
    metrics_listen: MetricsListen = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
) -> None:
    """Run the operator until it is stopped. Every setting can also be set by a FAIRLEAD_OPERATOR_... variable.

    Example: fairlead operator start --namespaces prod,staging
    """
    from pydantic import ValidationError  # noqa: PLC0415 - only when a command runs

    from fairlead_operator.api_server.connection import NoConnection  # noqa: PLC0415 - only when a command runs
    from fairlead_operator.settings import OperatorSettings  # noqa: PLC0415 - only when a command runs
    from fairlead_operator.telemetry import Telemetry, set_up_logging  # noqa: PLC0415 - only when a command runs
    from fairlead_operator.wiring import run_operator  # noqa: PLC0415 - only when a command runs

    flags: dict[str, Any] = {
        "kubeconfig": kubeconfig,
        "context": context,
        "namespaces": namespaces,
        "metrics_listen": metrics_listen,
        "log_format": log_format,
        "log_level": log_level,
    }
    try:
        settings = OperatorSettings(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        for fault in error.errors():
            typer.echo(f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}", err=True)
        raise typer.Exit(USAGE_EXIT) from None
    set_up_logging(settings.log_format, settings.log_level)

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await run_operator(settings, Telemetry(), stop)

    try:
        uvloop.run(run())
    except NoConnection as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(FAILED_EXIT) from None
