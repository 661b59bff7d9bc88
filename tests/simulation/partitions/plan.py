"""The properties of a world, drawn from its seed: size, rules, times and faults.

Every world has only some faults (swarm testing), because a fault that always happens hides errors that occur only
without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

from fairlead_broker.registry.records import DurabilityState
from simulator.network import Weather


class Fault(Enum):
    """A fault."""

    KILL = "kill"
    KILL_ALL = "kill all"
    POWER = "power"
    POWER_ALL = "power all"
    STOP = "stop"
    PAUSE = "pause"
    CUT_STORE = "cut store"
    CUT_PEERS = "cut peers"
    ISOLATE = "isolate"
    LEASE_EARLY = "lease early"
    LEASE_LATE = "lease late"
    STORE_AWAY = "store away"
    WATCH = "watch"
    WIPE = "wipe"
    OLD_DISK = "old disk"
    DAMAGE = "damage"
    TORN = "torn tail"
    DISK_FULL = "disk full"
    SYNC_FAILS = "sync fails"
    RETENTION = "retention"
    REASSIGN = "reassign"
    CHANGE_MIN_ISR = "change min isr"
    CHANGE_DURABILITY = "change durability"
    MOVE_LEADER = "move leader"
    PORT_REFUSES = "port refuses"
    PORT_SILENT = "port silent"
    CONNECTIONS_BREAK = "connections break"
    PORT_FLAPS = "port flaps"


class Drill(Enum):
    """A drill: a sequence of related faults."""

    DAMAGED_FOLLOWER = "damaged follower"
    DAMAGED_NEWCOMER = "damaged newcomer"
    DAMAGED_SURVIVOR = "damaged survivor"
    POWER_AFTER_STOP = "power after stop"
    DEPOSED_ALONE = "deposed alone"
    LATE_PROGRESS = "late progress"
    SYNCED_TAIL = "synced tail"
    SHORT_OF_EPOCH = "short of epoch"
    LATE_JOIN = "late join"
    LOST_IN_BETWEEN = "lost in between"
    LATE_WATCH = "late watch"
    POWERED_LAST = "powered last"
    SHORT_MOVE = "short move"
    DELETED_BEYOND = "deleted beyond"


ALARMS: tuple[Fault, ...] = (Fault.PORT_REFUSES, Fault.PORT_SILENT, Fault.CONNECTIONS_BREAK)
"""Faults that make the detector of ended processes err, in worlds whose brokers watch each other."""
STORMS: tuple[Fault, ...] = tuple(fault for fault in Fault if fault not in {*ALARMS, Fault.PORT_FLAPS})
ALARMED_SHARE = 0.3
"""Fraction of worlds without a drill whose brokers watch each other's processes."""
FLAPPING_SHARE = 0.3
"""Fraction of the alarmed worlds in which ports alternately refuse and accept connections."""
TWO_SHARE = 0.2
"""Fraction of worlds with two partitions on each disk."""
DRILLED_SHARE = 0.5
"""Fraction of worlds with a drill."""
LONE: frozenset[Drill] = frozenset(
    {Drill.DEPOSED_ALONE, Drill.LATE_JOIN, Drill.LATE_WATCH, Drill.POWERED_LAST}
)
"""Drills in which a leader continues without the other replicas."""
WRITTEN: frozenset[Drill] = frozenset(
    {Drill.POWER_AFTER_STOP, Drill.SHORT_OF_EPOCH, Drill.LOST_IN_BETWEEN, Drill.POWERED_LAST}
)
"""Drills that need a durability with which written records count before they are synced."""
DRAWN: tuple[Drill, ...] = tuple(drill for drill in Drill if drill is not Drill.DELETED_BEYOND)
"""Drills that are drawn at random. DELETED_BEYOND runs in worlds with unclean elections and retention instead."""
SYNCED: frozenset[Drill] = frozenset({Drill.LATE_PROGRESS, Drill.SYNCED_TAIL})


@dataclass(slots=True)
class Plan:
    """The properties of one world."""

    brokers: int
    replicas: int
    partitions: int
    min_isr: int
    min_isr_least: int
    """The smallest value to which min_isr may be set."""
    durability: DurabilityState
    unclean: bool
    idempotent: bool
    producers: int
    readers: int
    lease_seconds: float
    lag_seconds: float
    unclean_seconds: float
    sync_seconds: float
    think_seconds: float
    fetch_cells: int
    storm_seconds: float
    """Duration of the faults."""
    fault_seconds: float
    """Mean time between two faults."""
    faults: tuple[Fault, ...]
    weather: Weather
    drill: Enum | None = None
    """`Drill` or, in worlds with a write quorum, `QuorumDrill`."""
    write: int | None = None
    """Write quorum of the partitions, or None if in-sync replicas commit records."""
    alarmed: bool = False
    """Whether brokers end the leases of brokers whose processes have ended, as far as they can tell."""

    @property
    def replicated(self) -> bool:
        """Whether written records count without a sync during the whole run."""
        return self.durability is DurabilityState.REPLICATED and Fault.CHANGE_DURABILITY not in self.faults


