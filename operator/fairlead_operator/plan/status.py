"""Status of a Cluster, computed from the observed state, the plan and the outcomes of its actions.

Equal facts produce an identical status: times are copied from the current status, so an unchanged Cluster causes no
write. The reasons and messages of conditions are defined in the catalogue of conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import (
    BrokerCount,
    ClusterStatus,
    EtcdStatus,
    PoolStatus,
    RollStatus,
    ScaleDownStatus,
)
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, condition, find_condition, rfc3339, set_condition
from fairlead_operator.naming import RESTART_ANNOTATION, etcd_name, external_service_name, pool_set_name
from fairlead_operator.plan.actions import Outcomes
from fairlead_operator.plan.observed import Observed, ObservedPod
from fairlead_operator.plan.roll import Hindrance, RollPlan, Wanted
from fairlead_operator.plan.scale import ScalePlan, StoragePlan
from fairlead_operator.plan.securing.listeners import Inside, Outside, TlsFacts, listeners_of
from fairlead_operator.render import forbidden_text
from fairlead_operator.render.addresses import ASSIGNED_TYPES, kafka_addresses

PATIENCE: Final = timedelta(seconds=10)
"""Time for which a restart permit must be refused before the roll counts as blocked: replicas need a few seconds to
catch up after their broker has started."""
RESTART_PATIENCE: Final = timedelta(minutes=5)
"""Time before a roll counts as blocked by a broker that the roll itself has restarted: the broker must first recover
and catch up."""
NAMED_MAX: Final = 10
SERVING_WITHOUT_ONE: Final = 2
"""Smallest number of brokers at which a cluster still serves while one broker is down."""
MEMORABLE: Final = ("BrokersNotReady",)
"""Reasons for Ready=False that are only set on a cluster that was ready before."""
REPLACING: Final = ("Propagating", "Replacing")
"""Reasons of the condition of the certificates while brokers load a new certificate or authority."""
OPEN: Final = "every client that reaches the brokers may read, write and delete every topic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts for the computation of a Cluster's status."""

    cluster: Cluster
    observed: Observed
    scale: ScalePlan
    roll: RollPlan
    storage: StoragePlan
    wanted: Mapping[str, Wanted]
    forbidden: Mapping[str, str]
    """Configuration keys that are not applied, each with the reason."""
    outcomes: Outcomes
    bootstrap: str
    addresses: Mapping[int, str]
    """Address of each broker for internal clients."""
    outside: Outside | None = None
    """Addresses for external clients; None if the listener is internal."""
    tls: TlsFacts | None = None
    """Addresses for clients with TLS, if they differ from the addresses for other clients."""
    certificates: Condition | None = None
    """Condition of the certificates; None for a Cluster without security."""
    etcd: EtcdStatus | None = None
    etcd_condition: Condition | None = None
    etcd_refused: str = ""
    """Message from the API server about a refused pod of etcd; empty if no pod of etcd is refused."""
    etcd_changes: str = ""
    """Description of the change to etcd that is in progress; empty if no change is in progress."""

    @property
    def now(self) -> datetime:
        """The time at which the state was observed."""
        return self.observed.now

    @property
    def missing(self) -> frozenset[int]:
        """The ids of the brokers that should run but are not ready."""
        return self.scale.staying - frozenset(pod.broker for pod in self.observed.pods if is_up(pod))

    @property
    def was_ready(self) -> bool:
        """Whether the cluster has ever been ready, according to its status."""
        ready = find_condition(self.cluster.status.conditions, ConditionName.READY)
        return ready is not None and (ready.status == "True" or ready.reason in MEMORABLE)


def is_up(pod: ObservedPod) -> bool:
    """Return whether the pod is ready and not terminating."""
    return pod.ready and not pod.terminating


