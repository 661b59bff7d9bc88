"""The text of an API token (rule A10)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from fairlead_api.token_text import ALPHABET, ID_LENGTH, SECRET_LENGTH, TokenText, is_token_id, parse_token

TOKEN = TokenText("0123456789Ab", "s" * SECRET_LENGTH)
TEXT = TOKEN.text


def test_a_text_is_parsed_to_its_parts() -> None:
    """A token's text has the form of rule A10 and parses back to the same token, whose repr hides the secret."""
    assert (len(TEXT), TEXT.count("_")) == (4 + ID_LENGTH + 1 + SECRET_LENGTH + 6, 2)
    assert parse_token(TEXT) == TOKEN
    assert TOKEN.secret not in repr(TOKEN)
    assert is_token_id(TOKEN.token_id)
    assert not is_token_id("../../etc/xx")


@given(place=st.integers(0, len(TEXT) - 1), character=st.sampled_from(ALPHABET + "_-\n\x00é"))
def test_another_character_anywhere_is_found(place: int, character: str) -> None:
    """A text with one changed character is refused, because its check digits no longer match."""
    changed = TEXT[:place] + character + TEXT[place + 1 :]

    assert changed == TEXT or parse_token(changed) is None


@given(st.text(max_size=100))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    """The parser raises no error for any text, and a parsed token has exactly the text that was parsed."""
    for candidate in (text, f"flt_{text}", TEXT + text):
        found = parse_token(candidate)

        assert found is None or found.text == candidate
