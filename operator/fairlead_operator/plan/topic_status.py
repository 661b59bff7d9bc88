"""Status of a Topic after a pass.

`reconcile` calls this module, which does no I/O: the time is an argument, and only a changed condition receives the new
time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, condition, set_condition
from fairlead_api.resources.topic import Reassignment, Topic, TopicStatus
from fairlead_operator.plan.findings import (
    Finding,
    unready,
    with_interruption,
    with_unreadable_spec,
    with_warnings,
)
from fairlead_operator.plan.topic import MoveProgress
from fairlead_operator.plan.topic_observed import LiveTopic


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
    conditions = with_warnings(conditions, outcome.warnings, now=now, generation=generation)
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
    conditions = with_interruption(topic.status.conditions, name, finding, now)
    return topic.status.model_copy(update={"conditions": conditions})


def unreadable_status(before: TopicStatus, generation: int, faults: str, now: datetime) -> TopicStatus:
    """Return the status of a Topic whose spec this release cannot read; the known facts about the topic are kept."""
    conditions = with_unreadable_spec(before.conditions, faults, now=now, generation=generation)
    return before.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _ready(name: str, outcome: Outcome, *, now: datetime, generation: int) -> Condition:
    if outcome.findings:
        return unready(outcome.findings, now=now, generation=generation)
    message = _available(name, outcome.live)
    return condition(ConditionName.READY, "True", "Available", message, now=now, generation=generation)


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


def _reassignment(progress: MoveProgress | None) -> Reassignment | None:
    if progress is None:
        return None
    return Reassignment(partitions_total=progress.partitions_total, partitions_left=progress.partitions_left)
