"""Plan of a whole Cluster: the desired objects and the actions, computed from the observed state.

Each part of the plan has its own module and does not block the other parts. A blocked rolling restart delays neither
configuration changes nor volume changes, and unresponsive brokers do not block changes that need only Kubernetes.
`reconcile/` executes the plan and passes the outcomes to `cluster_facts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fairlead_api.configuration import (
    FEATURE_LEVEL_KEY,
    ConfigEntry,
    ConfigInput,
    ConfigSource,
)
from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_parts import Storage
from fairlead_api.resources.cluster_status import EtcdStatus
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, find_condition
from fairlead_api.versions import FEATURE_LEVEL
from fairlead_operator.naming import (
    NO_RESTARTS_ANNOTATION,
    POD_SPEC_HASH_ANNOTATION,
    POOL_LABEL,
    RESTART_ANNOTATION,
    RESTART_CONFIG_HASH_ANNOTATION,
    SECURITY_FLOOR_ANNOTATION,
    Manifest,
    etcd_name,
    pool_set_name,
)
from fairlead_operator.plan.actions import Action, AlterConfig, MarkPod, NoteAddress, Outcomes, UnmarkCluster
from fairlead_operator.plan.observed import Observed, ObservedSet
from fairlead_operator.plan.roll import RollInput, RollPlan, Wanted, announced_by, plan_roll
from fairlead_operator.plan.scale import (
    Pool,
    ScaleInput,
    ScalePlan,
    StoragePlan,
    WantedStorage,
    needs_metadata,
    plan_scale,
    plan_storage,
    running_sets,
)
from fairlead_operator.plan.securing.listeners import Outside, TlsFacts
from fairlead_operator.plan.securing.steps import mode_change
from fairlead_operator.plan.status import Facts
from fairlead_operator.render.addresses import (
    ASSIGNED_TYPES,
    NODE_PLACE,
    advertised_addresses,
    at_nodes,
    bootstrap_address,
    broker_addresses,
    broker_ids,
    external_addresses,
    external_bootstrap,
)
from fairlead_operator.render.cluster import render_cluster
from fairlead_operator.render.configuration import SET_ELSEWHERE, ConfigSplit, split_config
from fairlead_operator.render.inputs import EtcdInputs, Images, RenderInputs, Transport
from fairlead_operator.render.routes import missing_kind


def changes(wanted: Mapping[str, str], entries: Mapping[str, ConfigEntry]) -> dict[str, ConfigInput]:
    """Return the changes after which only these keys, and keys of `SET_ELSEWHERE`, are set; empty if none is needed.

    A key that the cluster does not list is omitted, since older brokers do not support it.
    """
    differing = dict[str, ConfigInput]()
    for name, entry in entries.items():
        is_set = entry.source == ConfigSource.CLUSTER
        if name in wanted:
            if not is_set or entry.value != wanted[name]:
                differing[name] = wanted[name]
        elif is_set and name not in SET_ELSEWHERE:
            differing[name] = None
    return differing


SOON_SECONDS: Final = 2.0
"""Time until the next pass during a change that Kubernetes does not report by an event."""
SILENCE_SECONDS: Final = 10.0
"""Time until the next pass while brokers do not answer or pods are missing: a refused pod changes no watched object, so
no event starts a pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Inputs of the plan in addition to the Cluster and its observed state."""

    images: Images
    """Images of the brokers and of etcd."""
    kinds: frozenset[str] = frozenset()
    operator_namespace: str = ""
    transport: Transport | None = None
    """Inputs of a Cluster with `spec.security`; None for other Clusters."""
    etcd: EtcdInputs | None = None
    """Inputs from the plan of a managed etcd; None for an external etcd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdFacts:
    """Facts about etcd for the status."""

    status: EtcdStatus | None = None
    condition: Condition | None = None
    refused: str = ""
    changes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """Plan of one pass: desired objects, actions, and facts for the status."""

    manifests: tuple[Manifest, ...]
    """All desired objects, in the order in which they are applied."""
    actions: tuple[Action, ...]
    """Actions other than applying the objects, in order. A failed action does not stop the following actions."""
    scale: ScalePlan
    roll: RollPlan
    storage: StoragePlan
    wanted: Mapping[str, Wanted]
    forbidden: Mapping[str, str]
    bootstrap: str
    addresses: Mapping[int, str] = field(default_factory=dict)
    outside: Outside | None = None
    tls: TlsFacts | None = None
    requeue_seconds: float | None = None


