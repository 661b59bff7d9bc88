"""The answer to a call that decides a transaction."""

from __future__ import annotations

from typing import Final

from fairlead_api.bodies.decided_transactions import DecidedTransaction, OutcomeName
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.registry.transaction_records import Outcome
from fairlead_broker.transactions.decisions import Decided

OUTCOME_NAMES: Final[dict[Outcome, OutcomeName]] = {Outcome.COMMIT: "committed", Outcome.ABORT: "aborted"}


def decided_transaction(transaction: TransactionId, decided: Decided) -> DecidedTransaction:
    """Return the answer about a decision in the API's format."""
    following = decided.next
    return DecidedTransaction(
        transaction=str(transaction),
        state=OUTCOME_NAMES[decided.outcome],
        next=None if following is None else str(TransactionId(transaction.producer_id, following)),
        duplicate=decided.duplicate,
    )
