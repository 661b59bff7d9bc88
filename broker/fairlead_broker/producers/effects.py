"""Orders of the producers' machine to its shell. `request` is the value of the event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import msgspec

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs

R = TypeVar("R")


class Append(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Stamp and append the batch, in the order of these orders, with the next group.

    All that was ordered goes into one append that the log takes as a whole or not at all; `Appended` or
    `AppendFailed` must follow before anything else arrives for a second group.
    """

    request: R


class AnswerStored(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """The batch is a repeat: answer with where the first one is, once the acks of this request allow it."""

    request: R
    base_offset: Offset
    last_offset: Offset
    append_time_us: TimestampUs


class AnswerAsAppended(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """The batch is a repeat of one that was ordered and is not appended yet: what becomes of that answers this."""

    request: R
    original: R


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The sequence is not the expected one, and the batches between did not come in time, or it is long past."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence
    expected: Sequence


@dataclass(frozen=True, slots=True)
class UnknownProducer:
    """Nothing is known of the producer in this epoch, and the batch is not its first."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class ProducerFenced:
    """The partition has a batch of a higher epoch."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    current_epoch: ProducerEpoch


@dataclass(frozen=True, slots=True)
class KeyReused:
    """The idempotency key was used by another request."""

    key: bytes


@dataclass(frozen=True, slots=True)
class TooManyKeys:
    """The partition remembers as many idempotency keys as it may."""

    limit: int
    oldest_expires_seconds: float
    """Seconds of append time until the oldest is forgotten."""


Refusal: TypeAlias = OutOfOrder | UnknownProducer | ProducerFenced | KeyReused | TooManyKeys


class Refuse(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """Answer with a refusal: nothing of this batch is appended by this request."""

    request: R
    refusal: Refusal


Effect: TypeAlias = Append[R] | AnswerStored[R] | AnswerAsAppended[R] | Refuse[R]
