"""Reconciler of Clusters. A pass observes, plans, applies objects, executes actions and reports.

Each pass reads the whole state from Kubernetes and the brokers; no state is kept between passes. The work loop calls
the reconciler; only one worker at a time handles a Cluster. All decisions are made by `plan`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fairlead.errors import ClusterError
from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import ClusterStatus
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition
from fairlead_api.resources.resource import InvalidResource
from fairlead_operator.brokers.calls import BrokerCalls, BrokersUnavailable, survey
from fairlead_operator.brokers.users import bring_cluster_acls, bring_shared_quotas
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    API_VERSION,
    BROKER_COMPONENT,
    CERTIFICATE,
    CLAIM,
    CLUSTER,
    CLUSTER_LABEL,
    COMPONENT_LABEL,
    CONFIG_MAP,
    CONSOLE_COMPONENT,
    DEPLOYMENT,
    ETCD_COMPONENT,
    EVENT,
    OPTIONAL_KINDS,
    OWNED_KINDS,
    POD,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    USER,
    Manifest,
    ObjectRef,
    clients_tls_name,
    metrics_user_name,
)
from fairlead_operator.plan.actions import Outcomes, ReplaceSet
from fairlead_operator.plan.cluster import (
    ClusterPlan,
    Context,
    asks_for_metadata,
    cluster_facts,
    plan_cluster,
)
from fairlead_operator.plan.observed import (
    Observed,
    images_of,
    is_paused,
    newest_image,
    observe_claim,
    observe_console,
    observe_pod,
    observe_refusals,
    observe_set,
    pods_expected,
)
from fairlead_operator.plan.securing.certificates import Certificates
from fairlead_operator.plan.securing.cluster_records import cluster_acls, shared_limits
from fairlead_operator.plan.securing.steps import (
    SECURITY_LEVEL,
    certificates_condition,
    peer_scheme,
    reports_of,
    until_removed,
)
from fairlead_operator.plan.status import cluster_status, paused_status, unreadable_status
from fairlead_operator.ports import Conflict, Forbidden, Invalid, Key, KubernetesApi, NotFound, ObjectCache
from fairlead_operator.reconcile.certificates import CertificatesStep, presented_certificates
from fairlead_operator.reconcile.cluster_actions import ClusterActions, Refusals
from fairlead_operator.reconcile.etcd import EtcdSecurity, EtcdStep, etcd_authorities
from fairlead_operator.reconcile.namespace_end import NamespaceEnd
from fairlead_operator.render import Images, TemplateRefused
from fairlead_operator.render.inputs import Transport
from fairlead_operator.render.metadata import belongs_to
from fairlead_operator.telemetry import Log

REFUSED_SECONDS: Final = 30.0
"""Pause before a refused object is applied again: the operator receives no event when a quota is raised."""
PRUNED_KINDS: Final = tuple(
    kind for kind in OWNED_KINDS if kind not in (SERVICE_ACCOUNT, CONFIG_MAP, STATEFUL_SET)
)
"""Kinds whose objects a pass deletes when they are no longer rendered. StatefulSets are deleted by the plan, and the
only ServiceAccount and ConfigMap of a Cluster are always rendered."""
BLOCKED: Final = frozenset(
    {ConditionName.ROLL_BLOCKED, ConditionName.SCALE_DOWN_BLOCKED, ConditionName.STORAGE_BLOCKED}
)


@dataclass(frozen=True, slots=True)
class Objects:
    """The live objects with the label of one Cluster."""

    pods: list[Manifest]
    sets: list[Manifest]
    claims: list[Manifest]
    services: list[Manifest]
    consoles: list[Manifest]
    """The Deployment of the console, empty for a Cluster without a console."""


class ClusterReconciler:
    """Implements `ports.Reconciler` for Clusters."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        brokers: BrokerCalls,
        etcd: EtcdStep,
        *,
        certificates: CertificatesStep,
        superusers: tuple[str, ...] = (),
        images: Images,
        operator_namespace: str,
        clock: Clock,
        log: Log,
    ) -> None:
        self._api = api
        self._cache = cache
        self._brokers = brokers
        self._etcd = etcd
        self._certificates = certificates
        self._superusers = superusers
        self._images = images
        self._operator_namespace = operator_namespace
        self._clock = clock
        self._refusals = Refusals(clock)
        self._end = NamespaceEnd(api, cache)
        self._log = log

    async def reconcile(self, key: Key) -> float | None:
        """Make one pass; return the seconds until the next pass, or None. Raises `ApiError`."""
        manifest = await self._api.get(ObjectRef(CLUSTER, key.namespace, key.name))
        if manifest is None:
            await self._brokers.forget(key.namespace, key.name)
            self._etcd.forget(key.namespace, key.name)
            return None
        if "deletionTimestamp" in manifest["metadata"]:
            # Kubernetes deletes the objects that the Cluster owns, and nothing else needs to be cleaned up.
            return None
        if self._loses_pods(key) and await self._end.let_go(key.namespace):
            # While a namespace is being deleted, the API server refuses new objects and deletes the existing objects.
            return None
        try:
            cluster = Cluster.parse(manifest)
        except InvalidResource as error:
            await self._report_unreadable(manifest, error)
            return None
        if is_paused(manifest):
            status = paused_status(cluster, self._clock.now())
            await self._write_status(manifest, status.manifest())
            return None
        return await self._bring(cluster, manifest)

    async def _bring(self, cluster: Cluster, manifest: Manifest) -> float | None:
        """Take the next step for every part of the Cluster, and write the status."""
        objects = await self._objects(cluster)
        refusals = await self._refused_pods(cluster, objects)
        seen = self._seen(objects, refusals)
        images = images_of(cluster, seen, self._images)
        observed = await self._asked(cluster, manifest, seen)
        wants_tls = cluster.spec.security is not None
        cluster = until_removed(cluster, observed)
        certificates = await self._certificates_of(cluster, observed, objects)
        look = await self._etcd.look(
            cluster,
            images,
            sets=objects.sets,
            pods=objects.pods,
            claims=objects.claims,
            refusals=refusals,
            now=seen.now,
            secure=None if certificates is None else EtcdSecurity(wants_tls, certificates),
        )
        context = Context(
            images=images,
            transport=self._transport(observed, certificates, wants_tls=wants_tls),
            kinds=frozenset(each.kind for each in OPTIONAL_KINDS if self._cache.serves(each)),
            operator_namespace=self._operator_namespace,
            etcd=look.plan.inputs,
        )
        try:
            plan = plan_cluster(cluster, observed, context)
        except TemplateRefused as error:
            await self._report_invalid(manifest, cluster.status, "InvalidTemplate", str(error))
            return None
        actions = ClusterActions(
            self._api, partial(self._brokers.admin, manifest), manifest, self._refusals, self._log
        )
        await self._apply(cluster, plan, objects, actions.outcomes, certificates)
        done = await self._etcd.act(cluster, manifest, look)
        await actions.run(plan.actions)
        actions.outcomes.refused_quotas += await self._bring_records(cluster, manifest, observed)
        etcd = look.facts(cluster, observed.now, done, cluster.metadata.generation)
        judged = certificates_condition(cluster, observed, certificates)
        facts = cluster_facts(cluster, observed, plan, actions.outcomes, etcd, judged)
        status = cluster_status(facts)
        await self._write_status(manifest, status.manifest())
        await self._write_events(cluster, manifest, status.conditions)
        refused = REFUSED_SECONDS if actions.outcomes.refused_objects else None
        waits = None if certificates is None else certificates.requeue_seconds
        wishes = (plan.requeue_seconds, look.plan.requeue_seconds, refused, waits)
        return min((seconds for seconds in wishes if seconds is not None), default=None)

    async def _certificates_of(
        self, cluster: Cluster, observed: Observed, objects: Objects
    ) -> Certificates | None:
        """Take the next step of the certificates; None for a Cluster without security."""
        if cluster.spec.security is None:
            return None
        reports = reports_of(observed.brokers, etcd_authorities(objects.pods))
        brokers = (each for each in objects.pods if _component(each) == BROKER_COMPONENT)
        return await self._certificates.take(cluster, reports, presented_certificates(brokers))

    async def _bring_records(
        self, cluster: Cluster, manifest: Manifest, observed: Observed
    ) -> tuple[str, ...]:
        """Set the access rules and quotas of the Cluster itself; return reasons why quotas cannot be set.

        After a failure, the next pass tries again.
        """
        answer = observed.brokers
        if cluster.spec.security is None or answer is None or answer.feature_level < SECURITY_LEVEL:
            return ()
        try:
            admin = await self._brokers.admin(manifest)
            await bring_cluster_acls(admin, cluster_acls(cluster))
            return await bring_shared_quotas(admin, shared_limits(cluster))
        except (BrokersUnavailable, ClusterError) as error:
            self._log.info("access rules and quotas not current", cluster=str(_key(manifest)), why=str(error))
            return ()

    def _transport(
        self, observed: Observed, certificates: Certificates | None, *, wants_tls: bool
    ) -> Transport | None:
        if certificates is None or not certificates.authorities:
            return None
        return Transport(
            authorities=certificates.client_authorities,
            authorities_since=certificates.client_authorities_since,
            peer_scheme=peer_scheme(observed, certificates.trusted) if wants_tls else "http",
            superusers=self._superusers,
            names=certificates.names,
        )

    # -- observation

    def _loses_pods(self, key: Key) -> bool:
        """Return whether pods are terminating or missing; a deleted pod that never ran counts as missing at once."""
        pods = self._cache.owned_by(key.namespace, key.name, POD)
        if any("deletionTimestamp" in pod["metadata"] for pod in pods):
            return True
        sets = self._cache.owned_by(key.namespace, key.name, STATEFUL_SET)
        there = [pod for pod in pods if _component(pod) != CONSOLE_COMPONENT]
        missing = sum(each["spec"].get("replicas", 1) for each in sets) - len(there)
        return missing > 0 and self._end.holds_resources(key.namespace)

    async def _objects(self, cluster: Cluster) -> Objects:
        selector = f"{CLUSTER_LABEL}={cluster.name}"
        consoles = () if cluster.spec.console is None else (DEPLOYMENT,)
        kinds = (POD, STATEFUL_SET, CLAIM, SERVICE, *consoles)
        pods, sets, claims, services, *deployments = await asyncio.gather(
            *(self._api.list(kind, cluster.namespace, selector) for kind in kinds)
        )
        return Objects(pods, sets, claims, services, deployments[0] if deployments else [])

    async def _refused_pods(self, cluster: Cluster, objects: Objects) -> dict[str, dict[int, str]]:
        """Return the messages from the API server about refused pods, keyed by StatefulSet and ordinal.

        The StatefulSet controller reports a refusal only in its Events, which are read while pods are missing.
        """
        present = {each["metadata"]["name"] for each in objects.pods}
        refused = dict[str, dict[int, str]]()
        for each in objects.sets:
            name = each["metadata"]["name"]
            missing = {ordinal: pod for ordinal, pod in pods_expected(each).items() if pod not in present}
            if missing:
                about = f"regarding.kind={STATEFUL_SET.kind},regarding.name={name}"
                events = await self._api.list(EVENT, cluster.namespace, fields=about)
                refused[name] = observe_refusals(missing, events)
        return refused

    def _seen(self, objects: Objects, refusals: Mapping[str, Mapping[int, str]]) -> Observed:
        """Return the part of the observed state that comes from Kubernetes objects."""
        sets = [observe_set(each) for each in objects.sets]
        brokers = [each for each in objects.pods if _component(each) == BROKER_COMPONENT]
        members = [each for each in objects.pods if _component(each) == ETCD_COMPONENT]
        now = self._clock.now()
        return Observed(
            now=now,
            console_fault="; ".join(filter(None, (observe_console(each, now) for each in objects.consoles))),
            pods=tuple(pod for each in brokers if (pod := observe_pod(each)) is not None),
            sets=tuple(each for each in sets if each.pool),
            etcd_set=next((each for each in sets if not each.pool), None),
            etcd_image=newest_image(members),
            claims=tuple(claim for each in objects.claims if (claim := observe_claim(each)) is not None),
            services=tuple(objects.services),
            refused={
                broker: words
                for each in sets
                if each.pool
                for broker, words in refusals.get(each.name, {}).items()
            },
        )

    async def _asked(self, cluster: Cluster, manifest: Manifest, seen: Observed) -> Observed:
        """Add the brokers' answers to the observed state.

        Brokers that do not answer are not treated as an error.
        """
        if not seen.pods:
            return replace(seen, silence="no broker pod exists yet")
        try:
            admin = await self._brokers.admin(manifest)
            secure = cluster.spec.security is not None
            answered = replace(
                seen, brokers=await survey(admin, with_metadata=False, with_certificates=secure)
            )
        except (BrokersUnavailable, ClusterError) as error:
            # The message in the status is always the same; the log contains the details, which differ from call to
            # call.
            self._log.debug("brokers do not answer", cluster=str(_key(manifest)), why=str(error))
            return replace(seen, silence="no broker answers the operator")
        if not asks_for_metadata(cluster, answered):
            return answered
        try:
            return replace(seen, brokers=await survey(admin, with_metadata=True, with_certificates=secure))
        except (BrokersUnavailable, ClusterError) as error:
            # The cluster may have too many topics to list within the deadline. Parts of the plan that need no topics
            # continue.
            self._log.info("topics not listed", cluster=str(_key(manifest)), why=str(error))
            return answered

    # -- apply

    async def _apply(
        self,
        cluster: Cluster,
        plan: ClusterPlan,
        objects: Objects,
        outcomes: Outcomes,
        certificates: Certificates | None,
    ) -> None:
        """Apply all rendered objects, and delete other owned objects.

        The refusal of one object does not affect the other objects.
        """
        replaced = {action.name for action in plan.actions if isinstance(action, ReplaceSet)}
        replaced |= {
            each["metadata"]["name"] for each in objects.sets if "deletionTimestamp" in each["metadata"]
        }
        rendered = set[ObjectRef]()
        for manifest in plan.manifests:
            ref = _ref(manifest)
            rendered.add(ref)
            if ref.kind == STATEFUL_SET and ref.name in replaced:
                continue
            if _waits_for_certificates(manifest, cluster, certificates):
                continue
            try:
                await self._apply_one(ref, manifest, cluster, objects)
            except (Forbidden, Invalid, NotFound) as error:
                # The kind of a Certificate exists only where cert-manager is installed.
                outcomes.refused_objects.append(f"{ref}: {error.message}")
            except Conflict as error:
                self._log.info("object changed at the same time", object=str(ref), why=error.message)
        for kind in PRUNED_KINDS:
            for live in self._cache.owned_by(cluster.namespace, cluster.name, kind):
                if _ref(live) not in rendered:
                    await self._delete_own(live, cluster)
        certificate = ObjectRef(CERTIFICATE, cluster.namespace, clients_tls_name(cluster.name))
        if cluster.spec.security is not None and certificate not in rendered:
            await self._delete_certificate(certificate, cluster)
        user = ObjectRef(USER, cluster.namespace, metrics_user_name(cluster.name))
        if (scraper := self._cache.get(user)) is not None and user not in rendered:
            await self._delete_own(scraper, cluster)

    async def _apply_one(
        self, ref: ObjectRef, manifest: Manifest, cluster: Cluster, objects: Objects
    ) -> None:
        if ref.kind == STATEFUL_SET:
            live = next((each for each in objects.sets if each["metadata"]["name"] == ref.name), None)
        else:
            live = self._cache.get(ref)
        if live is None:
            live = await self._api.get(ref)
        if live is not None and not belongs_to(live, cluster.name, cluster.metadata.uid):
            raise Invalid(422, "NotOurs", "an object of this name exists that the operator did not create")
        await self._api.apply_if_changed(manifest, live)

    async def _delete_certificate(self, ref: ObjectRef, cluster: Cluster) -> None:
        """Delete the Certificate of an issuer that the Cluster no longer names.

        Certificates are not watched, since the kind exists only where cert-manager is installed. If the operator has no
        permission to read Certificates, it cannot have created one.
        """
        try:
            live = await self._api.get(ref)
        except Forbidden:
            return
        if live is not None:
            await self._delete_own(live, cluster)

    async def _delete_own(self, live: Manifest, cluster: Cluster) -> None:
        """Delete an object, unless the operator did not create it or its deletion has begun."""
        if (
            not belongs_to(live, cluster.name, cluster.metadata.uid)
            or "deletionTimestamp" in live["metadata"]
        ):
            return
        try:
            await self._api.delete(_ref(live), uid=live["metadata"]["uid"])
        except Conflict:
            # Another object with the same name exists now.
            return

    # -- status and Events

    async def _write_status(self, manifest: Manifest, status: dict[str, object]) -> None:
        metadata = {name: manifest["metadata"][name] for name in ("name", "namespace")}
        wanted = {"apiVersion": API_VERSION, "kind": CLUSTER.kind, "metadata": metadata, "status": status}
        await self._api.apply_status_if_changed(wanted, manifest)

    async def _report_unreadable(self, manifest: Manifest, error: InvalidResource) -> None:
        """Report an unreadable Cluster in its status, and change nothing else in the status."""
        try:
            before = ClusterStatus.model_validate(manifest.get("status") or {})
        except ValueError:
            before = ClusterStatus()
        await self._report_invalid(manifest, before, "Unreadable", "; ".join(map(str, error.faults)))

    async def _report_invalid(self, manifest: Manifest, before: ClusterStatus, reason: str, why: str) -> None:
        generation = manifest["metadata"].get("generation", 0)
        status = unreadable_status(before, reason, why, now=self._clock.now(), generation=generation)
        await self._write_status(manifest, status.manifest())
        self._log.warning("Cluster not reconciled", cluster=str(_key(manifest)), reason=reason, why=why)

    async def _write_events(self, cluster: Cluster, manifest: Manifest, now: tuple[Condition, ...]) -> None:
        """Write an Event for every new condition that reports a blocked change."""
        before = {each.type for each in cluster.status.conditions}
        for each in now:
            if each.type in BLOCKED and each.type not in before:
                await self._api.event(manifest, "Warning", each.type, f"{each.reason}: {each.message}")


def _waits_for_certificates(manifest: Manifest, cluster: Cluster, certificates: Certificates | None) -> bool:
    """Return whether an object's new pods would lack a certificate, or present one that clients do not trust yet."""
    if manifest["kind"] not in (STATEFUL_SET.kind, DEPLOYMENT.kind) or cluster.spec.security is None:
        return False
    if certificates is None or not certificates.authorities:
        return True
    is_late = certificates.missing or certificates.held
    return bool(is_late) and _component(manifest) == BROKER_COMPONENT


def _key(manifest: Manifest) -> Key:
    return Key(CLUSTER.kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"])


def _component(manifest: Manifest) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(COMPONENT_LABEL, ""))


def _ref(manifest: Manifest) -> ObjectRef:
    kind = next(each for each in (*OWNED_KINDS, CERTIFICATE, USER) if each.kind == manifest["kind"])
    return ObjectRef(kind, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
