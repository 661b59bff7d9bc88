"""Worlds whose partitions have a write quorum, with the brokers, disks and faults of the worlds of in-sync replicas."""

from __future__ import annotations

from random import Random

from fairlead_broker.registry.records import DurabilityState
from partitions.drills import Drills
from partitions.plan import STORMS, Fault, Plan
from partitions.quorum_drills import QuorumDrill, QuorumDrills
from partitions.world import World
from simulator.network import Weather
from simulator.world import Verdict

SIZES = ((3, 3, 2), (3, 3, 2), (3, 3, 2), (3, 3, 3), (2, 2, 2), (5, 5, 3), (4, 3, 2), (3, 2, 2), (6, 3, 2))
"""Numbers of brokers and replicas, with the write quorum."""
LEFT_OUT = frozenset({Fault.CHANGE_DURABILITY, Fault.PORT_FLAPS})
"""Faults that worlds with quorums do not have, because their durability is fixed."""
RARE: tuple[tuple[Fault, ...], ...] = (
    (Fault.MOVE_LEADER, Fault.CUT_PEERS),
    (Fault.MOVE_LEADER, Fault.WIPE, Fault.KILL),
    (Fault.LEASE_EARLY, Fault.CUT_STORE, Fault.MOVE_LEADER),
    (Fault.OLD_DISK, Fault.KILL, Fault.MOVE_LEADER),
    (Fault.DAMAGE, Fault.MOVE_LEADER),
    (Fault.REASSIGN, Fault.CUT_STORE, Fault.MOVE_LEADER),
    (Fault.REASSIGN, Fault.KILL, Fault.WIPE),
    (Fault.CHANGE_MIN_ISR, Fault.CUT_STORE, Fault.KILL),
    (Fault.POWER, Fault.POWER_ALL),
    (Fault.MOVE_LEADER, Fault.WATCH),
    (Fault.MOVE_LEADER, Fault.WATCH, Fault.CUT_STORE),
    (Fault.WIPE,),
    (Fault.OLD_DISK, Fault.KILL),
    (Fault.CUT_PEERS, Fault.ISOLATE, Fault.KILL),
)
"""Sets of faults that only together reveal a dropped rule; half of the worlds have one of these sets."""
DRILLED_SHARE = 0.3
"""Fraction of worlds with a drill."""


def draw(rng: Random) -> Plan:
    """Choose the properties of a world at random."""
    brokers, replicas, write = rng.choice(SIZES)
    faults = [each for each in STORMS if each not in LEFT_OUT and rng.random() < 0.3]
    if rng.random() < 0.5:
        faults = list(rng.choice(RARE))
    if replicas == brokers:
        faults = [each for each in faults if each is not Fault.REASSIGN]
    faults = faults or [Fault.KILL, Fault.POWER]
    weather = Weather()
    if rng.random() < 0.7:
        weather = Weather(
            loss=rng.choice((0.0, 0.05, 0.15)),
            repeat=rng.choice((0.0, 0.1)),
            slow=rng.choice((0.0, 0.1, 0.3)),
            slow_seconds=rng.choice((0.3, 1.5)),
            usual_seconds=rng.choice((0.005, 0.03)),
        )
    least = replicas // 2 + 1
    plan = Plan(
        brokers=brokers,
        replicas=replicas,
        partitions=1,
        min_isr=write,
        min_isr_least=least if Fault.CHANGE_MIN_ISR in faults else write,
        durability=rng.choice((DurabilityState.SYNCED, DurabilityState.SYNCED, DurabilityState.REPLICATED)),
        unclean=False,
        idempotent=rng.random() < 0.5,
        producers=rng.choice((1, 2)),
        readers=rng.choice((0, 1)),
        lease_seconds=1.0,
        lag_seconds=rng.choice((0.6, 1.2)),
        unclean_seconds=1.0,
        sync_seconds=rng.choice((0.01, 0.3, 1.0)),
        think_seconds=rng.choice((0.05, 0.1, 0.3)),
        fetch_cells=rng.choice((1, 1, 3, 100)),
        storm_seconds=rng.choice((5.0, 8.0)),
        fault_seconds=rng.choice((0.15, 0.3, 0.6)),
        faults=tuple(faults),
        weather=weather,
        write=write,
    )
    if rng.random() < DRILLED_SHARE:
        _drill(plan, rng)
    return plan


def _drill(plan: Plan, rng: Random) -> None:
    """Change a plan so that it fits one drill, with few other faults."""
    plan.drill = rng.choice(tuple(QuorumDrill))
    plan.faults = () if rng.random() < 0.7 else tuple(rng.sample(plan.faults, min(2, len(plan.faults))))
    plan.brokers = 4 if plan.drill is QuorumDrill.LATE_MOVE else 3
    plan.replicas, plan.min_isr, plan.min_isr_least, plan.write = 3, 2, 2, 2
    plan.fault_seconds, plan.storm_seconds = 0.8, 8.0
    if plan.drill in {QuorumDrill.LATE_PROGRESS, QuorumDrill.DEPOSED_TAIL}:
        plan.durability, plan.sync_seconds = DurabilityState.SYNCED, rng.choice((0.1, 0.3, 1.0))
    if rng.random() < 0.7:
        plan.weather = Weather()


class QuorumWorld(World):
    """A world whose partitions have a write quorum."""

    draw = staticmethod(draw)
    drills_of: type[Drills] = QuorumDrills


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world of a seed."""
    return QuorumWorld(seed, traced=traced).run()
