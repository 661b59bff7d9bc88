"""Addresses that are reserved before they are served."""

import socket
from contextlib import suppress

import pytest

from fairlead_broker.server.connections.bound_socket import BoundSocket, ListenError


def test_accepted_connections_send_at_once() -> None:
    """Accepted connections inherit TCP_NODELAY, without which the end of an answer would be delayed by 40 ms."""
    bound = BoundSocket("data", "127.0.0.1", 0)
    listening = bound.listen()
    with listening, socket.create_connection((bound.host, bound.port)):
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_address_is_not_shared() -> None:
    """A second socket cannot bind the address, whether or not the first socket already listens."""
    bound = BoundSocket("data", "127.0.0.1", 0)
    with pytest.raises(ListenError):
        BoundSocket("data", "127.0.0.1", bound.port)
    with bound.listen(), pytest.raises(ListenError):
        BoundSocket("data", "127.0.0.1", bound.port)


def test_address_is_free_after_close() -> None:
    """A closed socket releases its address."""
    first = BoundSocket("data", "127.0.0.1", 0)
    first.close()
    second = BoundSocket("data", "127.0.0.1", first.port)
    second.close()

    assert second.port == first.port


def test_text_of_an_address() -> None:
    """The text of an address has the form used in a URL: with brackets for IPv6, and with the real port."""
    four, six = BoundSocket("data", "127.0.0.1", 0), BoundSocket("data", "::1", 0)
    four.close()
    six.close()

    assert str(four) == f"127.0.0.1:{four.port}"
    assert str(six) == f"[::1]:{six.port}"
    assert four.port > 0


def test_new_connections_of_some_addresses_are_ignored() -> None:
    """Clients of ignored networks do not connect until the networks change; other clients and connections go on."""
    bound = BoundSocket("data", "::", 0)
    clients = {"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.1", "::1": "::1"}

    def connected() -> list[str]:
        found = []
        for own, address in clients.items():
            with suppress(TimeoutError), socket.create_connection((address, bound.port), 0.2, (own, 0)):
                found.append(own)
        return found

    with bound.listen(), socket.create_connection(("127.0.0.1", bound.port)) as earlier:
        assert connected() == ["127.0.0.1", "127.0.0.2", "::1"]
        for ignored, left in (
            (["::ffff:127.0.0.2"], ["127.0.0.1", "::1"]),
            (["::/64", "127.0.0.1"], ["127.0.0.2"]),
            ([f"10.0.0.{number}" for number in range(32)], ["127.0.0.1", "127.0.0.2", "::1"]),
            ([f"2001:db8:0:{number:x}::/64" for number in range(40)], ["127.0.0.1", "127.0.0.2", "::1"]),
            (["::1", "::ffff:127.0.0.1", "127.0.0.2"], []),
            (["unknown"], ["127.0.0.1", "127.0.0.2", "::1"]),
            ([], ["127.0.0.1", "127.0.0.2", "::1"]),
        ):
            bound.ignore(ignored)
            assert connected() == left
        assert earlier.send(b"x") == 1


def reached(bound: BoundSocket, *hosts: str) -> list[str]:
    """Listen, and return the hosts at which a client can connect."""
    found = []
    with bound.listen():
        for host in hosts:
            with suppress(OSError), socket.create_connection((host, bound.port), timeout=5):
                found.append(host)
    return found


def test_every_address_is_of_both_families() -> None:
    """The address `::` is served on IPv4 and IPv6, so that all pods share one template."""
    assert reached(BoundSocket("data", "::", 0), "127.0.0.1", "::1") == ["127.0.0.1", "::1"]
    assert reached(BoundSocket("data", "0.0.0.0", 0), "127.0.0.1", "::1") == ["127.0.0.1"]


def test_every_address_of_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the machine has no IPv6, the address `::` is served on IPv4 alone."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    assert reached(BoundSocket("data", "::", 0), "127.0.0.1", "::1") == ["127.0.0.1"]
