"""Transactions that one program writes and another program commits, together with transactions of further producers.

A connector calls this module: its tasks hand transactions over, and its driver commits all of them, or none. The module
must not depend on how batches are built and sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from fairlead.connection.transport import Transport, decoded, json_call
from fairlead.errors import (
    ProducerFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionNotFoundError,
)
from fairlead.producing.transactions import BEGIN_PATH, HandedOver
from fairlead_api.bodies.decided_transactions import DecidedTransaction
from fairlead_api.bodies.transactions import (
    BeginRequest,
    JointCommitAnswer,
    JointCommitRequest,
    JointTransaction,
    TopicPartitions,
    TransactionAnswer,
)


async def begin_named(transport: Transport, name: str, timeout_ms: int) -> TransactionAnswer:
    """Begin a transaction with a name; the previous transaction with this name is fenced."""
    request = BeginRequest(name=name, timeout_ms=timeout_ms)
    subject = f"transaction of {name}"
    answer = await transport.call(json_call("POST", BEGIN_PATH, subject, body=request))
    return decoded(answer, TransactionAnswer, subject)


async def commit_together(
    transport: Transport, transactions: Sequence[HandedOver], metadata: str | None = None
) -> None:
    """Commit transactions of different producers: all of them, or none.

    `metadata`: text in the last transaction, which is returned when a producer with the same name begins its next
    transaction.

    Raises the errors of a refused commit. After an error without a definite answer, all transactions may be committed.
    """
    request = JointCommitRequest(
        transactions=tuple(
            JointTransaction(
                transaction=each.id,
                partitions=tuple(
                    TopicPartitions(topic_id=topic_id, partitions=partitions)
                    for topic_id, partitions in each.partitions
                ),
                metadata=metadata if each is transactions[-1] else None,
            )
            for each in transactions
        )
    )
    subject = f"commit of {len(transactions)} transactions"
    answer = await transport.call(json_call("POST", f"{BEGIN_PATH}:commit", subject, body=request))
    decoded(answer, JointCommitAnswer, subject)


async def abort_each(transport: Transport, transactions: Iterable[str]) -> None:
    """Abort the transactions that are open."""

    async def abort(transaction: str) -> None:
        subject = f"abort of transaction {transaction}"
        try:
            answer = await transport.call(json_call("POST", f"{BEGIN_PATH}/{transaction}:abort", subject))
        except (
            TransactionCommittedError,
            TransactionAbortedError,
            TransactionNotFoundError,
            ProducerFencedError,
        ):
            return
        decoded(answer, DecidedTransaction, subject)

    await asyncio.gather(*map(abort, transactions))
