"""Outcome of a transaction in a partition, derived from the record of its producer (rules 7.1 and 7.3.2)."""

from __future__ import annotations

from enum import Enum

from fairlead_api.identifiers import ProducerEpoch, TopicId
from fairlead_broker.registry.transaction_records import TransactionRecord


class Finding(Enum):
    """Action that a partition's leader takes for an open transaction."""

    OPEN = "open"
    """The transaction is not decided, so the leader does nothing."""
    COMMIT = "commit"
    ABORT = "abort"
    RESTORED = "restored"
    """The store was restored to a time before the transaction began, so the leader first requests the transaction's
    abort.
    """


class TransactionState(Enum):
    """State of a transaction, as its producer's record shows it."""

    OPEN = "open"
    UNFINISHED = "unfinished"
    """The transaction is committed, but not confirmed by all partitions."""
    ENDED = "ended"
    """The transaction is aborted, or committed and confirmed by all partitions."""
    UNKNOWN = "unknown"
    """The producer has no record, or a record with a lower epoch."""


def finding(
    record: TransactionRecord | None, epoch: ProducerEpoch, topic_id: TopicId, partition: int
) -> Finding:
    """Return the action of the leader for a transaction that is open in a partition.

    A transaction that has ended without being recorded as committed for the partition counts as aborted, and so does
    every transaction of a producer that has no record.
    """
    if record is None:
        return Finding.ABORT
    if epoch == record.epoch:
        return Finding.OPEN
    if epoch > record.epoch:
        return Finding.RESTORED
    committed = any(
        commit.epoch == epoch and partition in commit.partitions.get(topic_id, ())
        for commit in record.unfinished
    )
    return Finding.COMMIT if committed else Finding.ABORT


def state_of(record: TransactionRecord | None, epoch: ProducerEpoch) -> TransactionState:
    """Return the state of a transaction."""
    if record is None or epoch > record.epoch:
        return TransactionState.UNKNOWN
    if epoch == record.epoch:
        return TransactionState.OPEN
    if any(commit.epoch == epoch for commit in record.unfinished):
        return TransactionState.UNFINISHED
    return TransactionState.ENDED