def asks_for_metadata(cluster: Cluster, observed: Observed) -> bool:
    """Return whether the plan needs topics and replicas, which are read only when needed: a cluster may have many."""
    disks_at_stake = any(pod.new_disk_asked for pod in observed.pods) or any(
        claim.terminating and claim.pool for claim in observed.claims
    )
    blocked = find_condition(cluster.status.conditions, ConditionName.ROLL_BLOCKED)
    behind = blocked is not None and blocked.reason == "BrokersNotReady"
    return disks_at_stake or behind or needs_metadata(_scale_input(cluster, observed))


def plan_cluster(cluster: Cluster, observed: Observed, context: Context) -> ClusterPlan:
    """Return the plan with the next step for each part of the Cluster."""
    split = split_config(cluster.spec.config)
    scale = plan_scale(_scale_input(cluster, observed))
    storage = plan_storage(
        _storage_wanted(cluster, scale, context.etcd), _all_sets(observed), observed.claims
    )
    templates = _advertised(cluster, observed, scale.replicas)
    advertised = at_nodes(templates, observed.nodes)
    manifests = render_cluster(
        cluster,
        RenderInputs(
            images=context.images,
            etcd=context.etcd,
            pool_replicas=scale.replicas,
            advertised=templates,
            external=observed.has_external,
            kinds=context.kinds,
            operator_namespace=context.operator_namespace,
            transport=context.transport,
            storage=storage.sizes,
        ),
    )
    wanted = _wanted(manifests)
    marks = _marks(cluster, observed, scale)
    roll = plan_roll(
        RollInput(
            brokers=scale.staying,
            pods=observed.pods,
            claims={claim.broker: claim for claim in observed.claims if claim.pool},
            wanted=wanted,
            settled=_settled(observed, wanted),
            answer=observed.brokers,
            advertised=advertised,
            restarts_allowed=cluster.metadata.annotations.get(NO_RESTARTS_ANNOTATION) != "true",
            asking_pods=bool(marks),
        )
    )
    return ClusterPlan(
        manifests=tuple(manifests),
        actions=(
            *storage.resizes,
            *storage.replaced,
            *_cluster_config(cluster, observed, split, (scale, roll)),
            *scale.actions,
            *_notes(cluster, observed, advertised),
            *marks,
            *roll.restarts,
        ),
        scale=scale,
        roll=roll,
        storage=storage,
        wanted=wanted,
        forbidden=split.forbidden,
        bootstrap=bootstrap_address(cluster),
        addresses=broker_addresses(cluster, scale.replicas),
        outside=_outside(cluster, observed, scale, advertised, context.kinds),
        tls=_tls(cluster, scale),
        requeue_seconds=_again(observed, scale, roll, storage),
    )


def _cluster_config(
    cluster: Cluster, observed: Observed, split: ConfigSplit, plans: tuple[ScalePlan, RollPlan]
) -> tuple[AlterConfig, ...]:
    """Return the changes to the cluster's configuration, its feature level and its security mode, one call each."""
    alteration = changes(split.dynamic, observed.brokers.config) if observed.brokers else {}
    return (
        *([AlterConfig(alteration)] if alteration else ()),
        *raised_format(cluster, observed, *plans),
        *mode_change(cluster, observed.brokers, plans[1]),
    )


def raised_format(
    cluster: Cluster, observed: Observed, scale: ScalePlan, roll: RollPlan
) -> tuple[AlterConfig, ...]:
    """Return the call that raises the cluster's feature level to the requested format, once no restart is pending.

    The level is raised only when every pod runs the newest template, because an older release could not start
    afterwards. A format that this operator does not know is never requested.
    """
    asked, answer = cluster.spec.format_version, observed.brokers
    if asked is None or answer is None or not answer.feature_level < asked <= FEATURE_LEVEL:
        return ()
    if roll.pending or not all(answer.registered(broker) for broker in scale.staying):
        return ()
    return (AlterConfig({FEATURE_LEVEL_KEY: asked}),)


