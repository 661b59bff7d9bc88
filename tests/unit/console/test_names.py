"""Names in addresses and in the fields that confirm a deletion."""

from __future__ import annotations

from urllib.parse import unquote

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fairlead_console.names import NameInPath, address, pattern, segment

NAMES = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)


@given(NAMES)
def test_a_name_is_one_segment_of_a_path(name: str) -> None:
    """A server that decodes the path once gets one segment, from which the name is restored."""
    received = unquote(segment(name))

    assert "/" not in received
    assert TypeAdapter(NameInPath).validate_python(received) == name


def test_an_address_stays_encoded() -> None:
    """The address of a page has the path and the query that the browser has sent."""
    scope = {"raw_path": b"/groups/a%3Fb", "query_string": b"view=%24", "path": "/groups/a?b"}

    assert address(scope) == "/groups/a%3Fb?view=%24"
    assert address(scope | {"query_string": b""}) == "/groups/a%3Fb"


def test_a_pattern_escapes_only_characters_with_a_meaning() -> None:
    """A browser refuses an escaped hyphen, blank or ampersand."""
    assert pattern("my-topic.v1 & (all)") == r"my-topic\.v1 & \(all\)"
