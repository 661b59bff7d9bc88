"""The choice of the request body to refuse when request bodies have used up their memory budget."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.server.http.body import Client, HeldBodies

CLIENTS = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 3))


@dataclass(eq=False)
class Body:
    """An incomplete request body, with its client and the bytes that it occupies."""

    client: Client
    nbytes: int
    held_since: float

    def end_early(self) -> None:
        """Fail, because no test ends a body through this method."""
        raise AssertionError


def held_by(bodies: list[Body], client: Client) -> tuple[int, int]:
    """Return the bytes that bodies of a client's address and of its connection occupy."""
    address = sum(body.nbytes for body in bodies if body.client[0] == client[0])
    return address, sum(body.nbytes for body in bodies if body.client == client)


@given(
    st.lists(st.tuples(CLIENTS, st.integers(1, 100)), max_size=12),
    CLIENTS,
    st.integers(0, 150),
    st.integers(0, 12),
)
def test_bodies_end_for_clients_that_hold_less(
    given_bodies: list[tuple[Client, int]], client: Client, nbytes: int, ended: int
) -> None:
    """A body is refused only in favour of a client that occupies at most as many bytes, including its new body.

    If any body may be refused in favour of another client, such a body is found.
    """
    held = HeldBodies()
    bodies = [Body(each, size, at) for at, (each, size) in enumerate(given_bodies)]
    for body in bodies:
        held.add(body, body.nbytes // 2)
        held.add(body, body.nbytes - body.nbytes // 2)
    for body in bodies[:ended]:
        held.remove(body)
    left = bodies[ended:]
    address, connection = held_by(left, client)
    chosen = held.longest_held(client, nbytes, since=-1)
    others = [
        body
        for body in left
        if body.client[0] != client[0] and held_by(left, body.client)[0] >= address + nbytes
    ]
    siblings = [
        body
        for body in left
        if body.client[0] == client[0]
        and body.client != client
        and held_by(left, body.client)[1] >= connection + nbytes
    ]

    assert (chosen is not None) == bool(others or siblings)
    if chosen is not None:
        assert chosen in (others or siblings)
        assert chosen is next(body for body in left if body.client == chosen.client)


def test_a_body_held_for_too_long_ends_for_any_client() -> None:
    """After a time limit, the oldest body is refused even in favour of another body on its own connection."""
    held = HeldBodies()
    first, second = Body(("a", 1), 10, 1.0), Body(("a", 1), 10, 2.0)
    held.add(first, 10)
    held.add(second, 10)

    assert held.longest_held(("a", 1), 1, since=0.5) is None
    assert held.longest_held(("a", 1), 1, since=1.0) is first
