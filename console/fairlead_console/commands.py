"""The command `fairlead console`: an entry point of the group `fairlead.commands`."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from typing import Annotated, Final, Literal

import typer
import uvicorn

from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap
from fairlead.cli.session import ExitCode, fail_usage
from fairlead_console.application import application
from fairlead_console.settings import LISTEN_DEFAULT, ConsoleSettings, SettingsError, listen_address

STOP_SECONDS: Final = 2
"""Seconds that open answers, for example live tails, get to end when the console stops."""


def console(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="FAIRLEAD_CONSOLE_LISTEN", help="Address for browsers."),
    ] = LISTEN_DEFAULT,
    output: Annotated[
        Literal["table", "json"], typer.Option("--output", help="json: one JSON object on stdout when ready.")
    ] = "table",
    until_end_of_input: Annotated[
        bool, typer.Option("--until-end-of-input", help="Stop at the end of standard input.", hidden=True)
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", envvar="FAIRLEAD_CONSOLE_READ_ONLY", help="Refuse every change.")
    ] = False,
) -> None:
    """See and steer a cluster in a browser.

    Example: fairlead console --bootstrap http://127.0.0.1:9520
    """
    try:
        host, port = listen_address(listen)
    except SettingsError as error:
        fail_usage(str(error))
    settings = ConsoleSettings(bootstrap=bootstrap, host=host, port=port, read_only=read_only)
    code = asyncio.run(_serve(settings, is_json=output == "json", until_end_of_input=until_end_of_input))
    if code:
        raise typer.Exit(code)


async def _serve(settings: ConsoleSettings, *, is_json: bool, until_end_of_input: bool) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=128)
    except OSError as error:
        typer.echo(
            f"fairlead: the console cannot listen on {settings.host}:{settings.port}: {error}", err=True
        )
        return ExitCode.FAILED
    host = f"[{settings.host}]" if family is socket.AF_INET6 else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}/"
    server = _Server(
        uvicorn.Config(
            application(settings),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        ),
        json.dumps({"console": address, "bootstrap": settings.bootstrap})
        if is_json
        else f"fairlead console: {address} shows {settings.bootstrap}",
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    if until_end_of_input:
        loop.add_reader(sys.stdin, server.stop)
    await server.serve(sockets=[listener])
    return ExitCode.OK if server.started else ExitCode.FAILED


class _Server(uvicorn.Server):
    """Server that announces its address when it serves, and leaves signals to the command."""

    def __init__(self, config: uvicorn.Config, announcement: str) -> None:
        super().__init__(config)
        self._announcement = announcement

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            typer.echo(self._announcement)

    def stop(self) -> None:
        """Stop accepting requests and end."""
        self.should_exit = True
