"""What the head of an HTTP/1.1 request must not be: too long, or one of a body in a coding that nobody here undoes.

Callers: ``application``, before anything else is done for such a request. Over HTTP/2 the server below bounds the head,
and there are no such codings. Over HTTP/1.1 it takes a much longer head, and undoes the last coding of a body alone.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError
from fairlead_broker.server.http.asgi import Scope

FIELD_BYTES: Final = 32
"""Counted for each header beside its name and value, as HTTP/2 does (RFC 9113, 6.5.2): one limit holds for both."""
_CODINGS: Final = b"transfer-encoding"


def check_head(scope: Scope, header_bytes_max: int) -> None:
    """Raise ProblemError headers_too_large or, for a body in another coding than chunked, malformed_request."""
    codings: list[bytes] = []
    size = len(scope["raw_path"]) + len(scope["query_string"])
    for name, value in scope["headers"]:
        size += len(name) + len(value) + FIELD_BYTES
        if name == _CODINGS:
            codings.append(value)
    if size > header_bytes_max:
        raise ProblemError(
            "headers_too_large",
            f"target and headers of the request take {size} bytes, {FIELD_BYTES} for each header included; at most"
            f" {header_bytes_max} are read",
            data={"limit_bytes": header_bytes_max},
        )
    if codings:
        _check_codings(b",".join(codings))


def _check_codings(given: bytes) -> None:
    """Let in chunked alone, once: a body in another coding would be stored as it came."""
    codings = [coding for each in given.split(b",") if (coding := each.strip().lower())]
    if codings != [b"chunked"]:
        value = given.decode("latin-1")
        raise ProblemError(
            "malformed_request",
            f"header Transfer-Encoding {shown(value)} is not allowed; allowed: chunked",
            data={"parameter": "Transfer-Encoding", "value": value[:80], "allowed": "chunked"},
        )
