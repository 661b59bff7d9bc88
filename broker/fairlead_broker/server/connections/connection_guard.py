"""Closes connections that count towards the limit without making an accepted request (rules T11, T12).

Callers: ``listeners`` creates one guard for each bound address, and the applications of the listeners report requests
to the guard. granian and uvicorn keep a connection without any request forever, and report a connection only with its
first request. To enforce the limits on connections, a thread lists the sockets of the listeners and shuts down the
connections that the guards name:

- a connection without any request, some time after it was first seen;
- a connection whose requests were all answered with 401, after twice that time (only `enforce` mode answers 401);
- the newest connections of an address that has more connections than allowed.

A client that opens one connection after the other and reads no answer makes granian pass on requests faster than the
event loop answers them, although the broker closes each connection soon. While the loop is late, the guard therefore
names the addresses of new connections that were refused with 401, and the listener ignores further connections from
these addresses.

A request costs one entry in a set. This module must not depend on topics, routes or the runtime.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog

from fairlead_broker.clock import Clock
from fairlead_broker.credentials.failure_budget import network_of
from fairlead_broker.server.connections.sockets import ListedSocket, Peer, listed_sockets, shut_down

LOOK_SECONDS_MAX: Final = 10.0
"""Maximum number of seconds between two checks of the sockets; checks are more frequent for shorter time limits."""
ADDRESSES_SHOWN_MAX: Final = 20
LOOKS_PER_WAIT: Final = 3
LATE_SECONDS: Final = 0.05
"""Lag of the event loop above which new connections without an accepted token are counted."""
NEW_MIN: Final = 3
"""Minimum number of new connections from one address, between two measurements of the lag, that were all refused."""
IGNORE_SECONDS: Final = 10.0
"""Time for which new connections from an address are ignored."""
UNAUTHENTICATED_FACTOR: Final = 2
"""Time limit for connections without an accepted token, as a multiple of the time limit for connections without a
request."""

_log = structlog.get_logger("fairlead.connections")


class CutReason(StrEnum):
    """Reason why a connection is shut down."""

    NO_REQUEST = "no_request"
    UNAUTHENTICATED = "unauthenticated"
    ADDRESS = "address"
    """The client's address has too many connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """Limits of the connections to one listener; the settings of the same names document the reasons."""

    first_request_seconds_max: float
    connections_per_address_max: int = 0
    """Maximum number of connections from one address, or 0 for no limit."""


