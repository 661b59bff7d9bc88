"""A TCP address that is taken before anybody is served on it.

Callers: ``http2_listener`` and ``ops_listener``. A broker registers its addresses before it recovers and serves
only afterwards, so binding (which settles the port) and listening are two steps. SO_REUSEPORT is never set: two
brokers on one port must not share its clients, the second must fail. `::` is every address of IPv6 and of IPv4.
"""

from __future__ import annotations

import errno
import socket

BACKLOG = 1024
EVERY_ADDRESS = "::"
EVERY_IPV4_ADDRESS = "0.0.0.0"  # noqa: S104 - what a machine without IPv6 has of the above


class ListenError(OSError):
    """A listener could not take its address; the message says which, why, and what to change."""


class BoundSocket:
    """``host:port`` of the listener ``name``, bound at once; raises ListenError when it cannot be had."""

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.host = host
        self._socket = self._bind(port)
        self.port: int = self._socket.getsockname()[1]

    def __str__(self) -> str:
        """``host:port`` as in a URL, with the real port when 0 was asked."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        """Begin to queue connections; the caller owns the non-blocking socket from now on."""
        # Accepted connections inherit it, and their TIME_WAIT remains must not block the next start.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited too, and granian sets it on sockets of its own only: without it the last packet of an answer waits
        # for the reader's delayed acknowledgement (measured: 40 ms, a JSON fetch took 56 ms rather than 12).
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.listen(BACKLOG)
        except OSError as error:
            raise self._refused(self.port, error) from error
        self._socket.setblocking(False)
        return self._socket

    def close(self) -> None:
        """Give the address back; nothing happens when a listener took the socket and closed it."""
        self._socket.close()

    def _bind(self, port: int) -> socket.socket:
        # One template of a pod serves clusters of either family, and nodes whose kernel has no IPv6.
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
                # A machine may be set up to give IPv6 alone (net.ipv6.bindv6only).
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(address)
            # Linux lets two sockets that both allow reuse bind one address as long as neither listens.
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
