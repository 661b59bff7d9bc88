"""One write that stores a group's offsets and commits transactions (rule 7.5).

Used by `coordinated_group` at the time of the write. Each commit is first checked against the records of its producers
and then against the group: a repeated request about committed transactions gets the answer of the first request, even
if the member has lost its partitions since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead_api.identifiers import ProducerId, Revision, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.coordination.transaction_store import Replacement, Standing
from fairlead_broker.registry.group_records import OffsetEntry
from fairlead_broker.runtime.groups.queued_commits import QueuedCommit
from fairlead_broker.runtime.transactions.joint_decisions import JointDecision


@dataclass(slots=True)
class JointWrite:
    """Commits of transactions that are not decided yet, and their offsets."""

    changes: list[tuple[QueuedCommit, JointDecision, dict[ProducerId, Replacement]]] = field(
        default_factory=list
    )
    """Commits with their decisions, and for each producer the record that was read and the record to write."""
    entries: dict[tuple[TopicId, int], OffsetEntry | None] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        joint: Sequence[tuple[QueuedCommit, JointDecision]],
        standings: Mapping[ProducerId, Standing],
        now_us: TimestampUs,
        check: Callable[[], None],
    ) -> JointWrite:
        """Return the write of the valid commits; answer commits that need no write, and refuse invalid commits.

        `check` raises a problem if the group must not be written now.
        """
        write = cls()
        for commit, decision in joint:
            try:
                check()
                records = decision.records(standings, now_us)
                entries = commit.admit() if records else {}
            except ProblemError as problem:
                commit.refuse(problem)
                continue
            if not records:
                commit.settle()
            else:
                write.entries |= entries
                write.changes.append((commit, decision, records))
        return write

    @property
    def commits(self) -> list[QueuedCommit]:
        """Commits of the write."""
        return [commit for commit, _, _ in self.changes]

    @property
    def records(self) -> dict[ProducerId, Replacement]:
        """Records to write."""
        return {producer_id: each for _, _, records in self.changes for producer_id, each in records.items()}

    def written(self, revision: Revision) -> None:
        """Answer the commits of a successful write."""
        for commit, decision, records in self.changes:
            for producer_id, replacement in records.items():
                decision.written(producer_id, Standing(replacement.record, revision))
            commit.settle()
