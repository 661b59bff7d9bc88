"""Connections to the cluster that live as long as the Python process: one for each bootstrap address.

Spark keeps its Python workers, and forks them from a daemon: connections are made on first use in the process that
uses them, and found again by the next task or trigger. Objects that Spark pickles hold addresses, never clients.
Called by source, sink and progress.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fairlead.blocking import Admin
from fairlead.blocking.loop_thread import LoopThread
from fairlead.connection.metadata import MetadataCache
from fairlead.connection.transport import Transport
from fairlead.reading.offsets import OffsetLookup
from fairlead.settings import connection_of

T = TypeVar("T")

_LOCK: Final = threading.Lock()
# Entries of a parent process stay: closing its connections from a fork would disturb them.
_CONNECTIONS: Final[dict[tuple[int, str, float], Connection]] = {}
_ADMINS: Final[dict[tuple[int, str, float], Admin]] = {}


class Connection:
    """The SDK's parts for reading, on an event loop in a thread of their own."""

    def __init__(self, bootstrap: str, retry_timeout_seconds: float) -> None:
        self._thread = LoopThread("fairlead spark")
        settings = connection_of(bootstrap, connect="5s", request="30s", retry=f"{retry_timeout_seconds}s")
        self.transport = Transport(settings)
        self.metadata = MetadataCache(self.transport)
        self.lookup = OffsetLookup(self.transport, self.metadata)
        self._thread.start()
        self._thread.run(self.transport.__aenter__())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for what it returns."""
        return self._thread.run(work)


def connection(bootstrap: str, retry_timeout_seconds: float = 60.0) -> Connection:
    """Return this process' connection to a cluster."""
    key = (os.getpid(), bootstrap, retry_timeout_seconds)
    with _LOCK:
        if key not in _CONNECTIONS:
            _CONNECTIONS[key] = Connection(bootstrap, retry_timeout_seconds)
        return _CONNECTIONS[key]


def admin(bootstrap: str, retry_timeout_seconds: float = 60.0) -> Admin:
    """Return this process' admin client of a cluster."""
    key = (os.getpid(), bootstrap, retry_timeout_seconds)
    with _LOCK:
        if key not in _ADMINS:
            _ADMINS[key] = Admin(bootstrap, retry_timeout=f"{retry_timeout_seconds}s").start()
        return _ADMINS[key]
