"""Problems with which the runtime refuses calls, with one function for each, and the translation of log errors."""

from __future__ import annotations

from typing import assert_never

from fairlead_api.excerpts import shown
from fairlead_api.identifiers import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from fairlead_api.problems import JSON, ProblemError, SideEffect
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.log import (
    DiskFull,
    LogClosed,
    LogCut,
    LogDamaged,
    LogError,
    StorageFailed,
    TooManyOpenFiles,
)
from fairlead_broker.producers import (
    KeyReused,
    MixedTransaction,
    OutOfOrder,
    ProducerFenced,
    Refusal,
    TooManyKeys,
    TooManyTransactions,
    TransactionUnfinished,
    UnknownProducer,
)
from fairlead_broker.registry.records import HandedOver
from fairlead_broker.registry.transaction_records import Outcome
from fairlead_broker.replication.divergence import EpochStart
from fairlead_broker.transactions.decisions import (
    PARTITIONS_MAX,
    DecidedOtherwise,
    Fenced,
    NotFound,
    OffsetsPending,
    TooManyPartitions,
    TooManyUnfinished,
)
from fairlead_broker.transactions.decisions import Refusal as TransactionRefusal

RETRY_SOON_SECONDS = 1.0
"""Number of seconds after which temporary refusals advise a retry: long enough to drain a queue, short enough not to
leave a client idle."""


def topic_not_found(topic: str, effect: SideEffect = SideEffect.NONE) -> ProblemError:
    """Return the problem for a name that no topic has.

    A batch in flight may have been stored before its topic was deleted.
    """
    return ProblemError(
        "topic_not_found", f"there is no topic {topic}", data={"topic": topic}, side_effect=effect
    )


def topic_id_not_found(topic_id: str) -> ProblemError:
    """Return the problem for an id that no topic has."""
    return ProblemError(
        "topic_not_found", f"there is no topic with the id {topic_id}", data={"topic_id": topic_id}
    )


def topic_recreated(topic: str, expected: str, actual: str) -> ProblemError:
    """Return the problem for a topic whose id differs from the requested id."""
    return ProblemError(
        "topic_recreated",
        f"topic {topic} was deleted and created again: its id is {actual}, not {expected}",
        data={"topic": topic, "expected": expected, "actual": actual},
    )


def topic_moved(topic: str, handed_over: HandedOver) -> ProblemError:
    """Return the problem for records of a topic that was handed over to another cluster (rule L18)."""
    return ProblemError(
        "topic_moved",
        f"topic {topic} was handed over to cluster {handed_over.cluster_id} at {', '.join(handed_over.bootstrap)}",
        data={
            "topic": topic,
            "cluster_id": handed_over.cluster_id,
            "bootstrap": list(handed_over.bootstrap),
        },
    )


def partition_not_found(topic: str, index: int, count: int) -> ProblemError:
    """Return the problem for a partition that the topic does not have."""
    return ProblemError(
        "partition_not_found",
        f"topic {topic} has partitions 0 to {count - 1}, not {index}",
        data={"topic": topic, "partition": index, "partitions": count},
    )


def no_leader(topic: str, index: int) -> ProblemError:
    """Return the problem for a partition without a leader."""
    return ProblemError(
        "no_leader", f"{topic}-{index} has no leader yet", data={"topic": topic, "partition": index}
    )


def not_leader(topic: str, index: int, leader_epoch: int, address: str | None) -> ProblemError:
    """Return the problem for a partition that another broker leads."""
    return ProblemError(
        "not_leader",
        f"{topic}-{index} is led by another broker in leader epoch {leader_epoch}",
        data={"topic": topic, "partition": index, "address": address, "leader_epoch": leader_epoch},
    )


def offset_not_available(topic: str, index: int) -> ProblemError:
    """Return the problem for an unknown high watermark (rule 4.9)."""
    return ProblemError(
        "offset_not_available",
        f"the high watermark of {topic}-{index} has not reached the start of its leader epoch",
        data={"topic": topic, "partition": index},
    )


