"""Effects that the producers' state machine returns. The field `request` of an effect is the `request` of its event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import msgspec

from fairlead_api.batch.control_batches import Marker
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs

R = TypeVar("R")


class Append(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Stamp the batch and append it with the next group of batches, in the order of the effects.

    The batches of one group are appended in one call, which appends all or none of them. The caller must pass
    `Appended` or `AppendFailed` to the state machine before it passes a batch of the following group.
    """

    request: R
    assigned_sequence: Sequence | None = None
    """First sequence of a batch that arrived without a sequence; None for every other batch."""


class AnswerStored(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Answer a repeated batch with the offsets of the stored batch, once this request's acks level is satisfied."""

    request: R
    base_offset: Offset
    last_offset: Offset
    append_time_us: TimestampUs


class AnswerAsAppended(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Answer a repeated batch with the outcome of the append that was already requested for the same batch."""

    request: R
    original: R


class AppendMarker(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Append a marker, under the same rules as `Append` for batches."""

    request: R
    marker: Marker


class AlreadyEnded(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Answer that the partition already has the marker or a later epoch of the producer."""

    request: R


class Look(msgspec.Struct, frozen=True, gc=False):
    """Read the producer's record in the coordination store: a batch waits for the end of an earlier transaction."""

    producer_id: ProducerId


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The sequence is not the expected sequence: missing batches did not arrive in time, or the batch is too old."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence
    expected: Sequence


@dataclass(frozen=True, slots=True)
class UnknownProducer:
    """The partition has no entry for the producer in this epoch, and the batch is not the producer's first batch."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class ProducerFenced:
    """The partition has a batch of the producer with a higher epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    current_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class KeyReused:
    """A different request has already used the idempotency key."""

    key: bytes


@dataclass(frozen=True, slots=True)
class TooManyKeys:
    """The partition already keeps the maximum number of idempotency keys."""

    limit: int
    oldest_expires_seconds: float
    """Seconds until the oldest key expires, in partition time."""


@dataclass(frozen=True, slots=True)
class TransactionUnfinished:
    """An earlier transaction of the producer is open in this partition and was not ended in time."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    open_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class MixedTransaction:
    """Some batches of the epoch have the transactional bit, and others do not."""

    producer_id: ProducerId
    epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class TooManyTransactions:
    """The partition already has the maximum number of open transactions."""

    limit: int


Refusal: TypeAlias = (
    OutOfOrder
    | UnknownProducer
    | ProducerFenced
    | KeyReused
    | TooManyKeys
    | TransactionUnfinished
    | MixedTransaction
    | TooManyTransactions
)


class Refuse(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Answer the request with a refusal. No record of this batch is appended."""

    request: R
    refusal: Refusal


Effect: TypeAlias = (
    Append[R] | AppendMarker[R] | AlreadyEnded[R] | Look | AnswerStored[R] | AnswerAsAppended[R] | Refuse[R]
)
