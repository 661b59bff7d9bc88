"""Which connections a listener shuts down, and when (rules T11, T12)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterable
from contextlib import closing

import pytest

from fairlead_broker.server.connections import connection_guard
from fairlead_broker.server.connections.connection_guard import (
    ConnectionGuard,
    ConnectionSweep,
    CutReason,
    GuardLimits,
)
from fairlead_broker.server.connections.sockets import ListedSocket, Peer, listed_sockets
from log_kit import SteppingClock

A, B = ("10.0.0.1", "1001"), ("10.0.0.2", "1002")


def guard(per_address: int = 0) -> ConnectionGuard:
    """Return the guard of a listener that shuts down connections without a request after 30 s."""
    limits = GuardLimits(first_request_seconds_max=30, connections_per_address_max=per_address)
    return ConnectionGuard(9520, limits)


def sockets(*peers: Peer, first: int = 1) -> list[ListedSocket]:
    """Return one socket for each client, with increasing socket numbers."""
    return [ListedSocket(first + number, peer) for number, peer in enumerate(peers)]


def look(guarded: ConnectionGuard, now: float, listed: Iterable[ListedSocket]) -> dict[CutReason, set[Peer]]:
    """Return the clients whose connections a check would shut down, by reason."""
    return dict(guarded.due(listed, guarded.noted(), now))


def test_connections_that_a_late_loop_refuses_are_ignored_for_a_time() -> None:
    """An address with several newly refused connections while the loop is late is ignored for ten seconds."""
    guarded = guard()

    def refuse(host: str, ports: Iterable[int]) -> None:
        for port in ports:
            guarded.refuse((host, str(port)))

    refuse("10.0.0.1", range(5))
    assert set(guarded.ignored(0.01, 0)) == set()
    refuse("10.0.0.1", range(5))
    refuse("10.0.0.2", range(2))
    refuse("10.0.0.3", range(3))
    refuse("2001:db8::1", range(2))
    refuse("2001:db8::2", range(2))
    assert set(guarded.ignored(0.5, 1)) == {"10.0.0.3", "2001:db8::/64"}
    refuse("10.0.0.3", range(3, 6))
    assert set(guarded.ignored(0.5, 5)) == {"10.0.0.3", "2001:db8::/64"}
    assert set(guarded.ignored(0.5, 11)) == {"10.0.0.3"}
    assert set(guarded.ignored(0.5, 15)) == set()


def test_a_connection_without_a_request_is_due() -> None:
    """A connection without a request is shut down 30 s after it was first listed; any request keeps it open."""
    guarded = guard()

    assert look(guarded, 100, sockets(A, B)) == {}
    guarded.admitted.add(B)
    assert look(guarded, 129, sockets(A, B)) == {}
    assert look(guarded, 130, sockets(A, B)) == {CutReason.NO_REQUEST: {A}}
    assert look(guarded, 1000, sockets(B, first=2)) == {}


def test_a_connection_with_refused_tokens_only_is_due_later() -> None:
    """A connection that got only 401 answers is shut down after twice that time; any other answer keeps it open."""
    guarded = guard()
    look(guarded, 0, sockets(A, B))
    guarded.refused |= {A, B}

    assert look(guarded, 59, sockets(A, B)) == {}
    guarded.admitted.add(B)
    assert look(guarded, 60, sockets(A, B)) == {CutReason.UNAUTHENTICATED: {A}}


def test_notes_end_with_their_connection() -> None:
    """A later connection from the same client port is judged by its own requests and its own age."""
    guarded = guard()
    guarded.admitted.add(A)
    guarded.refused.add(B)
    look(guarded, 0, sockets(A, B))
    look(guarded, 10, [])

    assert guarded.noted() == frozenset()
    assert look(guarded, 20, sockets(A)) == {}
    assert look(guarded, 40, sockets(A, first=9)) == {}
    assert look(guarded, 69, sockets(A, first=9)) == {}
    assert look(guarded, 70, sockets(A, first=9)) == {CutReason.NO_REQUEST: {A}}


def test_a_note_of_a_connection_that_was_not_listed_yet_is_kept() -> None:
    """The request on a connection that is newer than the list of sockets is remembered for the next check."""
    guarded = guard()
    before = guarded.noted()
    guarded.admitted.add(A)
    guarded.due([], before, 0)

    assert guarded.admitted == {A}


def test_the_newest_connections_of_an_address_are_due() -> None:
    """Above the limit per address, the newest connections are shut down, even if they have requests.

    Addresses of one IPv6 network count as one address.
    """
    guarded = guard(per_address=2)
    old = [(A[0], "1"), (A[0], "2")]
    wide = [(f"2001:db8::{number}", "1") for number in range(3)]
    mapped = [(f"::ffff:10.0.0.{number}", "1") for number in range(3)]
    new = (A[0], "3")
    guarded.admitted.add(new)
    look(guarded, 0, sockets(*old, first=5))
    listed = [*sockets(new), *sockets(*old, first=5), *sockets(B, *wide, *mapped, first=10)]

    assert look(guarded, 1, listed) == {CutReason.ADDRESS: {new, wide[2]}}
    assert look(guard(), 1, listed) == {}


def test_sockets_of_a_port_are_listed() -> None:
    """Exactly the connections to a port are listed, each with the address and port of its client."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server, closing(socket.socket()) as client:
        client.connect(server.getsockname())
        accepted, (host, port) = server.accept()
        own = server.getsockname()[1]
        with closing(accepted):
            [found] = listed_sockets([own])[own]

            assert found.peer == (host, str(port))


@pytest.mark.parametrize("missing", ["listed_sockets", "shut_down"])
async def test_a_look_without_free_descriptors_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    """A check that fails for lack of descriptors forgets no request, and the next check shuts down connections."""
    guarded = guard()
    guarded.admitted.add(A)
    clock, told = SteppingClock(), []

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(connection_guard, "listed_sockets", lambda _: {9520: sockets(A, B)})
    monkeypatch.setattr(connection_guard, "shut_down", lambda peers, _: len(peers))
    sweep = ConnectionSweep([guarded], clock, lambda *closed: told.append(closed))
    await sweep.look()
    clock.time_us += 3_600_000_000
    with monkeypatch.context() as patch:
        patch.setattr(connection_guard, missing, full)
        await sweep.look()
    assert told == []
    await sweep.look()

    assert guarded.admitted == {A}
    assert [count for _, _, count in told] == [1]