def offset_out_of_range(topic: str, index: int, offset: Offset, start: Offset, end: Offset) -> ProblemError:
    """Return the problem for an offset beyond the log."""
    return ProblemError(
        "offset_out_of_range",
        f"offset {offset} of {topic}-{index} is outside the log, which ranges from {start} to {end}",
        data={
            "topic": topic,
            "partition": index,
            "offset": offset,
            "log_start_offset": start,
            "high_watermark": end,
        },
    )


def not_compacted(topic: str, partition: int, policy: str) -> ProblemError:
    """Return the refusal of an operation that only compacted topics have."""
    return ProblemError(
        "not_possible_now",
        f"topic {topic} has cleanup.policy={policy}; the operation needs compact, or compact,delete",
        data={"topic": topic, "partition": partition},
    )


def offset_expired(
    topic: str, index: int, offset: Offset, start: Offset, deleted: EpochStart | None = None
) -> ProblemError:
    """Return the problem for an offset below the log start. `deleted`: epoch of the last deleted record, if known."""
    data: dict[str, JSON] = {
        "topic": topic,
        "partition": index,
        "offset": offset,
        "log_start_offset": start,
    }
    if deleted is not None:
        data |= {"deleted_epoch": deleted.epoch, "deleted_epoch_start": deleted.start_offset}
    return ProblemError(
        "offset_expired", f"offset {offset} of {topic}-{index} is below log start {start}", data=data
    )


def log_truncated(topic: str, index: int, epoch: LeaderEpoch, end_offset: Offset) -> ProblemError:
    """Return the problem for a caller whose last record was truncated from this log."""
    return ProblemError(
        "log_truncated",
        f"{topic}-{index} was truncated: leader epoch {epoch} ends at {end_offset}",
        data={"topic": topic, "partition": index, "epoch": epoch, "end_offset": end_offset},
    )


def wrong_leader_epoch(topic: str, index: int, asked: LeaderEpoch, actual: LeaderEpoch) -> ProblemError:
    """Return the problem for a leader epoch that is older (`stale`) or newer (`unknown`) than this broker's epoch."""
    code = "stale_leader_epoch" if asked < actual else "unknown_leader_epoch"
    return ProblemError(
        code,
        f"{topic}-{index} is in leader epoch {actual}, but the request names {asked}",
        data={"topic": topic, "partition": index, "leader_epoch": actual},
    )


def not_enough_replicas(topic: str, index: int, in_sync: int, required: int) -> ProblemError:
    """Return the problem for a batch that is refused before the append because acks=all could not be satisfied."""
    return ProblemError(
        "not_enough_replicas",
        f"{topic}-{index} has {in_sync} in-sync replicas, but acks=all requires {required}",
        data={"topic": topic, "partition": index, "in_sync": in_sync, "required": required},
        retry_after_seconds=RETRY_SOON_SECONDS,
    )


def not_enough_replicas_after_append(topic: str, index: int, in_sync: int, required: int) -> ProblemError:
    """Return the problem for a batch that waits for acks=all when the isr becomes too small."""
    return ProblemError(
        "not_enough_replicas_after_append",
        f"{topic}-{index} now has {in_sync} in-sync replicas, but acks=all requires {required}; the batch may still be"
        " stored",
        side_effect=SideEffect.MAYBE,
        data={"topic": topic, "partition": index},
    )


def lease_in_doubt(topic: str, index: int) -> ProblemError:
    """Return the problem for a call while this broker's lease is unconfirmed (protocol section 3, rule 7)."""
    return ProblemError(
        "coordination_unavailable",
        f"the leader of {topic}-{index} cannot confirm its lease: another leader may have been elected",
        retry_after_seconds=RETRY_SOON_SECONDS,
    )


def trim_timeout(topic: str, index: int, offset: Offset) -> ProblemError:
    """Return the problem for a deletion that the leader, but not every in-sync replica yet, has completed."""
    return ProblemError(
        "ack_timeout",
        f"{topic}-{index} now begins at {offset} on its leader; not every in-sync replica has confirmed the deletion",
        side_effect=SideEffect.MAYBE,
        data={"topic": topic, "partition": index},
    )


