"""A member of an etcd cluster and its connection, which is opened at the first request and again after a failure.

`members` uses this module. A request is sent only over a connection on which the member has just answered, so
that an unreachable member can be distinguished from a lost answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import grpc
import structlog

from fairlead_broker.coordination.etcd import etcd_pb2 as messages
from fairlead_broker.coordination.etcd.calls import STATUS, Answer, Call, Request
from fairlead_broker.coordination.etcd.failures import Verdict, judge
from fairlead_broker.coordination.etcd.options import EtcdOptions, EtcdTls, target_of
from fairlead_broker.coordination.protocol import CoordinationUnavailable

RECONNECT_SECONDS: Final = (0.05, 1.0)
"""Seconds between gRPC's attempts to connect: the shortest and the longest pause."""
PING_SECONDS: Final = 10.0
"""Seconds without traffic on a connection with open calls after which gRPC sends a ping. etcd allows pings
every 5 s.
"""
PING_ANSWER_SECONDS: Final = 3.0
SOUND_VERSIONS: Final = ((3, 4, 42), (3, 5, 28), (3, 6, 9))
"""First release of each series that has neither stale linearizable reads after a pause nor wrongly revoked leases."""

Metadata: TypeAlias = tuple[tuple[str, str], ...]

_log = structlog.get_logger("fairlead.coordination")


class Headed(Protocol):
    """An answer from etcd that has a header."""

    @property
    def header(self) -> messages.ResponseHeader:
        """Header with the cluster id and the member id."""
        ...


class Member:
    """A member of an etcd cluster, with its URL."""

    def __init__(self, url: str, options: EtcdOptions, check: Callable[[Member, Headed], None]) -> None:
        """Create a member without a connection.

        `check` is called with the first answer on each connection, and may raise an error.
        """
        self.url = url
        self._options = options
        self._check = check
        self._checked = False
        """Whether the member was checked on the current connection; the check is required before a request is sent."""
        self._channel: grpc.aio.Channel | None = None
        self._connecting: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent to the member now."""
        if self._channel is None or not self._checked:
            return False
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def connect(self, metadata: Metadata, limit_seconds: float) -> None:
        """Connect to the member and check its identity. Concurrent callers share one attempt.

        A member that requires a token or a newer token is treated as connected. Its identity is checked when the member
        issues a token.

        Raises `grpc.aio.AioRpcError`, `TimeoutError` or `CoordinationUnavailable` (a certificate cannot be read).
        """
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.get_running_loop().create_task(
                self._connect(metadata), name="etcd connection"
            )
            self._connecting.add_done_callback(_look_at)
        async with asyncio.timeout(limit_seconds):
            await asyncio.shield(self._connecting)

    async def ask(
        self, call: Call[Request, Answer], request: Request, metadata: Metadata, limit_seconds: float
    ) -> Answer:
        """Send one request and wait for its answer. Raises `grpc.aio.AioRpcError`."""
        method = self._connected().unary_unary(
            call.path, call.request.SerializeToString, call.answer.FromString
        )
        answer: Answer = await method(request, metadata=metadata, timeout=limit_seconds)
        return answer

    def stream(
        self, call: Call[Request, Answer], metadata: Metadata
    ) -> grpc.aio.StreamStreamCall[Request, Answer]:
        """Open a stream of requests and answers."""
        method = self._connected().stream_stream(
            call.path, call.request.SerializeToString, call.answer.FromString
        )
        return method(None, metadata=metadata)

    async def close(self) -> None:
        """Close the connection, which ends its calls and streams."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await self._drop()

    def _connected(self) -> grpc.aio.Channel:
        assert self._channel is not None, f"{self.url} is used before it is connected"
        return self._channel

    async def _connect(self, metadata: Metadata) -> None:
        self._checked = False
        if self._channel is None:
            self._channel = await self._open()
        try:
            limit = self._options.patience.connect_seconds
            status = await self.ask(STATUS, messages.StatusRequest(), metadata, limit)
            self._check(self, status)
        except grpc.aio.AioRpcError as error:
            if judge(error).verdict not in {Verdict.TOKEN, Verdict.CREDENTIALS}:
                # The next attempt opens a new connection, reads the certificates again, and does not wait for gRPC's
                # reconnect backoff.
                await self._drop()
                raise
        else:
            if not is_sound(status.version):
                _log.warning("etcd is too old", member=self.url, version=status.version)
        self._checked = True

    async def _open(self) -> grpc.aio.Channel:
        target, options = target_of(self.url), channel_options(self._options.patience.connect_seconds)
        if not self._options.secure:
            return grpc.aio.insecure_channel(target, options=options)
        credentials = await asyncio.to_thread(read_credentials, self._options.tls or EtcdTls())
        return grpc.aio.secure_channel(target, credentials, options=options)

    async def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close(None)


def channel_options(connect_seconds: float) -> list[tuple[str, int | str]]:
    """Return the gRPC settings of a connection."""
    first, longest = RECONNECT_SECONDS
    return [
        ("grpc.initial_reconnect_backoff_ms", int(first * 1000)),
        ("grpc.max_reconnect_backoff_ms", int(longest * 1000)),
        ("grpc.min_reconnect_backoff_ms", int(connect_seconds * 1000)),
        ("grpc.keepalive_time_ms", int(PING_SECONDS * 1000)),
        ("grpc.keepalive_timeout_ms", int(PING_ANSWER_SECONDS * 1000)),
        ("grpc.http2.max_pings_without_data", 0),
        # gRPC must not retry: only this client decides whether a request is sent again.
        ("grpc.enable_retries", 0),
        ("grpc.service_config_disable_resolution", 1),
        # Each channel has its own connection, so that the failure of one client's connection does not affect another.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        # A page of a list may be large: etcd limits the size of requests, but not of answers.
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]


def read_credentials(tls: EtcdTls) -> grpc.ChannelCredentials:
    """Read the certificates. The call blocks. Raises `CoordinationUnavailable`, which names the unreadable file."""
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.certificate))


def is_sound(version: str) -> bool:
    """Return whether an etcd release has no known bug that affects clients. An unparsable version is accepted."""
    try:
        major, minor, patch = (int(part) for part in version.partition("-")[0].split("."))
    except ValueError:
        return True
    first = next((sound for sound in SOUND_VERSIONS if sound[:2] == (major, minor)), SOUND_VERSIONS[0])
    return (major, minor, patch) >= first


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        msg = f"{path}, needed for connections to etcd, cannot be read: {error.strerror}"
        raise CoordinationUnavailable(msg) from error


def _look_at(done: asyncio.Task[None]) -> None:
    """Retrieve the error of a task, so that asyncio does not log it if no caller waits for the task."""
    if not done.cancelled():
        done.exception()
