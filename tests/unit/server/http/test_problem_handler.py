"""Answers to refusals and failures."""

import msgspec

from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.server.http.problem_handler import FailureLog, problem_answer


class KeptLog:
    """A log that records its events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def error(self, event: str, **facts: object) -> None:
        """Record an event."""
        self.events.append((event, facts))


def test_problem_becomes_a_document() -> None:
    """A refusal is answered with its status, data and rounded-up Retry-After as problem+json."""
    answer = problem_answer(
        ProblemError("overloaded", "queue is full", retry_after_seconds=0.2, data={"queue": 7})
    )
    document = msgspec.json.decode(answer.body)

    assert answer.status == document["status"] == 503
    assert dict(answer.headers) == {b"content-type": b"application/problem+json", b"retry-after": b"1"}
    assert (document["code"], document["detail"], document["queue"]) == ("overloaded", "queue is full", 7)


def test_a_refusal_of_a_quota_has_the_exact_time_to_wait() -> None:
    """The answer to a request over a quota has the time to wait in milliseconds, unlike other limits (rule Q6)."""
    over_quota, over_limit = (
        problem_answer(ProblemError("throttled", "no", retry_after_seconds=1.2341, data=data))
        for data in ({"quota": "requests_per_second"}, {"topic": "t"})
    )

    assert dict(over_quota.headers)[b"fairlead-throttle-ms"] == b"1235"
    assert dict(over_quota.headers)[b"retry-after"] == b"2"
    assert b"fairlead-throttle-ms" not in dict(over_limit.headers)


def test_wrong_method_has_allow() -> None:
    """A 405 answer has the Allow header."""
    answer = problem_answer(ProblemError("method_not_allowed", "no", data={"allowed": ["GET", "HEAD"]}))

    assert dict(answer.headers)[b"allow"] == b"GET, HEAD"


def test_unforeseen_failure_is_numbered() -> None:
    """An unexpected failure is answered with an id, and the log has the same id and the trace."""
    log = KeptLog()
    failures = FailureLog(log, "life")  # type: ignore[arg-type]
    error = ValueError("secret detail")
    first = failures.record(error, "produce", mutating=True)
    second = failures.record(error, "fetch")

    assert (first.code, first.side_effect, second.side_effect) == (
        "internal",
        SideEffect.MAYBE,
        SideEffect.NONE,
    )
    assert (first.data["failure_id"], second.data["failure_id"]) == ("life-1", "life-2")
    assert "secret" not in str(first.to_document())
    assert log.events[0] == (
        "request failed unexpectedly",
        {"route": "produce", "failure_id": "life-1", "exc_info": error},
    )
