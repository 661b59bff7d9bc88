"""Executes the actions of a Cluster's plan, through the Kubernetes API or through the brokers' API.

A failed action does not stop the following actions. If the brokers do not answer a call, they are not called again in
the same pass. The outcomes are collected for the status. This module makes no decisions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, assert_never

from fairlead import Admin
from fairlead.errors import BrokerNotFoundError, ClusterError, NotPossibleNowError, RestartRefusedError
from fairlead_operator.brokers.calls import BrokersUnavailable, broker_deadline
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    ANNOUNCED_ADDRESS_ANNOTATION,
    CLAIM,
    CLUSTER,
    POD,
    RESTART_ANNOTATION,
    STATEFUL_SET,
    Kind,
    Manifest,
    ObjectRef,
)
from fairlead_operator.plan.actions import (
    Action,
    AlterConfig,
    BrokerAction,
    CordonBroker,
    DeleteSet,
    DrainBroker,
    MarkPod,
    NoteAddress,
    Outcomes,
    ReplaceSet,
    ResizeClaim,
    RestartBroker,
    RestartRefusal,
    ShrinkSet,
    UncordonBroker,
    UndrainBroker,
    UnmarkCluster,
    UnregisterBroker,
    WriteEvent,
)
from fairlead_operator.ports import Conflict, Forbidden, Invalid, KubernetesApi, NotFound
from fairlead_operator.telemetry import Log

REFUSED_SECONDS: Final = 60.0
"""Pause before a refused resize of a claim is requested again: the operator receives no event when a storage class
changes."""


class Refusals:
    """Recently refused resizes, which should not be requested again in every pass of a long roll."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[tuple[str, ResizeClaim], tuple[float, str]] = {}

    def of(self, namespace: str, order: ResizeClaim) -> str | None:
        """Return why a resize was refused recently; None if the resize may be tried."""
        at, why = self._known.get((namespace, order), (-REFUSED_SECONDS, ""))
        if self._clock.monotonic() - at >= REFUSED_SECONDS or not why:
            self._known.pop((namespace, order), None)
            return None
        return why

    def add(self, namespace: str, order: ResizeClaim, why: str) -> None:
        """Remember a refused resize."""
        self._known[(namespace, order)] = (self._clock.monotonic(), why)