def cluster_status(facts: Facts) -> ClusterStatus:
    """Return the whole status of a Cluster."""
    cluster, observed = facts.cluster, facts.observed
    answer, before = observed.brokers, cluster.status
    desired = len(facts.scale.staying)
    ready = desired - len(facts.missing)
    updating = bool(facts.roll.pending)
    return ClusterStatus(
        observed_generation=cluster.metadata.generation,
        conditions=_conditions(facts),
        cluster_id=answer.cluster_id if answer else before.cluster_id,
        version=answer.release if answer and not (updating and before.version) else before.version,
        format_version=answer.feature_level if answer else before.format_version,
        brokers=BrokerCount(desired=desired, ready=ready, summary=f"{ready}/{desired}"),
        pools=_pools(facts),
        etcd=facts.etcd,
        listeners=listeners_of(
            cluster,
            Inside(bootstrap=facts.bootstrap, addresses=facts.addresses, tls=facts.tls),
            facts.outside,
            kafka_addresses(cluster, facts.scale.replicas, observed.nodes),
            rolls=updating,
        ),
        roll=_roll(facts),
        scale_down=_scale_down(facts),
    )


def paused_status(cluster: Cluster, now: datetime) -> ClusterStatus:
    """Return the status of a paused Cluster, in which only one condition is changed."""
    paused = condition(
        ConditionName.RECONCILIATION_PAUSED,
        "True",
        "Annotation",
        "the annotation fairlead.dev/paused is set on this Cluster",
        now=now,
    )
    return cluster.status.model_copy(update={"conditions": set_condition(cluster.status.conditions, paused)})


def unreadable_status(
    before: ClusterStatus, reason: str, why: str, *, now: datetime, generation: int
) -> ClusterStatus:
    """Return the status of a Cluster that cannot be reconciled, in which only two conditions are changed."""
    conditions = before.conditions
    for type_, status, word in (
        (ConditionName.INVALID_SPEC, "True", reason),
        (ConditionName.READY, "False", "InvalidSpec"),
    ):
        new = condition(type_, status, word, why, now=now, generation=generation)  # type: ignore[arg-type]
        conditions = set_condition(conditions, new)
    return before.model_copy(update={"conditions": conditions, "observed_generation": generation})


def _conditions(facts: Facts) -> tuple[Condition, ...]:
    before, generation = facts.cluster.status.conditions, facts.cluster.metadata.generation
    judged = [
        (ConditionName.READY, *_ready(facts)),
        (ConditionName.PROGRESSING, *_progressing(facts)),
        *((ConditionName.ROLL_BLOCKED, "True", *each) for each in _roll_blocked(facts)),
        *((ConditionName.SCALE_DOWN_BLOCKED, "True", *each) for each in _scale_down_blocked(facts)),
        *((ConditionName.STORAGE_BLOCKED, "True", *each) for each in _storage_blocked(facts)),
        *((ConditionName.WARNING, "True", *each) for each in _warning(facts)),
    ]
    conditions: tuple[Condition, ...] = ()
    for type_, status, reason, message in judged:
        new = condition(type_, status, reason, message, now=facts.now, generation=generation)  # type: ignore[arg-type]
        conditions = set_condition(conditions, _with_old_time(new, before))
    if facts.certificates is not None:
        conditions = set_condition(conditions, _with_old_time(facts.certificates, before))
    if facts.etcd_condition is not None:
        conditions = set_condition(conditions, _with_old_time(facts.etcd_condition, before))
    return conditions


def _with_old_time(new: Condition, before: tuple[Condition, ...]) -> Condition:
    return next(each for each in set_condition(before, new) if each.type == new.type)


def _ready(facts: Facts) -> tuple[str, str, str]:
    refused = _refused(facts)
    missing = facts.missing
    if not missing:
        return "True", "Available", f"{len(facts.scale.staying)} brokers are ready"
    said = f"{_brokers(missing)} not ready{_why(facts, missing)}"
    if refused and not facts.was_ready:
        return "False", "PodsRefused", "; ".join(refused)
    if not facts.was_ready:
        return "False", "Starting", said
    answer = facts.observed.brokers
    known = missing if answer is None else frozenset(each for each in missing if each in answer.brokers)
    if len(known) <= 1 and (len(facts.scale.staying) >= SERVING_WITHOUT_ONE or _restarting(facts) in missing):
        return "True", "Available", said
    return "False", "BrokersNotReady", said