def cluster_facts(
    cluster: Cluster,
    observed: Observed,
    plan: ClusterPlan,
    outcomes: Outcomes,
    etcd: EtcdFacts,
    certificates: Condition | None = None,
) -> Facts:
    """Return the facts for the status."""
    return Facts(
        cluster=cluster,
        observed=observed,
        scale=plan.scale,
        roll=plan.roll,
        storage=plan.storage,
        wanted=plan.wanted,
        forbidden=plan.forbidden,
        outcomes=outcomes,
        bootstrap=plan.bootstrap,
        addresses=plan.addresses,
        outside=plan.outside,
        tls=plan.tls,
        certificates=certificates,
        etcd=etcd.status,
        etcd_condition=etcd.condition,
        etcd_refused=etcd.refused,
        etcd_changes=etcd.changes,
    )


def _scale_input(cluster: Cluster, observed: Observed) -> ScaleInput:
    pools = tuple(
        Pool(name=pool.name, first_broker=pool.first_broker_id, replicas=pool.replicas)
        for pool in cluster.spec.brokers
    )
    meant = cluster.status.scale_down
    return ScaleInput(
        pools=pools,
        sets=running_sets(pools, observed.sets, observed.pods),
        pods=observed.pods,
        answer=observed.brokers,
        meant=() if meant is None else meant.broker_ids,
    )


def _storage_wanted(cluster: Cluster, scale: ScalePlan, etcd: EtcdInputs | None) -> dict[str, WantedStorage]:
    def storage(asked: Storage, first: int, replicas: int) -> WantedStorage:
        return WantedStorage(asked.size, asked.storage_class_name, range(first, first + replicas))

    wanted = {
        pool_set_name(cluster.name, pool.name): storage(
            pool.storage, pool.first_broker_id, scale.replicas.get(pool.name, pool.replicas)
        )
        for pool in cluster.spec.brokers
    }
    managed = cluster.spec.etcd.managed
    if managed is not None and etcd is not None:
        wanted[etcd_name(cluster.name)] = storage(managed.storage, 0, etcd.replicas)
    return wanted


def _all_sets(observed: Observed) -> tuple[ObservedSet, ...]:
    return observed.sets if observed.etcd_set is None else (*observed.sets, observed.etcd_set)


def _last_addresses(cluster: Cluster, observed: Observed, replicas: Mapping[str, int]) -> dict[int, str]:
    """Return the last advertised address of each broker with its own Service, used while the Service has no address.

    A new load balancer has no address yet, and a new NodePort Service has no node port yet. A missing address does not
    cause a restart, and a broker that restarts in the meantime keeps advertising the last address.
    """
    if not _reached_by_services(cluster):
        return {}
    running = {broker for _, broker in broker_ids(cluster, replicas)}
    return {
        claim.broker: claim.announced_address
        for claim in observed.claims
        if claim.pool and claim.announced_address and claim.broker in running
    }


def _notes(cluster: Cluster, observed: Observed, advertised: Mapping[int, str]) -> tuple[Action, ...]:
    """Return actions that record the addresses that brokers read at startup, for comparison in later passes."""
    answer = observed.brokers
    if answer is None or not _reached_by_services(cluster):
        return ()
    return tuple(
        NoteAddress(claim.name, advertised[claim.broker])
        for claim in observed.claims
        if claim.pool
        and claim.broker in advertised
        and claim.announced_address != advertised[claim.broker]
        and announced_by(answer, claim.broker) == advertised[claim.broker]
    )


def _advertised(cluster: Cluster, observed: Observed, replicas: Mapping[str, int]) -> dict[int, str]:
    """Return the address for external clients of each broker with its own Service; may contain a placeholder.

    A broker of an older release, which has no listener for external clients, refuses an address with a placeholder that
    it does not know.
    """
    addresses = {
        **_last_addresses(cluster, observed, replicas),
        **advertised_addresses(cluster, replicas, observed.services),
    }
    return {
        broker: each for broker, each in addresses.items() if observed.has_external or NODE_PLACE not in each
    }


