"""Facts about the producers of one partition.

`request` is an object of the caller, returned in the effects and compared by identity. Events are structs and
not dataclasses, because every batch creates one.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Generic, TypeAlias, TypeVar

import msgspec

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs

R = TypeVar("R")


class SequencedArrived(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A batch of an idempotent producer is ready to be appended."""

    request: R
    producer_id: ProducerId
    epoch: ProducerEpoch
    first_sequence: Sequence
    last_sequence: Sequence
    now: float
    """Monotonic seconds at the arrival."""


class KeyedArrived(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A batch with an idempotency key is ready to be appended."""

    request: R
    key: bytes
    digest: bytes


class Withdrawn(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A held batch reached its timeout: its request was answered that the batch is not stored."""

    request: R


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """The time of `next_deadline` has passed."""

    now: float


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The log appended every batch that was ordered since the last such event, and perhaps other batches."""

    base_offsets: SequenceOf[Offset]
    """Results of all ordered batches, in the order of the effects."""
    last_offsets: SequenceOf[Offset]
    append_time_us: TimestampUs


class AppendFailed(msgspec.Struct, frozen=True, gc=False):
    """The log appended no batch that was ordered since the last `Appended`, or the log has failed for good."""


Event: TypeAlias = SequencedArrived[R] | KeyedArrived[R] | Withdrawn[R] | TimePassed | Appended | AppendFailed
