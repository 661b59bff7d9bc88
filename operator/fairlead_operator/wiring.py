"""Composition root of the operator: builds all packages, connects them and runs the operator.

The operator stops in a fixed order. The workers stop before anything else, so that no further pass starts. If the
operator leads and its own namespace is being deleted, the operator removes its finalizer from the resources in this
namespace. The Lease is released after the workers have stopped, so that two leaders never act at the same time. All
other tasks stop last.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from fairlead_api.resources.conditions import needs_attention
from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.api_server.client import ApiClient, Requests
from fairlead_operator.api_server.connection import Connection, own_namespace
from fairlead_operator.api_server.events import Events
from fairlead_operator.api_server.leadership import LEASE_CALL_SECONDS, Leadership
from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.brokers.identity import OperatorIdentity
from fairlead_operator.brokers.topics import TopicCalls
from fairlead_operator.clock import Clock, SystemClock, system_chance
from fairlead_operator.etcd_members import EtcdMembersClient
from fairlead_operator.naming import (
    CLUSTER,
    ETCD_BACKUP,
    LEASE,
    LINK,
    REBALANCE,
    SERVICE_ACCOUNT,
    TOPIC,
    USER,
    Kind,
    Manifest,
    ObjectRef,
)
from fairlead_operator.plan.observed import is_paused
from fairlead_operator.ports import Key, KubernetesApi, ObjectCache, Reconciler
from fairlead_operator.reconcile.certificates import CertificatesStep
from fairlead_operator.reconcile.cluster import ClusterReconciler
from fairlead_operator.reconcile.etcd import EtcdStep
from fairlead_operator.reconcile.etcd_backup import EtcdBackupReconciler
from fairlead_operator.reconcile.lasting_rights import LastingRights
from fairlead_operator.reconcile.link import LinkReconciler
from fairlead_operator.reconcile.loop import WorkLoop
from fairlead_operator.reconcile.namespace_end import NamespaceEnd, let_go_at_the_end
from fairlead_operator.reconcile.rebalance import RebalanceReconciler
from fairlead_operator.reconcile.topic import TopicReconciler
from fairlead_operator.reconcile.user import UserReconciler
from fairlead_operator.render import Images
from fairlead_operator.settings import Listen, OperatorSettings
from fairlead_operator.telemetry import ConditionRow, Log, RebalanceRow, Telemetry
from fairlead_operator.watching.events import quieten
from fairlead_operator.watching.listener import serve
from fairlead_operator.watching.routing import RESOURCES
from fairlead_operator.watching.supervision import Watching

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Dependencies of the reconcilers."""

    api: KubernetesApi
    cache: WatchedObjects
    brokers: BrokerCalls
    own: OperatorIdentity
    etcd: EtcdMembersClient
    settings: OperatorSettings
    namespace: str
    """Namespace of the operator."""
    clock: Clock
    telemetry: Telemetry


