"""Reconciles a Link: the credentials for its source, the link of the cluster, and promotions of its mirrors.

The order is safe if the operator crashes at any step: the finalizer is set before the link is created, and the
credentials are stored before the brokers call the source. The link is deleted before its credentials. All decisions are
made by `plan.linking`.
"""

from __future__ import annotations

import contextlib
from typing import Final

from fairlead import Admin
from fairlead.errors import ClusterError
from fairlead_api.problems import ProblemError
from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.link import Link, LinkStatus
from fairlead_api.resources.resource import InvalidResource
from fairlead_operator.brokers.calls import BrokerCalls, BrokersUnavailable
from fairlead_operator.brokers.links import (
    LinkRefused,
    carry_out,
    delete_link,
    find_link,
    list_topics,
    promote,
)
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    CLUSTER,
    LINK,
    LINK_FINALIZER,
    SECRET,
    Manifest,
    ObjectRef,
    link_credentials_name,
)
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.linking.link import plan_link, to_promote
from fairlead_operator.plan.linking.status import (
    LinkOutcome,
    findings_of,
    interrupted_status,
    is_waiting,
    link_status,
    unreadable_status,
)
from fairlead_operator.plan.observed import is_paused
from fairlead_operator.plan.topic_admission import is_leaving
from fairlead_operator.ports import Conflict, Key, KubernetesApi, NotFound, ObjectCache
from fairlead_operator.reconcile.finalizers import is_held, take_off
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.namespace_end import NamespaceEnd
from fairlead_operator.reconcile.statuses import status_manifest
from fairlead_operator.render.links import credentials_of, empty_credentials
from fairlead_operator.render.metadata import belongs_to

CONFLICT_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 15.0
"""Interval at which the lag, the source and the Secrets of a Link are read again, since no watch reports them."""
PROMOTION_SECONDS: Final = 2.0
"""Interval at which promotions in progress are checked."""
REQUEST_TIMEOUT: Final = "15s"
"""Time for the answer to one request, in which brokers ask the source."""
QUIET: Final = frozenset({"ClusterNotFound", "ClusterNotReady", "ClusterPaused", "Deleting"})
"""Reasons that are not reported by an Event, since the Cluster has its own Events."""


