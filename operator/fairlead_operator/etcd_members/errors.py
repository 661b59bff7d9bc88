"""Errors of a call to an etcd member; each class requires a different reaction from the caller."""

from __future__ import annotations

from typing import Final

NOT_IN_SYNC: Final = "can only promote a learner member which is in sync with leader"
NOT_FOUND: Final = "member not found"
NO_MAJORITY: Final = ("no leader", "request timed out", "leader changed")
"""Parts of the error messages with which a live member reports that it cannot reach the other members."""
TOO_SOON: Final = "unhealthy cluster"
"""Part of the message with which etcd refuses a new member until all members have been connected for five seconds."""
UNAVAILABLE_CODES: Final = frozenset({1, 4, 14})
"""gRPC status codes: cancelled, deadline exceeded, unavailable."""


class EtcdError(Exception):
    """A call to a member failed. The message names the member, the call and the reason."""


class EtcdUnavailable(EtcdError):
    """The member did not answer in time, or has no majority.

    The change may have been applied, so the caller must read the members again.
    """


class LearnerNotInSync(EtcdError):
    """A learner has not caught up far enough to vote: the caller should retry soon."""


class MemberNotFound(EtcdError):
    """The member does not exist, or no longer exists: the caller must read the members again."""


class EtcdRefused(EtcdError):
    """etcd refuses the change at present, for example to keep the majority: the caller must read the members again."""


def error_of(where: str, code: int, message: str) -> EtcdError:
    """Return the error for a member's answer to a call."""
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