async def run_operator(settings: OperatorSettings, telemetry: Telemetry, stop: asyncio.Event) -> None:
    """Run the operator until `stop` is set. Raises `NoConnection` if the address of the API server is unknown."""
    quieten()
    log = telemetry.log
    clock, chance = SystemClock(), system_chance()
    namespace = settings.pod_namespace or own_namespace() or DEFAULT_NAMESPACE
    # The identity is unique, since a process that restarts under the same pod name must not consider itself the leader.
    identity = f"{settings.pod_name or socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"  # noqa: TID251
    connection = Connection(settings.kubeconfig, settings.context)
    await connection.load()
    cache = WatchedObjects()
    requests = Requests(connection, telemetry, chance, identity=identity)
    # Renewals of the Lease use separate connections, so that a renewal never queues behind other requests.
    lease_requests = Requests(connection, telemetry, chance, identity=identity)
    lease_calls = ApiClient(
        lease_requests, log, may_write=_always, seen=_ignore, deadline_seconds=LEASE_CALL_SECONDS
    )
    lease = ObjectRef(LEASE, namespace, settings.lease_name)
    leadership = Leadership(lease_calls, lease, identity, clock, log)
    event_calls = ApiClient(requests, log, may_write=_always, seen=_ignore)
    events = Events(event_calls, clock, log, instance=settings.pod_name or identity)
    api = ApiClient(
        requests, log, may_write=leadership.seconds_left, seen=_into(lambda: watching), announce=events.write
    )
    watching = Watching(
        api, connection, cache, settings.scope(namespace), identity=identity, clock=clock, log=log
    )
    own = _identity(settings, namespace, api, cache, clock)
    brokers, etcd = BrokerCalls(settings.broker_url, identity=own), EtcdMembersClient()
    parts = Parts(
        api=api,
        cache=cache,
        brokers=brokers,
        own=own,
        etcd=etcd,
        settings=settings,
        namespace=namespace,
        clock=clock,
        telemetry=telemetry,
    )
    rights = LastingRights(api, cache, settings.role_binding, log)
    work = WorkLoop(
        make_reconcilers(parts, rights),
        term=leadership,
        existing=lambda: _existing(cache),
        prepare=partial(rights.begin, settings.scope(namespace).namespaces),
        exists=lambda key: cache.get(_ref_of(key)) is not None,
        resync_seconds=settings.resync_seconds,
        clock=clock,
        chance=chance,
        telemetry=telemetry,
    )
    watching.set_sink(work)
    _show(telemetry, cache, leadership, watching)
    log.info("operator starts", namespace=namespace, watches=settings.scope(namespace).namespaces or "*")
    last = partial(_leave, NamespaceEnd(api, cache), rights, namespace, log)
    await _run(settings.metrics_listen, telemetry, watching, leadership, work, stop, last)
    for open_calls in (brokers, etcd, requests, lease_requests):
        await open_calls.close()
    log.info("operator has stopped")


def _identity(
    settings: OperatorSettings, namespace: str, api: ApiClient, cache: WatchedObjects, clock: Clock
) -> OperatorIdentity:
    """Return the identity with which the operator calls the brokers of Clusters with security."""
    name = settings.service_account
    account = ObjectRef(SERVICE_ACCOUNT, namespace, name) if name else None
    return OperatorIdentity(api, cache, clock, account, settings.broker_url, settings.broker_tls_url)


async def _leave(end: NamespaceEnd, rights: LastingRights, namespace: str, log: Log) -> None:
    """Remove finalizers whose objects could otherwise not be deleted after this operator stops. Never raises."""
    await let_go_at_the_end(end, namespace, log)
    await rights.end()


async def _run(
    listen: Listen,
    telemetry: Telemetry,
    watching: Watching,
    leadership: Leadership,
    work: WorkLoop,
    stop: asyncio.Event,
    last: Callable[[], Awaitable[None]],
) -> None:
    """Serve probes, watch objects and reconcile until `stop` is set."""

    def unready() -> str:
        return "" if watching.filled.is_set() else "the objects of the API server are not listed yet"

    async with (
        serve(listen, telemetry, unhealthy=watching.unhealthy, unready=unready) as port,
        asyncio.TaskGroup() as group,
    ):
        telemetry.log.info("metrics listener is ready", port=port)
        watch = group.create_task(watching.run())
        await _work_until(stop, watching, leadership, work, last)
        watch.cancel()


async def _work_until(
    stop: asyncio.Event,
    watching: Watching,
    leadership: Leadership,
    work: WorkLoop,
    last: Callable[[], Awaitable[None]],
) -> None:
    """Take part in the election and reconcile until `stop` is set, then stop work, run `last` and end the election."""
    async with asyncio.TaskGroup() as group:
        election = group.create_task(_elect(watching, leadership))
        worker = group.create_task(work.run())
        await stop.wait()
        worker.cancel()
        await asyncio.wait([worker])
        if leadership.leads:
            await last()
        election.cancel()


async def _elect(watching: Watching, leadership: Leadership) -> None:
    """Wait for the first list of objects, then take part in the election."""
    await watching.filled.wait()
    await leadership.run()


