"""Rules of the shells (the code that runs the pure packages), each in a function so that it can be dropped."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from simulator.store import Compare, Key
from transactional.messages import Answer, Offset, Refused

if TYPE_CHECKING:
    from transactional.client import Client
    from transactional.deciding import Decision
    from transactional.leading import Leadership


def compares(key: Key, revision: int) -> tuple[Compare, ...]:
    """Return the compare of a record's revision as it was read."""
    return (Compare(key, revision),)


def in_doubt(decision: Decision) -> None:
    """Continue after a write with an unknown outcome: read the record again."""
    decision.read()


def may_commit(found: Offset, member: int) -> bool:
    """Return whether a member may commit the offset of its group."""
    return found.owner == member


def writes_offset_with_decision() -> bool:
    """Return whether the offset is in the same write as the decision."""
    return True


def reads_offset_after_begin() -> bool:
    """Return whether a client reads the committed offset only after it has begun a transaction."""
    return True


def waits_for_acknowledgements(client: Client) -> bool:
    """Return whether a client commits only after every batch is acknowledged."""
    return True


def named(partitions: tuple[int, ...]) -> tuple[int, ...]:
    """Return the partitions that a commit names."""
    return partitions


def has_own_epoch() -> bool:
    """Return whether an epoch identifies a transaction, which most invariants assume."""
    return True


def commits(answers: Collection[Answer]) -> bool:
    """Return whether a broker commits after the answers to the last batches of a transaction."""
    return not any(isinstance(answer, Refused) for answer in answers)


def confirmed_from(leadership: Leadership, end: int) -> int:
    """Return the offset that the known high watermark must reach before a marker counts as confirmed."""
    return end


def is_aborted(leadership: Leadership, offset: int, producer_id: int) -> bool:
    """Return whether readers of committed records use the aborted index to skip a batch."""
    return any(
        each.producer_id == producer_id and each.first_offset <= offset < each.marker_offset
        for each in leadership.aborted
    )


def decides_before_timeout() -> bool:
    """Return whether a leader writes the abort of an old transaction before it appends the marker."""
    return True


def ends_old_transactions() -> bool:
    """Return whether leaders abort transactions after their timeout."""
    return True


def looks() -> bool:
    """Return whether leaders read the records of open transactions."""
    return True


def ignored(*_: Any) -> None:
    """Do nothing."""
