"""Status of a Topic after a pass.

Called by `reconcile`. The module does no I/O: the time is an argument, and only a changed condition receives the new
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, set_condition, without_condition
from fairlead_api.resources.topic import Reassignment, Topic, TopicStatus
from fairlead_operator.plan.topic import Finding, MoveProgress
from fairlead_operator.plan.topic_observed import LiveTopic

_UNKNOWN: Final = frozenset({"ClusterNotFound", "ClusterNotReady", "ClusterPaused"})
"""Reasons for which the state of the topic is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a pass over a Topic."""

    findings: tuple[Finding, ...] = ()
    """Reasons why the topic differs from its spec, the most severe first; empty if the topic matches its spec."""
    warnings: tuple[Finding, ...] = ()
    progress: MoveProgress | None = None
    live: LiveTopic | None = None
    """Current state of the topic; None if unknown."""
    has_topic: bool = True
    """Whether this Topic owns the topic; False if another Topic is the owner."""


def topic_status(topic: Topic, outcome: Outcome, now: datetime) -> TopicStatus:
    """Return the status of a Topic after a pass over its whole spec."""
    before, live, generation = topic.status, outcome.live, topic.metadata.generation
    conditions = set_condition(
        before.conditions, _ready(topic.topic_name, outcome, now=now, generation=generation)
    )
    conditions = set_condition(conditions, _progressing(outcome.progress, now=now, generation=generation))
    for gone in (ConditionName.INVALID_SPEC, ConditionName.RECONCILIATION_PAUSED, ConditionName.WARNING):
        if gone is not ConditionName.WARNING or not outcome.warnings:
            conditions = without_condition(conditions, gone)
    if outcome.warnings:
        conditions = set_condition(conditions, _warning(outcome.warnings, now=now, generation=generation))
    if not outcome.has_topic:
        return TopicStatus(observed_generation=generation, conditions=conditions, topic_name=topic.topic_name)
    return TopicStatus(
        observed_generation=generation,
        conditions=conditions,
        topic_name=topic.topic_name,
        topic_id=live.topic_id if live is not None else before.topic_id,
        partitions=live.partitions if live is not None else before.partitions,
        replicas=live.replicas if live is not None else before.replicas,
        reassignment=_reassignment(outcome.progress),
    )


def interrupted_status(topic: Topic, name: ConditionName, finding: Finding, now: datetime) -> TopicStatus:
    """Return the status of a Topic with one changed condition, for a pass that did not process the spec."""
    truth: Truth = "True" if name is not ConditionName.READY else _truth(finding)
    new = condition(name, truth, finding.reason, finding.message, now=now)
    return topic.status.model_copy(update={"conditions": set_condition(topic.status.conditions, new)})


def unreadable_status(before: TopicStatus, generation: int, faults: str, now: datetime) -> TopicStatus:
    """Return the status of a Topic whose spec this release cannot read; the known facts about the topic are kept."""
    told = set_condition(
        before.conditions,
        condition(ConditionName.READY, "False", "InvalidSpec", faults, now=now, generation=generation),
    )
    told = set_condition(
        told,
        condition(ConditionName.INVALID_SPEC, "True", "Unreadable", faults, now=now, generation=generation),
    )
    return before.model_copy(update={"conditions": told, "observed_generation": generation})


def _ready(name: str, outcome: Outcome, *, now: datetime, generation: int) -> Condition:
    if not outcome.findings:
        message = _available(name, outcome.live)
        return condition(ConditionName.READY, "True", "Available", message, now=now, generation=generation)
    gravest = outcome.findings[0]
    message = "; ".join(each.message for each in outcome.findings)
    truth = _truth(gravest)
    return condition(ConditionName.READY, truth, gravest.reason, message, now=now, generation=generation)


def _truth(finding: Finding) -> Truth:
    return "Unknown" if finding.reason in _UNKNOWN else "False"


def _available(name: str, live: LiveTopic | None) -> str:
    assert live is not None, f"topic {name} is available but was not listed"
    return f"topic {name} has {live.partitions} partitions with {live.replicas} replicas each"


def _progressing(progress: MoveProgress | None, *, now: datetime, generation: int) -> Condition:
    type_ = ConditionName.PROGRESSING
    if progress is None:
        return condition(
            type_, "False", "UpToDate", "no change is in progress", now=now, generation=generation
        )
    done = progress.partitions_total - progress.partitions_left
    message = f"{done} of {progress.partitions_total} partitions have their replicas in place"
    return condition(type_, "True", "Reassigning", message, now=now, generation=generation)


def _warning(warnings: tuple[Finding, ...], *, now: datetime, generation: int) -> Condition:
    reason = warnings[0].reason if len(warnings) == 1 else "SeveralWarnings"
    message = "; ".join(each.message for each in warnings)
    return condition(ConditionName.WARNING, "True", reason, message, now=now, generation=generation)


def _reassignment(progress: MoveProgress | None) -> Reassignment | None:
    if progress is None:
        return None
    return Reassignment(partitions_total=progress.partitions_total, partitions_left=progress.partitions_left)
