"""The properties of one world of classic groups, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from groups.plan import Fault
from simulator.network import Weather

FAULTS: Final = tuple(
    fault
    for fault in Fault
    if not fault.name.startswith("TOPIC") and fault not in (Fault.MEMBER_SLOW, Fault.MEMBER_RESUBSCRIBE)
)
"""Faults of the worlds of groups that concern classic groups, too."""


@dataclass(slots=True)
class Plan:
    """The properties of one world."""

    brokers: int
    members: int
    static: int
    """Number of members with an instance id."""
    partitions: int
    knows_ids: bool
    """Whether members first ask for an id, as since version 4 of JoinGroup."""
    lease_seconds: float
    session_seconds: float
    rebalance_seconds: float
    initial_delay_seconds: float
    commit_seconds: float
    operations_max: int
    """Maximum number of operations of one transaction. A larger change is written in portions."""
    storm_seconds: float
    """Duration of the faults."""
    fault_seconds: float
    """Mean time between two faults."""
    faults: tuple[Fault, ...]
    weather: Weather


def draw(rng: Random) -> Plan:
    """Choose the properties of a world at random."""
    weather = Weather.drawn(rng, 0.7)
    members = rng.choice((1, 2, 2, 3, 3, 4, 5))
    return Plan(
        brokers=rng.choice((1, 2, 2, 3, 3)),
        members=members,
        static=rng.choice((0, 0, members, rng.randint(0, members))),
        partitions=rng.choice((1, 3, 6)),
        knows_ids=rng.random() < 0.7,
        lease_seconds=1.0,
        session_seconds=rng.choice((2.0, 3.0, 6.0)),
        rebalance_seconds=rng.choice((1.5, 4.0)),
        initial_delay_seconds=rng.choice((0.0, 0.5)),
        commit_seconds=rng.choice((0.1, 0.4, 3.0)),
        operations_max=rng.choice((5, 8, 128, 128)),
        storm_seconds=rng.choice((8.0, 14.0)),
        fault_seconds=rng.choice((0.3, 0.7, 1.5)),
        faults=tuple(each for each in FAULTS if rng.random() < 0.35),
        weather=weather,
    )
