"""A commit of a transaction that the coordinator of a group writes together with offsets of the group (rule 7.5).

`Transactions` builds the decision, and the coordinated group writes it: one write of the store contains the offsets and
the producer's record, so readers of the group's offsets see the offsets only if the transaction is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fairlead_api.identifiers import ProducerId, TimestampUs
from fairlead_broker.coordination.transaction_store import Standing
from fairlead_broker.registry.transaction_records import TransactionRecord
from fairlead_broker.transactions.decisions import Decided


@dataclass(slots=True, eq=False)
class JointDecision:
    """Commit of one transaction, before and after its write."""

    producer_id: ProducerId
    change: Callable[[TransactionRecord | None, TimestampUs], tuple[TransactionRecord | None, Decided]]
    """Function that receives the stored record and returns the record to write, or None for a transaction that is
    already committed, and the answer. The function raises the problem of a refusal."""
    written: Callable[[Standing], None]
    """Function that is called with the written record."""
    answer: Decided | None = None
    """Answer from the last call of the change function; None before the first call."""

    def record(self, standing: Standing, now_us: TimestampUs) -> TransactionRecord | None:
        """Return the record to write, or None for a transaction that is already committed. Raises the refusal."""
        record, self.answer = self.change(standing.record, now_us)
        return record
