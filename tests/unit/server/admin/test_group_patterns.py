"""The literal prefix of a subscription pattern; a member needs the right to read all topics with this prefix."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from fairlead_broker.server.admin.groups import literal_prefix


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        (r"shop\..*", "shop."),
        (r"^shop\.orders$", "shop.orders"),
        ("shop.*", "shop"),
        ("shops*", "shop"),
        ("shops?x", "shop"),
        ("ab{2}", "a"),
        ("a|b", ""),
        ("(a)", ""),
        ("[ab]c", ""),
        (".*", ""),
        ("(?i)shop", ""),
    ],
)
def test_the_beginning_ends_at_the_first_operator(pattern: str, prefix: str) -> None:
    """The literal prefix of a pattern ends before the first operator or quantified character."""
    assert literal_prefix(pattern) == prefix


@pytest.mark.filterwarnings("ignore:Possible (nested set|set [a-z ]+) at:FutureWarning")
@example("[2||", "")
@given(st.text("ab.\\\\*+?|()[]{2}^$", max_size=8), st.text("ab.", max_size=6))
def test_every_match_begins_with_the_prefix(pattern: str, name: str) -> None:
    """Every name that a pattern matches begins with the pattern's literal prefix."""
    try:
        found = re.fullmatch(pattern, name)
    except re.error:
        return

    assert found is None or name.startswith(literal_prefix(pattern))
