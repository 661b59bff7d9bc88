"""Common prefixes of topic patterns, from which the rights on a subscription are decided (rule Z14)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_broker.access.pattern_prefix import literal_prefix

PIECES = st.lists(
    st.sampled_from(["a", "b", "_", "-", r"\.", ".", "*", "?", "+", "{1}", "|", "(", ")", "[ab]", "^"])
)
NAMES = st.text("ab_-.", max_size=6)


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        (r"^orders\.eu-1", "orders.eu-1"),
        (r"orders\..*", "orders."),
        ("orders?", "order"),
        ("ab{2}", "a"),
        ("a|b", ""),
        (".*", ""),
        ("", ""),
    ],
)
def test_the_prefix_ends_before_the_first_character_that_may_differ(pattern: str, prefix: str) -> None:
    """Letters, digits, `_`, `-` and escaped dots belong to the prefix, unless a quantifier makes them optional."""
    assert literal_prefix(pattern) == prefix


@given(PIECES, NAMES)
def test_every_name_that_matches_begins_with_the_prefix(pieces: list[str], name: str) -> None:
    """A name that the pattern matches as a whole begins with the prefix."""
    pattern = "".join(pieces)
    try:
        compiled = re.compile(pattern)
    except re.error:
        return
    if compiled.fullmatch(name):
        assert name.startswith(literal_prefix(pattern))
