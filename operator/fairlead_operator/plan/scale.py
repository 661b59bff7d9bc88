"""Plan of the next step for the number of brokers and the storage of each pool, and for the removal of surplus brokers.

New brokers start at once. When a pool shrinks, the operator first cordons all leaving brokers, so that no replica moves
from one leaving broker to another. When they are cordoned, the operator drains the broker with the highest id, deletes
its pod when the broker has no replica left, and removes the broker from the cluster. The status of the Cluster lists
the leaving brokers before the first call to a broker, so that these brokers can be kept if the number of replicas in
the spec is raised again. No broker leaves if a topic would have more replicas than there are brokers.

`plan_storage` decides which claims grow, and which StatefulSets are replaced because their claim templates are
immutable. A claim requests the larger of its current size and the size in the spec, so a claim that a user enlarged
stays enlarged. Retained claims of removed pods keep their size until a pod uses them again. The module must not depend
on how pods are restarted, or on whether a storage class allows claims to grow: Kubernetes refuses an expansion that is
not possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from fairlead_api.bodies.metadata import Metadata
from fairlead_api.resources.quantities import quantity
from fairlead_operator.plan.actions import (
    Action,
    CordonBroker,
    DeleteSet,
    DrainBroker,
    ReplaceSet,
    ResizeClaim,
    ShrinkSet,
    UncordonBroker,
    UndrainBroker,
    UnregisterBroker,
)
from fairlead_operator.plan.observed import BrokersAnswer, ObservedClaim, ObservedPod, ObservedSet

NAMED_MAX: Final = 10
"""Maximum number of topics or partitions that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A broker pool in the spec of a Cluster."""

    name: str
    first_broker: int
    replicas: int

    @property
    def brokers(self) -> range:
        """The broker ids that the spec assigns to the pool."""
        return range(self.first_broker, self.first_broker + self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Brokers that leave the cluster, as reported in the status field `scaleDown`."""

    brokers: tuple[int, ...]
    """Ids of all leaving brokers, in order."""
    partitions_left: int = 0
    """Number of partitions that still have a replica on the draining broker."""

    @property
    def broker(self) -> int:
        """The id of the broker that leaves next."""
        return max(self.brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Obstacle to every scale-down: a reason for the ScaleDownBlocked condition, and a message with the remedy."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleInput:
    """Input of `plan_scale`."""

    pools: tuple[Pool, ...]
    sets: tuple[ObservedSet, ...]
    """StatefulSets as returned by `running_sets`."""
    pods: tuple[ObservedPod, ...]
    answer: BrokersAnswer | None
    meant: tuple[int, ...] = ()
    """Brokers that are leaving according to the status of the Cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePlan:
    """Result of `plan_scale`: replicas of each StatefulSet, calls to the brokers, and facts for the status."""

    replicas: Mapping[str, int]
    """Number of pods in this step for each pool in the spec."""
    actions: tuple[Action, ...] = ()
    leaving: Leaving | None = None
    blocked: Blocked | None = None
    staying: frozenset[int] = field(default_factory=frozenset)
    """Ids of the brokers that stay, including surplus brokers that must not leave yet."""


def running_sets(
    pools: tuple[Pool, ...], sets: tuple[ObservedSet, ...], pods: tuple[ObservedPod, ...]
) -> tuple[ObservedSet, ...]:
    """Return the StatefulSets that run brokers.

    For a pool without a StatefulSet, the StatefulSet is derived from its pods.

    While a StatefulSet is being replaced, its pods run without a StatefulSet, and a lower number of replicas in the
    spec must not remove these pods.
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
    """Return the running brokers that are not in the spec."""
    wanted = {broker for pool in pools for broker in pool.brokers}
    return tuple(sorted(broker for each in sets for broker in each.brokers if broker not in wanted))


def needs_metadata(given: ScaleInput) -> bool:
    """Return whether the scaling plan depends on topics and replicas."""
    return bool(surplus(given.pools, given.sets)) or bool(_forgotten(given))


def plan_scale(given: ScaleInput) -> ScalePlan:
    """Return the plan of the next step, which brings the brokers closer to the spec."""
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
            # A surplus broker that must not leave yet is maintained like the other brokers, since it might stay for
            # weeks.
            staying=wanted | (frozenset(going) - on_their_way),
        )
    return ScalePlan(
        replicas=replicas,
        actions=(*empty, *back, *_unregistered(given)),
        leaving=Leaving(brokers=still_meant) if still_meant else None,
        staying=wanted,
    )


def _grown(given: ScaleInput) -> dict[str, int]:
    """Return the number of replicas of every pool in the spec, without removing any broker."""
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
            reason="BrokersUnreachable", message="the brokers do not answer, so their replicas are unknown"
        )
        return ScalePlan(replicas=replicas, leaving=_known(meant), blocked=blocked)
    if too_few := _too_few(given.answer.metadata, len(wanted)):
        # Leaving brokers stay cordoned, so that the drain can continue when the topics no longer need these brokers.
        # Only `_taken_back` uncordons brokers, when the spec includes these brokers again.
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
    """Return whether the metadata is newer than the cordon of the broker: older metadata may lack a new replica."""
    return all(each.cordoned for each in metadata.brokers if each.id == broker)


