"""Conditions in the status of a resource: their form, and when the time of the last change moves.

What each type and reason means stands in `condition_catalogue`; a condition outside of it cannot be made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias

from fairlead_api.resources.advice_conditions import INVALID_SPEC, RECONCILIATION_PAUSED, WARNING
from fairlead_api.resources.blocked_conditions import (
    ETCD_HEALTHY,
    ROLL_BLOCKED,
    SCALE_DOWN_BLOCKED,
    STORAGE_BLOCKED,
)
from fairlead_api.resources.condition_definitions import ConditionName, ConditionType, Reason
from fairlead_api.resources.ready_conditions import NOT_RECONCILED, PROGRESSING, READY
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import kubernetes

Truth: TypeAlias = Literal["True", "False", "Unknown"]
MESSAGE_LENGTH_MAX = 32768


class Condition(Part):
    """One condition, in the form that all of Kubernetes uses."""

    type: Annotated[str, kubernetes(maxLength=64)]
    """What is judged: one of the catalogue."""
    status: Truth
    """Whether it holds."""
    reason: Annotated[str, kubernetes(maxLength=128)]
    """Why, as one word of the catalogue."""
    message: Annotated[str, kubernetes(maxLength=MESSAGE_LENGTH_MAX)] = ""
    """Why, for people: which object, which numbers, what to do."""
    last_transition_time: Annotated[str, kubernetes(format="date-time")]
    """When the status changed last."""
    observed_generation: int | None = None
    """The generation of the object that was judged."""


def condition(
    type_: ConditionName,
    status: Truth,
    reason: str,
    message: str,
    *,
    now: datetime,
    generation: int | None = None,
) -> Condition:
    """Return a condition of the catalogue; a reason that the type or the status does not have is a broken invariant."""
    entry = reason_of(type_, reason)
    assert entry is not None, f"condition {type_} has no reason {reason}"
    assert status in entry.statuses, f"condition {type_} is not {status} for the reason {reason}"
    return Condition(
        type=type_,
        status=status,
        reason=reason,
        message=message[:MESSAGE_LENGTH_MAX],
        last_transition_time=rfc3339(now),
        observed_generation=generation,
    )


def set_condition(conditions: Iterable[Condition], new: Condition) -> tuple[Condition, ...]:
    """Return the conditions with `new` in the place of the one of its type, in the catalogue's order.

    The time of the last change stays when the status is the same: a new reason or message is no change. A
    condition that was never evaluated has no status, and its time is no time of a change.
    """
    by_type = {each.type: each for each in conditions}
    old = by_type.get(new.type)
    if old is not None and old.status == new.status and old.reason != NOT_RECONCILED:
        new = new.model_copy(update={"last_transition_time": old.last_transition_time})
    by_type[new.type] = new
    return tuple(sorted(by_type.values(), key=lambda each: (_place(each.type), each.type)))


def without_condition(conditions: Iterable[Condition], type_: ConditionName) -> tuple[Condition, ...]:
    """Return the conditions without the condition of a type, for types that are present only while True."""
    return tuple(each for each in conditions if each.type != type_)


def find_condition(conditions: Iterable[Condition], type_: ConditionName) -> Condition | None:
    """Return the condition of a type, or None."""
    return next((each for each in conditions if each.type == type_), None)


def rfc3339(now: datetime) -> str:
    """Return a time as Kubernetes writes it: UTC, whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(type_: str) -> int:
    names = list(CONDITIONS)
    return names.index(ConditionName(type_)) if type_ in CONDITIONS else len(names)


CONDITIONS: Final[Mapping[ConditionName, ConditionType]] = {
    each.name: each
    for each in (
        READY,
        PROGRESSING,
        INVALID_SPEC,
        ROLL_BLOCKED,
        SCALE_DOWN_BLOCKED,
        STORAGE_BLOCKED,
        ETCD_HEALTHY,
        WARNING,
        RECONCILIATION_PAUSED,
    )
}
"""Every type by its name, in the order in which a status lists them."""


def reason_of(type_: ConditionName, reason: str) -> Reason | None:
    """Return the entry of a reason, or None where the type has no such reason."""
    return next((each for each in CONDITIONS[type_].reasons if each.name == reason), None)
