"""Calls from clients and brokers, and the answers; a message is an immutable value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TopicId
from fairlead_broker.registry.transaction_records import Outcome
from simulator.store import Key

TOPIC: Final = TopicId("t")


def transaction_key(producer_id: int) -> Key:
    """Return the key of a producer's record."""
    return ("transaction", producer_id)


def offset_key(program: int) -> Key:
    """Return the key for a program's offset, and for the member that may commit the offset."""
    return ("offset", program)


@dataclass(frozen=True, slots=True)
class Input:
    """A batch: the input of a program from which it was computed, and its place among the batches of the input."""

    program: int
    number: int
    place: int
    transaction: int
    """Number of the transaction in which the client sends the batch."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Value under the key of a program's offset."""

    owner: int = 0
    """Epoch of the group member that may commit; only with a group."""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """Sender of a call, and the number of the call, by which the sender recognises the answer."""

    sender: int
    life: int
    number: int


@dataclass(frozen=True, slots=True)
class BeginCall:
    """Begin a transaction."""

    call: Call
    producer_id: ProducerId


@dataclass(frozen=True, slots=True)
class JoinCall:
    """Become the member of a group that may commit."""

    call: Call
    program: int


@dataclass(frozen=True, slots=True)
class OffsetCall:
    """Read the committed offset of a program."""

    call: Call
    program: int


@dataclass(frozen=True, slots=True)
class DecideCall:
    """Commit or abort a transaction. A commit includes the offset after its input."""

    call: Call
    producer_id: ProducerId
    epoch: ProducerEpoch
    outcome: Outcome
    named: tuple[int, ...] = ()
    program: int = 0
    offset: int = 0
    member: int = 0


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """Append a batch."""

    call: Call
    partition: int
    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: int
    value: Input


@dataclass(frozen=True, slots=True)
class LastCall:
    """Append the last batches of a transaction, and commit the transaction once all of them are stored."""

    batches: tuple[ProduceCall, ...]
    commit: DecideCall


@dataclass(frozen=True, slots=True)
class Ended:
    """A decided transaction: the answer to a begin, a commit or an abort."""

    outcome: Outcome | None
    next: ProducerEpoch | None


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal with its name."""

    code: str


Answer: TypeAlias = Ended | Offset | Refused | int
"""Answer to a call; a number is the offset of a batch, or the epoch of a member."""