def _shrunk(
    given: ScaleInput,
    leaver: int,
    replicas: dict[str, int],
    cordons: tuple[Action, ...],
    leaving: Leaving,
) -> ScalePlan:
    """Return the plan that removes the pod of a broker without replicas."""
    home = next(each for each in given.sets if leaver in each.brokers)
    if home.pool in replicas:
        fewer = {**replicas, home.pool: home.replicas - 1}
        return ScalePlan(replicas=fewer, actions=cordons, leaving=leaving)
    return ScalePlan(
        replicas=replicas, actions=(*cordons, ShrinkSet(home.name, home.replicas - 1)), leaving=leaving
    )


def _taken_back(given: ScaleInput, wanted: frozenset[int]) -> tuple[tuple[Action, ...], tuple[int, ...]]:
    """Return the calls that cancel the removal of brokers that the spec includes again, and the brokers still leaving.

    While no broker answers, every leaving broker still counts as leaving, since the broker may be cordoned. A broker
    that is gone does not count as leaving.
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
    """Return surplus brokers that are gone and have no pod: candidates for removal from the cluster."""
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
    """Return the reason why this number of brokers is too small for the topics; None if the number is large enough.

    Every topic needs as many brokers as it has replicas, and at least one more than `min.insync.replicas`. A topic with
    one replica needs only one broker.
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
            message=f"{brokers} brokers would be left, but {most} replicas of {_names(needy)} must be in sync, so no "
            "broker could be restarted: lower min.insync.replicas of these topics first",
        )
    return None


def _needs(metadata: Metadata) -> tuple[dict[str, int], dict[str, int]]:
    """Return the largest number of replicas and the highest min.insync.replicas among the partitions of each topic."""
    factors, minima = dict[str, int](), dict[str, int]()
    for topic in metadata.topics:
        kept = [len(set(each.replicas) - set(each.removing)) for each in topic.partitions]
        factors[topic.name] = max(kept, default=0)
        minima[topic.name] = max((each.min_isr for each in topic.partitions), default=0)
    return factors, minima


def partitions_on(metadata: Metadata, broker: int) -> int:
    """Return the number of partitions with a replica on a broker, including replicas that are being added."""
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


@dataclass(frozen=True, slots=True)
class WantedStorage:
    """Storage in the spec for the pods of one StatefulSet."""

    size: str
    storage_class: str | None
    ordinals: range
    """Ordinals of the pods that run. Claims with other ordinals are retained claims of removed pods, which keep their
    size: nothing uses their volumes, and a file system grows only in a pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePlan:
    """Result of `plan_storage`: resizes and replacements to order, and the sizes to render."""

    resizes: tuple[ResizeClaim, ...] = ()
    replaced: tuple[ReplaceSet, ...] = ()
    sizes: Mapping[str, str]
    """Size in the claim template of each StatefulSet, where this size differs from the size in the spec."""
    growing: tuple[str, ...] = ()
    """Names of the claims whose volume has not reached the requested size yet."""
    refused: tuple[str, ...] = ()
    """Messages that explain why a size or storage class in the spec is not applied."""


def plan_storage(
    wanted: Mapping[str, WantedStorage],
    sets: Iterable[ObservedSet],
    claims: Iterable[ObservedClaim],
) -> StoragePlan:
    """Return the storage plan; `wanted` is keyed by the name of the StatefulSet."""
    resizes, growing = list[ResizeClaim](), list[str]()
    replaced, refused, sizes = list[ReplaceSet](), list[str](), dict[str, str]()
    by_set = {each.name: each for each in sets}
    for claim in claims:
        asked = wanted.get(_set_of(claim))
        if asked is None or claim.terminating or claim.broker not in asked.ordinals:
            continue
        if _is_larger(asked.size, claim.requested):
            resizes.append(ResizeClaim(claim.name, asked.size))
        elif claim.capacity and _is_larger(claim.requested, claim.capacity):
            growing.append(claim.name)
    for name, asked in wanted.items():
        live, size, storage_class = by_set.get(name), asked.size, asked.storage_class
        if live is None or live.terminating or not live.storage_size:
            continue
        if _is_larger(live.storage_size, size):
            refused.append(f"{name} keeps {live.storage_size}: a volume cannot shrink to {size}")
            sizes[name] = live.storage_size
        elif _is_larger(size, live.storage_size):
            replaced.append(ReplaceSet(live.name, live.uid))
        if storage_class is not None and live.storage_class not in (None, storage_class):
            refused.append(
                f"{name} keeps storage class {live.storage_class}: create another pool for {storage_class}"
            )
    return StoragePlan(
        resizes=tuple(resizes),
        replaced=tuple(replaced),
        sizes=sizes,
        growing=tuple(growing),
        refused=tuple(refused),
    )


def _set_of(claim: ObservedClaim) -> str:
    """Return the StatefulSet of a claim: `data-main-a-0` belongs to `main-a`."""
    return claim.name.partition("-")[2].rpartition("-")[0]


def _is_larger(one: str, other: str) -> bool:
    return size_of(one) > size_of(other)


def size_of(text: str) -> Fraction:
    """Return a quantity as a number; 0 for a malformed quantity, so that a malformed quantity changes no claim."""
    try:
        return quantity(text)
    except ValueError:
        return Fraction(0)