class ClusterActions:
    """Executes the actions of one Cluster's plan once."""

    def __init__(
        self,
        api: KubernetesApi,
        admin: Callable[[], Awaitable[Admin]],
        cluster: Manifest,
        refusals: Refusals,
        log: Log,
    ) -> None:
        self._api = api
        self._refusals = refusals
        self._admin = admin
        self._cluster = cluster
        self._namespace: str = cluster["metadata"]["namespace"]
        self._log = log
        self.outcomes = Outcomes()

    async def run(self, actions: tuple[Action, ...]) -> None:
        """Execute the actions in order. Raises `ApiError` if Kubernetes does not answer."""
        for action in actions:
            await self._run(action)

    async def _run(self, action: Action) -> None:
        match action:
            case RestartBroker():
                await self._restart(action)
            case ResizeClaim():
                await self._resize(action)
            case ReplaceSet(name, uid):
                await self._delete(STATEFUL_SET, name, uid, orphan=True)
            case DeleteSet(name, uid):
                await self._delete(STATEFUL_SET, name, uid)
                await self._write_event(
                    "PoolRemoved", f"StatefulSet {name} has no brokers left and was deleted"
                )
            case ShrinkSet(name, replicas):
                await self._patch(STATEFUL_SET, name, {"spec": {"replicas": replicas}})
            case NoteAddress(claim, address):
                noted = {"metadata": {"annotations": {ANNOUNCED_ADDRESS_ANNOTATION: address}}}
                await self._patch(CLAIM, claim, noted)
            case MarkPod(pod, value):
                await self._patch(POD, pod, {"metadata": {"annotations": {RESTART_ANNOTATION: value}}})
            case UnmarkCluster():
                unmarked = {"metadata": {"annotations": {RESTART_ANNOTATION: None}}}
                await self._patch(CLUSTER, self._cluster["metadata"]["name"], unmarked)
            case WriteEvent(reason, message, warning):
                await self._write_event(reason, message, warning=warning)
            case _:
                await self._ask_brokers(action)

    # -- Kubernetes

    async def _restart(self, order: RestartBroker) -> None:
        """Delete a pod; if the order requires a permit, request the permit from the brokers first."""
        if order.permit and not await self._is_permitted(order.broker):
            return
        reasons = ", ".join(order.reasons)
        if order.claim is not None:
            # Kubernetes removes the claim once no pod uses the claim, and the new pod gets a new claim.
            await self._delete(CLAIM, *order.claim)
        if not await self._delete(POD, order.pod, order.uid):
            return
        if order.announced_address is not None:
            claim, address = order.announced_address
            noted = {"metadata": {"annotations": {ANNOUNCED_ADDRESS_ANNOTATION: address or None}}}
            await self._patch(CLAIM, claim, noted)
        self.outcomes.restarted.append(order)
        self._log.info("broker restarted", broker=order.broker, pod=order.pod, reasons=reasons)
        await self._write_event(
            "BrokerRestarted", f"broker {order.broker} is restarted (pod {order.pod}): {reasons}"
        )

    async def _is_permitted(self, broker: int) -> bool:
        if self.outcomes.unavailable:
            return False
        try:
            async with broker_deadline(f"permit to restart broker {broker}"):
                await (await self._admin()).request_restart(broker)
        except BrokersUnavailable as error:
            self.outcomes.unavailable = str(error)
        except RestartRefusedError as refusal:
            named = refusal.data.get("partitions")
            partitions = tuple(map(str, named)) if isinstance(named, list) else ()
            self.outcomes.refusals.append(RestartRefusal(broker, refusal.detail, partitions))
        except BrokerNotFoundError:
            # The broker has stopped since the state was observed; the next pass needs no permit for a stopped broker.
            self._log.info("broker is no longer registered", broker=broker)
        except ClusterError as refusal:
            # Every other error from the cluster counts as a refused permit and does not abort the pass.
            self.outcomes.refusals.append(RestartRefusal(broker, refusal.detail))
        else:
            return True
        return False

    async def _resize(self, order: ResizeClaim) -> None:
        patch = {"spec": {"resources": {"requests": {"storage": order.size}}}}
        known = self._refusals.of(self._namespace, order)
        if known is not None:
            self.outcomes.refused_resizes.append(known)
            return
        try:
            await self._api.patch(self._ref(CLAIM, order.claim), patch)
        except (Forbidden, Invalid) as error:
            self._refusals.add(self._namespace, order, error.message)
            self.outcomes.refused_resizes.append(error.message)
        except (NotFound, Conflict):
            return
        else:
            await self._write_event("ClaimResized", f"claim {order.claim} is being enlarged to {order.size}")

    async def _delete(self, kind: Kind, name: str, uid: str, *, orphan: bool = False) -> bool:
        try:
            return await self._api.delete(
                self._ref(kind, name), uid=uid, propagation="Orphan" if orphan else "Background"
            )
        except Conflict:
            # Another object with the same name exists now.
            return False

    async def _patch(self, kind: Kind, name: str, patch: Manifest) -> None:
        try:
            await self._api.patch(self._ref(kind, name), patch)
        except NotFound:
            return

    def _ref(self, kind: Kind, name: str) -> ObjectRef:
        return ObjectRef(kind, self._namespace, name)

    async def _write_event(self, reason: str, message: str, *, warning: bool = False) -> None:
        await self._api.event(self._cluster, "Warning" if warning else "Normal", reason, message)

    # -- brokers

    async def _ask_brokers(self, action: BrokerAction) -> None:
        if self.outcomes.unavailable:
            return
        try:
            async with broker_deadline(str(action)):
                await self._ask(await self._admin(), action)
        except BrokersUnavailable as error:
            self.outcomes.unavailable = str(error)
        except (BrokerNotFoundError, NotPossibleNowError) as refusal:
            # The state has changed since it was observed; the next pass makes a new plan.
            self._log.info("request refused by the brokers", action=str(action), why=refusal.detail)
        except ClusterError as refusal:
            self.outcomes.refused_calls.append(refusal.detail)

    async def _ask(self, admin: Admin, action: BrokerAction) -> None:
        match action:
            case CordonBroker(broker):
                await admin.cordon_broker(broker)
            case UncordonBroker(broker):
                await admin.uncordon_broker(broker)
            case DrainBroker(broker):
                await admin.drain_broker(broker)
                await self._write_event(
                    "BrokerDrained", f"broker {broker} is draining before it leaves the cluster"
                )
            case UndrainBroker(broker):
                await admin.undrain_broker(broker)
                await self._write_event(
                    "BrokerKept", f"broker {broker} stays in the cluster: draining was stopped"
                )
            case UnregisterBroker(broker):
                await admin.unregister_broker(broker)
                await self._write_event("BrokerRemoved", f"broker {broker} has left the cluster")
            case AlterConfig(changes):
                await admin.alter_cluster_config(changes)
                keys = ", ".join(sorted(changes))
                await self._write_event("ConfigApplied", f"configuration applied without a restart: {keys}")
            case _:
                assert_never(action)
