"""Refusals about consumer groups, each built in one place, and what trouble with the store means for a caller."""

from __future__ import annotations

from typing import Final

from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.coordination.group_store import ClaimLost
from fairlead_broker.coordination.protocol import CoordinationError, TransactionTooLarge, UnknownOutcome
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import RecordUnreadable

RETRY_SOON_SECONDS: Final = 0.5
"""Advice in refusals that pass by themselves."""


def group_not_found(group: str) -> ProblemError:
    """Nothing is kept under this name."""
    return ProblemError("group_not_found", f"there is no group {group}", data={"group": group})


def member_not_found(group: str, member_id: str) -> ProblemError:
    """The group does not exist, and so has no such member."""
    return ProblemError(
        "member_not_found",
        f"group {group} has no member {member_id}; join again with member epoch 0",
        data={"group": group, "member_id": member_id},
    )


def group_not_empty(group: str, members: int) -> ProblemError:
    """Refusal: the call needs a group without members."""
    return ProblemError(
        "group_not_empty",
        f"group {group} has {members} members; stop them first, or wait for their sessions to end",
        data={"group": group},
    )


def not_coordinator(group: str, broker: BrokerId | None, metadata: ClusterMetadata | None) -> ProblemError:
    """Another broker coordinates the group, or is to; nothing was done."""
    registered = None if broker is None or metadata is None else metadata.brokers.get(broker)
    where = "another broker" if broker is None else f"broker {broker}"
    return ProblemError(
        "not_coordinator",
        f"group {group} is coordinated by {where}",
        data={
            "group": group,
            "address": registered.value.addresses.data if registered else None,
            "epoch": registered.create_revision if registered else None,
        },
    )


def nobody_runs(group: str) -> ProblemError:
    """This broker is stopping, and there is no other."""
    return ProblemError(
        "shutting_down", f"no running broker can coordinate group {group}", retry_after_seconds=1.0
    )


def lease_in_doubt(group: str) -> ProblemError:
    """The store has not confirmed this broker's lease in time (protocol section 3, rule 7)."""
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} cannot prove its lease: another may coordinate it",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.NONE,
    )


def beginning_anew(group: str, *, maybe: bool = False) -> ProblemError:
    """Refusal: the coordinator has dropped the group and reads it again. `maybe`: a write was under way."""
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} reads the group again from coordination",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.MAYBE if maybe else SideEffect.NONE,
    )


def unreadable(error: RecordUnreadable, group: str) -> ProblemError:
    """A value of the group is damaged, or of a later release; the others are served."""
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} cannot read it: {error}",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.NONE,
    )


def of_store(error: CoordinationError, group: str, *, maybe: bool = False) -> ProblemError:
    """Return the problem of a call whose read or write of the group failed in the store.

    `maybe`: part of the write may be done.
    """
    match error:
        case ClaimLost() if not maybe:
            return not_coordinator(group, None, None)
        case TransactionTooLarge():
            return ProblemError(
                "group_too_large", f"group {group} does not fit: {error}", data={"limit": error.limit}
            )
        case _:
            maybe = maybe or isinstance(error, UnknownOutcome)
            return ProblemError(
                "coordination_unavailable",
                f"the coordination store did not answer for group {group}: {error}",
                side_effect=SideEffect.MAYBE if maybe else SideEffect.NONE,
                retry_after_seconds=RETRY_SOON_SECONDS,
            )
