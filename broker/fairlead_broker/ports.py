"""Protocols for the external resources that the inner packages need.

`runtime` uses these protocols. `wiring` passes the real implementations, and the simulator passes its own. The protocol
for coordination is in `coordination/protocol.py`, next to its conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class BlockingWork(Protocol):
    """Executes blocking calls (disk, decompression) outside the event loop."""

    async def run(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run `call(*arguments)` in another thread, and return its result or raise its exception.

        Cancelling the waiting task does not stop a running call.
        """
        ...

    async def run_all(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
        """Run all calls in parallel, and return results and exceptions in the order of the calls."""
        ...


class ListenerAddresses(Protocol):
    """Addresses of a running broker, each as `host:port`; None while the listener is closed."""

    @property
    def data(self) -> str | None:
        """Address for clients without TLS."""
        ...

    @property
    def data_tls(self) -> str | None:
        """Address for clients with TLS."""
        ...

    @property
    def peer(self) -> str | None:
        """Address for other brokers."""
        ...

    @property
    def ops(self) -> str | None:
        """Address for health checks and Prometheus."""
        ...

    @property
    def kafka(self) -> str | None:
        """Address for clients of Kafka's protocol."""
        ...

    @property
    def external(self) -> str | None:
        """Address for clients outside the brokers' network."""
        ...
