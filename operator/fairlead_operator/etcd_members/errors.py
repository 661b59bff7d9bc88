"""Errors of a call to a member of etcd, ordered by the caller's next step."""

from __future__ import annotations

from typing import Final

NOT_IN_SYNC: Final = "can only promote a learner member which is in sync with leader"
NOT_FOUND: Final = "member not found"
NO_MAJORITY: Final = ("no leader", "request timed out", "leader changed")
"""Parts of the sentences of a member that lives and cannot reach the others."""
TOO_SOON: Final = "unhealthy cluster"
"""All members must have been connected for five seconds before another one may join."""
UNAVAILABLE_CODES: Final = frozenset({1, 4, 14})
"""Codes of gRPC: cancelled, deadline exceeded, unavailable."""


class EtcdError(Exception):
    """A call to a member came to nothing. The message names the member, the call and the reason."""


class EtcdUnavailable(EtcdError):
    """No answer in time, or none that a majority stands behind. What was asked may have happened: look again."""


class LearnerNotInSync(EtcdError):
    """A learner has not read far enough to vote: ask again in a moment."""


class MemberNotFound(EtcdError):
    """There is no such member (any more): look again."""


class EtcdRefused(EtcdError):
    """Etcd does not do it now, such as a change that would cost the majority: look again, decide again."""


def error_of(where: str, code: int, message: str) -> EtcdError:
    """Return the error for etcd's answer to a call at a member."""
    said = f"{where}: {message or f'code {code}'}"
    if NOT_IN_SYNC in message:
        return LearnerNotInSync(said)
    if NOT_FOUND in message:
        return MemberNotFound(said)
    if TOO_SOON in message:
        return EtcdRefused(said)
    if code in UNAVAILABLE_CODES or any(part in message for part in NO_MAJORITY):
        return EtcdUnavailable(said)
    return EtcdRefused(said)