def ack_timeout(topic: str, index: int, seconds: float, effect: SideEffect) -> ProblemError:
    """Return the problem for an acknowledgement that timed out; `effect` states whether the batch may be stored."""
    stored = "it may still be stored" if effect is SideEffect.MAYBE else "it was not stored"
    return ProblemError(
        "ack_timeout",
        f"the batch for {topic}-{index} was not acknowledged within {seconds:g} s; {stored}",
        side_effect=effect,
        data={"topic": topic, "partition": index},
    )


def from_producers(refusal: Refusal, topic: str, index: int) -> ProblemError:
    """Translate a refusal that a producer or an idempotency key caused; the refused records are not stored."""
    match refusal:
        case OutOfOrder(producer_id, epoch, sequence, expected):
            return ProblemError(
                "out_of_order_sequence",
                f"{topic}-{index} expects sequence {expected} from producer {producer_id} (epoch {epoch}), but the"
                f" batch begins at {sequence}",
                data={"topic": topic, "partition": index, "expected": expected},
            )
        case UnknownProducer(producer_id, epoch, sequence):
            return ProblemError(
                "unknown_producer",
                f"{topic}-{index} has no batches from producer {producer_id} in epoch {epoch}, so this batch must begin"
                f" at sequence 0, but it begins at {sequence}",
                data={"topic": topic, "partition": index, "producer_id": producer_id},
            )
        case ProducerFenced(producer_id, epoch, current_epoch):
            return ProblemError(
                "producer_fenced",
                f"{topic}-{index} has batches from producer {producer_id} in epoch {current_epoch}; epoch {epoch}"
                " has ended",
                data=_epochs(producer_id, current_epoch),
            )
        case KeyReused(key):
            return idempotency_key_reused(topic, key)
        case TooManyKeys(limit, oldest_expires_seconds):
            return ProblemError(
                "throttled",
                f"{topic}-{index} has {limit} idempotency keys, which is the limit; the oldest expires"
                f" after another {oldest_expires_seconds:.0f} s of partition time",
                retry_after_seconds=oldest_expires_seconds,
                data={"topic": topic, "partition": index},
            )
        case TransactionUnfinished(producer_id, epoch, open_epoch):
            return ProblemError(
                "transaction_unfinished",
                f"{topic}-{index} has an open transaction {producer_id}.{open_epoch}, which must end before"
                f" {producer_id}.{epoch} begins",
                retry_after_seconds=RETRY_SOON_SECONDS,
                data={"topic": topic, "partition": index, "transaction": f"{producer_id}.{open_epoch}"},
            )
        case MixedTransaction(producer_id, epoch):
            return ProblemError(
                "malformed_batch",
                f"attribute bit 0 (transactional) differs from earlier batches from producer {producer_id} in epoch"
                f" {epoch} in {topic}-{index}",
            )
        case TooManyTransactions(limit):
            return ProblemError(
                "throttled",
                f"{topic}-{index} has {limit} open transactions, which is the limit",
                retry_after_seconds=RETRY_SOON_SECONDS,
                data={"topic": topic, "partition": index},
            )
        case _:
            assert_never(refusal)


def _epochs(producer_id: ProducerId, current_epoch: ProducerEpoch) -> dict[str, JSON]:
    """Return the data of `producer_fenced`; idempotent producers know the current epoch as `producer_epoch`."""
    return {"producer_id": producer_id, "producer_epoch": current_epoch, "current_epoch": current_epoch}