def _why(facts: Facts, missing: Iterable[int]) -> str:
    stuck = [pod for pod in facts.observed.pods if pod.broker in missing and pod.stuck]
    refused = {broker: words for broker, words in facts.observed.refused.items() if broker in missing}
    said = [*(f"{pod.name}: {pod.stuck}" for pod in stuck), *_pods_refused(refused)]
    return "".join(f"; {each}" for each in said)


def _refused(facts: Facts) -> tuple[str, ...]:
    """Return messages about refused objects: objects that the operator applies, and pods that controllers create."""
    etcd = (f"pods of etcd are refused: {facts.etcd_refused}",) if facts.etcd_refused else ()
    return (*facts.outcomes.refused_objects, *_pods_refused(facts.observed.refused), *etcd)


def _pods_refused(refused: Mapping[int, str]) -> tuple[str, ...]:
    """Return one sentence about all refused pods, with only one message, since messages differ only in names."""
    if not refused:
        return ()
    what = "the pod of broker" if len(refused) == 1 else "the pods of brokers"
    verb = "is" if len(refused) == 1 else "are"
    named = _names(map(str, sorted(refused)))
    return (f"{what} {named} {verb} refused: {refused[min(refused)]}",)


def _restarting(facts: Facts) -> int | None:
    roll = _roll(facts)
    return None if roll is None else roll.broker_id


def _progressing(facts: Facts) -> tuple[str, str, str]:
    roll, leaving = facts.roll, facts.scale.leaving
    if not facts.was_ready and facts.missing:
        return "True", "Creating", f"{_brokers(facts.missing)} starting"
    if facts.outcomes.restarted or roll.pending or _restarting(facts) is not None:
        left = (
            f"{_brokers(roll.pending)} to be restarted"
            if roll.pending
            else "the last restarted broker has not rejoined yet"
        )
        return "True", "Rolling", left
    if RESTART_ANNOTATION in facts.cluster.metadata.annotations and facts.observed.pods:
        return "True", "Rolling", "all brokers are to be restarted"
    if leaving is not None:
        return "True", "ScalingDown", f"{_brokers(leaving.brokers)} leaving the cluster"
    if coming := _coming(facts):
        return "True", "ScalingUp", f"{_brokers(coming)} starting"
    if facts.storage.growing or facts.storage.resizes or facts.storage.replaced:
        return "True", "ResizingStorage", f"{len(facts.storage.growing)} claims are growing"
    if replaced := _sets_away(facts):
        return "True", "ResizingStorage", f"created again: StatefulSet {_names(replaced)}"
    if facts.etcd_changes:
        return "True", "ChangingEtcd", facts.etcd_changes
    if facts.certificates is not None and facts.certificates.reason in REPLACING:
        return "True", "ReplacingCertificates", facts.certificates.message
    return "False", "UpToDate", "no change is in progress"


def _coming(facts: Facts) -> frozenset[int]:
    """Return the missing brokers that never registered, or all missing brokers while the reason is ScalingUp."""
    answer, before = facts.observed.brokers, facts.cluster.status
    progress = find_condition(before.conditions, ConditionName.PROGRESSING)
    if facts.missing and progress is not None and progress.reason == "ScalingUp":
        return facts.missing
    return frozenset(
        broker for broker in facts.missing if answer is not None and broker not in answer.brokers
    )


def _sets_away(facts: Facts) -> tuple[str, ...]:
    """Return the StatefulSets that are being replaced: deleted without their pods, and not recreated yet."""
    name, there = facts.cluster.name, {each.name for each in facts.observed.sets if not each.terminating}
    etcd = facts.observed.etcd_set
    if etcd is not None and not etcd.terminating:
        there.add(etcd.name)
    wanted = [pool_set_name(name, pool.name) for pool in facts.cluster.spec.brokers]
    if facts.cluster.spec.etcd.managed is not None:
        wanted.append(etcd_name(name))
    return tuple(each for each in wanted if each not in there)