@dataclass(slots=True)
class ConnectionGuard:
    """Connections to one bound port: for each connection, when it was first seen, and whether it has made a request."""

    port: int
    limits: GuardLimits
    admitted: set[Peer] = field(default_factory=set)
    """Clients with a request that was not refused with 401."""
    refused: set[Peer] = field(default_factory=set)
    """Clients with a request that was refused with 401."""
    _seen: dict[int, tuple[Peer, float]] = field(default_factory=dict)
    """Client and time of the first sighting of each connection, keyed by the inode of its socket."""
    _new: Counter[str] = field(default_factory=Counter)
    """Number of clients refused since the last measurement of the lag, by network."""
    _ignored: dict[str, float] = field(default_factory=dict)
    """End of the time for which new connections are ignored, by network."""

    def refuse(self, peer: Peer) -> None:
        """Note that a request of a client was refused with 401."""
        if peer not in self.refused:
            self.refused.add(peer)
            self._new[network_of(peer[0])] += 1

    def ignored(self, lag_seconds: float, now: float) -> Collection[str]:
        """Return the networks whose new connections are ignored after this measurement of the event loop's lag."""
        new, self._new = self._new, Counter()
        if lag_seconds > LATE_SECONDS:
            self._ignored |= {each: now + IGNORE_SECONDS for each, count in new.items() if count >= NEW_MIN}
        for each in [each for each, end in self._ignored.items() if end <= now]:
            del self._ignored[each]
        return self._ignored.keys()

    def noted(self) -> frozenset[Peer]:
        """Return the clients that have made a request; a later list of sockets includes all their open connections."""
        return frozenset(self.admitted | self.refused)

    def due(
        self, sockets: Iterable[ListedSocket], noted: frozenset[Peer], now: float
    ) -> Mapping[CutReason, set[Peer]]:
        """Return the connections to shut down.

        `sockets`: all connections to the port; `noted`: result of the method `noted` before the connections were
        listed. Clients that have made a request but no longer have a connection are forgotten.
        """
        self._seen = {
            each.inode: (each.peer, since) for each in sockets for since in (self._since(each, now),)
        }
        gone = noted - {peer for peer, _ in self._seen.values()}
        self.admitted -= gone
        self.refused -= gone
        found: dict[CutReason, set[Peer]] = defaultdict(set)
        by_address: dict[str, list[tuple[float, int, Peer]]] = defaultdict(list)
        for inode, (peer, since) in self._seen.items():
            reason = self._overdue(peer, now - since)
            if reason is not None:
                found[reason].add(peer)
            else:
                by_address[network_of(peer[0])].append((since, inode, peer))
        allowed = self.limits.connections_per_address_max
        for connections in by_address.values():
            if 0 < allowed < len(connections):
                found[CutReason.ADDRESS].update(peer for _, _, peer in sorted(connections)[allowed:])
        return found

    def _since(self, listed: ListedSocket, now: float) -> float:
        seen = self._seen.get(listed.inode)
        return seen[1] if seen is not None and seen[0] == listed.peer else now

    def _overdue(self, peer: Peer, seconds: float) -> CutReason | None:
        wait_seconds = self.limits.first_request_seconds_max
        if peer in self.admitted:
            return None
        if peer in self.refused:
            is_late = seconds >= wait_seconds * UNAUTHENTICATED_FACTOR
            return CutReason.UNAUTHENTICATED if is_late else None
        return CutReason.NO_REQUEST if seconds >= wait_seconds else None


class ConnectionSweep:
    """Periodic check of the sockets of all guarded listeners of a broker."""

    def __init__(
        self, guards: Sequence[ConnectionGuard], clock: Clock, report: Callable[[str, list[str], int], None]
    ) -> None:
        """`report` is called with the reason, the addresses and the number of closed connections.

        A call of `report` gets at most `ADDRESSES_SHOWN_MAX` addresses.
        """
        self._guards = guards
        self._clock = clock
        self._report = report
        shortest = min(guard.limits.first_request_seconds_max for guard in guards)
        self._look_seconds = min(LOOK_SECONDS_MAX, shortest / LOOKS_PER_WAIT)

    async def run(self) -> None:
        """Check the sockets at every interval, until cancelled."""
        while True:
            # No event announces a connection that makes no request.
            await asyncio.sleep(self._look_seconds)  # noqa: TID251
            await self.look()

    async def look(self) -> None:
        """List the sockets once, and shut down the connections that are due."""
        noted = [guard.noted() for guard in self._guards]
        try:
            listed = await asyncio.to_thread(listed_sockets, {guard.port for guard in self._guards})
            now = self._clock.monotonic()
            for guard, before in zip(self._guards, noted, strict=True):
                for reason, peers in guard.due(listed[guard.port], before, now).items():
                    await self._close(guard.port, reason, peers)
        except OSError as error:
            # Without free descriptors, the connections cannot be listed, and this check is skipped. The next check
            # finds the same connections.
            _log.warning("connections cannot be listed", reason=os.strerror(error.errno or 0))

    async def _close(self, port: int, reason: CutReason, peers: set[Peer]) -> None:
        closed = await asyncio.to_thread(shut_down, peers, port)
        self._report(reason, sorted({peer[0] for peer in peers})[:ADDRESSES_SHOWN_MAX], closed)
        _log.info("connections closed", port=port, reason=reason, connections=closed)
