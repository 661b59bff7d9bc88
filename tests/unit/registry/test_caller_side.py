"""Each client gets broker addresses that it can reach."""

from __future__ import annotations

import pytest

from fairlead_broker.registry.caller_side import CallerSide
from fairlead_broker.registry.records import Addresses

CALLED = "http://front.example:80"


def test_each_client_gets_an_address_that_it_reaches() -> None:
    """Clients get the broker address for their scheme.

    External clients get the external URL of the broker, or the URL that they called if the broker has none.
    """
    addresses = Addresses(data="h:1", peer="h:2", ops="h:3", external="https://b1.example")
    shared = Addresses(data="h:1", peer="h:2", ops="h:3", external="")
    outside = CallerSide("http", CALLED)

    assert CallerSide("http").url_of(addresses) == "http://h:1"
    assert CallerSide("https").url_of(addresses) is None
    assert outside.url_of(addresses) == "https://b1.example"
    assert outside.url_of(shared) == CALLED


@pytest.mark.parametrize("side", [CallerSide("http"), CallerSide("https"), CallerSide("http", CALLED)])
def test_a_side_is_passed_on_as_text(side: CallerSide) -> None:
    """The side of a caller is converted to text and back when a broker forwards the call."""
    assert CallerSide.of_text(side.text) == side
