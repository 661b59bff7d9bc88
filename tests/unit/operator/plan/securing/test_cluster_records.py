"""Access rules and quotas that belong to a Cluster itself."""

from __future__ import annotations

from typing import Any

import pytest

import render_kit
from fairlead_api.bodies.quotas import QuotaDescription
from fairlead_operator.plan.securing.cluster_records import (
    CLUSTER_OWNER,
    SharedQuotaPlan,
    cluster_acls,
    plan_shared_quotas,
    shared_limits,
)

METRICS, BROKERS = "user:shop.main-metrics", "k8s:shop:main"
LIMITS = {"produce_bytes_per_second": 50 * 2**20}


def a_quota(subject: str, owner: str | None = CLUSTER_OWNER, **limits: dict[str, int]) -> QuotaDescription:
    """Return a stored quota."""
    return QuotaDescription(
        subject=subject,
        each=limits.get("each", {}),
        shared=limits.get("shared", {}),
        changed_at="2026-01-01T12:00:00Z",
        changed_by="k8s:ops:operator",
        owner=owner,
    )


@pytest.mark.parametrize(
    ("security", "expected"),
    [
        ({}, {METRICS: None, BROKERS: "alter"}),
        ({"metrics": "Token"}, {METRICS: "describe", BROKERS: "alter"}),
        ({"serviceAccounts": False}, {METRICS: None}),
    ],
)
def test_the_cluster_grants_rights_to_its_own_callers(
    security: dict[str, Any], expected: dict[str, str | None]
) -> None:
    """Brokers may ask for a permit to stop, and Prometheus may read metrics that need a token (rules A22, K13)."""
    rules = cluster_acls(render_kit.cluster_of(security=security))

    assert {
        principal: next((each.operations[0] for each in found), None) for principal, found in rules.items()
    } == expected
    assert {(each.kind, each.pattern) for found in rules.values() for each in found} <= {("cluster", "*")}


def test_the_users_of_a_namespace_share_limits() -> None:
    """Limits of `quotaMax.shared` apply to all tokens of a namespace together, and to all its service accounts."""
    users = [
        {"namespace": "web", "quotaMax": {"shared": {"produceBytesPerSecond": "50Mi"}}},
        {"namespace": "each", "quotaMax": {"each": {"produceBytesPerSecond": "50Mi"}}},
        {"namespace": "free"},
    ]

    assert shared_limits(render_kit.cluster_of(security={"users": users})) == {
        "user:web.*": LIMITS,
        "k8s:web:*": LIMITS,
    }


@pytest.mark.parametrize(
    ("stored", "put", "remove", "conflicts"),
    [
        ([], True, (), 0),
        ([a_quota("user:web.*", shared=LIMITS)], False, (), 0),
        ([a_quota("user:web.*", shared={"requests_per_second": 5})], True, (), 0),
        ([a_quota("user:web.*", shared=LIMITS, each=LIMITS)], True, (), 0),
        (
            [a_quota("user:web.*", shared=LIMITS), a_quota("user:old.*", shared=LIMITS)],
            False,
            ("user:old.*",),
            0,
        ),
        ([a_quota("user:web.*", None, each=LIMITS)], False, (), 1),
        ([a_quota("user:web.*", "tool", each=LIMITS), a_quota("user:old.*", "tool")], False, (), 1),
    ],
)
def test_shared_quotas_of_other_owners_are_kept(
    stored: list[QuotaDescription], *, put: bool, remove: tuple[str, ...], conflicts: int
) -> None:
    """Quotas of the Cluster follow its spec; a quota of another owner is never changed, but reported (rule K11)."""
    plan = plan_shared_quotas({"user:web.*": LIMITS}, stored)

    assert plan == SharedQuotaPlan({"user:web.*": LIMITS} if put else {}, remove, plan.conflicts)
    assert len(plan.conflicts) == conflicts
