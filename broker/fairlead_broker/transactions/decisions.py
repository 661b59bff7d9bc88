"""Decisions about transactions: begin, commit, abort and add partitions (rule 7.1).

Each function gets the record of a producer as it was read and returns the record to write, or an answer that needs no
write. The caller writes the record with a put that compares the revision of the record that was read, so that two
brokers never make different decisions. The module must not depend on the store, a clock or an event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from fairlead_api.identifiers import ProducerEpoch, TimestampUs, TopicId
from fairlead_api.transaction_id import EPOCH_MAX
from fairlead_broker.registry.transaction_records import (
    EndedTransaction,
    EndReason,
    KafkaSession,
    Outcome,
    PendingOffsets,
    TransactionRecord,
    UnfinishedCommit,
)

PARTITIONS_MAX: Final = 1000
"""Maximum number of partitions in a transaction."""
UNFINISHED_MAX: Final = 5
"""Maximum number of a producer's commits that partitions have not confirmed."""
KAFKA_EPOCH_MAX: Final = 2**15 - 2
"""Maximum epoch of a producer that uses Kafka's protocol, whose epochs have 16 bits; the last one is reserved there."""
UNNAMED_KEPT_US: Final = 3600 * 1_000_000
"""Microseconds after its last use at which a producer without a name may be removed."""

Partitions: TypeAlias = Mapping[TopicId, Sequence[int]]
Confirmed: TypeAlias = AbstractSet[tuple[ProducerEpoch, TopicId, int]]
"""Epoch, topic id and partition of markers that partitions have confirmed (rule 7.3.4)."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Request for a new transaction of a producer. The open transaction of the producer is aborted."""

    timeout_ms: int
    name: str | None = None
    above: int | None = None
    """Epoch that the new epoch must exceed, for clients that outlived a restore of the store."""
    owner: str | None = None
    reason: EndReason = EndReason.FENCED
    """Reason why the open transaction is aborted: `FENCED` or `OPERATOR`."""
    is_kafka: bool = False
    """Whether the transaction begins the session of a client of Kafka's protocol."""
    previous: ProducerEpoch | None = None
    """Epoch that this client states as its own."""


@dataclass(frozen=True, slots=True)
class Decide:
    """Request to commit or abort a transaction."""

    epoch: ProducerEpoch
    outcome: Outcome
    reason: EndReason = EndReason.CLIENT
    partitions: Partitions = field(default_factory=dict)
    """Partitions with acknowledged batches of the transaction. An abort names no partitions."""
    metadata: str | None = None
    has_offsets: bool = False
    """Whether offsets of a group are written together with the decision."""
    is_kafka: bool = False
    """Whether a client of Kafka's protocol ends its own transaction; any other decision ends its session."""
    offsets: PendingOffsets | None = None
    """Offsets that are written together with the decision. If a client of Kafka's protocol added these offsets,
    the request comes from this client, through the coordinator of the group."""


@dataclass(frozen=True, slots=True)
class Decided:
    """Answer to a request to end a transaction that already has the requested outcome."""

    outcome: Outcome
    next: ProducerEpoch | None
    """Epoch that the producer can use at once, or None after the last epoch."""
    duplicate: bool = False
    """Whether the decision was made by an earlier request."""


@dataclass(frozen=True, slots=True)
class Write:
    """The record to write, and the answer to give after the write."""

    record: TransactionRecord
    answer: Decided


@dataclass(frozen=True, slots=True)
class NotFound:
    """The producer has no record, or its record has a lower epoch."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A later transaction has begun. The answer does not state the outcome of the requested transaction."""

    current_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class DecidedOtherwise:
    """The transaction was decided with the opposite outcome."""

    outcome: Outcome
    reason: EndReason
    next: ProducerEpoch | None


@dataclass(frozen=True, slots=True)
class TooManyUnfinished:
    """Too many earlier commits of the producer are not yet confirmed by all their partitions."""

    commits: tuple[UnfinishedCommit, ...]


@dataclass(frozen=True, slots=True)
class TooManyPartitions:
    """The transaction has more partitions than allowed."""

    count: int


@dataclass(frozen=True, slots=True)
class OffsetsPending:
    """A commit by another client would drop the offsets that a client of Kafka's protocol added to the transaction."""

    group: str


Refusal: TypeAlias = (
    NotFound | Fenced | DecidedOtherwise | TooManyUnfinished | TooManyPartitions | OffsetsPending
)


