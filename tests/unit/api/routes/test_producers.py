"""The call that allocates a producer's id."""

from __future__ import annotations

import pytest

from fairlead_api.bodies.json_bodies import decode_request
from fairlead_api.routes import route
from fairlead_api.routes.producers import AllocateProducerRequest
from refusals import refuses


@pytest.mark.parametrize(
    ("body", "name"), [(b"{}", None), (b'{"name": null}', None), (b'{"name": "a-1"}', "a-1")]
)
def test_a_name_is_optional(body: bytes, name: str | None) -> None:
    """A producer's name is optional: absent and null are the same."""
    assert decode_request(AllocateProducerRequest, body).name == name


@pytest.mark.parametrize("name", ["", "a\n", "..", "x" * 250])
def test_names_follow_the_common_rule(name: str) -> None:
    """A producer's name follows the same rule as names of topics and groups."""
    with refuses("invalid_group_name"):
        AllocateProducerRequest(name=name)


def test_the_call_is_in_the_table() -> None:
    """The route table contains the call that allocates a producer id, with its problems."""
    entry = route("allocate_producer")

    assert (entry.method, entry.path) == ("POST", "/v1/producers")
    assert "coordination_unavailable" in entry.problems
