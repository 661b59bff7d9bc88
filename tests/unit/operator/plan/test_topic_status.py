"""The status of a Topic after a pass."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, find_condition
from fairlead_api.resources.topic import Topic, TopicStatus
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.topic import MoveProgress
from fairlead_operator.plan.topic_observed import LivePartition, LiveTopic
from fairlead_operator.plan.topic_status import (
    Outcome,
    interrupted_status,
    topic_status,
    unreadable_status,
)
from refusals import missing

BEFORE = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
NOW = datetime(2026, 1, 1, 12, 5, 0, tzinfo=UTC)
LIVE = LiveTopic(name="flights", topic_id="t", partitions=3, replication_factor=2)


def topic(status: TopicStatus | None = None) -> Topic:
    """Return a Topic of generation 7 with the given status."""
    manifest: dict[str, Any] = {
        "metadata": {"name": "flights", "namespace": "shop", "generation": 7},
        "spec": {"clusterRef": {"name": "main"}},
        "status": (status or TopicStatus()).manifest(),
    }
    return Topic.parse(manifest)


def ready(status: TopicStatus) -> Condition:
    """Return the Ready condition."""
    found = find_condition(status.conditions, ConditionName.READY)
    assert found is not None, "a status has a condition Ready"
    return found


def types(status: TopicStatus) -> list[str]:
    """Return the types of all conditions."""
    return [each.type for each in status.conditions]


def test_a_topic_as_asked_for_is_ready() -> None:
    """The status of a settled Topic has its topic id, partitions, replicas and observed generation."""
    status = topic_status(topic(), Outcome(live=LIVE), NOW)

    assert (status.observed_generation, status.topic_name, status.topic_id) == (7, "flights", "t")
    assert (status.partitions, status.replicas, status.reassignment) == (3, 2, None)
    assert (ready(status).status, ready(status).reason) == ("True", "Available")
    assert types(status) == ["Ready", "Progressing"]


def test_the_same_again_changes_nothing() -> None:
    """The status does not change while the outcome stays the same."""
    first = topic_status(topic(), Outcome(live=LIVE), BEFORE)

    assert topic_status(topic(first), Outcome(live=LIVE), NOW) == first


def test_the_gravest_finding_is_the_reason_and_all_are_in_the_message() -> None:
    """The most severe finding sets the reason of Ready, the message lists all findings, and known values are kept."""
    first = topic_status(topic(), Outcome(live=LIVE), BEFORE)
    findings = (Finding("InvalidConfig", "one"), Finding("PartitionsNotReducible", "two"))
    failed = topic_status(topic(first), Outcome(findings=findings), NOW)

    assert (ready(failed).reason, ready(failed).message) == ("InvalidConfig", "one; two")
    assert ready(failed).last_transition_time == "2026-01-01T12:05:00Z"
    assert (failed.topic_id, failed.partitions, failed.replicas) == ("t", 3, 2)


@pytest.mark.parametrize(
    ("reason", "truth"),
    [("ClusterNotFound", "Unknown"), ("ClusterNotReady", "Unknown"), ("InvalidConfig", "False")],
)
def test_what_cannot_be_known_is_unknown(reason: str, truth: str) -> None:
    """The status of Ready is `Unknown` while the Cluster is missing or does not answer."""
    status = topic_status(topic(), Outcome(findings=(Finding(reason, "why"),)), NOW)

    assert ready(status).status == truth


def test_a_losing_topic_has_no_id() -> None:
    """A Topic that lost its topic has no topic id, because a topic id marks the owner."""
    first = topic_status(topic(), Outcome(live=LIVE), BEFORE)
    lost = Outcome(findings=(Finding("ResourceConflict", "why"),), has_topic=False)
    status = topic_status(topic(first), lost, NOW)

    assert (status.topic_id, status.partitions, status.replicas) == (None, None, None)


def test_replicas_are_what_every_partition_has() -> None:
    """The status has the smallest number of replicas of any partition, without replicas being added or removed."""
    growing = LivePartition(0, (1, 2, 3), adding=(3,))
    shrinking = LivePartition(1, (1, 2), removing=(2,))

    assert topic_status(topic(), Outcome(live=replace(LIVE, placement=(growing,))), NOW).replicas == 2
    assert (
        topic_status(topic(), Outcome(live=replace(LIVE, placement=(growing, shrinking))), NOW).replicas == 1
    )


def test_moves_show_their_progress() -> None:
    """A Topic stays ready while its replicas move, and its status counts the moves."""
    status = topic_status(topic(), Outcome(live=LIVE, progress=MoveProgress(6, 2)), NOW)
    progressing = find_condition(status.conditions, ConditionName.PROGRESSING)

    assert ready(status).status == "True"
    assert status.reassignment is not None
    assert (status.reassignment.partitions_total, status.reassignment.partitions_left) == (6, 2)
    assert progressing is not None
    assert (progressing.status, progressing.reason) == ("True", "Reassigning")
    assert missing(progressing.message, 4, 6) == []


def test_warnings_come_and_go() -> None:
    """A single warning has its own reason, and several warnings have a common reason.

    The condition Warning is removed if there are no warnings.
    """
    one, two = Finding("MinInsyncReplicasTooLarge", "one"), Finding("UnmanagedKeys", "two")
    warned = topic_status(topic(), Outcome(live=LIVE, warnings=(one,)), BEFORE)
    both = topic_status(topic(warned), Outcome(live=LIVE, warnings=(one, two)), NOW)
    none = topic_status(topic(both), Outcome(live=LIVE), NOW)
    told = [find_condition(status.conditions, ConditionName.WARNING) for status in (warned, both, none)]

    assert [(each.reason, each.message) for each in told if each is not None] == [
        ("MinInsyncReplicasTooLarge", "one"),
        ("SeveralWarnings", "one; two"),
    ]
    assert told[2] is None


def test_a_pause_leaves_the_rest_as_it_was() -> None:
    """A paused Topic keeps its observed generation, and the pass after the pause removes the condition of the pause."""
    first = topic_status(topic(), Outcome(live=LIVE), BEFORE)
    paused = interrupted_status(
        topic(first.model_copy(update={"observed_generation": 6})),
        ConditionName.RECONCILIATION_PAUSED,
        Finding("Annotation", "paused"),
        NOW,
    )
    held = interrupted_status(topic(first), ConditionName.READY, Finding("ClusterPaused", "paused"), NOW)

    assert (paused.observed_generation, types(paused)) == (
        6,
        ["Ready", "Progressing", "ReconciliationPaused"],
    )
    assert (ready(held).status, ready(held).reason, held.topic_id) == ("Unknown", "ClusterPaused", "t")
    assert types(topic_status(topic(paused), Outcome(live=LIVE), NOW)) == ["Ready", "Progressing"]


def test_a_spec_that_cannot_be_read_is_named() -> None:
    """An unreadable spec is reported as `InvalidSpec`, and the topic id is kept."""
    first = topic_status(topic(), Outcome(live=LIVE), BEFORE)
    status = unreadable_status(first, 8, "spec.partitions: no number", NOW)

    assert (ready(status).reason, ready(status).message) == ("InvalidSpec", "spec.partitions: no number")
    assert (status.observed_generation, status.topic_id) == (8, "t")
    assert "InvalidSpec" in types(status)
