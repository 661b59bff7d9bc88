"""One pool of HTTP/2 connections to the brokers, and its replacement when the TLS files change.

The transport sends each request through the current pool. A pool keeps the certificates with which it was opened, so
a change of the files opens a new pool, and the previous pool closes when its last request has ended. The module must
not depend on the meaning of the requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import pyreqwest.client
import pyreqwest.exceptions

from fairlead import clock
from fairlead.connection.http_threads import rest_before_exit
from fairlead.errors import SettingError
from fairlead.settings import MIB, ConnectionSettings
from fairlead.tls_files import TlsMaterial

STREAM_WINDOW_BYTES: Final = 16 * MIB
CONNECTION_WINDOW_BYTES: Final = 64 * MIB
FRAME_BYTES: Final = 1 * MIB
"""Flow-control windows and frame size; the defaults of HTTP/2 (64 KiB, 16 KiB) are three to five times slower."""

KEEP_ALIVE_INTERVAL: Final = timedelta(seconds=20)
KEEP_ALIVE_TIMEOUT: Final = timedelta(seconds=10)
"""Ping interval and timeout, which detect a broker whose machine has failed, even during a long poll."""

LOOK_SECONDS: Final = 30.0
"""Seconds between two checks of the TLS files for changes."""

RECONNECT_SECONDS: Final = 5.0
"""Minimum age of a pool that `reconnect` replaces, so that the failures of many calls open one pool."""

_log = logging.getLogger("fairlead.connection")


class ConnectionPool:
    """Current pool of a client, and previous pools whose requests have not ended."""

    def __init__(self, settings: ConnectionSettings) -> None:
        """Open a pool. Raises `SettingError` if the TLS files cannot be used."""
        self._settings = settings
        # The state of the files is read before their content, so the next check notices a change during the read.
        self._states = settings.tls.states()
        self._material = settings.tls.read() if settings.uses_tls else None
        self._current = _Pool(_client(settings, self._material))
        self._look_at = clock.monotonic() + LOOK_SECONDS
        self._opened_at = clock.monotonic()
        self._fault: str | None = None
        """Reason why the changed files cannot be used, or None."""
        self._closing: set[asyncio.Task[None]] = set()

    @contextmanager
    def client(self) -> Iterator[pyreqwest.client.Client]:
        """Return the client for one request; the request must end in the block."""
        if self._material is not None and clock.monotonic() >= self._look_at:
            self._look()
        pool = self._current
        pool.requests += 1
        try:
            yield pool.client
        finally:
            pool.requests -= 1
            if pool is not self._current and not pool.requests:
                self._close_later(pool)

    def reconnect(self) -> None:
        """Open new connections for later requests, unless the current connections are only a few seconds old."""
        if clock.monotonic() - self._opened_at >= RECONNECT_SECONDS:
            self._use(_Pool(_client(self._settings, self._material)), self._material)

    async def close(self) -> None:
        """Close every connection; requests in flight fail."""
        await self._current.client.close()
        if self._closing:
            await asyncio.wait(self._closing)

    def _look(self) -> None:
        """Open a new pool if the TLS files have changed; keep the current pool if the new files cannot be used.

        Files that cannot be used are read again at the next check, because their cause may not change the files.
        """
        self._look_at = clock.monotonic() + LOOK_SECONDS
        states = self._settings.tls.states()
        if states == self._states:
            return
        try:
            material = self._settings.tls.read()
            opened = None if material == self._material else _Pool(_client(self._settings, material))
        except SettingError as error:
            if str(error) != self._fault:
                _log.warning("changed TLS files cannot be used; the previous files stay in use: %s", error)
            self._fault = str(error)
            return
        self._states, self._fault = states, None
        if opened is not None:
            self._use(opened, material)

    def _use(self, opened: _Pool, material: TlsMaterial | None) -> None:
        self._material, previous, self._current = material, self._current, opened
        self._opened_at = clock.monotonic()
        if not previous.requests:
            self._close_later(previous)

    def _close_later(self, pool: _Pool) -> None:
        closing = asyncio.get_running_loop().create_task(pool.client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


class _Pool:
    """A pool and the number of its unfinished requests."""

    __slots__ = ("client", "requests")

    def __init__(self, client: pyreqwest.client.Client) -> None:
        self.client = client
        self.requests = 0


def _client(settings: ConnectionSettings, material: TlsMaterial | None) -> pyreqwest.client.Client:
    rest_before_exit()
    builder = (
        pyreqwest.client.ClientBuilder()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_frame_size(FRAME_BYTES)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .connect_timeout(timedelta(seconds=settings.connect_timeout_seconds))
        .follow_redirects(False)
        .gzip(False)
        .brotli(False)
        .zstd(False)
        .deflate(False)
        # A proxy from the environment variables would break HTTP/2 without TLS.
        .no_proxy()
        .user_agent("fairlead-python")
    )
    if material is None:
        return builder.build()
    try:
        if material.ca_pem is not None:
            builder = builder.add_root_certificate_pem(material.ca_pem)
        if material.identity_pem is not None:
            builder = builder.identity_pem(material.identity_pem)
        return builder.build()
    except (ValueError, pyreqwest.exceptions.BuilderError) as error:
        named = "ca_file" if material.identity_pem is None else "client_cert_file"
        raise SettingError(named, "the given file", f"certificates that TLS can use ({error})") from error
