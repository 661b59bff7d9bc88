"""Refusals about consumer groups, each built in one function, and the translation of store errors to problems."""

from __future__ import annotations

from typing import Final

from fairlead_api.identifiers import BrokerId
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.coordination.group_store import ClaimLost
from fairlead_broker.coordination.protocol import CoordinationError, TransactionTooLarge, UnknownOutcome
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import RecordUnreadable

RETRY_SOON_SECONDS: Final = 0.5
"""Number of seconds after which temporary refusals advise a retry."""


def group_not_found(group: str) -> ProblemError:
    """Return the problem for a group that does not exist."""
    return ProblemError("group_not_found", f"there is no group {group}", data={"group": group})


def group_not_empty(group: str, members: int) -> ProblemError:
    """Return the problem for a call that needs a group without members."""
    return ProblemError(
        "group_not_empty",
        f"group {group} has {members} members; stop them first, or wait for their sessions to end",
        data={"group": group},
    )


def not_coordinator(group: str, broker: BrokerId | None, metadata: ClusterMetadata | None) -> ProblemError:
    """Return the problem for a group that another broker coordinates or should claim; nothing was done."""
    registered = None if broker is None or metadata is None else metadata.brokers.get(broker)
    where = "another broker" if broker is None else f"broker {broker}"
    return ProblemError(
        "not_coordinator",
        f"group {group} is coordinated by {where}",
        data={
            "group": group,
            "address": registered.value.addresses.any_data if registered else None,
            "epoch": registered.create_revision if registered else None,
        },
    )


def no_coordinator(group: str) -> ProblemError:
    """Return the problem for a group that this stopping broker cannot hand over because no other broker runs."""
    return ProblemError(
        "shutting_down", f"no running broker can coordinate group {group}", retry_after_seconds=1.0
    )


def lease_in_doubt(group: str) -> ProblemError:
    """Return the problem for a call while this broker's lease is not confirmed (protocol section 3, rule 7)."""
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} cannot confirm its lease: another broker may coordinate it",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.NONE,
    )


def restarted(group: str, *, maybe: bool = False) -> ProblemError:
    """Return the problem for a group that the coordinator dropped and loads again.

    `maybe`: a write was running and may have been executed.
    """
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} is reloading the group from the coordination store",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.MAYBE if maybe else SideEffect.NONE,
    )


def transaction_changed(group: str) -> ProblemError:
    """Return the problem for a transaction that other calls changed during every attempt to commit it with offsets."""
    return ProblemError(
        "coordination_unavailable",
        f"other calls changed the transaction during each attempt to commit it with offsets of group {group}",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.NONE,
    )


def unreadable(error: RecordUnreadable, group: str) -> ProblemError:
    """Return the problem for a group with a stored value that is damaged or was written by a later release.

    The coordinator still serves all other groups.
    """
    return ProblemError(
        "coordination_unavailable",
        f"the coordinator of group {group} cannot read it: {error}",
        retry_after_seconds=RETRY_SOON_SECONDS,
        side_effect=SideEffect.NONE,
    )


def of_store(error: CoordinationError, group: str, *, maybe: bool = False) -> ProblemError:
    """Return the problem for a call that failed because the store could not read or write the group.

    `maybe`: part of the write may have been executed.
    """
    match error:
        case ClaimLost() if not maybe:
            return not_coordinator(group, None, None)
        case TransactionTooLarge():
            return ProblemError(
                "group_too_large", f"group {group} is too large: {error}", data={"limit": error.limit}
            )
        case _:
            maybe = maybe or isinstance(error, UnknownOutcome)
            return ProblemError(
                "coordination_unavailable",
                f"the coordination store did not answer for group {group}: {error}",
                side_effect=SideEffect.MAYBE if maybe else SideEffect.NONE,
                retry_after_seconds=RETRY_SOON_SECONDS,
            )
