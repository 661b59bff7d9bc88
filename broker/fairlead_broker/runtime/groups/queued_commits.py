"""Commits of offsets that wait in a coordinated group for their common write.

Used by `coordinated_group`. Commits outside of transactions are combined in one write. Commits that also decide
transactions share other writes, because such a write fails if one of the transactions was changed in the meantime.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from fairlead_api.problems import ProblemError
from fairlead_broker.runtime.groups.offsets import Entries
from fairlead_broker.runtime.transactions.joint_decisions import JointDecision

A = TypeVar("A")
MERGED_PARTITIONS_MAX: Final = 4096
"""Maximum number of offsets in one transaction of the store: 64 records if the partitions are adjacent, which is a
small load for the store."""
DECISIONS_MAX: Final = 60
"""Maximum number of decided transactions in one write of several commits; each transaction needs a compare and a put in
addition to the records of offsets."""
ATTEMPTS_MAX: Final = 20
"""Maximum number of attempts to write a decision. Each failed attempt means that another call changed the
transaction."""


@dataclass(slots=True, eq=False)
class QueuedCommit:
    """Commit that waits for its write."""

    admit: Callable[[], Entries]
    """Function that is called at the time of the write and returns the entries that may be written; a raised problem
    refuses the whole commit."""
    entries_max: int
    answer: asyncio.Future[None]
    gives_way: bool = False
    """Whether other commits in the same transaction take precedence for the same partition."""
    decision: JointDecision | None = None
    """Commit of transactions that is written together with the offsets."""
    attempts: int = 0
    """Number of writes that failed because a transaction was changed. After a failure the commit is written alone."""

    def settle(self) -> None:
        """Answer that the commit is stored, unless the calling task was cancelled."""
        if not self.answer.done():
            self.answer.set_result(None)

    def refuse(self, problem: ProblemError) -> None:
        """Refuse the commit."""
        refuse(self.answer, problem)


def refuse(answer: asyncio.Future[A], problem: ProblemError) -> None:
    """Set a problem as an answer, unless the calling task was cancelled."""
    if not answer.done():
        answer.set_exception(problem)
        # The calling task may have been cancelled. Reading the exception here keeps asyncio from reporting it as never
        # retrieved.
        answer.exception()


def take_plain(queue: list[QueuedCommit]) -> list[QueuedCommit]:
    """Remove and return the first commits of a queue that decide no transactions and fit in one write."""
    return _take(queue, lambda taken, commit: commit.decision is None)


def take_joint(queue: list[QueuedCommit]) -> list[tuple[QueuedCommit, JointDecision]]:
    """Remove and return the first commits of a queue that decide different transactions and fit in one write."""

    def fits(taken: list[QueuedCommit], commit: QueuedCommit) -> bool:
        decision = commit.decision
        if decision is None or (taken and commit.attempts + taken[0].attempts):
            return False
        decided = [producer_id for each in taken if each.decision for producer_id in each.decision.changes]
        is_room = not taken or len(decided) + len(decision.changes) <= DECISIONS_MAX
        return is_room and decision.changes.keys().isdisjoint(decided)

    return [(each, each.decision) for each in _take(queue, fits) if each.decision is not None]


def _take(
    queue: list[QueuedCommit], fits: Callable[[list[QueuedCommit], QueuedCommit], bool]
) -> list[QueuedCommit]:
    taken: list[QueuedCommit] = []
    entries = 0
    for commit in queue:
        entries += commit.entries_max
        if not fits(taken, commit) or (taken and entries > MERGED_PARTITIONS_MAX):
            break
        taken.append(commit)
    del queue[: len(taken)]
    return taken
