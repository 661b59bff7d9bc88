"""What brokers and clients say to each other; a message is a value that nobody changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairlead_broker.replication.divergence import EpochEnd, EpochStart
from partitions.disk import Cell


@dataclass(slots=True)
class FetchedCells:
    """The leader's answer to a follower that has nothing else than the leader."""

    leader_epoch: int
    high_watermark: int | None
    log_start: int
    cells: list[Cell]


@dataclass(slots=True)
class FetchDiverged:
    """The follower's log is none of the leader's."""

    end: EpochEnd


@dataclass(slots=True)
class FetchOutside:
    """The follower asks for what the leader does not have."""

    log_start: int
    end_offset: int
    deleted: EpochStart | None
    """The epoch before the log start."""


@dataclass(slots=True)
class FetchRefused:
    """Nothing to do but to ask again."""


FetchAnswer: TypeAlias = FetchedCells | FetchDiverged | FetchOutside | FetchRefused


class Outcome(Enum):
    """What a client is told about what it wanted stored."""

    OK = "ok"
    FAILED = "failed"
    """Certainly not stored by this request."""
    MAYBE = "maybe"
    """Nobody knows."""
    UNKNOWN_PRODUCER = "unknown producer"
    OUT_OF_ORDER = "out of order"


@dataclass(slots=True)
class Produce:
    """One value to store."""

    value: int
    producer: int
    """-1 for none."""
    sequence: int
    acks_all: bool
    answer: Callable[[Outcome, int], None]
    """Called with the offset, -1 where there is none. The network is in it."""


@dataclass(slots=True)
class ReadAnswer:
    """What a reader is told."""

    offset: int
    values: list[int]
    high_watermark: int | None
    """None: the leader does not know."""
    leader_epoch: int