def _roll_blocked(facts: Facts) -> Iterable[tuple[str, str]]:
    roll, hindrance = facts.roll, facts.roll.hindrance
    if roll.stuck and _roll(facts) is not None:
        return (("PodFailing", _stuck(facts)),)
    if hindrance is not None and hindrance.reason in ("RestartsSuspended", "BrokersUnreachable"):
        return ((hindrance.reason, hindrance.message),)
    if hindrance is not None and _is_overdue(facts, hindrance):
        why = _why(facts, hindrance.brokers) + _behind(facts, hindrance.brokers)
        return ((hindrance.reason, f"{hindrance.message}{why}"),)
    if facts.outcomes.refusals and _since(facts) + PATIENCE <= facts.now:
        refusal = facts.outcomes.refusals[0]
        if refusal.partitions:
            named = _names(refusal.partitions)
            return (
                (
                    "PartitionsAtRisk",
                    f"broker {refusal.broker} cannot be restarted: too few replicas of {named} are in sync",
                ),
            )
        return (("PermitHeld", refusal.message),)
    return ()


def _stuck(facts: Facts) -> str:
    return "; ".join(f"broker {broker}: {why}" for broker, why in facts.roll.stuck.items())


def _behind(facts: Facts, brokers: frozenset[int]) -> str:
    """Return the partitions whose replicas on the brokers are out of sync, as text; empty if topics were not read."""
    answer = facts.observed.brokers
    if answer is None or answer.metadata is None:
        return ""
    named = [
        f"{topic.name}-{partition.partition}"
        for topic in answer.metadata.topics
        for partition in topic.partitions
        if (brokers & set(partition.replicas)) - set(partition.isr)
    ]
    return f"; partitions not in sync there: {_names(named)}" if named else ""


def _is_overdue(facts: Facts, hindrance: Hindrance) -> bool:
    """Return whether an obstacle has lasted longer than a restart can take."""
    before = facts.cluster.status.roll
    own = (
        before is not None
        and hindrance.brokers == frozenset({before.broker_id})
        and not any(
            pod.broker == before.broker_id and not pod.terminating and pod.created < before.since
            for pod in facts.observed.pods
        )
    )
    return _since(facts) + (RESTART_PATIENCE if own else PATIENCE) <= facts.now


def _since(facts: Facts) -> datetime:
    before = facts.cluster.status.roll
    return facts.now if before is None else datetime.fromisoformat(before.since)


def _roll(facts: Facts) -> RollStatus | None:
    """Return the restart in progress or, if no broker is being restarted, the next pending restart."""
    before, now = facts.cluster.status.roll, rfc3339(facts.now)
    if facts.outcomes.restarted:
        last = facts.outcomes.restarted[-1]
        return RollStatus(broker_id=last.broker, reason=", ".join(last.reasons), since=now)
    if before is not None and _is_away(facts, before.broker_id):
        return before
    tried = [each.broker for each in facts.outcomes.refusals]
    if not facts.roll.pending:
        return None
    following = (tried or sorted(facts.roll.pending))[0]
    if before is not None and before.broker_id == following:
        return before
    reasons = ", ".join(facts.roll.pending.get(following, ()))
    return RollStatus(broker_id=following, reason=reasons, since=now)


def _is_away(facts: Facts, broker: int) -> bool:
    """Return whether a staying broker is not ready, or is not registered according to the other brokers."""
    answer = facts.observed.brokers
    unknown = answer is not None and not answer.registered(broker)
    return broker in facts.missing or (broker in facts.scale.staying and unknown)


def _scale_down(facts: Facts) -> ScaleDownStatus | None:
    leaving = facts.scale.leaving
    if leaving is None:
        return None
    return ScaleDownStatus(
        broker_id=leaving.broker, broker_ids=leaving.brokers, partitions_left=leaving.partitions_left
    )


def _scale_down_blocked(facts: Facts) -> Iterable[tuple[str, str]]:
    blocked = facts.scale.blocked
    return () if blocked is None else ((blocked.reason, blocked.message),)


def _storage_blocked(facts: Facts) -> Iterable[tuple[str, str]]:
    refused = dict.fromkeys((*facts.outcomes.refused_resizes, *facts.storage.refused))
    if not refused:
        return ()
    by_class = any("storageclass" in each.lower() for each in facts.outcomes.refused_resizes)
    return ((("ExpansionNotAllowed" if by_class else "ExpansionRefused"), "; ".join(refused)),)


