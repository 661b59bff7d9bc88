from __future__ import annotations

import asyncio

import grpc
import pytest

from fairlead_broker.coordination.etcd.failures import StreamBroken, Verdict, judge, judge_reason


def failed(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return a failed call as gRPC raises it."""
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, details, None)


@pytest.mark.parametrize(
    ("code", "details", "verdict"),
    [
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader", Verdict.NOT_APPLIED),
        (grpc.StatusCode.UNKNOWN, "etcdserver: too many requests", Verdict.NOT_APPLIED),
        (
            grpc.StatusCode.UNAVAILABLE,
            "failed to connect to all addresses; last error: UNKNOWN: refused",
            Verdict.NOT_APPLIED,
        ),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service etcdserverpb.KV", Verdict.NOT_APPLIED),
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", Verdict.TOKEN),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", Verdict.TOKEN),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", Verdict.TOKEN),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", Verdict.CREDENTIALS),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            Verdict.CREDENTIALS,
        ),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", Verdict.REFUSED),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Verdict.REFUSED),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "grpc: received message larger than max (2 vs. 1)",
            Verdict.REFUSED,
        ),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out", Verdict.UNKNOWN),
        (
            grpc.StatusCode.UNAVAILABLE,
            "etcdserver: request timed out, possibly due to previous leader failure",
            Verdict.UNKNOWN,
        ),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed", Verdict.UNKNOWN),
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped", Verdict.UNKNOWN),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", Verdict.UNKNOWN),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", Verdict.UNKNOWN),
        (grpc.StatusCode.CANCELLED, "Channel closed!", Verdict.UNKNOWN),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2", Verdict.UNKNOWN),
        (grpc.StatusCode.UNKNOWN, "", Verdict.UNKNOWN),
        (grpc.StatusCode.UNKNOWN, "a sentence of a later release", Verdict.UNKNOWN),
    ],
)
def test_only_what_is_known_to_be_definite_is_definite(
    code: grpc.StatusCode, details: str, verdict: Verdict
) -> None:
    """A failed call counts as not applied only if its error is known to be definite."""
    failure = judge(failed(code, details))

    assert failure.verdict is verdict
    assert details in failure.reason


@pytest.mark.parametrize("error", [TimeoutError(), asyncio.InvalidStateError("done"), StreamBroken("gone")])
def test_no_answer_is_an_unknown_outcome(error: Exception) -> None:
    """A call without an answer has an unknown outcome and a reason."""
    failure = judge(error)

    assert failure.verdict is Verdict.UNKNOWN
    assert failure.reason


def test_the_reason_of_a_cancelled_watch_is_judged_like_a_call() -> None:
    """The reason of a cancelled watch is classified like a call's error, even though it has additional text."""
    reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied"

    assert judge_reason(reason).verdict is Verdict.CREDENTIALS
    assert judge(StreamBroken(reason)).verdict is Verdict.CREDENTIALS
