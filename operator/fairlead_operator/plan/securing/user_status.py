"""Status of a User after a pass (rule K12). The module does no I/O: the time is an argument."""

from __future__ import annotations

from datetime import datetime, timedelta

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import condition, set_condition
from fairlead_api.resources.user import User, UserStatus
from fairlead_operator.naming import Manifest
from fairlead_operator.plan.findings import (
    Finding,
    unready,
    with_interruption,
    with_unreadable_spec,
    with_warnings,
)
from fairlead_operator.plan.securing.user import hours_of


def user_status(
    user: User,
    finding: Finding | None,
    warnings: tuple[Finding, ...],
    token: tuple[str | None, str | None],
    now: datetime,
) -> UserStatus:
    """Return the status of a User after a pass over its whole spec; `token` is the id and the expiry of its token."""
    generation = user.metadata.generation
    if finding is None:
        ready = condition(
            ConditionName.READY,
            "True",
            "Available",
            f"the access rules of {user.principal} are in effect",
            now=now,
            generation=generation,
        )
    else:
        ready = unready([finding], now=now, generation=generation)
    conditions = set_condition(user.status.conditions, ready)
    conditions = with_warnings(conditions, warnings, now=now, generation=generation)
    token_id, expires_at = token
    return UserStatus(
        observed_generation=generation,
        conditions=conditions,
        principal=user.principal,
        token_id=token_id,
        expires_at=expires_at,
    )


def interrupted_status(user: User, name: ConditionName, finding: Finding, now: datetime) -> UserStatus:
    """Return the status of a User with one changed condition, for a pass that did not process the spec."""
    conditions = with_interruption(user.status.conditions, name, finding, now)
    return user.status.model_copy(update={"conditions": conditions})


def unreadable_status(before: UserStatus, generation: int, faults: str, now: datetime) -> UserStatus:
    """Return the status of a User whose spec this release cannot read."""
    conditions = with_unreadable_spec(before.conditions, faults, now=now, generation=generation)
    return before.model_copy(update={"conditions": conditions, "observed_generation": generation})


def warnings_of(user: User, cluster: Manifest, expires_at: str | None, now: datetime) -> tuple[Finding, ...]:
    """Return the warnings about a User: an open Cluster, and a token that was not replaced in time."""
    found = list[Finding]()
    security = cluster.get("spec", {}).get("security") or {}
    if security.get("mode", "Open") == "Open":
        found.append(
            Finding("ModeIsOpen", "the Cluster has the security mode Open: access rules have no effect yet")
        )
    if expires_at is not None:
        late = timedelta(hours=hours_of(user.token.renew_before)) / 2
        if datetime.fromisoformat(expires_at) - late <= now:
            found.append(Finding("ExpiresSoon", f"the token ends at {expires_at} and is not replaced yet"))
    return tuple(found)
