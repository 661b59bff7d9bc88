"""The properties of one world, drawn from its seed.

Each world has only some of the faults, because a fault that always happens hides errors that occur only without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from simulator.network import Weather


class Fault(Enum):
    """A fault, or another kind of event in a world."""

    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    CUT_STORE = "cut store"
    DEPOSE = "depose"
    CUT_PEERS = "cut peers"
    LEASE_EARLY = "lease early"
    LEASE_LATE = "lease late"
    STORE_AWAY = "store away"
    WATCH = "watch"
    MEMBER_CRASH = "member crash"
    MEMBER_PAUSE = "member pause"
    MEMBER_LEAVE = "member leave"
    MEMBER_CUT = "member cut"
    MEMBER_SLOW = "member slow"
    MEMBER_DOUBLE = "member double"
    MEMBER_RESUBSCRIBE = "member resubscribe"
    TOPIC_CREATE = "topic create"
    TOPIC_GROW = "topic grow"
    TOPIC_DELETE = "topic delete"


BROKER_FAULTS = tuple(fault for fault in Fault if not fault.name.startswith(("MEMBER", "TOPIC")))

DEPOSED_SHARE = 0.15
"""Fraction of worlds that test coordinators that do not know that they were deposed."""


@dataclass(slots=True)
class Plan:
    """The properties of one world."""

    brokers: int
    members: int
    static: int
    """Number of members with an instance id."""
    same_id: bool
    """Whether a dynamic member that returns keeps its member id."""
    topics: int
    partitions_max: int
    assignor: str | None
    whole: bool
    """Whether members name subscription and owned partitions in every heartbeat, as a client of the HTTP API may."""
    patterns: bool
    """Whether members subscribe by pattern."""
    mixed: bool
    """Whether members subscribe to different topics."""
    lease_seconds: float
    session_seconds: float
    rebalance_seconds: float
    commit_seconds: float
    wind_seconds: float
    """Longest time that a member needs to finish its work before it releases a partition."""
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
    faults = [each for each in Fault if rng.random() < 0.35]
    weather = Weather.drawn(rng, 0.7)
    members = rng.choice((1, 2, 2, 3, 3, 4, 5))
    plan = Plan(
        brokers=rng.choice((1, 2, 2, 3, 3)),
        members=members,
        static=rng.choice((0, 0, members, rng.randint(0, members))),
        same_id=rng.random() < 0.3,
        topics=rng.choice((1, 1, 2, 3)),
        partitions_max=rng.choice((1, 3, 6)),
        assignor=rng.choice((None, "uniform", "uniform", "range")),
        whole=rng.random() < 0.5,
        patterns=rng.random() < 0.2,
        mixed=rng.random() < 0.2,
        lease_seconds=1.0,
        session_seconds=rng.choice((2.0, 3.0, 6.0)),
        rebalance_seconds=rng.choice((1.5, 4.0)),
        commit_seconds=rng.choice((0.1, 0.4, 3.0)),
        wind_seconds=rng.choice((0.02, 0.3, 1.0)),
        operations_max=rng.choice((5, 8, 128, 128)),
        storm_seconds=rng.choice((8.0, 14.0)),
        fault_seconds=rng.choice((0.3, 0.7, 1.5)),
        faults=tuple(faults),
        weather=weather,
    )
    if rng.random() < DEPOSED_SHARE:
        # A deposed coordinator notices its loss at the next write, so worlds about deposed coordinators have few
        # commits.
        plan.brokers, plan.members, plan.commit_seconds = 3, max(3, members), 6.0
        plan.faults = (Fault.DEPOSE, Fault.MEMBER_LEAVE, Fault.MEMBER_RESUBSCRIBE)
        plan.fault_seconds = 1.0
    return plan
