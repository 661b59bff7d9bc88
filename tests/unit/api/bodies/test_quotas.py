"""Quotas whose subject or limits are not allowed are refused, and the refusal names the field (rules Q1, Q2)."""

from __future__ import annotations

import pytest

from fairlead_api.bodies.quotas import QuotaLimits, QuotaRequest, check_quota, limits_of
from fairlead_api.problems import ProblemError

REQUESTS = QuotaLimits(requests_per_second=5)
PARTITIONS = QuotaLimits(partitions=5)


@pytest.mark.parametrize(
    ("subject", "request_", "field"),
    [
        ("user:*", QuotaRequest(each=REQUESTS, shared=REQUESTS), None),
        ("*", QuotaRequest(shared=REQUESTS), None),
        ("topics:shop.*", QuotaRequest(shared=PARTITIONS), None),
        ("user:*", QuotaRequest(), "each"),
        ("user:*", QuotaRequest(each=PARTITIONS), "shared.partitions"),
        ("topics:shop.*", QuotaRequest(each=PARTITIONS), "each.partitions"),
        ("topics:shop.*", QuotaRequest(shared=REQUESTS), "shared.requests_per_second"),
        ("group:corp:x", QuotaRequest(each=REQUESTS), "subject"),
        ("topics:a b", QuotaRequest(shared=PARTITIONS), "subject"),
        ("a" * 256, QuotaRequest(each=REQUESTS), "subject"),
        ("user:" + "/" * 100, QuotaRequest(each=REQUESTS), "subject"),
    ],
)
def test_a_quota_is_checked(subject: str, request_: QuotaRequest, field: str | None) -> None:
    """A valid quota is accepted, and the refusal of an invalid quota names the wrong field."""
    found: list[object] = []
    try:
        check_quota(subject, request_)
    except ProblemError as problem:
        found = [problem.code, problem.data["field"]]

    assert found == ([] if field is None else ["invalid_quota", field])


def test_limits_without_a_value_do_not_exist() -> None:
    """Limits without a value in a quota request are not stored."""
    assert limits_of(REQUESTS) == {"requests_per_second": 5}