def _outside(
    cluster: Cluster,
    observed: Observed,
    scale: ScalePlan,
    advertised: Mapping[int, str],
    kinds: frozenset[str],
) -> Outside | None:
    """Return the addresses for external clients; None if the listener is internal."""
    if cluster.spec.listeners.data.type == "internal":
        return None
    answer = observed.brokers
    return Outside(
        bootstrap=external_bootstrap(cluster, observed.services, observed.nodes),
        addresses=external_addresses(cluster, scale.replicas, advertised),
        deaf=frozenset() if answer is None else answer.without_external & scale.staying,
        missing_kind=missing_kind(cluster.spec.listeners.data.route, kinds),
    )


def _tls(cluster: Cluster, scale: ScalePlan) -> TlsFacts | None:
    """Return the brokers' addresses for clients with TLS, if they differ from those for other clients."""
    security = cluster.spec.security
    if security is None or security.tls.mode != "Both":
        return None
    return TlsFacts(
        bootstrap=bootstrap_address(cluster, tls=True),
        addresses=broker_addresses(cluster, scale.replicas, tls=True),
    )


def _reached_by_services(cluster: Cluster) -> bool:
    """Return whether brokers advertise addresses that come from their Services and may disappear."""
    listener = cluster.spec.listeners.data
    return listener.per_broker and listener.type in ASSIGNED_TYPES


def _wanted(manifests: list[Manifest]) -> dict[str, Wanted]:
    """Return the fingerprints of new pods by pool, from the rendered StatefulSets."""
    found = dict[str, Wanted]()
    for manifest in manifests:
        pool = (manifest["metadata"].get("labels") or {}).get(POOL_LABEL)
        if manifest["kind"] == "StatefulSet" and pool is not None:
            annotations = manifest["spec"]["template"]["metadata"].get("annotations") or {}
            found[pool] = Wanted(
                pod_spec_hash=annotations.get(POD_SPEC_HASH_ANNOTATION, ""),
                config_hash=annotations.get(RESTART_CONFIG_HASH_ANNOTATION, ""),
                security_floor=annotations.get(SECURITY_FLOOR_ANNOTATION, "open"),
            )
    return found


def _settled(observed: Observed, wanted: Mapping[str, Wanted]) -> frozenset[str]:
    return frozenset(
        each.pool
        for each in observed.sets
        if each.settled
        and not each.terminating
        and wanted.get(each.pool)
        == Wanted(
            pod_spec_hash=each.pod_spec_hash,
            config_hash=each.config_hash,
            security_floor=each.security_floor,
        )
    )


def _marks(cluster: Cluster, observed: Observed, scale: ScalePlan) -> tuple[Action, ...]:
    """Return actions that move the restart annotation from the Cluster to all pods.

    The annotation of a pod disappears with the pod, so each pod is restarted once, even if another operator takes over.
    """
    asked = cluster.metadata.annotations.get(RESTART_ANNOTATION)
    if asked is None:
        return ()
    unmarked = [
        pod
        for pod in observed.pods
        if pod.broker in scale.staying and pod.restart_asked is None and not pod.terminating
    ]
    return (*(MarkPod(pod.name, asked) for pod in unmarked), UnmarkCluster())


def _again(observed: Observed, scale: ScalePlan, roll: RollPlan, storage: StoragePlan) -> float | None:
    """Return the seconds until the next pass if no event starts a pass: brokers and admission send no events."""
    # The watch reports the removal of the annotation that suspends restarts, so no timer is needed to continue.
    suspended = roll.hindrance is not None and roll.hindrance.reason == "RestartsSuspended"
    under_way = (roll.pending and not suspended) or scale.leaving is not None or scale.actions
    if roll.restarts or storage.replaced or (observed.brokers is not None and under_way):
        return SOON_SECONDS
    if observed.brokers is None or storage.resizes or observed.lacks_pods:
        return SILENCE_SECONDS
    return None
