from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fairlead_api.bodies.quotas import QuotaDescription
from fairlead_api.bodies.security import AclDescription, TokenDescription
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.user import User
from fairlead_operator.naming import Manifest
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.securing.user import (
    QuotaPlan,
    WantedAcl,
    bootstrap_of,
    owner_of,
    plan_acls,
    plan_quota,
    plan_token,
    refusal,
    wanted_acls,
    wanted_limits,
)
from fairlead_operator.plan.securing.user_status import (
    interrupted_status,
    unreadable_status,
    user_status,
    warnings_of,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
GRANT = {"namespace": "shop", "topics": ["shop.*"], "groups": ["shop.billing"]}


def a_user(namespace: str = "shop", annotations: dict[str, str] | None = None, **spec: Any) -> User:
    """Return the User ann of the Cluster fairlead/main."""
    return User.parse(
        {
            "metadata": {
                "name": "ann", "namespace": namespace, "uid": "u1", "annotations": annotations or {},
            },
            "spec": {"clusterRef": {"name": "main", "namespace": "fairlead"}, **spec},
        }
    )  # fmt: skip


def a_cluster(security: Manifest | None, **about: Any) -> Manifest:
    """Return the Cluster fairlead/main as a manifest."""
    spec = {} if security is None else {"security": security}
    return {"metadata": {"name": "main", "namespace": "fairlead"}, "spec": spec, **about}


def a_token(
    token_id: str, *, hours_ago: float, owner: str = "shop/User/u1", ends: datetime | None = None
) -> TokenDescription:
    """Return a stored token."""
    return TokenDescription(
        token_id=token_id,
        principal="user:shop.ann",
        created_at=(NOW - timedelta(hours=hours_ago)).isoformat(),
        created_by="k8s:fairlead:operator",
        expires_at=None if ends is None else ends.isoformat(),
        note="",
        owner=owner,
    )


@pytest.mark.parametrize(
    ("user", "cluster", "reason", "named"),
    [
        (a_user(), None, "ClusterNotFound", "fairlead/main"),
        (a_user(), a_cluster({}, metadata={"deletionTimestamp": "now"}), "ClusterNotFound", ""),
        (a_user(), a_cluster(None), "SecurityNotConfigured", ""),
        (a_user(serviceAccountName="a"), a_cluster({"serviceAccounts": False}), "NotAllowed", "accounts"),
        (a_user(), a_cluster({"users": [{"namespace": "bank"}]}), "NotAllowed", "shop"),
        (
            a_user(acls=[{"operations": ["read"], "topics": ["shop.a", "s*", "*"], "producers": ["shop.a"]}]),
            a_cluster({"users": [GRANT]}),
            "NotAllowed",
            "topic:s*, topic:*, producer:shop.a",
        ),
        (
            a_user(
                acls=[
                    {"operations": ["all"], "topics": ["shop.*"], "groups": ["shop.billing"]},
                    {"effect": "Deny", "operations": ["read"], "topics": ["*"]},
                ]
            ),
            a_cluster({"users": [GRANT]}),
            None,
            "",
        ),
        (a_user("fairlead", acls=[{"operations": ["all"], "topics": ["*"]}]), a_cluster({}), None, ""),
        (a_user("fairlead", quota={"each": {"requestsPerSecond": 9}}), a_cluster({}), None, ""),
        (
            a_user(quota={"each": {"requestsPerSecond": 9}}),
            a_cluster({"users": [GRANT]}),
            "NotAllowed",
            "requests_per_second 9",
        ),
        (
            a_user(quota={"each": {"produceBytesPerSecond": "2Mi", "requestsPerSecond": 9}}),
            a_cluster(
                {
                    "users": [
                        {
                            **GRANT,
                            "quotaMax": {"each": {"produceBytesPerSecond": "1Mi", "requestsPerSecond": 9}},
                        }
                    ]
                }
            ),
            "NotAllowed",
            "produce_bytes_per_second 2097152",
        ),
        (
            a_user(quota={"each": {"produceBytesPerSecond": "1Mi"}}),
            a_cluster({"users": [{**GRANT, "quotaMax": {"each": {"produceBytesPerSecond": "1Mi"}}}]}),
            None,
            "",
        ),
        (
            a_user(quota={"each": {"produceBytesPerSecond": "1Mi"}}),
            a_cluster({"users": [{**GRANT, "quotaMax": {"shared": {"produceBytesPerSecond": "1Mi"}}}]}),
            None,
            "",
        ),
        (
            a_user(quota={"each": {"requestsPerSecond": 9}}),
            a_cluster(
                {
                    "users": [
                        {
                            **GRANT,
                            "quotaMax": {
                                "each": {"requestsPerSecond": 8},
                                "shared": {"requestsPerSecond": 9},
                            },
                        }
                    ]
                }
            ),
            "NotAllowed",
            "requests_per_second 9",
        ),
    ],
)
def test_a_namespace_grants_only_what_the_cluster_gives_it(
    user: User, cluster: Manifest | None, reason: str | None, named: str
) -> None:
    """A User may allow only names that its Cluster grants to the User's namespace, and may deny any name (rule K10)."""
    found = refusal(user, cluster)

    assert (None if found is None else found.reason) == reason
    assert found is None or named in found.message


def test_only_own_records_are_removed() -> None:
    """Missing ACLs are created once, superfluous ACLs of the User are removed, and other owners' ACLs stay (K11)."""
    user = a_user(acls=[{"operations": ["write", "read", "read"], "topics": ["a"], "groups": ["g"]}])

    def stored(acl_id: str, pattern: str, owner: str | None, operations: list[str]) -> AclDescription:
        return AclDescription(
            acl_id=acl_id, effect="allow", principal=user.principal, operations=operations, kind="topic",
            pattern=pattern, created_at="", created_by="", owner=owner,
        )  # fmt: skip

    plan = plan_acls(
        wanted_acls(user),
        owner_of(user),
        [
            stored("1", "a", None, ["write", "read"]),
            stored("2", "b", owner_of(user), ["read"]),
            stored("3", "c", "bank/User/u2", ["read"]),
        ],
    )

    assert plan.missing == (WantedAcl("allow", ("read", "write"), "group", "g"),)
    assert plan.unwanted == ("2",)


@pytest.mark.parametrize(
    ("held", "stored", "annotations", "create", "revoke"),
    [
        ("", [], {}, True, ()),
        ("", [a_token("a", hours_ago=1)], {}, True, ("a",)),
        ("a", [a_token("a", hours_ago=1), a_token("x", hours_ago=2, owner="else")], {}, False, ()),
        ("a", [a_token("a", hours_ago=9, ends=NOW)], {}, True, ("a",)),
        ("a", [a_token("a", hours_ago=1441, ends=NOW + timedelta(hours=719))], {}, True, ()),
        ("a", [a_token("a", hours_ago=1439, ends=NOW + timedelta(hours=721))], {}, False, ()),
        ("a", [a_token("a", hours_ago=1, ends=NOW + timedelta(hours=47))], {}, False, ()),
        ("a", [a_token("a", hours_ago=24, ends=NOW + timedelta(hours=24))], {}, True, ()),
        ("a", [a_token("a", hours_ago=9)], {"fairlead.dev/renew-token": "true"}, True, ()),
        ("a", [a_token("a", hours_ago=23), a_token("old", hours_ago=90)], {}, False, ()),
        ("a", [a_token("a", hours_ago=25), a_token("old", hours_ago=90)], {}, False, ("old",)),
        ("a", [a_token("a", hours_ago=25), a_token("lost", hours_ago=24)], {}, False, ("lost",)),
    ],
)
def test_a_token_is_renewed_in_time_and_a_lost_one_is_revoked(
    held: str,
    stored: list[TokenDescription],
    annotations: dict[str, str],
    create: bool,
    revoke: tuple[str, ...],
) -> None:
    """A renewed token is revoked after a day, and a token that no Secret contains is revoked at once (rule K9)."""
    plan = plan_token(a_user(annotations=annotations), held, stored, NOW)

    assert (plan.create, plan.revoke) == (create, revoke)


@pytest.mark.parametrize(
    ("each", "owner", "plan"),
    [
        (None, None, QuotaPlan()),
        (None, "shop/User/u1", QuotaPlan(remove=True)),
        (None, "bank/User/u2", QuotaPlan()),
        ({"produceBytesPerSecond": "1Ki", "requestsPerSecond": 5}, None, QuotaPlan(put=True)),
        ({"produceBytesPerSecond": "1Ki", "requestsPerSecond": 5}, "shop/User/u1", QuotaPlan()),
        ({"fetchBytesPerSecond": "1Ki", "concurrentRequests": 5}, "shop/User/u1", QuotaPlan(put=True)),
        (
            {"requestsPerSecond": 5},
            "bank/User/u2",
            QuotaPlan(conflict="user:shop.ann has a quota of bank/User/u2"),
        ),
        ({"requestsPerSecond": 5}, "", QuotaPlan(conflict="user:shop.ann has a quota of another program")),
    ],
)
def test_a_quota_belongs_to_the_first_owner(
    each: dict[str, Any] | None, owner: str | None, plan: QuotaPlan
) -> None:
    """A User sets and removes its own quota, and never changes the quota of another owner (rule K11)."""
    user = a_user() if each is None else a_user(quota={"each": each})
    stored = QuotaDescription(
        subject="user:shop.ann", each={"produce_bytes_per_second": 1024, "requests_per_second": 5}, shared={},
        changed_at="", changed_by="", owner=owner or None,
    )  # fmt: skip

    assert plan_quota(wanted_limits(user), owner_of(user), None if owner is None else stored) == plan


@pytest.mark.parametrize(("hours", "reasons"), [(361, []), (360, ["ExpiresSoon"]), (None, [])])
def test_a_token_that_is_not_replaced_in_time_is_reported(hours: int | None, reasons: list[str]) -> None:
    """A warning is reported if a token is not renewed in the first half of its renewal time (rule K12)."""
    ends = None if hours is None else (NOW + timedelta(hours=hours)).isoformat()

    assert [
        each.reason for each in warnings_of(a_user(), a_cluster({"mode": "Enforce"}), ends, NOW)
    ] == reasons


def test_programs_get_the_address_with_tls_if_there_is_one() -> None:
    """Programs get the internal bootstrap address, with TLS if the Cluster has TLS, and never the external address."""
    plain = {"name": "data", "bootstrap": "http://a"}
    listeners = [{"name": "external", "bootstrap": "https://x"}, plain]

    assert bootstrap_of({}) == ""
    assert bootstrap_of({"status": {"listeners": listeners}}) == "http://a"
    tls = {"name": "data-tls", "bootstrap": "https://a"}
    assert bootstrap_of({"status": {"listeners": [*listeners, tls]}}) == "https://a"


def test_the_status_names_principal_token_and_findings() -> None:
    """The status of a User has its principal and token id, even if a pass is interrupted.

    If the Cluster has the mode Open, the status of the User has a warning.
    """
    user = a_user()
    warned = user_status(user, None, warnings_of(user, a_cluster({}), None, NOW), ("id", "2026"), NOW)
    refused = user_status(
        user,
        Finding("NotAllowed", "why"),
        warnings_of(user, a_cluster({"mode": "Enforce"}), None, NOW),
        (None, None),
        NOW,
    )
    paused = interrupted_status(user, ConditionName.RECONCILIATION_PAUSED, Finding("Annotation", "why"), NOW)
    unreadable = unreadable_status(warned, 7, "fault", NOW)

    assert [(each.type, each.reason) for each in warned.conditions] == [
        ("Ready", "Available"), ("Warning", "ModeIsOpen"),
    ]  # fmt: skip
    assert (warned.principal, warned.token_id) == ("user:shop.ann", "id")
    assert [(each.type, each.reason) for each in refused.conditions] == [("Ready", "NotAllowed")]
    assert paused.conditions[-1].type == "ReconciliationPaused"
    assert unreadable.token_id == "id"
    assert a_user(serviceAccountName="a").principal == "k8s:shop:a"
