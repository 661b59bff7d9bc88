"""Bodies of the calls about links: what a link may name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.bodies.links import AlterLinkRequest, CreateLinkRequest, HandOverRequest
from fairlead_api.bodies.requests import decode_request
from refusals import refuses

LINK: dict[str, Any] = {
    "name": "east",
    "source": {"bootstrap": ["http://east.example:9520", "https://[::1]:9521/"]},
    "topics": {"include": ["orders-*", "trips"], "exclude": ["orders-test"]},
}


def decoded(**changes: Any) -> CreateLinkRequest:
    """Decode a link with changed fields."""
    return decode_request(CreateLinkRequest, msgspec.json.encode({**LINK, **changes}))


def test_a_link_with_its_defaults() -> None:
    """By default, a link copies no group offsets, follows truncations and skips expired records."""
    found = decoded(prefix="east.")

    assert found.groups.include == []
    assert (found.policies.truncated, found.policies.expired) == ("follow", "skip")
    assert found.bytes_per_second is None


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"topics": {"include": []}}, "invalid_link", "topics.include"),
        ({"topics": {"include": ["a*b"]}}, "invalid_link", "include or exclude"),
        ({"groups": {"include": ["*"], "exclude": ["a b"]}}, "invalid_link", "include or exclude"),
        ({"source": {"bootstrap": ["east.example:9520"]}}, "invalid_link", "bootstrap"),
        ({"source": {"bootstrap": ["http://"]}}, "invalid_link", "bootstrap"),
        ({"source": {"bootstrap": ["http://east.example/v1"]}}, "invalid_link", "bootstrap"),
        ({"name": "a b"}, "invalid_topic_name", None),
        ({"prefix": "a b"}, "invalid_topic_name", None),
    ],
)
def test_a_link_that_could_not_work_is_refused(changes: dict[str, Any], code: str, field: str | None) -> None:
    """An invalid or missing pattern, an address that is not a base URL, and an invalid name are refused."""
    with refuses(code) as refusal:
        decoded(**changes)

    assert refusal.value.data.get("field") == field


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"topics": {"include": ["a*b"]}}, "invalid_link"),
        ({"groups": {"exclude": ["a b"]}}, "invalid_link"),
        ({"source": {"bootstrap": ["east"]}}, "invalid_link"),
        ({"prefix": "east."}, "unknown_option"),
        ({"bytes_per_second": 0}, "malformed_request"),
    ],
)
def test_a_change_to_a_link_that_could_not_work_is_refused(change: dict[str, Any], code: str) -> None:
    """A change is checked as a new link is; a link keeps its prefix, because its mirrors have names with the prefix."""
    with refuses(code):
        decode_request(AlterLinkRequest, msgspec.json.encode(change))


def test_a_hand_over_names_base_urls() -> None:
    """The cluster that takes over a topic is identified by its base URLs."""
    with refuses("invalid_link"):
        HandOverRequest(cluster_id="c", bootstrap=["west"])
