"""TCP socket that is bound before connections are accepted.

Callers: ``http2_listener``, ``listener_generations`` and ``ops_listener``. Binding, which determines the port, and
listening are separate steps, because a broker registers its addresses before recovery and serves only after recovery.
SO_REUSEPORT is never set: if two brokers use one port, the second broker must fail instead of taking clients from the
first. `::` means every IPv6 and IPv4 address.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import structlog

from fairlead_broker.server.connections import connection_filter

BACKLOG = 1024
OWN_DESCRIPTORS = Path("/proc/self/fd")
EVERY_ADDRESS = "::"
EVERY_IPV4_ADDRESS = "0.0.0.0"  # noqa: S104 - replaces `::` on a machine without IPv6

_log = structlog.get_logger("fairlead.connections")


class ListenError(OSError):
    """Raised when a listener cannot bind its address; the message states the address, the reason and the remedy."""


def take_over(descriptors: set[int]) -> None:
    """Make the descriptors of a listening socket refer to another listening socket, to which no client connects.

    A server that accepts connections from these descriptors gets no new connections after the call, and continues to
    serve its existing connections and unfinished handshakes. Unfinished handshakes end only when the server stops.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=1) as silent:
        silent.setblocking(False)
        for descriptor in descriptors:
            os.dup2(silent.fileno(), descriptor, inheritable=False)


class BoundSocket:
    """Socket of the listener ``name``, bound to ``host:port`` on creation. Raises ListenError when binding fails."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self._ignored: frozenset[str] = frozenset()
        self._socket = self._bind(port)
        self.port: int = self._socket.getsockname()[1]

    def __str__(self) -> str:
        """Return ``host:port`` as in a URL, with the actual port when port 0 was requested."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """Start listening and return the non-blocking socket, whose ownership passes to the caller."""
        # Accepted connections inherit SO_REUSEADDR, so that their sockets in TIME_WAIT do not block the next start.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections also inherit TCP_NODELAY; granian sets TCP_NODELAY only on sockets that it creates
        # itself. Without TCP_NODELAY, the last packet of an answer waits for the client's delayed acknowledgement
        # (measured: 40 ms; a JSON fetch took 56 ms instead of 12 ms).
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            raise self._refused(self.port, error) from error
        self._socket.setblocking(False)
        return self._socket

    def duplicate(self) -> socket.socket:
        """Start listening and return a duplicate of the non-blocking socket, which the caller closes.

        Servers on duplicates accept connections from one queue of the kernel. The address is in use until this socket
        and all duplicates are closed.
        """
        return self.listen().dup()

    def duplicates(self) -> set[int]:
        """Return this process's descriptors that are duplicates of the socket."""
        own = os.fstat(self._socket.fileno())
        found = set()
        for entry in list(OWN_DESCRIPTORS.iterdir()):
            with suppress(OSError):  # the descriptor may be closed at any moment
                state = os.fstat(int(entry.name))
                if (state.st_dev, state.st_ino) == (own.st_dev, own.st_ino):
                    found.add(int(entry.name))
        return found - {self._socket.fileno()}

    def ignore(self, networks: Collection[str]) -> None:
        """Ignore new connections from these networks, and from no others, until the next call.

        `networks`: results of `network_of`; only the first `NETWORKS_MAX` networks are ignored.
        """
        ignored = frozenset(list(networks)[: connection_filter.NETWORKS_MAX])
        if ignored == self._ignored or self._socket.fileno() < 0:
            return
        self._ignored = ignored
        try:
            connection_filter.attach(self._socket, ignored)
        except OSError as error:
            _log.warning("new connections cannot be ignored", reason=os.strerror(error.errno or 0))
            return
        _log.warning("new connections ignored", port=self.port, addresses=sorted(ignored))

    def close(self) -> None:
        """Release the address. The call has no effect if a listener has already closed the socket."""
        self._socket.close()

    def _bind(self, port: int) -> socket.socket:
        # The fallback to IPv4 lets one pod template work in clusters of either address family and on nodes whose kernel
        # has no IPv6.
        every = self.host == EVERY_ADDRESS
        host = EVERY_IPV4_ADDRESS if every and not socket.has_dualstack_ipv6() else self.host
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except OSError as error:
            raise self._refused(port, error) from error
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if every and family == socket.AF_INET6:
                # A machine may be configured to bind IPv6 sockets to IPv6 only (net.ipv6.bindv6only).
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(address)
            # Linux allows two sockets with SO_REUSEADDR to bind the same address as long as neither listens, so the
            # option is off until this socket listens.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            bound.close()
            raise self._refused(port, error) from error
        return bound

    def _refused(self, port: int, error: OSError) -> ListenError:
        reason = (
            "another process uses it" if error.errno == errno.EADDRINUSE else str(error.strerror or error)
        )
        return ListenError(
            f"the {self.name} listener cannot use {self.host}:{port}: {reason}; "
            "stop that process, or give another address (port 0 picks a free port)"
        )
