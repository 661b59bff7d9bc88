"""What the inner rooms need of the outer world, as small protocols.

`runtime` is written against these, `wiring` hands in the real things and a simulator its own. Coordination is
a port as well and has its protocol in `coordination/protocol.py`, beside the conformance suite for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")


class BlockingWork(Protocol):
    """Runs calls that may block (disk, decompression) away from the event loop."""

    async def run(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run `call(*arguments)` elsewhere and answer what it returns or raises.

        Cancelling the waiting task does not stop a call that has begun.
        """
        ...

    async def run_all(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer | BaseException]:
        """Run all calls at once; answer results and exceptions in the order of the calls."""
        ...


class ListenerAddresses(Protocol):
    """Where a running broker can be reached, each as `host:port`, or None while it is not listening."""

    @property
    def data(self) -> str | None:
        """For clients."""
        ...

    @property
    def peer(self) -> str | None:
        """For other brokers."""
        ...

    @property
    def ops(self) -> str | None:
        """For health checks and Prometheus."""
        ...


class Listening(Protocol):
    """The broker's listeners, in the order in which a start opens them: ops, data, peer."""

    @property
    def addresses(self) -> ListenerAddresses:
        """Where it is bound; real ports, also where port 0 was asked for."""
        ...

    def bind(self) -> None:
        """Take the ports without listening yet, so that the broker can register its addresses."""
        ...

    async def start_ops(self) -> None:
        """Answer health and metrics; before recovery, so that a long one can be watched."""
        ...

    async def start_data(self) -> None:
        """Answer clients; after recovery."""
        ...

    async def start_peer(self) -> None:
        """Answer other brokers."""
        ...

    async def stop(self) -> None:
        """Finish what is being answered and close all listeners; at most five seconds."""
        ...
