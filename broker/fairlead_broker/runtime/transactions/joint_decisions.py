"""Commits of transactions that the coordinator of a group writes together with offsets of the group (rule 7.5).

`Transactions` builds the decision, and the coordinated group writes it: one write of the store contains the offsets and
the producers' records, so readers of the group's offsets see the offsets only if the transactions are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead_api.identifiers import ProducerId, TimestampUs
from fairlead_broker.coordination.transaction_store import Replacement, Standing
from fairlead_broker.registry.transaction_records import TransactionRecord
from fairlead_broker.transactions.decisions import Decided


@dataclass(slots=True, eq=False)
class JointDecision:
    """Commit of the transactions of one or more producers: all of them, or none."""

    changes: Mapping[
        ProducerId,
        Callable[[TransactionRecord | None, TimestampUs], tuple[TransactionRecord | None, Decided]],
    ]
    """Function of each producer that receives the stored record and returns two values: the record to write (None for a
    transaction that is already committed) and the answer. The function raises the problem of a refusal."""
    written: Callable[[ProducerId, Standing], None]
    """Function that is called with each written record."""
    answers: dict[ProducerId, Decided] = field(default_factory=dict)
    """Answers from the last calls of the change functions."""

    def records(
        self, standings: Mapping[ProducerId, Standing], now_us: TimestampUs
    ) -> dict[ProducerId, Replacement]:
        """Return the replacement of each producer's stored record; transactions that are already committed have none.

        Raises the first refusal.
        """
        replaced = {}
        for producer_id, change in self.changes.items():
            standing = standings[producer_id]
            record, self.answers[producer_id] = change(standing.record, now_us)
            if record is not None:
                replaced[producer_id] = Replacement.encoded(standing, record)
        return replaced
