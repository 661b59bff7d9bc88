"""The fields of one record as a caller gives them, made into what a batch can keep.

Called by `send` before the record takes any room. What is kept never changes with what the caller does next.
"""

from __future__ import annotations

from fairlead.errors import RecordError
from fairlead.records import Headers


def bytes_of(given: object, topic: str, field: str) -> bytes | None:
    """Return a key or a value as bytes of its own; raises `RecordError` for text and all else."""
    if given is None:
        return None
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    allowed = "give bytes, for text its UTF-8 encoding: text.encode()"
    raise RecordError(topic, field, f"{type(given).__name__} {given!r:.80}", allowed)


def headers_of(given: Headers, topic: str) -> Headers:
    """Return headers that stay as they are; raises `RecordError` for what is no list of (text, bytes)."""
    headers = tuple(given)
    for header in headers:
        if not (isinstance(header, tuple) and len(header) == 2 and isinstance(header[0], str)):
            raise RecordError(topic, "headers", f"{header!r:.80}", "give pairs of a name and bytes")
        if not (header[1] is None or isinstance(header[1], bytes)):
            raise RecordError(topic, f"header {header[0]}", f"{header[1]!r:.80}", "give bytes or None")
    return headers
