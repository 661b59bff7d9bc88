"""Status of a Link after a pass. The module does no I/O: the time is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fairlead_api.bodies.links import LinkDescription, LinkTopic
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, set_condition, without_condition
from fairlead_api.resources.link import Link, LinkStatus, LinkTopics
from fairlead_operator.plan.findings import (
    Finding,
    unready,
    with_interruption,
    with_unreadable_spec,
    with_warnings,
)
from fairlead_operator.plan.linking.link import PROMOTING, is_promoted, to_promote

NAMED_MAX: Final = 5
"""Maximum number of topics that a message names."""
OWN_RECORDS: Final = "cycle"
"""Reason of the brokers for a topic whose records come from the Cluster itself, which is never to be mirrored."""
SOURCE_FINDINGS: Final = ("SourceUnreachable", "SourceChanged")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOutcome:
    """Result of a pass over a Link."""

    findings: tuple[Finding, ...] = ()
    """Reasons why the link differs from its spec, the most severe first."""
    live: LinkDescription | None = None
    """The link; None if unknown."""
    topics: Sequence[LinkTopic] = ()


def findings_of(live: LinkDescription, topics: Iterable[LinkTopic]) -> tuple[Finding, ...]:
    """Return what the brokers report about a link that matches its spec."""
    found = list[Finding]()
    if live.source_problem is not None:
        found.append(Finding("SourceUnreachable", live.source_problem))
    stopped = [each for each in topics if each.state == "faulted"]
    if stopped:
        found.append(Finding("MirrorsStopped", f"mirrors copy nothing: {_named(stopped)}"))
    return tuple(found)


def link_status(link: Link, outcome: LinkOutcome, now: datetime) -> LinkStatus:
    """Return the status of a Link after a pass over its whole spec."""
    generation, live = link.metadata.generation, outcome.live
    conditions = set_condition(link.status.conditions, _ready(link, outcome, now, generation))
    conditions = set_condition(conditions, _reachable(outcome, now, generation))
    conditions = _with_blocked(conditions, outcome, now, generation)
    conditions = _with_gap(conditions, outcome, now, generation)
    conditions = _with_promoted(conditions, link, outcome, now, generation)
    conditions = with_warnings(conditions, (), now=now, generation=generation)
    mirrors = [each for each in outcome.topics if each.state in ("mirroring", "faulted", *PROMOTING)]
    records, seconds = [each.lag_records for each in mirrors], [each.lag_seconds for each in mirrors]
    known_records = [each for each in records if each is not None]
    known_seconds = [each for each in seconds if each is not None]
    return LinkStatus(
        observed_generation=generation,
        conditions=conditions,
        source_cluster_id=link.status.source_cluster_id if live is None else live.source_cluster_id,
        topics=link.status.topics if live is None else _counts(outcome.topics),
        lag_records=max(known_records) if mirrors and len(known_records) == len(mirrors) else None,
        lag_seconds=round(max(known_seconds)) if mirrors and len(known_seconds) == len(mirrors) else None,
    )


def interrupted_status(link: Link, name: ConditionName, finding: Finding, now: datetime) -> LinkStatus:
    """Return the status of a Link with one changed condition, for a pass that did not process the spec."""
    conditions = with_interruption(link.status.conditions, name, finding, now)
    return link.status.model_copy(update={"conditions": conditions})


def unreadable_status(before: LinkStatus, generation: int, faults: str, now: datetime) -> LinkStatus:
    """Return the status of a Link whose spec this release cannot read."""
    conditions = with_unreadable_spec(before.conditions, faults, now=now, generation=generation)
    return before.model_copy(update={"conditions": conditions, "observed_generation": generation})


def is_waiting(link: Link, topics: Iterable[LinkTopic]) -> bool:
    """Return whether promotions that the Link asks for are in progress."""
    return link.spec.promote is not None and any(_is_left(link, each) for each in topics)


def _ready(link: Link, outcome: LinkOutcome, now: datetime, generation: int) -> Condition:
    if outcome.findings:
        return unready(outcome.findings, now=now, generation=generation)
    does = (
        "is paused" if link.spec.state == "Paused" else f"mirrors {_counts(outcome.topics).mirroring} topics"
    )
    message = f"link {link.name} {does}"
    return condition(ConditionName.READY, "True", "Available", message, now=now, generation=generation)


def _reachable(outcome: LinkOutcome, now: datetime, generation: int) -> Condition:
    refused = next((each for each in outcome.findings if each.reason in SOURCE_FINDINGS), None)
    truth: Truth = "True"
    reason, message = "Reachable", "the source answers"
    if refused is not None:
        truth, reason, message = "False", "Unreachable", refused.message
    elif outcome.live is None or outcome.live.state == "paused":
        truth, reason, message = "Unknown", "NotAsked", "the source was not asked"
    name = ConditionName.SOURCE_REACHABLE
    return condition(name, truth, reason, message, now=now, generation=generation)


def _with_blocked(
    conditions: tuple[Condition, ...], outcome: LinkOutcome, now: datetime, generation: int
) -> tuple[Condition, ...]:
    name = ConditionName.TOPICS_BLOCKED
    blocked = [each for each in outcome.topics if each.state == "blocked" and each.reason != OWN_RECORDS]
    if not blocked:
        return without_condition(conditions, name)
    new = condition(name, "True", "TopicsBlocked", _named(blocked), now=now, generation=generation)
    return set_condition(conditions, new)


def _with_gap(
    conditions: tuple[Condition, ...], outcome: LinkOutcome, now: datetime, generation: int
) -> tuple[Condition, ...]:
    name = ConditionName.GAP
    if outcome.live is None:
        return conditions
    gaps = [
        f"{topic.topic}-{each.partition} lacks records from offset {gap.first_offset} to {gap.end_offset} "
        f"({gap.skipped} deleted, {gap.truncated} lost)"
        for topic in outcome.topics
        for each in topic.partitions
        if (gap := each.gap) is not None
    ]
    if not gaps:
        return without_condition(conditions, name)
    message = _listed(gaps)
    new = condition(name, "True", "RecordsMissing", message, now=now, generation=generation)
    return set_condition(conditions, new)


def _with_promoted(
    conditions: tuple[Condition, ...], link: Link, outcome: LinkOutcome, now: datetime, generation: int
) -> tuple[Condition, ...]:
    name = ConditionName.PROMOTED
    if link.spec.promote is None:
        return without_condition(conditions, name)
    if outcome.live is None:
        return conditions
    left = [each for each in outcome.topics if _is_left(link, each)]
    if left:
        new = condition(name, "False", "Promoting", _named(left), now=now, generation=generation)
    else:
        message = "every topic that spec.promote names accepts records"
        new = condition(name, "True", "AllPromoted", message, now=now, generation=generation)
    return set_condition(conditions, new)


def _is_left(link: Link, topic: LinkTopic) -> bool:
    return (topic.state in PROMOTING and is_promoted(link, topic.topic)) or bool(to_promote(link, [topic]))


def _counts(topics: Iterable[LinkTopic]) -> LinkTopics:
    states = Counter(each.state for each in topics if each.reason != OWN_RECORDS)
    return LinkTopics(
        mirroring=states["mirroring"] + sum(states[each] for each in PROMOTING),
        promoted=states["promoted"],
        blocked=states["blocked"],
        stopped=states["faulted"],
    )


def _named(topics: Sequence[LinkTopic]) -> str:
    """Return topics with their states and reasons, as many as a message holds."""
    return _listed([f"{each.topic} ({each.reason or each.state})" for each in topics])


def _listed(texts: Sequence[str]) -> str:
    rest = len(texts) - NAMED_MAX
    return ", ".join([*texts[:NAMED_MAX], *([f"and {rest} more"] if rest > 0 else [])])