def begin(record: TransactionRecord | None, request: Begin, now_us: TimestampUs) -> TransactionRecord | None:
    """Return the record with a new open transaction, or None if the producer id has no more epochs (rule 7.1.2).

    After the last epoch, the caller begins with a new producer id. `record`: None for a new producer id. The result is
    `record` itself if the request is repeated.
    """
    if record is None:
        return TransactionRecord(
            name=request.name,
            epoch=ProducerEpoch(0),
            timeout_ms=request.timeout_ms,
            owner=request.owner,
            used_us=now_us,
            kafka=KafkaSession(epoch=ProducerEpoch(0)) if request.is_kafka else None,
        )
    if request.previous is not None and is_begun(record, request.previous):
        return record
    epoch = max(record.epoch, request.above or 0) + 1
    if epoch > (KAFKA_EPOCH_MAX if request.is_kafka else EPOCH_MAX):
        return None
    ended = EndedTransaction(epoch=record.epoch, outcome=Outcome.ABORT, reason=request.reason, at_us=now_us)
    return msgspec.structs.replace(
        record,
        epoch=ProducerEpoch(epoch),
        timeout_ms=request.timeout_ms,
        ended=ended,
        named={},
        used_us=now_us,
        kafka=KafkaSession(epoch=ProducerEpoch(epoch), previous=request.previous)
        if request.is_kafka
        else None,
    )


def is_begun(record: TransactionRecord, previous: ProducerEpoch) -> bool:
    """Return whether a client that states its previous epoch has begun a session of which it may not know.

    The answer may have been lost, so nothing has happened in the session. Another client's session has no such epoch.
    """
    session = record.kafka
    return (
        session is not None
        and session.previous == previous
        and session.epoch == record.epoch
        and session.offsets is None
        and not record.named
    )


def retired(record: TransactionRecord, now_us: TimestampUs) -> TransactionRecord:
    """Return the record of a producer id whose name continues with a new producer id.

    The open transaction is aborted, and no client knows an epoch with which it could go on.
    """
    nameless = msgspec.structs.replace(record, name=None, kafka=None, used_us=now_us)
    if record.epoch > EPOCH_MAX:
        return nameless
    ended = EndedTransaction(epoch=record.epoch, outcome=Outcome.ABORT, reason=EndReason.FENCED, at_us=now_us)
    return msgspec.structs.replace(nameless, epoch=ProducerEpoch(record.epoch + 1), ended=ended, named={})


def decide(
    record: TransactionRecord | None, request: Decide, confirmed: Confirmed, now_us: TimestampUs
) -> Write | Decided | Refusal:
    """Return the record that ends the transaction, or the answer if no write is needed (rules 7.1.3 to 7.1.5).

    The answer about a transaction that is already decided is correct only for a record that was read after the request
    arrived.
    """
    if record is None or request.epoch > record.epoch:
        return NotFound()
    if request.epoch < record.epoch:
        return _answer(record, request)
    if request.outcome is Outcome.ABORT:
        return _decided(record, request, kept(record, confirmed), record.metadata, now_us)
    pending = None if record.kafka is None else record.kafka.offsets
    if pending is not None and not _is_own(record.kafka, request):
        return OffsetsPending(pending.group)
    partitions = merged(record.named, request.partitions)
    if not partitions and not request.has_offsets and request.metadata is None:
        return Decided(Outcome.COMMIT, record.epoch)
    count = sum(map(len, partitions.values()))
    if count > PARTITIONS_MAX:
        return TooManyPartitions(count)
    unfinished = kept(record, confirmed)
    if len(unfinished) >= UNFINISHED_MAX:
        return TooManyUnfinished(unfinished)
    if partitions:
        unfinished = (*unfinished, UnfinishedCommit(epoch=request.epoch, partitions=partitions))
    return _decided(record, request, unfinished, request.metadata, now_us)


def committed(record: TransactionRecord | None, epoch: ProducerEpoch) -> Decided | None:
    """Return the answer about a transaction that was committed, or None if the record does not show the commit.

    A repeated request that stores batches and commits gets this answer if the batches are refused (rule 7.1.9).
    """
    ended = None if record is None else record.ended
    if ended is None or ended.epoch != epoch or ended.outcome is not Outcome.COMMIT:
        return None
    return Decided(Outcome.COMMIT, _after(epoch), duplicate=True)


def name_partition(
    record: TransactionRecord | None, epoch: ProducerEpoch, topic_id: TopicId, partition: int
) -> TransactionRecord | Refusal:
    """Return the record in which the open transaction includes a partition (rule 7.1.6).

    The result is `record` itself if the partition is already included.
    """
    if record is None or epoch > record.epoch:
        return NotFound()
    if epoch < record.epoch:
        return _contradiction(record, epoch)
    if partition in record.named.get(topic_id, ()):
        return record
    named = merged(record.named, {topic_id: (partition,)})
    count = sum(map(len, named.values()))
    return (
        TooManyPartitions(count) if count > PARTITIONS_MAX else msgspec.structs.replace(record, named=named)
    )


