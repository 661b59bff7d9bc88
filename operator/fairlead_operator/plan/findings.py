"""Findings of a pass over a resource, and the conditions that report them.

The modules that compute the status of a resource with a `clusterRef` call this module. The module does no I/O: the time
is an argument, and only a changed condition receives the new time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, set_condition, without_condition

_UNKNOWN: Final = frozenset({"ClusterNotFound", "ClusterNotReady", "ClusterPaused"})
"""Reasons that mean that the state of the object in the cluster is unknown."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fact that the status of a resource must report: a reason from the catalogue of conditions, and a message."""

    reason: str
    message: str


def unready(findings: Sequence[Finding], *, now: datetime, generation: int) -> Condition:
    """Return the Ready condition for one or more findings, the most severe first."""
    message = "; ".join(each.message for each in findings)
    gravest = findings[0]
    return condition(
        ConditionName.READY,
        truth_of(gravest),
        gravest.reason,
        message,
        now=now,
        generation=generation,
    )


def truth_of(finding: Finding) -> Truth:
    """Return the status of the Ready condition for a finding."""
    return "Unknown" if finding.reason in _UNKNOWN else "False"


def with_warnings(
    conditions: Iterable[Condition], warnings: Sequence[Finding], *, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions of a pass over the whole spec, with the Warning condition if there are warnings."""
    updated = tuple(conditions)
    for gone in (ConditionName.INVALID_SPEC, ConditionName.RECONCILIATION_PAUSED):
        updated = without_condition(updated, gone)
    if not warnings:
        return without_condition(updated, ConditionName.WARNING)
    reason = warnings[0].reason if len(warnings) == 1 else "SeveralWarnings"
    message = "; ".join(each.message for each in warnings)
    new = condition(ConditionName.WARNING, "True", reason, message, now=now, generation=generation)
    return set_condition(updated, new)


def with_interruption(
    conditions: Iterable[Condition], name: ConditionName, finding: Finding, now: datetime
) -> tuple[Condition, ...]:
    """Return the conditions with one changed condition, for a pass that did not process the spec."""
    truth: Truth = "True" if name is not ConditionName.READY else truth_of(finding)
    return set_condition(conditions, condition(name, truth, finding.reason, finding.message, now=now))


def with_unreadable_spec(
    conditions: Iterable[Condition], faults: str, *, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions of a resource whose spec this release cannot read."""
    updated = set_condition(
        conditions,
        condition(ConditionName.READY, "False", "InvalidSpec", faults, now=now, generation=generation),
    )
    return set_condition(
        updated,
        condition(ConditionName.INVALID_SPEC, "True", "Unreadable", faults, now=now, generation=generation),
    )
