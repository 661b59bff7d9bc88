"""How many brokers each pool has now, and how the surplus leaves: one at a time, the highest id first.

More brokers come at once. Fewer: all that shall leave are cordoned, so that nothing moves from one to the next; then
the highest is drained, and when it keeps nothing its pod goes and the cluster forgets it. What is meant stands in
the Cluster's status before the first broker hears of it, so that a spec that is raised again finds whom to take back.
Nothing leaves while a topic would have more replicas than brokers. Must not know how pods are restarted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead_api.bodies.metadata import Metadata
from fairlead_operator.plan.actions import (
    Action,
    CordonBroker,
    DeleteSet,
    DrainBroker,
    ShrinkSet,
    UncordonBroker,
    UndrainBroker,
    UnregisterBroker,
)
from fairlead_operator.plan.observed import BrokersAnswer, ObservedPod, ObservedSet

NAMED_MAX: Final = 10
"""Topics and partitions that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as the spec asks for it."""

    name: str
    first_broker: int
    replicas: int

    @property
    def brokers(self) -> range:
        """The ids that it shall run."""
        return range(self.first_broker, self.first_broker + self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Brokers on their way out: what stands in the status as `scaleDown`."""

    brokers: tuple[int, ...]
    """All that shall leave, in order."""
    partitions_left: int = 0
    """Of the one that is being drained."""

    @property
    def broker(self) -> int:
        """The one whose turn it is."""
        return max(self.brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Why nobody leaves: a reason of the condition ScaleDownBlocked, and for people what to do."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInput:
    """What the number of brokers follows from."""

    pools: tuple[Pool, ...]
    sets: tuple[ObservedSet, ...]
    """As `running_sets` returns them."""
    pods: tuple[ObservedPod, ...]
    answer: BrokersAnswer | None
    meant: tuple[int, ...] = ()
    """Brokers that were to leave by the status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """The replicas of each StatefulSet now, what to ask of the brokers, and what is to be told."""

    replicas: Mapping[str, int]
    """By pool of the spec."""
    actions: tuple[Action, ...] = ()
    leaving: Leaving | None = None
    blocked: Blocked | None = None
    staying: frozenset[int] = field(default_factory=frozenset)
    """The ids that run and are not on their way out: also those that nobody wants and that may not leave."""


def running_sets(
    pools: tuple[Pool, ...], sets: tuple[ObservedSet, ...], pods: tuple[ObservedPod, ...]
) -> tuple[ObservedSet, ...]:
    """Return the sets that run brokers, and for a pool whose set is gone one that its pods tell of.

    While a StatefulSet is made anew its pods run without one, and a spec that asks for fewer must not take any.
    """
    there = {each.pool for each in sets if not each.terminating}
    orphaned = [pool for pool in pools if pool.name not in there]
    found = [each for each in sets if not each.terminating]
    for pool in orphaned:
        highest = max((pod.broker for pod in pods if pod.pool == pool.name), default=-1)
        replicas = highest - pool.first_broker + 1
        if replicas > 0:
            found.append(
                ObservedSet(
                    name="",
                    uid="",
                    pool=pool.name,
                    first_broker=pool.first_broker,
                    replicas=replicas,
                    settled=False,
                )
            )
    return tuple(found)


def surplus(pools: tuple[Pool, ...], sets: tuple[ObservedSet, ...]) -> tuple[int, ...]:
    """Return the brokers that run and that the spec does not ask for."""
    wanted = {broker for pool in pools for broker in pool.brokers}
    return tuple(sorted(broker for each in sets for broker in each.brokers if broker not in wanted))


def needs_metadata(given: ScaleInput) -> bool:
    """Say whether the plan depends on topics and replicas."""
    return bool(surplus(given.pools, given.sets)) or bool(_forgotten(given))


def plan_scale(given: ScaleInput) -> ScalePlan:
    """Return the next step towards the brokers that the spec asks for."""
    going = surplus(given.pools, given.sets)
    wanted = frozenset(broker for pool in given.pools for broker in pool.brokers)
    replicas = _grown(given)
    empty = tuple(
        DeleteSet(each.name, each.uid)
        for each in given.sets
        if each.replicas == 0
        and each.pool not in replicas
        and not any(pod.pool == each.pool for pod in given.pods)
    )
    back, still_meant = _taken_back(given, wanted)
    plan = _leave(given, going, still_meant, replicas, wanted) if going else None
    if plan is not None:
        on_their_way = frozenset(plan.leaving.brokers if plan.leaving else ())
        return ScalePlan(
            replicas=plan.replicas,
            actions=(*empty, *back, *_unregistered(given), *plan.actions),
            leaving=plan.leaving,
            blocked=plan.blocked,
            # Who may not leave, perhaps for weeks, is looked after like the others.
            staying=wanted | (frozenset(going) - on_their_way),
        )
    return ScalePlan(
        replicas=replicas,
        actions=(*empty, *back, *_unregistered(given)),
        leaving=Leaving(brokers=still_meant) if still_meant else None,
        staying=wanted,
    )


def _grown(given: ScaleInput) -> dict[str, int]:
    """Return the replicas of every pool of the spec without anybody leaving."""
    now = {each.pool: each.replicas for each in given.sets}
    return {pool.name: max(pool.replicas, now.get(pool.name, 0)) for pool in given.pools}


def _leave(
    given: ScaleInput,
    going: tuple[int, ...],
    meant: tuple[int, ...],
    replicas: dict[str, int],
    wanted: frozenset[int],
) -> ScalePlan:
    if given.answer is None or given.answer.metadata is None:
        blocked = Blocked(
            reason="BrokersUnreachable",
            message="the brokers do not answer, so it is not known which replicas they keep",
        )
        return ScalePlan(replicas=replicas, leaving=_known(meant), blocked=blocked)
    if too_few := _too_few(given.answer.metadata, len(wanted)):
        # Those that were meant to leave are taken back by `_taken_back` only when the spec wants them; here they
        # stay as they are, so that a topic that is deleted lets the drain go on.
        return ScalePlan(replicas=replicas, leaving=_known(meant), blocked=too_few)
    if set(going) - set(meant):
        return ScalePlan(replicas=replicas, leaving=Leaving(brokers=tuple(sorted({*going, *meant}))))
    return _next_leaver(given, given.answer, given.answer.metadata, going, replicas)


def _next_leaver(
    given: ScaleInput,
    answer: BrokersAnswer,
    metadata: Metadata,
    going: tuple[int, ...],
    replicas: dict[str, int],
) -> ScalePlan:
    cordons = tuple(
        CordonBroker(broker)
        for broker in going
        if (found := answer.brokers.get(broker)) is not None and not found.cordoned
    )
    running = {broker for each in given.sets for broker in each.brokers}
    if any(pod.broker not in running for pod in given.pods):
        return ScalePlan(replicas=replicas, actions=cordons, leaving=Leaving(brokers=going))
    leaver = max(going)
    left = partitions_on(metadata, leaver)
    leaving = Leaving(brokers=going, partitions_left=left)
    found = answer.brokers.get(leaver)
    if left == 0 and (found is None or found.cordoned) and _seen_cordoned(metadata, leaver):
        return _shrunk(given, leaver, replicas, cordons, leaving)
    drains = () if found is None or found.state == "draining" else (DrainBroker(leaver),)
    blocked = None
    if found is not None and found.immovable:
        blocked = Blocked(
            reason="DrainStuck",
            message=f"no other broker can take {_names(found.immovable)} from broker {leaver}: add brokers, or "
            "lower the number of replicas of the topics",
        )
    return ScalePlan(replicas=replicas, actions=(*cordons, *drains), leaving=leaving, blocked=blocked)


def _seen_cordoned(metadata: Metadata, broker: int) -> bool:
    """Say whether who told of the replicas knew of the cordon: an older view may lack one that came before it."""
    return all(each.cordoned for each in metadata.brokers if each.id == broker)


def _shrunk(
    given: ScaleInput,
    leaver: int,
    replicas: dict[str, int],
    cordons: tuple[Action, ...],
    leaving: Leaving,
) -> ScalePlan:
    """Take the pod of a broker that keeps nothing."""
    home = next(each for each in given.sets if leaver in each.brokers)
    if home.pool in replicas:
        fewer = {**replicas, home.pool: home.replicas - 1}
        return ScalePlan(replicas=fewer, actions=cordons, leaving=leaving)
    return ScalePlan(
        replicas=replicas, actions=(*cordons, ShrinkSet(home.name, home.replicas - 1)), leaving=leaving
    )


def _taken_back(given: ScaleInput, wanted: frozenset[int]) -> tuple[tuple[Action, ...], tuple[int, ...]]:
    """Return what to ask so that brokers that were to leave stay, and who is still meant to leave.

    One stays meant while the brokers do not answer: it may be cordoned. One that has gone is meant no longer.
    """
    running = {broker for each in given.sets for broker in each.brokers} | {pod.broker for pod in given.pods}
    if given.answer is None:
        return (), given.meant
    back, meant = list[Action](), list[int]()
    for broker in given.meant:
        found = given.answer.brokers.get(broker)
        if broker not in wanted:
            if broker in running or found is not None:
                meant.append(broker)
            continue
        if found is None:
            continue
        draining = found.cordoned and found.state != "running"
        back.extend([UndrainBroker(broker)] if draining else [])
        back.extend([UncordonBroker(broker)] if found.cordoned else [])
        if draining or found.cordoned:
            meant.append(broker)
    return tuple(back), tuple(meant)


def _forgotten(given: ScaleInput) -> list[int]:
    """Return brokers that are gone, that nobody asks for, and that have no pod: perhaps to be forgotten."""
    if given.answer is None:
        return []
    wanted = {broker for pool in given.pools for broker in pool.brokers}
    running = {broker for each in given.sets for broker in each.brokers} | {pod.broker for pod in given.pods}
    return [
        broker
        for broker, found in sorted(given.answer.brokers.items())
        if found.state == "gone" and broker not in wanted | running
    ]


def _unregistered(given: ScaleInput) -> tuple[Action, ...]:
    if given.answer is None or given.answer.metadata is None:
        return ()
    metadata = given.answer.metadata
    return tuple(
        UnregisterBroker(broker) for broker in _forgotten(given) if partitions_on(metadata, broker) == 0
    )


def _too_few(metadata: Metadata, brokers: int) -> Blocked | None:
    """Return why so few brokers do not do: each topic's replicas, and one more than must be in sync.

    A topic with one replica never was safe, and asks for nothing but a broker.
    """
    factors, minima = _needs(metadata)
    needy = sorted(name for name, count in factors.items() if count > brokers)
    if needy or not brokers:
        most = max((factors[name] for name in needy), default=1)
        return Blocked(
            reason="ReplicationFactor",
            message=f"{brokers} brokers would be left, and {most} are needed for the replicas of "
            f"{_names(needy) or 'any topic'}: lower the number of replicas of these topics first, or delete them",
        )
    needy = sorted(name for name, count in minima.items() if count + 1 > brokers and factors[name] > 1)
    if needy:
        most = max(minima[name] for name in needy)
        return Blocked(
            reason="MinInSyncReplicas",
            message=f"{brokers} brokers would be left, but {most} replicas must be in sync of {_names(needy)}, so no "
            "broker could be restarted: lower min.insync.replicas of these topics first",
        )
    return None


def _needs(metadata: Metadata) -> tuple[dict[str, int], dict[str, int]]:
    """Return by topic the most replicas and the highest min.insync.replicas of its partitions."""
    factors, minima = dict[str, int](), dict[str, int]()
    for topic in metadata.topics:
        kept = [len(set(each.replicas) - set(each.removing)) for each in topic.partitions]
        factors[topic.name] = max(kept, default=0)
        minima[topic.name] = max((each.min_isr for each in topic.partitions), default=0)
    return factors, minima


def partitions_on(metadata: Metadata, broker: int) -> int:
    """Return how many partitions have a replica on a broker, or are about to."""
    return sum(
        broker in partition.replicas or broker in partition.adding or broker in partition.removing
        for topic in metadata.topics
        for partition in topic.partitions
    )


def _known(meant: tuple[int, ...]) -> Leaving | None:
    return Leaving(brokers=meant) if meant else None


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    return f"{shown} and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else shown
