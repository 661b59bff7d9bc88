"""The header `Fairlead-Commit-Transaction` of the produce call with frames (rule 7.1.9).

The transaction is committed once all batches of the request are stored, as if the client had waited for the answer and
had then sent the commit. If a batch is not stored, the transaction stays open. Leaders refuse a repeat of the request
after the markers of the commit; the record of the transaction then shows that the batches were stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from fairlead_api.batch.header import read_header
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.media_types import Header
from fairlead_api.identifiers import Acks, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId, parse_transaction_id
from fairlead_broker.registry.transaction_records import Outcome
from fairlead_broker.runtime import AppendResult, Broker
from fairlead_broker.server.http.call import Call
from fairlead_broker.server.routing.decided_transactions import decided_transaction
from fairlead_broker.server.routing.transaction_access import authorize, check_level
from fairlead_broker.transactions.decisions import Decide, merged

COMMIT: Final = Header.COMMIT_TRANSACTION.lower().encode()


def transaction_to_commit(call: Call, broker: Broker, acks: Acks) -> TransactionId:
    """Return the transaction that the header names.

    Raises `malformed_request`, `unknown_option` for other acks than `all`, and `not_possible_now`.
    """
    transaction = parse_transaction_id(call.header_text(COMMIT))
    if acks is not Acks.ALL:
        raise ProblemError(
            "unknown_option",
            f"acks={acks.value} is not supported with {Header.COMMIT_TRANSACTION}; supported: all",
            data={"parameter": "acks", "value": acks.value, "supported": [Acks.ALL.value]},
        )
    check_level(broker)
    return transaction


def check_batches(transaction: TransactionId, batches: Iterable[memoryview]) -> None:
    """Raise `malformed_request` for a batch of another transaction, whose outcome the commit would not tell."""
    for number, batch in enumerate(batches):
        try:
            header = read_header(batch)
        except ProblemError:
            continue  # Validation refuses the batch.
        if (header.producer_id, header.producer_epoch) != transaction or not header.is_transactional:
            raise ProblemError(
                "malformed_request",
                f"batch {number} does not belong to transaction {transaction} of header {Header.COMMIT_TRANSACTION}",
                data={"parameter": Header.COMMIT_TRANSACTION, "value": str(transaction)},
            )


async def commit_stored(
    call: Call,
    broker: Broker,
    transaction: TransactionId,
    places: Sequence[tuple[TopicId, PartitionIndex]],
    outcomes: Sequence[AppendResult | ProblemError],
) -> DecidedTransaction | ProblemError | None:
    """Commit a transaction if all batches are stored, and return the decision or the problem of the commit.

    If batches are refused, the result is the decision of an earlier attempt, or None if the transaction is not
    committed.
    """
    problems = [outcome for outcome in outcomes if isinstance(outcome, ProblemError)]
    try:
        if not problems:
            broker.admit()
            decided = await broker.transactions.decide(
                transaction.producer_id,
                Decide(transaction.epoch, Outcome.COMMIT, partitions=_partitions(places)),
                lambda record: authorize(call.access, record),
            )
        elif all(problem.code != "producer_fenced" for problem in problems):
            return None
        else:
            found = await broker.transactions.committed(
                transaction, lambda record: authorize(call.access, record)
            )
            if found is None:
                return None
            decided = found
    except ProblemError as problem:
        return problem
    return decided_transaction(transaction, decided)


def _partitions(places: Sequence[tuple[TopicId, PartitionIndex]]) -> dict[TopicId, tuple[int, ...]]:
    partitions: dict[TopicId, list[int]] = {}
    for topic_id, partition in places:
        partitions.setdefault(topic_id, []).append(partition)
    return merged({}, partitions)
