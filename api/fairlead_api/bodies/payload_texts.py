"""Conversion of stored keys and values to JSON text with limited time and memory.

`json_records` calls this module to build answers, and the command line calls it to print records. A compressed batch of
a few hundred bytes can contain a value of many MiB, so a long payload is converted in pieces, and the text of one
payload is limited. This module must not depend on the meaning of a payload.
"""

from __future__ import annotations

import codecs
from base64 import b64encode
from collections.abc import Iterator
from typing import Final

import msgspec

from fairlead_api.bodies.json_bodies import is_value
from fairlead_api.bodies.json_slices import WHOLE_BYTES_MAX

PAYLOAD_TEXT_BYTES_MAX: Final = 16 << 20
"""Maximum size of the text of one key or value in a JSON answer. The text of a record cannot be divided among answers,
and is up to six times larger than the record."""

_PIECE_BYTES: Final = 48 << 10
"""Size of a piece, a multiple of three, so that the base64 texts of pieces can be joined."""
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class TextTooLargeError(Exception):
    """The JSON text of a payload is larger than `PAYLOAD_TEXT_BYTES_MAX`."""

    def __init__(self) -> None:
        super().__init__(f"its key or value has more than {PAYLOAD_TEXT_BYTES_MAX} bytes of text")


def is_long(payload: bytes) -> bool:
    """Return whether a payload is converted in pieces."""
    return len(payload) > WHOLE_BYTES_MAX


def json_line(payload: bytes) -> bytes | None:
    """Return JSON text on one line; None for bytes that are not JSON, or that a produce request could not contain.

    Each line or event has one record, so line breaks within a record are replaced by spaces. In JSON, line breaks only
    separate tokens, like spaces.
    """
    return payload.translate(_ONE_LINE) if is_value(payload) else None


def long_text(payload: bytes) -> msgspec.Raw:
    """Return a payload as a JSON string, or wrapped in base64 if the payload is not UTF-8. Raises TextTooLargeError."""
    try:
        return _joined(b'"', _escaped(payload), b'"')
    except UnicodeDecodeError:
        return long_wrapped(payload)


def long_wrapped(payload: bytes) -> msgspec.Raw:
    """Return a payload as an object with the text of the payload in base64. Raises TextTooLargeError."""
    return _joined(b'{"base64":"', _in_base64(payload), b'"}')


def long_base64(payload: bytes) -> msgspec.Raw:
    """Return a payload as a JSON string in base64. Raises TextTooLargeError."""
    return _joined(b'"', _in_base64(payload), b'"')


def _joined(begin: bytes, pieces: Iterator[bytes], end: bytes) -> msgspec.Raw:
    texts, size = [begin], 0
    for piece in pieces:
        texts.append(piece)
        size += len(piece)
        if size > PAYLOAD_TEXT_BYTES_MAX:
            raise TextTooLargeError
    return msgspec.Raw(b"".join([*texts, end]))


def _escaped(payload: bytes) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in _pieces(payload):
        yield msgspec.json.encode(decoder.decode(piece))[1:-1]
    decoder.decode(b"", final=True)


def _in_base64(payload: bytes) -> Iterator[bytes]:
    return map(b64encode, _pieces(payload))


def _pieces(payload: bytes) -> Iterator[bytes]:
    return (payload[at : at + _PIECE_BYTES] for at in range(0, len(payload), _PIECE_BYTES))
