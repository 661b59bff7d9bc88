"""Messages between brokers and clients; a message is an immutable value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairlead_broker.replication.divergence import EpochEnd, EpochStart
from partitions.disk import Cell


@dataclass(slots=True)
class FetchedCells:
    """The leader's answer to a follower whose log is a prefix of the leader's."""

    leader_epoch: int
    high_watermark: int | None
    log_start: int
    cells: list[Cell]


@dataclass(slots=True)
class FetchDiverged:
    """The answer to a follower whose log diverges from the leader's."""

    end: EpochEnd


@dataclass(slots=True)
class FetchOutside:
    """The answer to a fetch of an offset that the leader does not have."""

    log_start: int
    end_offset: int
    deleted: EpochStart | None
    """Epoch of the last record before the log start of the leader."""


@dataclass(slots=True)
class FetchRefused:
    """A refusal after which the follower fetches again."""


FetchAnswer: TypeAlias = FetchedCells | FetchDiverged | FetchOutside | FetchRefused


class Outcome(Enum):
    """The answer to a client about a produced value."""

    OK = "ok"
    FAILED = "failed"
    """The request has failed, and the value is not stored."""
    MAYBE = "maybe"
    """The value may or may not be stored."""
    UNKNOWN_PRODUCER = "unknown producer"
    OUT_OF_ORDER = "out of order"


@dataclass(slots=True)
class Produce:
    """A value that a client asks a leader to store."""

    value: int
    producer: int
    """Producer id; -1 for none."""
    sequence: int
    acks_all: bool
    answer: Callable[[Outcome, int], None]
    """Function that sends the outcome and the offset (-1 for none) to the client over the network."""


@dataclass(slots=True)
class ReadAnswer:
    """The answer to a reader."""

    offset: int
    values: list[int]
    high_watermark: int | None
    """High watermark, or None if the leader does not know the high watermark."""
    leader_epoch: int