def make_reconcilers(parts: Parts, rights: LastingRights) -> Mapping[str, Reconciler]:
    """Return the reconciler of each kind of resource."""
    settings, clock, log = parts.settings, parts.clock, parts.telemetry.log
    clusters = ClusterReconciler(
        parts.api,
        parts.cache,
        parts.brokers,
        EtcdStep(parts.api, parts.etcd, url=settings.etcd_url, tls_url=settings.etcd_tls_url, log=log),
        certificates=CertificatesStep(parts.api, clock, log),
        superusers=parts.own.superusers,
        images=Images(settings.image, settings.etcd_image),
        operator_namespace=parts.namespace,
        clock=clock,
        log=log,
    )
    calls = TopicCalls(parts.brokers, clock)
    topics = TopicReconciler(parts.api, parts.cache, calls, clock, rights)
    rebalances = RebalanceReconciler(parts.api, parts.cache, calls, parts.brokers, clock, rights)
    backups = EtcdBackupReconciler(parts.api, parts.cache, clock, image=settings.image)
    return {
        CLUSTER.kind: clusters,
        TOPIC.kind: topics,
        USER.kind: UserReconciler(parts.api, parts.cache, parts.brokers, clock, rights),
        REBALANCE.kind: rebalances,
        ETCD_BACKUP.kind: backups,
        LINK.kind: LinkReconciler(parts.api, parts.cache, parts.brokers, clock, rights),
    }


def _into(keeper: Callable[[], Watching]) -> Callable[[Kind, Manifest], object]:
    """Return a function that passes writes to `Watching`, which can only be built after the client."""
    return lambda kind, manifest: keeper().written(kind, manifest)


def _existing(cache: WatchedObjects) -> Iterator[Key]:
    for kind in RESOURCES:
        for ref in cache.refs(kind):
            yield Key(kind.kind, ref.namespace, ref.name)


def _ref_of(key: Key) -> ObjectRef:
    kind = next(each for each in RESOURCES if each.kind == key.kind)
    return ObjectRef(kind, key.namespace, key.name)


def _show(telemetry: Telemetry, cache: WatchedObjects, leadership: Leadership, watching: Watching) -> None:
    """Bind the gauges to the state that they report."""
    telemetry.on_scrape(telemetry.leader, lambda: float(leadership.leads))
    telemetry.on_scrape(telemetry.watch_age_seconds, watching.silent_seconds)
    telemetry.show_conditions(partial(condition_rows, cache))
    telemetry.show_rebalances(partial(rebalance_rows, cache))
    for kind in RESOURCES:
        telemetry.on_scrape(telemetry.resources, partial(cache.count, kind), kind.kind)
        telemetry.on_scrape(telemetry.resources_paused, partial(_paused, cache, kind), kind.kind)
        telemetry.on_scrape(telemetry.resources_not_ready, partial(_not_ready, cache, kind), kind.kind)


def condition_rows(cache: ObjectCache) -> Iterator[ConditionRow]:
    """Yield a row of metrics for each reported condition, which another release may have written."""
    for kind in RESOURCES:
        for manifest in cache.all(kind):
            metadata = manifest["metadata"]
            for each in (manifest.get("status") or {}).get("conditions") or []:
                type_, status = str(each.get("type", "")), str(each.get("status", ""))
                if kind == CLUSTER or needs_attention(type_, status):
                    reason = str(each.get("reason", ""))
                    yield ConditionRow(
                        kind.kind, metadata["namespace"], metadata["name"], type_, status, reason
                    )


def rebalance_rows(cache: ObjectCache) -> Iterator[RebalanceRow]:
    """Yield a row of metrics for each Rebalance that moves partitions."""
    for manifest in cache.all(REBALANCE):
        metadata, status = manifest["metadata"], manifest.get("status") or {}
        progress = status.get("progress") or {}
        if status.get("state") == "Rebalancing" and progress:
            left = int(progress.get("partitionsTotal", 0)) - int(progress.get("partitionsMoved", 0))
            yield RebalanceRow(metadata["namespace"], metadata["name"], left)


def _paused(cache: WatchedObjects, kind: Kind) -> float:
    return float(sum(map(is_paused, cache.all(kind))))


def _not_ready(cache: WatchedObjects, kind: Kind) -> float:
    return float(sum(not _is_ready(manifest) for manifest in cache.all(kind)))


def _is_ready(manifest: Manifest) -> bool:
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _always() -> float:
    return math.inf


def _ignore(kind: Kind, manifest: Manifest) -> None:
    del kind, manifest
