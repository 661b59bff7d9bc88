"""Patterns over names: matching, and one pattern inside another."""

from __future__ import annotations

import itertools

import pytest

from fairlead_api.patterns import contains, is_name_pattern, matches

NAMES = ["".join(letters) for size in range(5) for letters in itertools.product("a_", repeat=size)][1:]
PATTERNS = [*NAMES, *(f"{name}*" for name in NAMES if len(name) < 4), "*"]


def test_a_pattern_is_inside_another_if_it_matches_no_other_name() -> None:
    """A pattern contains another if and only if it matches every name that the other pattern matches."""
    # The names are longer than every prefix, so that two different prefixes match different names.
    matched = {pattern: {name for name in NAMES if matches(pattern, name)} for pattern in PATTERNS}
    for outer, inner in itertools.product(PATTERNS, repeat=2):
        if contains(outer, inner):
            assert matched[inner] <= matched[outer], (outer, inner)
        elif inner.endswith("*"):
            # Some name, perhaps longer than all names in NAMES, matches only the inner pattern.
            longer = [inner[:-1] + rest for rest in ("a", "aa", "_a", "aaaaa", "_aaaa")]
            names = [name for name in (*longer, *NAMES) if matches(inner, name)]
            assert any(not matches(outer, name) for name in names), (outer, inner)
        else:
            assert not matches(outer, inner), (outer, inner)


@pytest.mark.parametrize(
    ("pattern", "name", "found"),
    [
        ("*", "orders", True),
        ("*", "__audit", False),
        ("_*", "__audit", False),
        ("__*", "__audit", True),
        ("__audit", "__audit", True),
        ("shop.*", "shop.orders", True),
        ("shop.*", "shop", False),
        ("orders", "orders2", False),
    ],
)
def test_names_that_begin_with_two_underscores_are_hidden(pattern: str, name: str, found: bool) -> None:
    """A pattern matches an internal name only if the pattern itself begins with two underscores (rule Z6)."""
    assert matches(pattern, name) is found


def test_patterns_follow_the_rule_of_names() -> None:
    """A pattern is a name, or a prefix and one star at the end."""
    assert [is_name_pattern(text) for text in ("a", "a.*", "*", "a" * 249, "a" * 248 + "*")] == [True] * 5
    assert [is_name_pattern(text) for text in ("", ".", "..", "**", "a*b", "*a", "a b", "a" * 250, "é")] == [
        False
    ] * 9
