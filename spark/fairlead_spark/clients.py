"""Connections to clusters, one for each bootstrap address, which stay open as long as the Python process runs.

Spark reuses its Python workers and forks them from a daemon. A process creates a connection on first use, and later
tasks or triggers in the process reuse this connection. Objects that Spark pickles contain addresses, never clients.
The source, the sink and the progress listener use this module.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from fairlead.blocking import Admin
from fairlead.blocking.loop_thread import LoopThread
from fairlead.reading.connection import ReadConnection
from fairlead_api.bodies.requests import Isolation
from fairlead_spark.credential_options import NO_CREDENTIALS, CredentialOptions

T = TypeVar("T")
_Key: TypeAlias = "tuple[int, str, float, bool | None, CredentialOptions, Isolation, bool]"

_LOCK: Final = threading.Lock()
# A fork keeps the entries of its parent process, since closing them would disturb the parent's connections.
_CONNECTIONS: Final[dict[_Key, Connection]] = {}
_ADMINS: Final[dict[tuple[int, str, float, bool | None, CredentialOptions], Admin]] = {}


class Connection:
    """The SDK's connection for reads, on an event loop in a separate thread."""

    def __init__(
        self,
        bootstrap: str,
        retry_timeout_seconds: float,
        one_address: bool | None,
        credentials: CredentialOptions,
        isolation: Isolation,
        *,
        follow_moves: bool,
    ) -> None:
        self._thread = LoopThread("fairlead spark")
        self.reads = ReadConnection(
            bootstrap,
            retry_timeout=f"{retry_timeout_seconds}s",
            one_address=one_address,
            follow_moves=follow_moves,
            isolation=isolation,
            **credentials.arguments(),
        )
        self._thread.start()
        self._thread.run(self.reads.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop; return its result."""
        return self._thread.run(work)


def connection(
    bootstrap: str,
    retry_timeout_seconds: float = 60.0,
    one_address: bool | None = None,
    credentials: CredentialOptions = NO_CREDENTIALS,
    isolation: Isolation = "read_uncommitted",
    *,
    follow_moves: bool = False,
) -> Connection:
    """Return this process's connection to a cluster, with these credentials and this isolation level."""
    key = (os.getpid(), bootstrap, retry_timeout_seconds, one_address, credentials, isolation, follow_moves)
    with _LOCK:
        if key not in _CONNECTIONS:
            _CONNECTIONS[key] = Connection(
                bootstrap,
                retry_timeout_seconds,
                one_address,
                credentials,
                isolation,
                follow_moves=follow_moves,
            )
        return _CONNECTIONS[key]


def admin(
    bootstrap: str,
    retry_timeout_seconds: float = 60.0,
    one_address: bool | None = None,
    credentials: CredentialOptions = NO_CREDENTIALS,
) -> Admin:
    """Return this process's admin client for a cluster, with these credentials."""
    key = (os.getpid(), bootstrap, retry_timeout_seconds, one_address, credentials)
    with _LOCK:
        if key not in _ADMINS:
            _ADMINS[key] = Admin(
                bootstrap,
                retry_timeout=f"{retry_timeout_seconds}s",
                one_address=one_address,
                **credentials.arguments(),
            ).start()
        return _ADMINS[key]