def restored(record: TransactionRecord, epoch: ProducerEpoch, now_us: TimestampUs) -> TransactionRecord:
    """Return the record after an abort of a transaction that a restored store does not know (rule 7.3.2)."""
    ended = EndedTransaction(epoch=epoch, outcome=Outcome.ABORT, reason=EndReason.RESTORED, at_us=now_us)
    return msgspec.structs.replace(record, epoch=ProducerEpoch(epoch + 1), ended=ended, named={}, kafka=None)


def without_confirmed(record: TransactionRecord, confirmed: Confirmed) -> TransactionRecord | None:
    """Return the record without confirmed commits, or None if no commit of the record is confirmed (rule 7.3.4)."""
    unfinished = kept(record, confirmed)
    return None if unfinished == record.unfinished else msgspec.structs.replace(record, unfinished=unfinished)


def is_forgotten(record: TransactionRecord, now_us: TimestampUs, expiration_us: int) -> bool:
    """Return whether the record can be deleted (rule 7.1.8). `expiration_us`: `transactional.id.expiration.ms`.

    The deletion aborts the open transaction, so it must not precede the timeout of the transaction.
    """
    if record.unfinished:
        return False
    kept_us = UNNAMED_KEPT_US if record.name is None else expiration_us
    return now_us - record.used_us > max(kept_us, record.timeout_ms * 1000)


def kept(record: TransactionRecord, confirmed: Confirmed) -> tuple[UnfinishedCommit, ...]:
    """Return the unfinished commits of a record, with their confirmed partitions removed."""
    if not confirmed:
        return record.unfinished
    result = []
    for commit in record.unfinished:
        left = {
            topic_id: kept_of_topic
            for topic_id, partitions in commit.partitions.items()
            if (kept_of_topic := tuple(n for n in partitions if (commit.epoch, topic_id, n) not in confirmed))
        }
        if left == commit.partitions:
            result.append(commit)
        elif left:
            result.append(msgspec.structs.replace(commit, partitions=left))
    return tuple(result)


def merged(first: Partitions, second: Partitions) -> dict[TopicId, tuple[int, ...]]:
    """Return the union of partitions, in ascending order for each topic, without topics that have no partition."""
    topics = sorted({*first, *second})
    union = {each: tuple(sorted({*first.get(each, ()), *second.get(each, ())})) for each in topics}
    return {topic_id: partitions for topic_id, partitions in union.items() if partitions}


def _decided(
    record: TransactionRecord,
    request: Decide,
    unfinished: tuple[UnfinishedCommit, ...],
    metadata: str | None,
    now_us: TimestampUs,
) -> Write:
    ended = EndedTransaction(
        epoch=request.epoch, outcome=request.outcome, reason=request.reason, at_us=now_us
    )
    kafka = record.kafka
    if kafka is not None:
        # A decision that the client has not requested ends the session: otherwise a client that does not know of the
        # decision would add partitions and offsets to the next transaction.
        kafka = KafkaSession(epoch=kafka.epoch) if _is_own(kafka, request) else None
    changed = msgspec.structs.replace(
        record,
        epoch=ProducerEpoch(request.epoch + 1),
        ended=ended,
        named={},
        unfinished=unfinished,
        metadata=metadata,
        used_us=now_us if request.reason is EndReason.CLIENT else record.used_us,
        kafka=kafka,
    )
    return Write(changed, Decided(request.outcome, _after(request.epoch)))


def _is_own(session: KafkaSession | None, request: Decide) -> bool:
    """Return whether the client of a session of Kafka's protocol requests the decision."""
    return request.is_kafka or (
        session is not None and session.offsets is not None and session.offsets == request.offsets
    )


def _answer(record: TransactionRecord, request: Decide) -> Decided | Refusal:
    """Return the answer about a transaction below the record's epoch."""
    answer = _contradiction(record, request.epoch)
    if isinstance(answer, DecidedOtherwise) and answer.outcome is request.outcome:
        return Decided(answer.outcome, answer.next, duplicate=True)
    return answer


def _contradiction(record: TransactionRecord, epoch: ProducerEpoch) -> Fenced | DecidedOtherwise:
    """Return the refusal for a transaction below the record's epoch.

    The answer to a fenced instance names no next epoch, because the later instance uses that epoch.
    """
    ended = record.ended
    if ended is None or ended.epoch != epoch or ended.reason is EndReason.FENCED:
        return Fenced(record.epoch)
    return DecidedOtherwise(ended.outcome, ended.reason, _after(epoch))


def _after(epoch: ProducerEpoch) -> ProducerEpoch | None:
    return ProducerEpoch(epoch + 1) if epoch < EPOCH_MAX else None
