"""Events that the producers' state machine of one partition receives.

The field `request` is an object of the caller; effects return it, and it is compared by identity. Events are `msgspec`
structs, not dataclasses, because every batch creates an event.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Generic, TypeAlias, TypeVar

import msgspec

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs

R = TypeVar("R")


class SequencedArrived(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A batch of an idempotent producer is ready to be appended."""

    request: R
    producer_id: ProducerId
    epoch: ProducerEpoch
    first_sequence: Sequence
    """`UNNUMBERED` for a batch that gets the next sequence when it is ordered."""
    last_sequence: Sequence
    now: float
    """Monotonic time, in seconds, at which the batch arrived."""
    is_transactional: bool = False
    session: ProducerEpoch | None = None
    """First epoch of the session of a Kafka client whose sequences continue from one transaction to the next; None if
    the sequences of each epoch begin at 0."""


class KeyedArrived(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A batch with an idempotency key is ready to be appended."""

    request: R
    key: bytes
    digest: bytes


class EndDecided(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A transaction is decided, and its marker must be written to this partition."""

    request: R
    producer_id: ProducerId
    epoch: ProducerEpoch
    kind: MarkerKind
    decided_us: TimestampUs


class Withdrawn(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A held batch reached its request timeout, and the client received an error: the batch is not stored."""

    request: R


class TimePassed(msgspec.Struct, frozen=True, gc=False):
    """The time of `next_deadline` has passed."""

    now: float


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The log appended every batch with an `Append` effect since the last `Appended`, possibly among other batches."""

    base_offsets: SequenceOf[Offset]
    """Base offsets of the appended batches, in the order of their `Append` effects."""
    last_offsets: SequenceOf[Offset]
    append_time_us: TimestampUs


class AppendFailed(msgspec.Struct, frozen=True, gc=False):
    """The log appended no batch with an `Append` effect since the last `Appended`, or failed and needs a restart."""


Event: TypeAlias = (
    SequencedArrived[R]
    | KeyedArrived[R]
    | EndDecided[R]
    | Withdrawn[R]
    | TimePassed
    | Appended
    | AppendFailed
)
