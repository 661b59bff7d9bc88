"""Meaning of the HTTP client's exceptions: whether a request was sent, and what may listen at its address.

The transport calls these functions when a request ends without an answer. The module must not depend on calls.
"""

from __future__ import annotations

import pyreqwest.exceptions

from fairlead.errors import UnreachableError


def unreachable_error(
    subject: str, broker: str, error: pyreqwest.exceptions.RequestError, waited_seconds: float
) -> UnreachableError:
    """Return the error of a request without an answer, with the innermost cause and whether the request was sent."""
    # pyreqwest also raises ConnectTimeoutError for a timeout of the whole request, at any stage of the request.
    # pyreqwest raises ConnectError for a connection that broke during the wait for the answer. Only a connection that
    # was never established proves that nothing was sent.
    sent = not isinstance(error, pyreqwest.exceptions.ConnectError) or not _was_never_connected(error)
    if isinstance(error, pyreqwest.exceptions.RequestTimeoutError):
        return UnreachableError(
            subject, {broker: f"no answer within {round(waited_seconds, 1):g} s"}, sent=True
        )
    return UnreachableError(subject, {broker: _cause_of(error)}, sent=sent)


def _was_never_connected(error: pyreqwest.exceptions.RequestError) -> bool:
    """Return whether the request failed before a connection was established."""
    return "client error (Connect)" in _causes_of(error)


def is_out_of_reach(error: pyreqwest.exceptions.RequestError) -> bool:
    """Return whether connecting failed without a refusal; the machine of a stopped broker refuses the connection."""
    return _was_never_connected(error) and not any("refused" in cause for cause in _causes_of(error))


def is_unclear(error: pyreqwest.exceptions.RequestError) -> bool:
    """Return whether the error suggests another service at the address: no answer, no HTTP/2, or no TLS."""
    causes = _causes_of(error)
    if isinstance(error, pyreqwest.exceptions.RequestTimeoutError):
        return bool(causes)
    is_garbled = "client error (SendRequest)" in causes or "client error (Canceled)" in causes
    return is_garbled or any("InvalidContentType" in cause for cause in causes)


def wants_certificate(broker: str, error: pyreqwest.exceptions.RequestError) -> bool:
    """Return whether the broker may have ended the connection because it requires a client certificate (rule C5).

    The broker refuses a missing certificate after the client has completed its part of the handshake. The client sees
    an alert, or a connection that breaks while it sends the first request.
    """
    is_broken = isinstance(error, pyreqwest.exceptions.ConnectError) and not _was_never_connected(error)
    return broker.startswith("https://") and is_broken


def _cause_of(error: pyreqwest.exceptions.RequestError) -> str:
    """Return the innermost cause, which tells an operator what to do (such as "Connection refused")."""
    return f"{type(error).__name__}: {[error.message, *_causes_of(error)][-1]}"


def _causes_of(error: pyreqwest.exceptions.RequestError) -> list[str]:
    return [cause["message"] for cause in (error.details or {}).get("causes") or []]
