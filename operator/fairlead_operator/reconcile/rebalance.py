"""One pass over a Rebalance: computes a proposal, carries out an approved proposal, or cancels its moves.

The finalizer is set before the first move and removed after the last move, so that the deletion of a Rebalance cancels
the moves in progress. The state of a Rebalance is stored in its status before the pass that acts on the state. Moves
are started by calls to the brokers, which continue the moves without the operator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.rebalance import Rebalance, RebalanceStatus
from fairlead_api.resources.resource import InvalidResource
from fairlead_operator.brokers.calls import BrokerCalls, BrokersUnavailable
from fairlead_operator.brokers.moves import bytes_left, set_rates
from fairlead_operator.brokers.topics import TopicCalls, TopicChanged, TopicRefused
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    CLUSTER,
    REBALANCE,
    REBALANCE_ANNOTATION,
    REBALANCE_FINALIZER,
    Manifest,
    ObjectRef,
)
from fairlead_operator.plan.findings import Finding, with_interruption, with_unreadable_spec
from fairlead_operator.plan.observed import is_paused
from fairlead_operator.plan.rebalancing.status import RebalanceOutcome, rebalance_status
from fairlead_operator.plan.rebalancing.steps import (
    RebalancePlan,
    Step,
    needs_topics,
    plan_rebalance,
    plan_withdrawal,
    unpaced,
)
from fairlead_operator.plan.topic_admission import is_leaving
from fairlead_operator.plan.topic_observed import LiveTopics
from fairlead_operator.ports import Conflict, Invalid, Key, KubernetesApi, NotFound, ObjectCache
from fairlead_operator.reconcile.finalizers import is_held, take_off
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.namespace_end import NamespaceEnd
from fairlead_operator.reconcile.statuses import status_manifest

MOVING_SECONDS: Final = 3.0
"""Interval at which the progress of moves is checked."""
WAIT_SECONDS: Final = 10.0
"""Pause before brokers that do not answer are called again, or an obstacle is checked again."""
OUTDATED_SECONDS: Final = 60.0
"""Interval at which a proposal that waits for approval is compared with the cluster."""
CONFLICT_SECONDS: Final = 0.5
"""Pause after a conflict with another writer of the resource, during which the watch reports the other writer's
change."""
QUIET: Final = frozenset({"ClusterNotFound", "ClusterNotReady", "ClusterPaused"})
"""Reasons that are not reported by an Event, since the Cluster has its own Events."""


class RebalanceReconciler:
    """Implements `ports.Reconciler` for Rebalances."""

    def __init__(
        self,
        api: KubernetesApi,
        cache: ObjectCache,
        topics: TopicCalls,
        brokers: BrokerCalls,
        clock: Clock,
        rights: LastingRights,
    ) -> None:
        self._api = api
        self._cache = cache
        self._topics = topics
        self._brokers = brokers
        self._clock = clock
        self._rights = rights
        self._end = NamespaceEnd(api, cache)
        self._decision = asyncio.Lock()

    async def reconcile(self, key: Key) -> float | None:
        """See `ports.Reconciler`."""
        try:
            pause = await self._pass(key)
            await self._rights.settle(key.namespace)
        except Conflict:
            return CONFLICT_SECONDS
        return pause

    async def _pass(self, key: Key) -> float | None:
        manifest = self._cache.get(ObjectRef(REBALANCE, key.namespace, key.name))
        if manifest is None:
            return None
        try:
            rebalance = Rebalance.parse(manifest)
        except InvalidResource as error:
            await self._report_unreadable(manifest, error)
            return None
        if rebalance.metadata.deletion_timestamp is not None:
            return await self._withdraw(rebalance, manifest)
        if is_paused(manifest):
            paused = Finding("Annotation", "the annotation fairlead.dev/paused is set on this Rebalance")
            await self._interrupt(rebalance, manifest, ConditionName.RECONCILIATION_PAUSED, paused)
            return None
        reference = ObjectRef(CLUSTER, rebalance.namespace, rebalance.spec.cluster_ref.name)
        cluster = self._cache.get(reference)
        if cluster is None or is_leaving(cluster):
            await take_off(self._api, manifest)
            missing = Finding("ClusterNotFound", f"{reference} does not exist or is being deleted")
            await self._report(rebalance, manifest, RebalanceOutcome(findings=(missing,)))
            return None
        if is_paused(cluster):
            paused = Finding("ClusterPaused", f"{reference} is paused")
            await self._interrupt(rebalance, manifest, ConditionName.READY, paused)
            return None
        return await self._advance(rebalance, manifest, cluster)

    async def _advance(self, rebalance: Rebalance, manifest: Manifest, cluster: Manifest) -> float | None:
        if rebalance.status.state != "Rebalancing":
            # Approvals are decided one at a time, so that two Rebalances of a Cluster never begin at the same time.
            async with self._decision:
                return await self._work(rebalance, manifest, cluster)
        if not is_held(manifest):
            return 0.0 if await self._hold(rebalance, manifest) else None
        return await self._work(rebalance, manifest, cluster)

    async def _work(self, rebalance: Rebalance, manifest: Manifest, cluster: Manifest) -> float | None:
        left: int | None = None
        try:
            live = await self._listed(rebalance, cluster)
            # A thread computes the proposal, which takes seconds for thousands of partitions, so that the event loop
            # can renew the Lease.
            plan = await asyncio.to_thread(plan_rebalance, rebalance, live, self._other(rebalance))
            refused = await self._pace(cluster, plan.rates) or await self._run(cluster, plan.steps)
            if plan.standing is not None and plan.standing.moving:
                admin = await self._brokers.admin(cluster)
                left = await bytes_left(admin, {move.place for move in plan.standing.moving})
        except BrokersUnavailable as error:
            silent = Finding("ClusterNotReady", f"the cluster did not carry out the request: {error}")
            await self._report(rebalance, manifest, RebalanceOutcome(findings=(silent,)))
            return WAIT_SECONDS
        outcome = RebalanceOutcome(plan=plan, findings=refused, bytes_left=left)
        await self._report(rebalance, manifest, outcome)
        await self._finish(rebalance, manifest, plan)
        return _pause(rebalance, plan)

    async def _listed(self, rebalance: Rebalance, cluster: Manifest) -> LiveTopics:
        """Return the topics of the cluster: from a fresh listing, or during moves from a listing that passes share."""
        if not needs_topics(rebalance):
            return LiveTopics((), {})
        live = await self._topics.topics(cluster, fresh=rebalance.status.state != "Rebalancing")
        return LiveTopics(live.brokers, dict(live.topics))

    async def _finish(self, rebalance: Rebalance, manifest: Manifest, plan: RebalancePlan) -> None:
        """Write Events, and remove the annotation and the finalizer, after the status was stored."""
        if plan.answered:
            await self._remove_answer(rebalance)
        if plan.state != rebalance.status.state:
            await self._api.event(manifest, "Normal", *_news(plan))
        if plan.state != "Rebalancing" and is_held(manifest):
            await self._release(rebalance)

    async def _run(self, cluster: Manifest, steps: tuple[Step, ...]) -> tuple[Finding, ...]:
        """Make all calls, even after a refused call; return the refusals. Raises `BrokersUnavailable`."""
        refused = list[Finding]()
        for step in steps:
            try:
                await self._topics.run(cluster, step.place.topic, None, step.action)
            except TopicRefused as error:
                refused.append(Finding("BrokersRefused", str(error)))
            except TopicChanged:
                # The next pass lists the topics again, and skips the partition if it no longer exists.
                continue
        return tuple(refused)

    async def _pace(self, cluster: Manifest, rates: Mapping[int, int | None]) -> tuple[Finding, ...]:
        """Set the rates of the brokers; return the refusals, any of which prevents all moves.

        Raises `BrokersUnavailable`.
        """
        if not rates:
            return ()
        refusal = await set_rates(await self._brokers.admin(cluster), rates)
        return (Finding("BrokersRefused", refusal),) if refusal else ()

    def _other(self, rebalance: Rebalance) -> str | None:
        """Return the name of another Rebalance of the same Cluster whose moves are in progress."""
        for manifest in self._cache.all(REBALANCE, rebalance.namespace):
            reference = (manifest.get("spec") or {}).get("clusterRef") or {}
            same = reference.get("name") == rebalance.spec.cluster_ref.name
            moves = (manifest.get("status") or {}).get("state") == "Rebalancing"
            if same and moves and manifest["metadata"]["uid"] != rebalance.metadata.uid:
                return str(manifest["metadata"]["name"])
        return None

    # -- deletion

    async def _withdraw(self, rebalance: Rebalance, manifest: Manifest) -> float | None:
        """Cancel the moves of a Rebalance that is being deleted, and then release the resource."""
        if not is_held(manifest):
            return None
        cluster = self._cache.get(ObjectRef(CLUSTER, rebalance.namespace, rebalance.spec.cluster_ref.name))
        ending = await self._end.has_begun(rebalance.namespace)
        if cluster is None or is_leaving(cluster) or ending:
            await self._release(rebalance)
            return None
        steps: tuple[Step, ...] = ()
        try:
            steps = plan_withdrawal(rebalance, await self._topics.topics(cluster, fresh=True))
            refused = await self._run(cluster, steps)
            if not steps:
                refused = await self._pace(cluster, unpaced(rebalance))
        except BrokersUnavailable as error:
            refused = (Finding("BrokersRefused", str(error)),)
        if refused:
            why = "; ".join(each.message for each in refused)
            waits = Finding("Deleting", f"the moves are not cancelled yet: {why}")
            await self._interrupt(rebalance, manifest, ConditionName.READY, waits)
            return WAIT_SECONDS
        if steps:
            return MOVING_SECONDS
        await self._api.event(manifest, "Normal", "RebalanceStopped", "the moves in progress are cancelled")
        await self._release(rebalance)
        return None

    # -- writes

    async def _hold(self, rebalance: Rebalance, manifest: Manifest) -> bool:
        """Add the operator's finalizer; return False if the resource is deleted or its namespace is being deleted."""
        if is_held(manifest):
            return True
        if await self._end.has_begun(rebalance.namespace):
            return False
        await self._rights.hold(rebalance.namespace)
        patch: Manifest = {"metadata": {"finalizers": [*rebalance.metadata.finalizers, REBALANCE_FINALIZER]}}
        try:
            await self._api.patch(
                _ref(rebalance), patch, resource_version=manifest["metadata"]["resourceVersion"]
            )
        except NotFound:
            return False
        return True

    async def _release(self, rebalance: Rebalance) -> None:
        """Remove the operator's finalizer from the live resource."""
        live = await self._api.get(_ref(rebalance))
        if live is not None and live["metadata"]["uid"] == rebalance.metadata.uid:
            await take_off(self._api, live)

    async def _remove_answer(self, rebalance: Rebalance) -> None:
        """Remove the annotation unless a user has changed its value since this value took effect."""
        answer = rebalance.metadata.annotations[REBALANCE_ANNOTATION]
        path = f"/metadata/annotations/{REBALANCE_ANNOTATION.replace('/', '~1')}"
        patch: list[Manifest] = [
            {"op": "test", "path": path, "value": answer},
            {"op": "remove", "path": path},
        ]
        with contextlib.suppress(NotFound, Invalid):
            await self._api.patch(_ref(rebalance), patch)

    async def _interrupt(
        self, rebalance: Rebalance, manifest: Manifest, name: ConditionName, finding: Finding
    ) -> None:
        conditions = with_interruption(rebalance.status.conditions, name, finding, self._clock.now())
        await self._write(rebalance, manifest, rebalance.status.model_copy(update={"conditions": conditions}))

    async def _report(self, rebalance: Rebalance, manifest: Manifest, outcome: RebalanceOutcome) -> None:
        before = find_condition(rebalance.status.conditions, ConditionName.READY)
        await self._write(rebalance, manifest, rebalance_status(rebalance, outcome, self._clock.now()))
        found = (*outcome.findings, *(outcome.plan.findings if outcome.plan is not None else ()))
        if found and found[0].reason not in QUIET and (before is None or before.reason != found[0].reason):
            await self._api.event(manifest, "Warning", found[0].reason, found[0].message)

    async def _write(self, rebalance: Rebalance, manifest: Manifest, status: RebalanceStatus) -> None:
        with contextlib.suppress(NotFound):
            await self._api.apply_status_if_changed(
                status_manifest(ObjectRef(REBALANCE, rebalance.namespace, rebalance.name), status.manifest()),
                manifest,
            )

    async def _report_unreadable(self, manifest: Manifest, error: InvalidResource) -> None:
        """Report an invalid resource in its status; remove the finalizer if the resource is being deleted."""
        metadata = manifest["metadata"]
        if metadata.get("deletionTimestamp") is not None:
            await take_off(self._api, manifest)
            return
        try:
            before = RebalanceStatus.model_validate(manifest.get("status") or {})
        except ValueError:
            before = RebalanceStatus()
        generation = metadata.get("generation", 0)
        conditions = with_unreadable_spec(
            before.conditions, str(error), now=self._clock.now(), generation=generation
        )
        status = before.model_copy(update={"conditions": conditions, "observed_generation": generation})
        wanted = status_manifest(
            ObjectRef(REBALANCE, metadata["namespace"], metadata["name"]), status.manifest()
        )
        await self._api.apply_status_if_changed(wanted, manifest)


def _ref(rebalance: Rebalance) -> ObjectRef:
    return ObjectRef(REBALANCE, rebalance.namespace, rebalance.name)


def _pause(rebalance: Rebalance, plan: RebalancePlan) -> float | None:
    """Return the seconds until the next pass, or None if the next pass waits for a change to the resource."""
    if plan.findings:
        return WAIT_SECONDS
    if plan.state == "Rebalancing":
        return MOVING_SECONDS if rebalance.status.state == "Rebalancing" else 0.0
    if plan.state == "ProposalReady":
        return 0.0 if rebalance.spec.approval == "Automatic" else OUTDATED_SECONDS
    return 0.0 if plan.state == "ProposalPending" else None


def _news(plan: RebalancePlan) -> tuple[str, str]:
    """Return reason and message of the Event about a new state."""
    match plan.state:
        case "ProposalPending" | "ProposalReady":
            count = len(plan.proposal.moves) if plan.proposal is not None else 0
            return "ProposalReady", f"{count} partitions would move"
        case "Rebalancing":
            return "RebalanceStarted", "the moves of the proposal begin"
        case "Completed":
            return "RebalanceCompleted", "every move is finished"
        case "Stopped":
            return "RebalanceStopped", "the moves in progress are cancelled"
