"""The command `fairlead console`: an entry point of the group `fairlead.commands`."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Final

import typer
import uvicorn
from fastapi import FastAPI

from fairlead.cli.options import BOOTSTRAP_DEFAULT, Bootstrap
from fairlead.cli.session import ExitCode, fail_usage
from fairlead.credentials import TOKEN_VARIABLES
from fairlead_console.application import application
from fairlead_console.identity.oidc import OidcClient
from fairlead_console.options import (
    HideRecords,
    Listen,
    OidcCaFile,
    OidcClientId,
    OidcClientSecretFile,
    OidcForward,
    OidcIssuerOption,
    OidcScope,
    Output,
    PublicUrl,
    ReadOnly,
    SessionKeyFile,
    UntilEndOfInput,
)
from fairlead_console.settings import (
    LISTEN_DEFAULT,
    SESSION_KEY_BYTES_MIN,
    ConsoleSettings,
    SettingsError,
    checked_public_url,
    listen_address,
    secret_of_file,
)

M_ARENA_MAX: Final = -8
M_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt` in glibc."""
ARENAS_MAX: Final = 2
MMAP_BYTES_MIN: Final = 1024 * 1024
"""Size of a buffer from which on the buffer is returned to the system when it is freed."""
STOP_SECONDS: Final = 2
"""Seconds for which a stopping console waits for open answers, such as live tails."""


def console(
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    listen: Listen = LISTEN_DEFAULT,
    output: Output = "table",
    until_end_of_input: UntilEndOfInput = False,
    read_only: ReadOnly = False,
    hide_records: HideRecords = None,
    public_url: PublicUrl = None,
    session_key_file: SessionKeyFile = None,
    oidc_issuer: OidcIssuerOption = None,
    oidc_client_id: OidcClientId = "fairlead",
    oidc_client_secret_file: OidcClientSecretFile = None,
    oidc_scope: OidcScope = "openid",
    oidc_forward: OidcForward = "id",
    oidc_ca_file: OidcCaFile = None,
) -> None:
    """See and steer a cluster in a browser.

    Example: fairlead console --bootstrap http://127.0.0.1:9520
    """
    try:
        host, port = listen_address(listen)
        settings = ConsoleSettings(
            bootstrap=bootstrap,
            host=host,
            port=port,
            read_only=read_only,
            hidden_records=tuple(hide_records or ()),
            public_url=checked_public_url(public_url),
        )
        session_key = secret_of_file("--session-key-file", session_key_file, SESSION_KEY_BYTES_MIN)
        secret = secret_of_file("--oidc-client-secret-file", oidc_client_secret_file, 1)
    except SettingsError as error:
        fail_usage(str(error))
    oidc = None
    if oidc_issuer is not None:
        oidc = OidcClient(
            issuer=oidc_issuer,
            client_id=oidc_client_id,
            client_secret=None if secret is None else os.fsdecode(secret),
            scope=oidc_scope,
            forward=oidc_forward,
            ca_file=oidc_ca_file,
        )
    _limit_memory()
    # The console has no identity of its own: callers without a session call the cluster without a token.
    for name in TOKEN_VARIABLES:
        os.environ.pop(name, None)
    app = application(settings, session_key, oidc)
    code = asyncio.run(_serve(app, settings, is_json=output == "json", until_end_of_input=until_end_of_input))
    if code:
        raise typer.Exit(code)


def _limit_memory() -> None:
    """Return freed memory to the system early, and let all threads share two arenas of the C library.

    Each arena keeps as much memory as it ever used, and so does Arrow's own memory pool.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_ARENA_MAX, ARENAS_MAX)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_BYTES_MIN)


async def _serve(app: FastAPI, settings: ConsoleSettings, *, is_json: bool, until_end_of_input: bool) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (settings.host, settings.port),
            family=family,
            backlog=128,
            # The address [::] stands for all addresses, those of IPv4 too.
            dualstack_ipv6=settings.host == "::" and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        typer.echo(
            f"fairlead: the console cannot listen on {settings.host}:{settings.port}: {error}", err=True
        )
        return ExitCode.FAILED
    host = f"[{settings.host}]" if family is socket.AF_INET6 else settings.host
    address = f"http://{host}:{listener.getsockname()[1]}/"
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
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
    """Server that announces its address once it serves requests, and leaves signals to the command."""

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
