"""Payloads as JSON text: long payloads are converted in pieces, and the length of the text is limited."""

import base64
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.bodies.json_records import Encoding, FetchedColumns, fetched_records
from fairlead_api.bodies.json_slices import RECORD_PARTS_MAX, WHOLE_BYTES_MAX
from fairlead_api.bodies.payload_texts import (
    PAYLOAD_TEXT_BYTES_MAX,
    TextTooLargeError,
    is_long,
    json_line,
    long_base64,
    long_text,
    long_wrapped,
)
from refusals import raises

LONG = WHOLE_BYTES_MAX + 1


def value_in_answer(payload: bytes, encoding: Encoding) -> object:
    """Return the value that a JSON answer contains for a record with this payload."""
    [record] = fetched_records(0, FetchedColumns([0], [0], [None], [payload], [None]), encoding)
    return msgspec.json.decode(msgspec.json.encode(record))["value"]


@given(st.text(), st.integers(0, 70_000))
def test_a_long_text_is_the_same_as_a_short_one(text: str, padding: int) -> None:
    """A payload that becomes JSON text in pieces is read back unchanged, even if a piece ends inside a character."""
    payload = (padding * "x" + text).encode()

    assert msgspec.json.decode(long_text(payload)) == payload.decode()


@given(st.binary(), st.integers(0, 70_000))
def test_long_bytes_come_in_base64(data: bytes, padding: int) -> None:
    """A payload that is converted to base64 in pieces is decoded to the same bytes."""
    payload = padding * b"\xff" + data

    assert base64.b64decode(msgspec.json.decode(long_base64(payload))) == payload
    assert base64.b64decode(msgspec.json.decode(long_wrapped(payload))["base64"]) == payload


@pytest.mark.parametrize("payload", [b"\xff", b"\xe2\x82"], ids=["within", "at the end"])
def test_a_long_payload_that_is_not_text_is_wrapped(payload: bytes) -> None:
    """A long payload that is not UTF-8, in its middle or at its end, is wrapped in base64."""
    whole = LONG * b"x" + payload
    wrapped = {"base64": base64.b64encode(whole).decode()}

    assert is_long(whole)
    assert value_in_answer(whole, Encoding.UTF8) == wrapped
    assert value_in_answer(whole, Encoding.JSON) == wrapped
    assert value_in_answer(whole, Encoding.BASE64) == wrapped["base64"]


@pytest.mark.parametrize("convert", [long_text, long_base64, long_wrapped])
def test_a_text_that_is_too_large_is_not_made(convert: Callable[[bytes], msgspec.Raw]) -> None:
    """A payload whose text would exceed the limit is refused, although the payload itself is smaller."""
    with raises(TextTooLargeError, PAYLOAD_TEXT_BYTES_MAX):
        convert((PAYLOAD_TEXT_BYTES_MAX - 1000) * b"\x01")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"[" + b"[],  " * 30_000 + b"1]", True),
        (b"[" + b"[]," * RECORD_PARTS_MAX + b"1]", False),
        (b"[" + b"5e-324," * 20_000 + b"1]", True),
        (b"[" + b"1e999," * 20_000 + b"1]", False),
        (LONG * b"[" + LONG * b"]", False),
        (b'"' + (2 << 20) * b"x" + b'"', False),
    ],
    ids=["lists", "too many lists", "slow numbers", "no numbers", "too deep", "too large"],
)
def test_only_json_that_could_be_produced_is_kept(text: bytes, kept: bool) -> None:
    """An answer contains a stored JSON text unchanged if and only if a produce request may contain the text."""
    assert (json_line(text) is not None) == kept
