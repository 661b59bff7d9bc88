"""What a producer's record says about a transaction in a partition (rules 7.1 and 7.3.2)."""

from __future__ import annotations

from enum import Enum

from fairlead_api.identifiers import ProducerEpoch, TopicId
from fairlead_broker.registry.transaction_records import TransactionRecord


class Finding(Enum):
    """What the leader of a partition does with an open transaction."""

    OPEN = "open"
    """The transaction is not decided: nothing is done."""
    COMMIT = "commit"
    ABORT = "abort"
    RESTORED = "restored"
    """The store was restored to a time before the begin: the leader has the transaction aborted first."""


class TransactionState(Enum):
    """State of a transaction, as its producer's record shows it."""

    OPEN = "open"
    UNFINISHED = "unfinished"
    """Committed, and not confirmed by all partitions."""
    ENDED = "ended"
    """Aborted, or committed and confirmed by all partitions."""
    UNKNOWN = "unknown"
    """No record, or a record with a lower epoch."""


def finding(
    record: TransactionRecord | None, epoch: ProducerEpoch, topic_id: TopicId, partition: int
) -> Finding:
    """Return what happens to a transaction that is open in a partition.

    A transaction that is over and is not recorded as committed for the partition is aborted, and so is every
    transaction of a producer without a record.
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
