"""Rolling restart: chooses which broker is restarted next and why, from the current state of the cluster.

The fingerprints of a pod show whether the pod is outdated, so an interrupted roll continues, and no pod is restarted
twice. Pods that cannot start are restarted first, then pods that are not ready, then one ready pod at a time, and the
controller last. The brokers decide whether a broker may restart: an order with `permit` is executed only if the brokers
grant the permit. The module must not depend on how pods are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead_api.bodies.metadata import Metadata
from fairlead_operator.naming import NO_RESTARTS_ANNOTATION
from fairlead_operator.plan.actions import RestartBroker, RestartReason
from fairlead_operator.plan.observed import BrokersAnswer, ObservedClaim, ObservedPod
from fairlead_operator.render.security import STRICTNESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The desired fingerprints of a pool's pods."""

    pod_spec_hash: str
    config_hash: str
    security_floor: str = "open"
    """Least strict security mode, which a running broker may exceed only until its restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollInput:
    """Input of `plan_roll`."""

    brokers: frozenset[int]
    """Ids of the brokers that should run and stay. A ready broker is restarted only while all brokers in this set are
    up."""
    pods: tuple[ObservedPod, ...]
    claims: Mapping[int, ObservedClaim]
    wanted: Mapping[str, Wanted]
    """Desired fingerprints by pool."""
    settled: frozenset[str]
    """Pools whose newest template has been applied and observed by the StatefulSet controller. Pods of other pools are
    not restarted, since they would be recreated from the old template and restarted twice."""
    answer: BrokersAnswer | None
    advertised: Mapping[int, str] = field(default_factory=dict)
    """`host:port` of each broker for which clients use a separate address."""
    restarts_allowed: bool = True
    asking_pods: bool = False
    """Whether the restart annotation of the Cluster is still being copied to the pods."""


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Obstacle to all restarts: a reason for the RollBlocked condition, and a message that states what is missing."""

    reason: str
    message: str
    brokers: frozenset[int] = frozenset()
    """Ids of the brokers that the roll waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollPlan:
    """Restarts to order now, and facts for the status."""

    restarts: tuple[RestartBroker, ...] = ()
    pending: Mapping[int, tuple[RestartReason, ...]]
    """Reasons for each pending restart by broker id."""
    hindrance: Hindrance | None = None
    """Obstacle that prevents all restarts; None if no restart is pending or a restart is ordered."""
    stuck: Mapping[int, str]
    """Brokers whose pod has the newest template but does not start, each with the reason."""


def plan_roll(given: RollInput) -> RollPlan:
    """Return the restarts that may be tried now: the restart of one pod, or of all pods that serve no client."""
    pods = sorted((pod for pod in given.pods if pod.broker in given.brokers), key=lambda pod: pod.broker)
    pending = {pod.broker: reasons for pod in pods if (reasons := _reasons(pod, given))}
    stuck = {
        pod.broker: pod.stuck
        for pod in pods
        if pod.stuck is not None and not pod.terminating and not _is_old(pod, given)
    }
    if not pending:
        return RollPlan(pending=pending, stuck=stuck)
    if not given.restarts_allowed:
        suspended = Hindrance(
            "RestartsSuspended",
            f"{_brokers(sorted(pending))} to be restarted, but the annotation "
            f"{NO_RESTARTS_ANNOTATION} forbids restarts",
        )
        return RollPlan(pending=pending, stuck=stuck, hindrance=suspended)
    return _choose(given, pods, pending, stuck)


def _choose(
    given: RollInput,
    pods: list[ObservedPod],
    pending: Mapping[int, tuple[RestartReason, ...]],
    stuck: Mapping[int, str],
) -> RollPlan:
    due = [pod for pod in pods if pod.broker in pending and pod.pool in given.settled]
    useless = [pod for pod in due if not pod.ready and _may_go_at_once(pod, pods, given)]
    orders, kept = _orders(useless, pending, given, permit=False)
    if not orders and given.answer is not None:
        orders, more = _first([pod for pod in due if not pod.ready], pending, given)
        kept += more
    hindrance = None if orders else _what_is_missing(given, pods, stuck)
    if not orders and hindrance is None:
        orders, more = _first(sorted(due, key=_controller_last(given)), pending, given)
        kept += more
    if kept and not orders:
        named = ", ".join(dict.fromkeys(kept))
        hindrance = Hindrance(
            "PartitionsAtRisk",
            f"no other broker has all records of {named}: they would be lost with the disk",
        )
    return RollPlan(restarts=orders, pending=pending, hindrance=hindrance, stuck=stuck)


def _reasons(pod: ObservedPod, given: RollInput) -> tuple[RestartReason, ...]:
    if pod.terminating:
        return ()
    reasons = []
    wanted = given.wanted.get(pod.pool)
    if wanted is not None and pod.pod_spec_hash != wanted.pod_spec_hash:
        reasons.append(RestartReason.POD_SPEC_CHANGED)
    if wanted is not None and _is_stricter(pod.security_floor, wanted.security_floor):
        reasons.append(RestartReason.SECURITY_LOWERED)
    if wanted is not None and pod.config_hash != wanted.config_hash:
        reasons.append(RestartReason.CONFIG_CHANGED)
    claim = given.claims.get(pod.broker)
    if claim is not None and pod.created < claim.waits_for_restart_since:
        reasons.append(RestartReason.CLAIM_RESIZED)
    if _new_address(pod, given) is not None:
        reasons.append(RestartReason.ADDRESS_CHANGED)
    if pod.restart_asked is not None and not given.asking_pods:
        reasons.append(RestartReason.ASKED)
    if pod.new_disk_asked:
        reasons.append(RestartReason.NEW_DISK_ASKED)
    return tuple(reasons)


def _is_stricter(mode: str, than: str) -> bool:
    return mode in STRICTNESS and STRICTNESS.index(mode) > STRICTNESS.index(than)


def _new_address(pod: ObservedPod, given: RollInput) -> tuple[str, str] | None:
    """Return the claim and the new address if clients cannot reach the broker at its advertised address.

    Each new address causes only one restart: if the restarted broker still advertises a different address, the pod
    template sets that address. An empty address means that the Service no longer has the external address that the
    broker still advertises.
    """
    claim = given.claims.get(pod.broker)
    if claim is None or given.answer is None or not given.answer.registered(pod.broker):
        return None
    announced = announced_by(given.answer, pod.broker)
    address = given.advertised.get(pod.broker)
    if address is None:
        return (claim.name, "") if claim.announced_address and announced == claim.announced_address else None
    return None if address in (announced, claim.announced_address) else (claim.name, address)


def announced_by(answer: BrokersAnswer, broker: int) -> str:
    """Return the `host:port` that a broker advertises to external clients; empty if unknown.

    For a broker of an older release, return its only address, which all clients use.
    """
    found = answer.brokers.get(broker)
    if found is None:
        return ""
    announced = found.address if found.external_address is None else found.external_address
    return (announced or "").rpartition("//")[2]


def _is_old(pod: ObservedPod, given: RollInput) -> bool:
    """Return whether the pod would be recreated from a new template, which might work if the current pod fails."""
    return bool({RestartReason.POD_SPEC_CHANGED, RestartReason.CONFIG_CHANGED} & set(_reasons(pod, given)))


def _may_go_at_once(pod: ObservedPod, pods: list[ObservedPod], given: RollInput) -> bool:
    """Return whether the pod serves no client, so that it may restart without a permit."""
    if given.answer is not None:
        return pod.stuck is not None and not given.answer.registered(pod.broker)
    return pod.stuck is not None or not any(other.ready for other in pods)


def _what_is_missing(given: RollInput, pods: list[ObservedPod], stuck: Mapping[int, str]) -> Hindrance | None:
    """Return the obstacle to the restart of a ready broker; None if the restart can be tried."""
    if given.answer is None:
        return Hindrance("BrokersUnreachable", "no broker answers, so no restart can be permitted")
    if stuck:
        broker, why = next(iter(stuck.items()))
        return Hindrance("PodFailing", f"broker {broker} does not start: {why}", frozenset(stuck))
    there = {pod.broker for pod in pods if pod.ready and not pod.terminating}
    if absent := given.brokers - there:
        return Hindrance("BrokersNotReady", f"{_brokers(sorted(absent))} not ready", absent)
    if absent := frozenset(broker for broker in given.brokers if not given.answer.registered(broker)):
        return Hindrance("BrokersNotReady", f"{_brokers(sorted(absent))} ready, but not registered", absent)
    return None


def _controller_last(given: RollInput) -> Callable[[ObservedPod], tuple[bool, int]]:
    controller = given.answer.controller if given.answer else None
    return lambda pod: (pod.broker == controller, pod.broker)


def _first(
    pods: list[ObservedPod], pending: Mapping[int, tuple[RestartReason, ...]], given: RollInput
) -> tuple[tuple[RestartBroker, ...], list[str]]:
    """Return the first restart that can be ordered, and the partitions that do not allow the preceding restarts."""
    kept = list[str]()
    for pod in pods:
        permit = given.answer is not None and given.answer.registered(pod.broker)
        orders, more = _orders([pod], pending, given, permit=permit)
        kept += more
        if orders:
            return orders, kept
    return (), kept


def _orders(
    pods: list[ObservedPod],
    pending: Mapping[int, tuple[RestartReason, ...]],
    given: RollInput,
    *,
    permit: bool,
) -> tuple[tuple[RestartBroker, ...], list[str]]:
    """Return the restarts of the pods, and the partitions whose last copies are on a disk that would be deleted."""
    orders, kept = list[RestartBroker](), list[str]()
    for pod in pods:
        claim, disk = None, given.claims.get(pod.broker)
        if pod.new_disk_asked or (disk is not None and disk.terminating):
            # If a user has deleted the claim, the claim disappears with the pod, and the data on the disk is lost.
            metadata = given.answer.metadata if given.answer else None
            kept_here = (
                ("partitions that are unknown while no broker answers",)
                if metadata is None
                else last_copies(metadata, pod.broker)
            )
            kept.extend(kept_here)
            if kept_here:
                continue
            claim = None if disk is None or not pod.new_disk_asked else (disk.name, disk.uid)
        orders.append(
            RestartBroker(
                pod.broker,
                pod.name,
                pod.uid,
                reasons=pending[pod.broker],
                permit=permit,
                claim=claim,
                announced_address=None if claim else _new_address(pod, given),
            )
        )
    return tuple(orders), kept


def last_copies(metadata: Metadata, broker: int) -> tuple[str, ...]:
    """Return the partitions that would be lost with the disk of a broker, since no other replica has all records."""
    return tuple(
        f"{topic.name}-{partition.partition}"
        for topic in metadata.topics
        for partition in topic.partitions
        if broker in partition.replicas and not ({*partition.isr, *partition.elr} - {broker})
    )


def _brokers(ids: list[int]) -> str:
    named = ", ".join(map(str, ids))
    return f"broker {named} is" if len(ids) == 1 else f"brokers {named} are"
