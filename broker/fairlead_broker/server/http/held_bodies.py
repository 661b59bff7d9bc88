"""Choice of the incomplete body that is ended when request bodies use all their memory.

Caller: ``body``. A client can keep an incomplete body in memory for as long as the time limits of bodies allow, so a
few clients could keep all other clients out. The choice compares the bytes of addresses, then those of the connections
of one address: a request need not wait for an address or connection that holds more than the request's own would. The
module must not read bodies or use a clock.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

Client: TypeAlias = tuple[str, int]
"""Address and port of a client, which identify its connection."""
UNKNOWN: Final[Client] = ("", 0)


class HeldBody(Protocol):
    """An incomplete body with bytes in memory."""

    client: Client
    """Client that sends the body."""
    held_since: float
    """Monotonic time in seconds at which the first byte of the body arrived."""

    def end_early(self) -> None:
        """Return the bytes of the body to the budget and refuse the body."""


class HeldBodies:
    """Incomplete bodies in the order in which they began, with the bytes of each address and connection."""

    __slots__ = ("_addresses", "_bodies", "_connections")

    def __init__(self) -> None:
        self._bodies: dict[HeldBody, int] = {}
        self._addresses: dict[str, int] = {}
        self._connections: dict[str, dict[int, int]] = {}

    def add(self, body: HeldBody, nbytes: int) -> None:
        """Count further bytes of an incomplete body."""
        address, port = body.client
        self._bodies[body] = self._bodies.get(body, 0) + nbytes
        self._addresses[address] = self._addresses.get(address, 0) + nbytes
        ports = self._connections.setdefault(address, {})
        ports[port] = ports.get(port, 0) + nbytes

    def remove(self, body: HeldBody) -> None:
        """Forget a body that is complete, refused or without bytes in memory."""
        nbytes = self._bodies.pop(body, 0)
        if not nbytes:
            return
        address, port = body.client
        ports = self._connections[address]
        self._addresses[address] -= nbytes
        ports[port] -= nbytes
        if not ports[port]:
            del ports[port]
        if not self._addresses[address]:
            del self._addresses[address], self._connections[address]

    def longest_held(self, client: Client, nbytes: int, since: float) -> HeldBody | None:
        """Return the body to be ended so that ``nbytes`` of ``client`` find memory; None if no body may be ended.

        The body is the longest held of the address, or the connection of the client's own address, that holds most, if
        that is at least as much as the client's would hold with ``nbytes``. Otherwise the body is the longest held of
        all, if it has been held since ``since``, a monotonic time in seconds, or longer.
        """
        address, port = client
        most = max(self._addresses, key=self._addresses.__getitem__, default=address)
        if most != address and self._addresses[most] >= self._addresses.get(address, 0) + nbytes:
            return self._first(most, self._largest_connection(most))
        ports = self._connections.get(address, {})
        if ports:
            largest = self._largest_connection(address)
            if largest != port and ports[largest] >= ports.get(port, 0) + nbytes:
                return self._first(address, largest)
        first = next(iter(self._bodies), None)
        return first if first is not None and first.held_since <= since else None

    def _largest_connection(self, address: str) -> int:
        ports = self._connections[address]
        return max(ports, key=ports.__getitem__)

    def _first(self, address: str, port: int) -> HeldBody:
        return next(body for body in self._bodies if body.client == (address, port))