def from_transactions(refusal: TransactionRefusal, transaction: TransactionId) -> ProblemError:
    """Translate the refusal to commit or abort a transaction."""
    data: dict[str, JSON] = {"transaction": str(transaction)}
    match refusal:
        case NotFound():
            return ProblemError(
                "transaction_not_found", f"transaction {transaction} does not exist", data=data
            )
        case Fenced(current_epoch):
            return ProblemError(
                "producer_fenced",
                f"producer {transaction.producer_id} is at epoch {current_epoch}; epoch {transaction.epoch} has ended",
                data=_epochs(transaction.producer_id, current_epoch),
            )
        case DecidedOtherwise(outcome, reason, following):
            code = "transaction_committed" if outcome is Outcome.COMMIT else "transaction_aborted"
            after = None if following is None else str(TransactionId(transaction.producer_id, following))
            return ProblemError(
                code,
                f"transaction {transaction} is {code.rpartition('_')[2]} ({reason.value})",
                data={**data, "reason": reason.value, "next": after},
            )
        case TooManyUnfinished(commits):
            return ProblemError(
                "transaction_unfinished",
                f"partitions have not confirmed {len(commits)} earlier commits of producer {transaction.producer_id}",
                retry_after_seconds=RETRY_SOON_SECONDS,
                data=data,
            )
        case TooManyPartitions(count):
            return ProblemError(
                "transaction_too_large",
                f"transaction {transaction} has {count} partitions; allowed: {PARTITIONS_MAX}",
                data={**data, "limit": PARTITIONS_MAX},
            )
        case OffsetsPending(group):
            return ProblemError(
                "not_possible_now",
                f"transaction {transaction} has offsets of group {group}, which only its own client can commit; abort"
                " the transaction, or let the client commit it",
                data={**data, "group": group},
            )
        case _:
            assert_never(refusal)


def store_unavailable(error: Exception) -> ProblemError:
    """Return the problem for a call that the coordination store did not answer."""
    return ProblemError(
        "coordination_unavailable",
        f"the coordination store did not answer: {error}",
        retry_after_seconds=RETRY_SOON_SECONDS,
    )


def idempotency_key_reused(topic: str, key: bytes) -> ProblemError:
    """Return the problem for an idempotency key that was used with another request."""
    return ProblemError(
        "idempotency_key_reused",
        f"idempotency key {shown(key.decode('latin-1'))} was used with another body for topic {topic}",
        data={"topic": topic},
    )


def leader_changed(topic: str, index: int, effect: SideEffect) -> ProblemError:
    """Return the problem for a batch that was in progress when the partition's leader epoch changed."""
    return ProblemError(
        "leader_changed",
        f"the leader epoch of {topic}-{index} changed",
        side_effect=effect,
        data={"topic": topic, "partition": index},
    )


def overloaded(what: str) -> ProblemError:
    """Return the problem for a call that exceeds one of the broker's limits; `what` describes the limit."""
    return ProblemError("overloaded", what, retry_after_seconds=RETRY_SOON_SECONDS)


def shutting_down(effect: SideEffect = SideEffect.NONE) -> ProblemError:
    """Return the problem for a call to a stopping broker."""
    stored = "; the sent records may have been stored" if effect is SideEffect.MAYBE else ""
    return ProblemError(
        "shutting_down",
        f"the broker is stopping{stored}",
        side_effect=effect,
        retry_after_seconds=RETRY_SOON_SECONDS,
    )


def storage_failed(topic: str, index: int, effect: SideEffect = SideEffect.NONE) -> ProblemError:
    """Return the problem for a partition on a disk that has failed."""
    return ProblemError(
        "storage_failed",
        f"the disk of {topic}-{index} failed; writes are refused until the broker is restarted",
        side_effect=effect,
        data={},
    )


def from_log(error: LogError, topic: str, index: int, *, writing: bool) -> ProblemError:
    """Translate an error that a partition's log raised.

    A failed write may have left bytes in the log. After a write to a full disk, the log removes the bytes again.
    """
    effect = SideEffect.MAYBE if writing else SideEffect.NONE
    match error:
        case DiskFull():
            return ProblemError(
                "disk_full", f"no space left for {topic}-{index}", side_effect=SideEffect.NONE
            )
        case TooManyOpenFiles():
            return overloaded(f"no file descriptor left for {topic}-{index}")
        case StorageFailed() if writing:
            return storage_failed(topic, index, effect)
        case StorageFailed():
            return ProblemError("storage_failed", f"{topic}-{index}: {error}", data={})
        case LogClosed():
            return topic_not_found(topic, effect)
        case LogCut():
            return leader_changed(topic, index, SideEffect.NONE)
        case LogDamaged():
            return ProblemError(
                "log_damaged",
                f"{topic}-{index}: {error}",
                data={
                    "topic": topic,
                    "partition": index,
                    "first_offset": error.first_offset,
                    "next_good_offset": error.next_good_offset,
                },
            )
        case _:
            return ProblemError("internal", f"{topic}-{index}: {error}", side_effect=effect)