def draw(rng: Random) -> Plan:
    """Choose the properties of a world at random."""
    brokers = rng.choice((2, 2, 3, 3, 3))
    replicas = brokers if brokers == 2 or rng.random() < 0.6 else 2
    min_isr = rng.choice((1, 2, 2)) if replicas == 2 else rng.choice((1, 2, 2, 2, 3))
    faults = [each for each in STORMS if rng.random() < 0.35]
    if replicas == brokers and Fault.REASSIGN in faults:
        faults.remove(Fault.REASSIGN)
    faults = faults or [Fault.KILL, Fault.POWER]
    weather = Weather()
    if rng.random() < 0.6:
        weather = Weather(
            loss=rng.choice((0.0, 0.02, 0.1)),
            repeat=rng.choice((0.0, 0.1)),
            slow=rng.choice((0.0, 0.1, 0.3)),
            slow_seconds=rng.choice((0.3, 1.5, 1.5)),
            usual_seconds=rng.choice((0.005, 0.03)),
        )
    plan = Plan(
        brokers=brokers,
        replicas=replicas,
        partitions=2 if rng.random() < TWO_SHARE else 1,
        min_isr=min_isr,
        min_isr_least=1 if Fault.CHANGE_MIN_ISR in faults else min_isr,
        durability=rng.choice((DurabilityState.SYNCED, DurabilityState.REPLICATED)),
        unclean=rng.random() < 0.15,
        idempotent=rng.random() < 0.5,
        producers=rng.choice((1, 2)),
        readers=rng.choice((0, 1, 2)),
        lease_seconds=1.0,
        lag_seconds=rng.choice((0.6, 1.2)),
        # The delay is at least the lease, because a leader whose lease ended early still acts as the leader.
        unclean_seconds=rng.choice((1.0, 1.5)),
        sync_seconds=rng.choice((0.01, 0.3, 1.0)),
        think_seconds=rng.choice((0.1, 0.3)),
        fetch_cells=rng.choice((1, 3, 100)),
        storm_seconds=rng.choice((5.0, 8.0)),
        fault_seconds=rng.choice((0.15, 0.4, 0.8)),
        faults=tuple(faults),
        weather=weather,
    )
    if rng.random() < DRILLED_SHARE:
        _drill(plan, rng)
    elif plan.unclean and Fault.RETENTION in plan.faults:
        plan.drill, plan.storm_seconds, plan.fault_seconds = Drill.DELETED_BEYOND, 10.0, 0.8
        plan.min_isr = plan.min_isr_least = 1
    else:
        _alarm(plan, _copy(rng))
    return plan


def _alarm(plan: Plan, chance: Random) -> None:
    """Let brokers watch each other in some worlds, with false results of the detector and few other faults."""
    if chance.random() < ALARMED_SHARE:
        others = chance.sample(plan.faults, min(3, len(plan.faults)))
        plan.alarmed, plan.faults = True, (*others, *ALARMS, Fault.PORT_REFUSES)
        if chance.random() >= 1 - FLAPPING_SHARE:
            plan.faults = (*others[:1], Fault.PORT_FLAPS)


def _copy(rng: Random) -> Random:
    """Return a generator with the same state; using it does not change the worlds of other seeds."""
    copy = Random()
    copy.setstate(rng.getstate())
    return copy


def _drill(plan: Plan, rng: Random) -> None:
    """Change a plan so that it fits one drill, with few other faults."""
    plan.drill = drill = rng.choice(DRAWN)
    quiet = rng.random() < 0.6
    plan.faults = () if quiet else tuple(rng.sample(plan.faults, min(2, len(plan.faults))))
    plan.partitions = 1
    plan.fault_seconds = 0.8
    plan.storm_seconds = 8.0
    plan.min_isr = 1 if drill in LONE else 2
    plan.min_isr_least = 1 if Fault.CHANGE_MIN_ISR in plan.faults else plan.min_isr
    if drill is Drill.SHORT_MOVE:
        plan.brokers, plan.replicas = 3, 2
    plan.unclean = drill is Drill.DEPOSED_ALONE
    if drill in WRITTEN:
        plan.durability = DurabilityState.REPLICATED
    elif drill in SYNCED:
        plan.durability, plan.sync_seconds = DurabilityState.SYNCED, rng.choice((0.1, 0.3, 1.0))
    if drill is Drill.LATE_WATCH:
        plan.readers, plan.lag_seconds = 2, 0.6
    if rng.random() < 0.7:
        plan.weather = Weather()
