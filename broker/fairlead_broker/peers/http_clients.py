"""HTTP clients with which a broker calls other brokers, of its own cluster and of the sources of links.

`peers` and the code that calls the sources of links make their clients with this module. The callers handle the
exceptions of pyreqwest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import msgspec
import pyreqwest.client

from fairlead_api import problems
from fairlead_api.problems import ProblemError
from fairlead_broker.peers.http_threads import rest_before_exit

CONNECTION_WINDOW_BYTES: Final = 64 << 20
FRAME_BYTES: Final = 1 << 20
"""Maximum number of bytes in an HTTP/2 frame. The defaults of HTTP/2 (64 KiB windows, 16 KiB frames) are three to five
times slower."""


@contextmanager
def cancellable() -> Iterator[None]:
    """Raise the cancellation of the current task if a pyreqwest call within the block has dropped it.

    If a task is cancelled after its request has ended and before the task continues, pyreqwest returns the outcome and
    the cancellation is lost. Without `cancellable`, a cancelled task that repeats its calls would never end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def client_builder(
    name: str, *, connect_seconds_max: float, keep_alive: timedelta, stream_window_bytes: int
) -> pyreqwest.client.ClientBuilder:
    """Return a builder for an HTTP/2 client, without TLS material.

    `name`: user agent. `keep_alive`: interval and timeout of pings. Pings detect a broker whose machine has
    disappeared, even while a fetch is parked.
    """
    rest_before_exit()
    return (
        pyreqwest.client.ClientBuilder()
        .http2_prior_knowledge()
        .http2_initial_stream_window_size(stream_window_bytes)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_frame_size(FRAME_BYTES)
        .http2_keep_alive_interval(keep_alive)
        .http2_keep_alive_timeout(keep_alive)
        .connect_timeout(timedelta(seconds=connect_seconds_max))
        .tcp_nodelay(True)
        .follow_redirects(False)
        .gzip(False)
        .brotli(False)
        .zstd(False)
        .deflate(False)
        # A proxy from the environment would break HTTP/2 without TLS between brokers.
        .no_proxy()
        .user_agent(name)
    )


def problem_in(server: str, status: int, body: memoryview) -> ProblemError:
    """Return the problem in the answer of a server with an error status; `server` names the server in a message."""
    try:
        document: dict[str, problems.JSON] = msgspec.json.decode(body, type=dict)
    except msgspec.DecodeError:
        document = {}
    document.setdefault("detail", f"{server} answered status {status} without a problem document")
    document.setdefault("status", status)
    return ProblemError.from_document(document)
