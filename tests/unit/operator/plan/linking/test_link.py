"""Plan and status of a Link, from the resource and the brokers' description of the link."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from fairlead_api.bodies.links import (
    AlterLinkRequest,
    LinkDescription,
    LinkTopic,
    MirrorGap,
    MirrorPartition,
    MirrorState,
)
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.link import Link, LinkStatus
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.linking.link import plan_link, to_promote, wanted_link
from fairlead_operator.plan.linking.status import (
    LinkOutcome,
    findings_of,
    interrupted_status,
    is_waiting,
    link_status,
    unreadable_status,
)

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVERYTHING: dict[str, Any] = {
    "topics": {"include": ["orders-*"], "exclude": ["orders-test"]},
    "groups": {"include": ["*"]},
    "acls": True,
    "config": {"retention.ms": "5000000"},
    "replicationFactor": 2,
    "bytesPerSecond": "1Ki",
    "policies": {"truncated": "Stop", "expired": "Stop", "recreated": "Replace", "logStart": "Own"},
    "state": "Paused",
}


def a_link(status: LinkStatus | None = None, **spec: Any) -> Link:
    """Return the Link east."""
    smallest = {
        "clusterRef": {"name": "main"},
        "source": {"bootstrap": ["http://east:9520"]},
        "topics": {"include": ["*"]},
    }
    return Link.parse(
        {
            "metadata": {"name": "east", "namespace": "shop", "generation": 3},
            "spec": {**smallest, **spec},
            "status": (status or LinkStatus()).manifest(),
        }
    )


def live_of(link: Link, **changes: Any) -> LinkDescription:
    """Return the description of a link that matches a resource, with changes."""
    wanted = wanted_link(link)
    members = {name: getattr(wanted, name) for name in wanted.__struct_fields__}
    described = LinkDescription(
        **members, source_cluster_id="c1", state="running", mirrors=1, source_problem=None
    )
    return msgspec.structs.replace(described, **changes)


def a_topic(
    name: str, state: MirrorState = "mirroring", reason: str | None = None, lag: int | None = 0
) -> LinkTopic:
    """Return a topic of the link."""
    return LinkTopic(
        topic=name, topic_id="t", source_topic=name, state=state, reason=reason, lag_records=lag,
        lag_seconds=None if lag is None else float(lag),
    )  # fmt: skip


def status(link: Link, outcome: LinkOutcome, name: ConditionName) -> tuple[str, str] | None:
    """Return the status and the reason of a condition after a pass; None without the condition."""
    found = find_condition(link_status(link, outcome, NOW).conditions, name)
    return None if found is None else (found.status, found.reason)


def test_a_missing_link_is_created_in_its_state() -> None:
    """A link that does not exist is created with the values of the spec, and paused if the spec asks for it."""
    running, paused = plan_link(a_link(), None), plan_link(a_link(**EVERYTHING, prefix="east."), None)

    assert running.create == wanted_link(a_link())
    assert (running.state, paused.state) == (None, "paused")
    assert paused.create is not None
    assert paused.create.prefix == "east."
    assert paused.create.bytes_per_second == 1024
    assert (paused.create.policies.truncated, paused.create.policies.expired) == ("stop", "stop")


def test_a_link_that_matches_is_not_changed() -> None:
    """A second pass over the same spec changes nothing, also if the brokers return another form of a value."""
    link = a_link(**EVERYTHING)
    plan = plan_link(link, live_of(link, state="paused", config={"retention.ms": 5_000_000}))

    assert (plan.create, plan.alter, plan.state, plan.conflict) == (None, None, None, None)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"topics": {"include": ["trips"]}}, {"topics": {"include": ["trips"], "exclude": []}}),
        ({"groups": {}}, {"groups": {"include": []}}),
        (
            {"config": {"segment.bytes": "2000000"}},
            {"config": {"retention.ms": None, "segment.bytes": "2000000"}},
        ),
        ({"replicationFactor": None}, {"replication_factor": None}),
        ({"bytesPerSecond": None}, {"bytes_per_second": None}),
        (
            {"policies": {**EVERYTHING["policies"], "truncated": "Follow"}},
            {"policies": {"truncated": "follow"}},
        ),
        (
            {"policies": {"truncated": "Stop"}},
            {"policies": {"expired": "skip", "recreated": "stop", "log_start": "source"}},
        ),
        ({"source": {"bootstrap": ["http://w:1"]}}, {"source": {"bootstrap": ["http://w:1"]}}),
        ({"state": "Running"}, {}),
    ],
)
def test_only_members_that_differ_are_changed(change: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Each field of the spec is compared with the link, and a removed field returns to its default."""
    before = live_of(a_link(**EVERYTHING), state="paused")
    plan = plan_link(a_link(**{**EVERYTHING, **change}), before)
    sent = {} if plan.alter is None else msgspec.to_builtins(plan.alter)

    assert {name: value for name, value in sent.items() if value not in ({}, UNSET)} == wanted
    assert plan.state == ("running" if "state" in change else None)