class LinkReconciler:
    """Implements `ports.Reconciler` for Links."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        brokers: BrokerCalls,
        clock: Clock,
        rights: LastingRights,
    ) -> None:
        self._api = api
        self._cache = cache
        self._brokers = brokers
        self._clock = clock
        self._rights = rights
        self._end = NamespaceEnd(api, cache)

    async def reconcile(self, key: Key) -> float | None:
        """See `ports.Reconciler`."""
        try:
            pause = await self._pass(key)
            await self._rights.settle(key.namespace)
        except Conflict:
            return CONFLICT_SECONDS
        return pause

    async def _pass(self, key: Key) -> float | None:
        manifest = await self._api.get(ObjectRef(LINK, key.namespace, key.name))
        if manifest is None:
            return None
        try:
            link = Link.parse(manifest)
        except InvalidResource as error:
            await self._report_unreadable(manifest, error)
            return None
        reference = ObjectRef(CLUSTER, link.namespace, link.spec.cluster_ref.name)
        cluster = self._cache.get(reference)
        if link.metadata.deletion_timestamp is not None:
            return await self._remove(link, manifest, cluster)
        if is_paused(manifest):
            paused = Finding("Annotation", "the annotation fairlead.dev/paused is set on this Link")
            await self._interrupt(link, manifest, ConditionName.RECONCILIATION_PAUSED, paused)
            return None
        if cluster is None or is_leaving(cluster):
            await take_off(self._api, manifest)
            missing = Finding("ClusterNotFound", f"{reference} does not exist or is being deleted")
            await self._report(link, manifest, LinkOutcome(findings=(missing,)))
            return None
        if is_paused(cluster):
            paused = Finding("ClusterPaused", f"{reference} is paused")
            await self._interrupt(link, manifest, ConditionName.READY, paused)
            return None
        if not await self._hold(link, manifest):
            return None
        return await self._bring(link, manifest, cluster)

    async def _bring(self, link: Link, manifest: Manifest, cluster: Manifest) -> float:
        """Make the link match its resource, and report the link as the brokers then describe it."""
        finding = await self._publish(link, cluster)
        try:
            admin = await self._brokers.admin(cluster, request_timeout=REQUEST_TIMEOUT)
            if finding is None:
                finding = await self._change(link, admin)
            live, topics = await find_link(admin, link.name), await list_topics(admin, link.name)
            found = () if live is None else findings_of(live, topics)
            outcome = LinkOutcome(
                findings=found if finding is None else (finding, *found), live=live, topics=topics
            )
        except (BrokersUnavailable, ClusterError) as error:
            silent = Finding("ClusterNotReady", f"the cluster did not carry out the request: {error}")
            outcome = LinkOutcome(findings=(silent,) if finding is None else (finding, silent))
        await self._report(link, manifest, outcome)
        return PROMOTION_SECONDS if is_waiting(link, outcome.topics) else LOOK_SECONDS

    async def _change(self, link: Link, admin: Admin) -> Finding | None:
        """Create or change the link, and begin promotions; return the reason why the brokers refuse a call."""
        try:
            plan = plan_link(link, await find_link(admin, link.name))
            if plan.conflict is not None:
                return plan.conflict
            await carry_out(admin, link.name, plan)
            chosen = link.spec.promote
            if chosen is not None:
                topics = to_promote(link, await list_topics(admin, link.name))
                await promote(admin, link.name, topics, failover=chosen.mode == "Failover")
        except LinkRefused as error:
            return error.finding
        except ProblemError as problem:
            return Finding("LinkRefused", f"{problem.code}: {problem.detail}")
        return None

    async def _publish(self, link: Link, cluster: Manifest) -> Finding | None:
        """Store the credentials of the link where the brokers read them; return a finding if they are missing."""
        source = link.spec.source
        named = {
            each.name for each in (source.credentials_secret_ref, source.ca_secret_ref) if each is not None
        }
        secrets = {
            name: await self._api.get(ObjectRef(SECRET, link.namespace, name)) for name in sorted(named)
        }
        keys, missing = credentials_of(link, secrets)
        if missing is not None:
            return Finding("CredentialsMissing", missing)
        return await self._store(link, cluster, keys)

    async def _store(self, link: Link, cluster: Manifest, keys: dict[str, str | None]) -> Finding | None:
        """Change the keys of a link in the Secret of all links, which other Links change at the same time (rule K6)."""
        ref = ObjectRef(SECRET, link.namespace, link_credentials_name(link.spec.cluster_ref.name))
        stored = await self._api.get(ref)
        data = (stored or {}).get("data") or {}
        changes = {key: text for key, text in keys.items() if data.get(key) != text}
        if not changes:
            return None
        if stored is None:
            await self._api.apply(empty_credentials(Cluster.parse(cluster)))
        elif not belongs_to(stored, cluster["metadata"]["name"], cluster["metadata"]["uid"]):
            return Finding("SecretNotOurs", f"Secret {ref.name} exists and does not belong to the Cluster")
        await self._api.patch(ref, {"data": changes})
        return None

    async def _remove(self, link: Link, manifest: Manifest, cluster: Manifest | None) -> float | None:
        """Delete the link, unless the cluster is deleted, and release the resource."""
        if not is_held(manifest):
            return None
        if cluster is not None and not is_leaving(cluster):
            finding = await self._delete(link, cluster)
            if finding is not None and not await self._end.has_begun(link.namespace):
                await self._interrupt(link, manifest, ConditionName.READY, finding)
                return LOOK_SECONDS
        await take_off(self._api, manifest)
        return None

    async def _delete(self, link: Link, cluster: Manifest) -> Finding | None:
        try:
            await delete_link(await self._brokers.admin(cluster), link.name)
            keys, _ = credentials_of(link, {})
            await self._store(link, cluster, dict.fromkeys(keys))
        except LinkRefused as error:
            return error.finding
        except (BrokersUnavailable, ClusterError) as error:
            return Finding("Deleting", f"the link is not deleted yet: {error}")
        return None

    async def _hold(self, link: Link, manifest: Manifest) -> bool:
        """Add the operator's finalizer; return False if the resource no longer exists."""
        if is_held(manifest):
            return True
        await self._rights.hold(link.namespace)
        patch: Manifest = {"metadata": {"finalizers": [*link.metadata.finalizers, LINK_FINALIZER]}}
        version = manifest["metadata"]["resourceVersion"]
        try:
            await self._api.patch(ObjectRef(LINK, link.namespace, link.name), patch, resource_version=version)
        except NotFound:
            return False
        return True

    async def _interrupt(self, link: Link, manifest: Manifest, name: ConditionName, finding: Finding) -> None:
        await self._write(link, manifest, interrupted_status(link, name, finding, self._clock.now()))

    async def _report(self, link: Link, manifest: Manifest, outcome: LinkOutcome) -> None:
        before = find_condition(link.status.conditions, ConditionName.READY)
        known_gap = find_condition(link.status.conditions, ConditionName.GAP)
        status = link_status(link, outcome, self._clock.now())
        await self._write(link, manifest, status)
        gap = find_condition(status.conditions, ConditionName.GAP)
        if gap is not None and (known_gap is None or known_gap.message != gap.message):
            await self._api.event(manifest, "Warning", gap.reason, gap.message)
        finding = outcome.findings[0] if outcome.findings else None
        if finding is None or finding.reason in QUIET or (before and before.reason == finding.reason):
            return
        await self._api.event(manifest, "Warning", finding.reason, finding.message)

    async def _write(self, link: Link, manifest: Manifest, status: LinkStatus) -> None:
        with contextlib.suppress(NotFound):
            await self._api.apply_status_if_changed(
                status_manifest(ObjectRef(LINK, link.namespace, link.name), status.manifest()), manifest
            )

    async def _report_unreadable(self, manifest: Manifest, error: InvalidResource) -> None:
        metadata = manifest["metadata"]
        if metadata.get("deletionTimestamp") is not None:
            await take_off(self._api, manifest)
            return
        try:
            before = LinkStatus.model_validate(manifest.get("status") or {})
        except ValueError:
            before = LinkStatus()
        status = unreadable_status(before, metadata.get("generation", 0), str(error), self._clock.now())
        published = status_manifest(
            ObjectRef(LINK, metadata["namespace"], metadata["name"]), status.manifest()
        )
        await self._api.apply_status_if_changed(published, manifest)
