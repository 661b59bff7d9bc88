"""Conditions in the status of a resource: their format, and the rules for the time of the last change.

The catalogue `CONDITIONS` defines each type and reason; this module creates no other conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TypeAlias

from fairlead_api.resources.advice_conditions import INVALID_SPEC, RECONCILIATION_PAUSED, WARNING
from fairlead_api.resources.blocked_conditions import (
    ETCD_HEALTHY,
    GAP,
    PROMOTED,
    ROLL_BLOCKED,
    SCALE_DOWN_BLOCKED,
    SOURCE_REACHABLE,
    STORAGE_BLOCKED,
    TOPICS_BLOCKED,
)
from fairlead_api.resources.condition_definitions import (
    CLUSTER_ONLY,
    ConditionName,
    ConditionType,
    Polarity,
    Reason,
)
from fairlead_api.resources.ready_conditions import NOT_RECONCILED, PROGRESSING, READY
from fairlead_api.resources.resource import Part
from fairlead_api.resources.schema_rules import kubernetes

Truth: TypeAlias = Literal["True", "False", "Unknown"]
MESSAGE_LENGTH_MAX = 32768


class Condition(Part):
    """Condition in the standard Kubernetes form."""

    type: Annotated[str, kubernetes(maxLength=64)]
    """Type of the condition, from the catalogue."""
    status: Truth
    """Whether the condition is true."""
    reason: Annotated[str, kubernetes(maxLength=128)]
    """Reason for the status, as one word from the catalogue."""
    message: Annotated[str, kubernetes(maxLength=MESSAGE_LENGTH_MAX)] = ""
    """Human-readable explanation that names the affected objects, the relevant numbers and the remedy."""
    last_transition_time: Annotated[str, kubernetes(format="date-time")]
    """Time of the last change of the status."""
    observed_generation: int | None = None
    """Generation of the object for which the condition was evaluated."""


def condition(
    type_: ConditionName,
    status: Truth,
    reason: str,
    message: str,
    *,
    now: datetime,
    generation: int | None = None,
) -> Condition:
    """Return a condition of the catalogue; the reason must be defined for the type and the status."""
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
    """Return the conditions with `new` in place of the condition of its type, in the catalogue's order.

    The time of the last change is kept if the status is the same, even with a new reason or message. The time of a
    condition that was never evaluated is not kept, since that condition had no status.
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
    """Return a timestamp in the format of Kubernetes: UTC, whole seconds."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(type_: str) -> int:
    names = list(CONDITIONS)
    return names.index(ConditionName(type_)) if type_ in CONDITIONS else len(names)


CERTIFICATES_READY: Final = ConditionType(
    ConditionName.CERTIFICATES_READY,
    Polarity.GOOD_WHEN_TRUE,
    "Whether the brokers use the certificates of the operator's own authority. The condition is present for Clusters "
    "with spec.security.",
    (
        Reason("Current", ("True",), "Every broker has loaded the current certificate.", "Nothing."),
        Reason(
            "Replacing",
            ("True",),
            "The authority is being replaced. The message names the condition for the next phase.",
            "Nothing, unless the message names a broker that does not load its files.",
        ),
        Reason(
            "Issuing",
            ("False",),
            "The certificates are new and no broker answers yet, or another program has not created the Secret that "
            "spec.security.tls.certificate names.",
            "Wait until the brokers are ready, or check the program that creates the Secret.",
        ),
        Reason(
            "Propagating",
            ("False",),
            "Brokers have not loaded the newest certificate yet. The kubelet updates the files of a pod within two "
            "minutes.",
            "Wait, then check the logs of the brokers that the message names for `certificate`.",
        ),
        Reason(
            "Expiring",
            ("False",),
            "The brokers' certificate expires within three days, although it should have been renewed after "
            "sixty days.",
            "Check the log of the operator, and whether it may write Secrets.",
        ),
        Reason(
            "NotOurs",
            ("False",),
            "A Secret with the name of one of the operator's Secrets exists, and the operator did not create it. The "
            "operator never overwrites this Secret, and creates no broker.",
            "Rename or delete the Secret that the message names.",
        ),
    ),
    CLUSTER_ONLY,
)

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
        CERTIFICATES_READY,
        SOURCE_REACHABLE,
        TOPICS_BLOCKED,
        GAP,
        PROMOTED,
        WARNING,
        RECONCILIATION_PAUSED,
    )
}
"""All condition types by name, in the order of the conditions in a status."""


def needs_attention(type_: str, status: str) -> bool:
    """Return whether a condition needs attention with the status; False for a type that this release does not know."""
    if type_ not in CONDITIONS:
        return False
    polarity = CONDITIONS[ConditionName(type_)].polarity
    return polarity is not Polarity.NEUTRAL and (status == "True") is (polarity is Polarity.BAD_WHEN_TRUE)


def reason_of(type_: ConditionName, reason: str) -> Reason | None:
    """Return the entry of a reason; None if the type does not have the reason."""
    return next((each for each in CONDITIONS[type_].reasons if each.name == reason), None)