def test_another_prefix_is_a_conflict() -> None:
    """A link with the same name and another prefix is not changed."""
    link = a_link(prefix="east.")
    plan = plan_link(link, live_of(link, prefix=""))

    assert plan.conflict is not None
    assert plan.conflict.reason == "LinkConflict"
    assert (plan.alter, plan.create) == (None, None)


def test_a_value_that_the_brokers_refuse_is_sent_to_them() -> None:
    """The brokers report an unknown configuration key; the plan does not."""
    plan = plan_link(a_link(config={"retention": "1"}), live_of(a_link()))

    assert plan.alter == AlterLinkRequest(config={"retention": "1"})


def test_promotions_begin_once_and_a_failover_replaces_a_hand_over() -> None:
    """Mirrors that match are promoted; a failover also promotes a mirror that waits for its source."""
    topics = [
        a_topic("a-1"), a_topic("a-2", "handing_over"), a_topic("a-3", "promoting"), a_topic("a-4", "faulted"),
        a_topic("a-5", "promoted"), a_topic("a-6", "blocked", "name_taken"), a_topic("b"),
    ]  # fmt: skip
    planned = a_link(promote={"topics": ["a-*"]})
    failover = a_link(promote={"topics": ["a-*"], "mode": "Failover", "confirm": "east"})

    assert to_promote(a_link(), topics) == []
    assert to_promote(planned, topics) == ["a-1", "a-4"]
    assert to_promote(failover, topics) == ["a-1", "a-2", "a-4"]
    assert [is_waiting(planned, [each]) for each in topics] == [True, True, True, True, False, False, False]
    assert not is_waiting(a_link(), topics)


def test_the_status_of_a_link_that_copies() -> None:
    """A status has the numbers of topics and the greatest lag; topics that come from the Cluster are not counted."""
    link = a_link()
    topics = [
        a_topic("a", lag=3), a_topic("b", "handing_over", lag=7), a_topic("c", "promoted"),
        a_topic("d", "blocked", "cycle"),
    ]  # fmt: skip
    outcome = LinkOutcome(live=live_of(link), topics=topics)
    found = link_status(link, outcome, NOW)

    assert status(link, outcome, ConditionName.READY) == ("True", "Available")
    assert status(link, outcome, ConditionName.SOURCE_REACHABLE) == ("True", "Reachable")
    assert status(link, outcome, ConditionName.TOPICS_BLOCKED) is None
    assert status(link, outcome, ConditionName.PROMOTED) is None
    assert found.topics is not None
    assert (found.topics.mirroring, found.topics.promoted, found.topics.blocked) == (2, 1, 0)
    assert (found.lag_records, found.lag_seconds, found.source_cluster_id) == (7, 7, "c1")


def test_an_unknown_lag_is_absent() -> None:
    """A lag that one mirror does not know is not the lag of the others."""
    link = a_link()
    found = link_status(
        link, LinkOutcome(live=live_of(link), topics=[a_topic("a"), a_topic("b", lag=None)]), NOW
    )

    assert (found.lag_records, found.lag_seconds) == (None, None)


def test_blocked_stopped_and_unreachable_topics_are_reported() -> None:
    """The source, mirrors that stopped and blocked topics have conditions of their own, and the worst is in Ready."""
    link = a_link()
    live = live_of(link, source_problem="no broker answers")
    topics = [a_topic(f"t{each}", "blocked", "name_taken") for each in range(7)] + [
        a_topic("u", "faulted", "x")
    ]
    outcome = LinkOutcome(findings=findings_of(live, topics), live=live, topics=topics)
    blocked = find_condition(link_status(link, outcome, NOW).conditions, ConditionName.TOPICS_BLOCKED)

    assert [each.reason for each in outcome.findings] == ["SourceUnreachable", "MirrorsStopped"]
    assert status(link, outcome, ConditionName.READY) == ("False", "SourceUnreachable")
    assert status(link, outcome, ConditionName.SOURCE_REACHABLE) == ("False", "Unreachable")
    assert blocked is not None
    assert "t0 (name_taken)" in blocked.message
    assert "t6" not in blocked.message


