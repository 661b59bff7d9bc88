"""Literal prefixes of regular expressions, from which the rights on a subscription are decided (rule Z14)."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from fairlead_api.patterns import literal_prefix

PIECES = st.lists(
    st.sampled_from(["a", "b", "_", "-", r"\.", ".", "*", "?", "+", "{1}", "|", "(", ")", "[ab]", "^"])
)
CHARACTERS = st.text("ab_.\\*+?|()[]{2}^$", max_size=8)


@pytest.mark.parametrize(
    ("expression", "prefix"),
    [
        (r"^orders\.eu-1", "orders.eu-1"),
        (r"^shop\.orders$", "shop.orders"),
        (r"orders\..*", "orders."),
        ("shop.*", "shop"),
        ("shops*", "shop"),
        ("shops?x", "shop"),
        ("ab{2}", "a"),
        ("a|b", ""),
        ("(a)", ""),
        ("[ab]c", ""),
        ("(?i)shop", ""),
        (".*", ""),
        ("", ""),
        ("_.*", "_"),
        ("__.*", "__"),
        ("^__audit", "__audit"),
        ("__?audit", "_"),
        ("_+audit", "_"),
        ("_{2}audit", ""),
        ("(__)audit", ""),
        ("__audit|orders", ""),
    ],
)
def test_the_prefix_ends_before_the_first_character_that_may_differ(expression: str, prefix: str) -> None:
    """Letters, digits, `_`, `-` and escaped dots belong to the prefix, unless a quantifier makes them optional."""
    assert literal_prefix(expression) == prefix


@pytest.mark.filterwarnings("ignore:Possible (nested set|set [a-z ]+) at:FutureWarning")
@example("[2||", "")
@given(PIECES.map("".join) | CHARACTERS, st.text("ab_-.", max_size=6))
def test_every_name_that_matches_begins_with_the_prefix(expression: str, name: str) -> None:
    """A name that an expression matches as a whole begins with the prefix of the expression."""
    try:
        found = re.fullmatch(expression, name)
    except re.error:
        return

    assert found is None or name.startswith(literal_prefix(expression))
