"""The properties of one world of transactions, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from simulator.network import Weather


class Fault(Enum):
    """A fault, or another event of a world."""

    KILL = "kill"
    PAUSE = "pause"
    CUT_STORE = "cut store"
    CUT_PEERS = "cut peers"
    STORE_AWAY = "store away"
    MOVE = "move"
    CLIENT_CRASH = "client crash"
    CLIENT_PAUSE = "client pause"
    CLIENT_CUT = "client cut"
    CLIENT_DOUBLE = "client double"


@dataclass(slots=True)
class Plan:
    """The properties of one world."""

    brokers: int
    partitions: int
    names: int
    """Number of programs, each with two processes that fence each other."""
    has_group: bool
    """Whether each process of a program has its own producer, and the epoch of a group member fences the processes."""
    batches_max: int
    """Maximum number of batches of a transaction in a partition."""
    abort_share: float
    """Fraction of the transactions that a client aborts."""
    impatient_share: float
    """Fraction of the unanswered commits that a client settles with an abort."""
    last_call_share: float
    """Fraction of the commits that a client sends together with the last batches."""
    late_share: float
    """Fraction of the calls from clients that also arrive long after they were sent."""
    rest_seconds: float
    """Longest pause of a client between two transactions."""
    timeout_ms: int
    disk_seconds: float
    """Mean duration of an append."""
    replication_seconds: float
    """Mean time from an append until all in-sync replicas have it."""
    storm_seconds: float
    fault_seconds: float
    """Mean time between two faults."""
    faults: tuple[Fault, ...]
    weather: Weather


def draw(rng: Random) -> Plan:
    """Choose the properties of a world at random."""
    faults = tuple(each for each in Fault if rng.random() < 0.45)
    weather = Weather.drawn(rng, 0.75)
    return Plan(
        brokers=rng.choice((1, 2, 3, 3)),
        partitions=rng.choice((1, 2, 4)),
        names=rng.choice((1, 2)),
        has_group=rng.random() < 0.3,
        batches_max=rng.choice((1, 2, 3)),
        abort_share=rng.choice((0.0, 0.1, 0.4)),
        impatient_share=rng.choice((0.0, 0.3, 0.8)),
        last_call_share=rng.choice((0.0, 0.5, 1.0)),
        late_share=rng.choice((0.0, 0.0, 0.1)),
        rest_seconds=rng.choice((0.05, 0.05, 1.5)),
        timeout_ms=rng.choice((1_000, 2_000, 5_000)),
        disk_seconds=rng.choice((0.002, 0.02, 0.1)),
        replication_seconds=rng.choice((0.005, 0.05, 0.4)),
        storm_seconds=rng.choice((8.0, 14.0)),
        fault_seconds=rng.choice((0.3, 0.7, 1.5)),
        faults=faults,
        weather=weather,
    )
