"""Facts about the producers of one partition.

`request` is whatever the shell wants back in the effects; it is compared by identity. Structs and not dataclasses:
one is made for every batch.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Generic, TypeAlias, TypeVar

import msgspec

from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs

R = TypeVar("R")


class SequencedArrived(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A batch of an idempotent producer stands for its append."""

    request: R
    producer_id: ProducerId
    epoch: ProducerEpoch
    first_sequence: Sequence
    last_sequence: Sequence
    now: float
    """Monotonic seconds."""


class KeyedArrived(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A batch with an idempotency key stands for its append."""

    request: R
    key: bytes
    digest: bytes


class Withdrawn(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A held batch reached its timeout: its call was answered that the batch is not stored."""

    request: R


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """The time of `next_deadline` is over."""

    now: float


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The log took everything that was ordered since the last such event, and perhaps other batches beside it."""

    base_offsets: SequenceOf[Offset]
    """Results of all ordered batches, in the order of the effects."""
    last_offsets: SequenceOf[Offset]
    append_time_us: TimestampUs


class AppendFailed(msgspec.Struct, frozen=True, gc=False):
    """The log took nothing of what was ordered since the last `Appended`, or fails for good."""


Event: TypeAlias = SequencedArrived[R] | KeyedArrived[R] | Withdrawn[R] | TimePassed | Appended | AppendFailed
