from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api import base64url
from refusals import raises


@given(st.binary(max_size=40))
def test_bytes_come_back(data: bytes) -> None:
    """Bytes are encoded without padding and decoded to the same bytes."""
    text = base64url.encoded(data)

    assert "=" not in text
    assert base64url.decoded(text) == data


@pytest.mark.parametrize("text", ["a", "ab c", "é", "ab!d"])
def test_other_texts_are_refused(text: str) -> None:
    """A text with a character outside the alphabet, or with an invalid length, is refused."""
    with raises(ValueError):
        base64url.decoded(text)