def test_gaps_are_reported_until_they_are_acknowledged() -> None:
    """The condition Gap names the offsets of missing records, and is absent once no partition has a gap."""
    link = a_link()
    gap = MirrorGap(first_offset=5, end_offset=8, skipped=3, truncated=0)
    partition = MirrorPartition(
        partition=2,
        source_high_watermark=9,
        high_watermark=9,
        lag_records=0,
        lag_seconds=0.0,
        gap=gap,
    )
    lacking = LinkOutcome(
        live=live_of(link), topics=[msgspec.structs.replace(a_topic("orders"), partitions=[partition])]
    )
    found = find_condition(link_status(link, lacking, NOW).conditions, ConditionName.GAP)
    complete = LinkOutcome(live=live_of(link), topics=[a_topic("orders")])

    assert found is not None
    assert (found.status, found.reason) == ("True", "RecordsMissing")
    assert status(link, complete, ConditionName.GAP) is None
    assert status(link, LinkOutcome(), ConditionName.GAP) is None


def test_only_stopped_mirrors_and_an_unreachable_source_are_findings() -> None:
    """A link that copies has no findings; a stopped mirror and a source that does not answer are one finding each."""
    live = live_of(a_link())

    assert findings_of(live, [a_topic("orders")]) == ()
    assert [each.reason for each in findings_of(live, [a_topic("orders", "faulted")])] == ["MirrorsStopped"]
    unreachable = live_of(a_link(), source_problem="no answer")
    assert [each.reason for each in findings_of(unreachable, ())] == ["SourceUnreachable"]


def test_promotion_is_reported_until_the_field_is_removed() -> None:
    """`Promoted` is False while a mirror is left, True afterwards, kept while brokers are silent, and then removed."""
    link = a_link(promote={"topics": ["*"]})
    waits = LinkOutcome(live=live_of(link), topics=[a_topic("a", "handing_over")])
    done = LinkOutcome(live=live_of(link), topics=[a_topic("a", "promoted")])
    silent = LinkOutcome(findings=(Finding("ClusterNotReady", "no answer"),))
    after = link_status(link, done, NOW)
    later, without = a_link(after, promote={"topics": ["*"]}), a_link(after)

    assert status(link, waits, ConditionName.PROMOTED) == ("False", "Promoting")
    assert status(link, done, ConditionName.PROMOTED) == ("True", "AllPromoted")
    assert status(later, silent, ConditionName.PROMOTED) == ("True", "AllPromoted")
    assert status(later, silent, ConditionName.READY) == ("Unknown", "ClusterNotReady")
    assert status(later, silent, ConditionName.SOURCE_REACHABLE) == ("Unknown", "NotAsked")
    assert link_status(later, silent, NOW).topics == after.topics
    assert status(without, done, ConditionName.PROMOTED) is None


def test_a_paused_link_is_ready_and_asks_no_source() -> None:
    """A paused link matches its spec."""
    link = a_link(state="Paused")
    outcome = LinkOutcome(live=live_of(link, state="paused"))

    assert status(link, outcome, ConditionName.READY) == ("True", "Available")
    assert status(link, outcome, ConditionName.SOURCE_REACHABLE) == ("Unknown", "NotAsked")


def test_a_pass_that_ends_early_changes_one_condition() -> None:
    """A pause, or a spec that cannot be read, leaves the other facts of the status as they were."""
    link = a_link(
        link_status(a_link(), LinkOutcome(live=live_of(a_link()), topics=[a_topic("a", lag=5)]), NOW)
    )
    paused = interrupted_status(link, ConditionName.RECONCILIATION_PAUSED, Finding("Annotation", "x"), NOW)
    unreadable = unreadable_status(link.status, 4, "spec.source: x", NOW)

    assert (paused.lag_records, unreadable.lag_records, unreadable.observed_generation) == (5, 5, 4)
    assert [each.type for each in paused.conditions] == ["Ready", "SourceReachable", "ReconciliationPaused"]
    assert [each.reason for each in unreadable.conditions] == ["InvalidSpec", "Unreadable", "Reachable"]
