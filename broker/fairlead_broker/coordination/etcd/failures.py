"""Classification of failed calls: refused, not applied, or unknown outcome.

`members` uses the classification to choose the next member, and callers use it to distinguish refusals. All
functions are pure. The texts are etcd's error messages (`rpctypes/error.go` of etcd 3.6). Any other error message is
treated as an unknown outcome, which is always safe.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import grpc

from fairlead_broker.coordination.protocol import CoordinationRefused, CoordinationUnavailable


class CredentialsRefused(CoordinationRefused):
    """etcd refuses the credentials, or the user lacks a permission for the request. A retry does not help."""


class WrongCluster(CoordinationRefused):
    """A member does not belong to the expected etcd cluster. A retry does not help."""


class Refused(CoordinationUnavailable):
    """etcd refused the request, and every other member would refuse it too. `reason` is etcd's error message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"etcd refused: {reason}")
        self.reason = reason


class StreamBroken(Exception):
    """A stream ended without a gRPC error, or etcd cancelled the watch on the stream. The error message states why."""


BREAKS: Final = (grpc.aio.AioRpcError, TimeoutError, StreamBroken, asyncio.InvalidStateError)
"""Errors of calls and streams: an error answer, no answer, or a stream that ends or has already ended."""


class Verdict(Enum):
    """Known effect of a failed request."""

    REFUSED = auto()
    """Not applied: etcd refused the request."""
    TOKEN = auto()
    """Not applied: the token is unknown or too old. The request may succeed with a new token."""
    CREDENTIALS = auto()
    """Not applied: etcd refused the credentials."""
    NOT_APPLIED = auto()
    """Not applied: this member cannot apply the request, but another member may."""
    UNKNOWN = auto()
    """The request may have been applied, or may be applied later."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed call."""

    verdict: Verdict
    reason: str


COMPACTED: Final = "required revision has been compacted"
FUTURE_REVISION: Final = "required revision is a future revision"
LEASE_NOT_FOUND: Final = "requested lease not found"
AUTHENTICATION_OFF: Final = "authentication is not enabled"
TOO_LARGE: Final = (
    "request is too large",
    "too many operations in txn request",
    "received message larger than max",
)

_VERDICTS: Final = (
    (Verdict.TOKEN, ("invalid auth token", "revision of auth store is old", "user name is empty")),
    (Verdict.CREDENTIALS, ("permission denied", "authentication failed", "user name not found")),
    (
        Verdict.NOT_APPLIED,
        (
            "etcdserver: no leader",
            "etcdserver: not leader",
            "etcdserver: too many requests",
            "etcdserver: not capable",
            "raft proposal dropped",
            "etcdserver: rpc not supported for learner",
            "failed to connect to all addresses",
        ),
    ),
    (
        Verdict.REFUSED,
        (
            COMPACTED,
            FUTURE_REVISION,
            LEASE_NOT_FOUND,
            AUTHENTICATION_OFF,
            *TOO_LARGE,
            "lease already exists",
            "too large lease TTL",
            "duplicate key given in txn request",
            "key is not provided",
            "database space exceeded",
            "corrupt cluster",
        ),
    ),
)


def judge_reason(reason: str) -> Failure:
    """Classify a failure by its message alone, since a cancelled watch provides no other information."""
    for verdict, sentences in _VERDICTS:
        if any(sentence in reason for sentence in sentences):
            return Failure(verdict, reason)
    return Failure(Verdict.UNKNOWN, reason)


def judge(error: BaseException) -> Failure:
    """Classify the failure of a call that was sent."""
    if isinstance(error, grpc.aio.AioRpcError):
        reason = error.details() or error.code().name
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Failure(Verdict.NOT_APPLIED, f"it does not support etcd's v3 API ({reason})")
        return judge_reason(reason)
    if isinstance(error, StreamBroken):
        return judge_reason(str(error))
    if isinstance(error, TimeoutError):
        return Failure(Verdict.UNKNOWN, "no answer in time")
    return Failure(Verdict.UNKNOWN, str(error) or "the connection was closed")