def _warning(facts: Facts) -> Iterable[tuple[str, str]]:
    found = list[tuple[str, str]]()
    if facts.forbidden:
        found.append(("ForbiddenConfig", forbidden_text(facts.forbidden)))
    found.extend(("InvalidConfigValue", each) for each in facts.outcomes.refused_calls)
    found.extend(("ObjectsRefused", each) for each in _refused(facts))
    found.extend(("QuotaConflict", each) for each in facts.outcomes.refused_quotas)
    answer, ready = facts.observed.brokers, facts.scale.staying - facts.missing
    if answer is None and ready:
        found.append(("BrokersUnreachable", facts.observed.silence))
    if facts.roll.stuck and _roll(facts) is None:
        found.append(("PodFailing", _stuck(facts)))
    if len(facts.scale.staying) == 1:
        found.append(
            ("SingleBroker", "the cluster has one broker: no other broker takes over while it is away")
        )
    found.extend(_unreached(facts))
    if facts.observed.console_fault:
        found.append(("ConsoleNotReady", facts.observed.console_fault))
    asked = facts.cluster.spec.format_version
    if answer is not None and asked is not None and asked > answer.feature_level:
        found.append(
            (
                "FormatNotSupported",
                f"spec.formatVersion is {asked} and has no effect yet: the brokers store data in format "
                f"{answer.feature_level}, and the field can be set back to that format",
            )
        )
    security = facts.cluster.spec.security
    if not found and (security is None or security.mode == "Open"):
        # SecurityOpen is reported only without other warnings, since every other warning is more urgent.
        return (("SecurityOpen", OPEN),)
    if len(found) > 1:
        return (("SeveralWarnings", "; ".join(f"{reason}: {message}" for reason, message in found)),)
    return found


def _unreached(facts: Facts) -> Iterable[tuple[str, str]]:
    """Return why external clients cannot reach any broker, or cannot reach the leaders."""
    outside = facts.outside
    if outside is None or not facts.was_ready:
        return
    type_ = facts.cluster.spec.listeners.data.type
    if not outside.bootstrap and type_ in ASSIGNED_TYPES:
        what = "load balancer" if type_ == "loadbalancer" else "node port"
        name = external_service_name(facts.cluster.name)
        yield (
            "NoExternalAddress",
            f"the Service {name} has no {what} yet, so external clients cannot reach it",
        )
    if outside.missing_kind:
        yield (
            "RouteKindMissing",
            f"the API server does not have the kind {outside.missing_kind}, so no Gateway route leads to the brokers",
        )
    if outside.deaf:
        message = f"{_brokers(outside.deaf)} without a listener for external clients until the next restart"
        yield "ClientsOutsideCannotFollow", message


def _pools(facts: Facts) -> tuple[PoolStatus, ...]:
    pools = []
    names = {each.pool for each in facts.observed.sets} | {pool.name for pool in facts.cluster.spec.brokers}
    for name in sorted(names):
        live, pods = facts.observed.set_of(name), [pod for pod in facts.observed.pods if pod.pool == name]
        wanted = facts.wanted.get(name)
        running = set(live.brokers if live else ()) | {pod.broker for pod in pods}
        pools.append(
            PoolStatus(
                name=name,
                replicas=len(running),
                ready=sum(is_up(pod) for pod in pods),
                updated=sum(_is_new(pod, wanted) for pod in pods),
                broker_ids=tuple(sorted(running)),
            )
        )
    return tuple(pools)


def _is_new(pod: ObservedPod, wanted: Wanted | None) -> bool:
    return wanted is not None and (pod.pod_spec_hash, pod.config_hash) == (
        wanted.pod_spec_hash,
        wanted.config_hash,
    )


def _brokers(ids: Iterable[int]) -> str:
    named = [str(broker) for broker in sorted(ids)]
    return f"broker {named[0]} is" if len(named) == 1 else f"brokers {_names(named)} are"


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    shown = ", ".join(listed[:NAMED_MAX])
    return f"{shown} and {len(listed) - NAMED_MAX} more" if len(listed) > NAMED_MAX else shown
