"""Quotation of untrusted values."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.excerpts import excerpt, shortened, shown


@pytest.mark.parametrize(
    ("value", "text", "data"),
    [
        ("plain", "'plain'", "plain"),
        ("é\n", r"'\xe9\n'", "é\n"),
        (None, "null", None),
        (True, "true", True),
        (False, "false", False),
        (7, "7", 7),
        (1.5, "1.5", 1.5),
        (2**63 - 1, "9223372036854775807", 2**63 - 1),
        (-(2**63), "-9223372036854775808", -(2**63)),
        (2**63, "an integer of 64 bits", "an integer of 64 bits"),
        pytest.param(10**5000, "an integer of 16610 bits", "an integer of 16610 bits", id="5000 digits"),
        ([1], "an array", "an array"),
        ((1,), "an array", "an array"),
        ({"a": 1}, "an object", "an object"),
    ],
)
def test_every_json_value_has_a_short_form(value: object, text: str, data: object) -> None:
    """The short form is quoted ASCII for text, JSON for scalars, and a description for containers and huge numbers."""
    assert shown(value) == text
    assert excerpt(value) == data


def test_long_text_is_cut() -> None:
    """A long text is truncated to 80 characters, followed by dots."""
    assert shortened("x" * 80) == "x" * 80
    assert shortened("x" * 81) == "x" * 80 + "..."
    assert excerpt("x" * 81) == "x" * 80 + "..."
    assert len(shown("\U0001f600" * 10_000)) < 900


@given(st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()))
def test_an_excerpt_is_always_valid_json_and_what_is_shown_is_printable_ascii(value: object) -> None:
    """An excerpt is always valid JSON in printable ASCII."""
    assert msgspec.json.encode(excerpt(value))
    assert shown(value).isascii()
    assert shown(value).isprintable()
