"""The page docs/explanation/rooms.md lists the modules that run when the number of replicas changes."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from fairlead_operator.api_server.cache import WatchedObjects
from fairlead_operator.api_server.client import ApiClient, Request, collection, path_of
from fairlead_operator.api_server.connection import Connection
from fairlead_operator.brokers.calls import BrokerCalls
from fairlead_operator.etcd_members import EtcdMembersClient
from fairlead_operator.naming import CLUSTER, STATEFUL_SET, Kind, Manifest, ObjectRef
from fairlead_operator.ports import Key, NotFound
from fairlead_operator.reconcile.certificates import CertificatesStep
from fairlead_operator.reconcile.cluster import ClusterReconciler
from fairlead_operator.reconcile.etcd import EtcdStep
from fairlead_operator.reconcile.loop import WorkLoop
from fairlead_operator.settings import Scope
from fairlead_operator.telemetry import Telemetry
from fairlead_operator.watching import supervision
from fairlead_operator.watching.events import EventThread
from fairlead_operator.watching.routing import CHILDREN, RESOURCES
from fairlead_operator.watching.supervision import Watching
from memory_api import StandingClock
from render_kit import IMAGES, POOL
from way_kit import Trace, listed, tracing

if TYPE_CHECKING:
    import pytest

NO_BROKER = "http://127.0.0.1:1"
MAIN = ObjectRef(CLUSTER, "shop", "main")
BROKERS = ObjectRef(STATEFUL_SET, "shop", "main-a")
BESIDE = {
    "api/resources/conditions.py": "value: a condition",
    "api/resources/quantities.py": "value: a quantity of Kubernetes",
    "operator/naming.py": "value: names and kinds",
    "operator/ports.py": "value: a key of the queue",
    "operator/plan/etcd.py": "another part: members of etcd",
    "operator/plan/etcd_health.py": "another part: members of etcd",
    "operator/plan/etcd_view.py": "another part: members of etcd",
    "operator/plan/roll.py": "another part: restarts of pods",
    "operator/plan/securing/etcd_transport.py": "another part: TLS of etcd",
    "operator/plan/securing/listeners.py": "another part: TLS, which the Cluster does not have",
    "operator/plan/securing/steps.py": "another part: TLS, which the Cluster does not have",
    "operator/plan/status.py": "another part: the status",
    "operator/reconcile/cluster_actions.py": "another part: actions, of which a growth has none",
    "operator/reconcile/namespace_end.py": "another part: a namespace that is being deleted",
    "operator/render/configuration.py": "another object: the configuration of the brokers",
    "operator/render/etcd.py": "another object: the StatefulSet of etcd",
    "operator/render/etcd_restore.py": "another part: the start of etcd from a snapshot",
    "operator/render/fingerprints.py": "value: the hash of a pod template",
    "operator/render/links.py": "another part: credentials of links",
    "operator/render/merge.py": "value: a template of the user over the rendered one",
    "operator/render/metadata.py": "value: names and labels",
    "operator/render/policies.py": "another object: network policies and budgets",
    "operator/render/routes.py": "another object: the Ingress and routes of the Gateway API",
    "operator/render/security.py": "another part: TLS, which the Cluster does not have",
    "operator/render/services.py": "another object: Services",
}
"""Modules that run in the pass but are not needed to understand the change, each with its reason."""
WITHOUT_A_CALL = {
    "api/resources/cluster_parts.py": "fields of a Cluster, which have no function of their own",
    "operator/brokers/calls.py": "brokers are asked once a pod exists, and no pod runs here",
    "operator/watching/events.py": "kopf calls it in a thread, with events of a real API server",
}
"""Modules that the page lists although no function of them runs in this test, each with its reason."""


class MemoryServer:
    """Objects of an API server, by the path of their URL."""

    def __init__(self) -> None:
        self.objects: dict[str, Manifest] = {}
        self._version = 0

    def put(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """Store an object under a new resource version, and return a copy of it."""
        self._version += 1
        named = {"name": ref.name, "namespace": ref.namespace, "uid": f"uid-{ref.name}"}
        metadata = {**manifest.get("metadata", {}), **named, "resourceVersion": str(self._version)}
        typed = {"apiVersion": ref.kind.api_version, "kind": ref.kind.kind}
        self.objects[path_of(ref)] = {**manifest, **typed, "metadata": metadata}
        return copy.deepcopy(self.objects[path_of(ref)])

    async def send(
        self, request: Request, *, still_allowed: Callable[[], float] | None = None
    ) -> dict[str, Any]:
        """Answer a request as `Requests` does."""
        del still_allowed
        path, status, _ = request.path.partition("/status")
        if request.method == "GET" and request.path.count("/") == 3:
            kinds = {kind.kind for kind in (*RESOURCES, *CHILDREN) if path.endswith(kind.api_version)}
            return {"resources": [{"kind": kind} for kind in kinds]}
        if request.method == "GET" and "limit" in request.query:
            labels = dict(
                each.split("=") for each in request.query.get("labelSelector", "").split(",") if each
            )
            items = [each for key, each in self.objects.items() if key.startswith(f"{path}/")]
            wanted = [
                each for each in items if labels.items() <= (each["metadata"].get("labels") or {}).items()
            ]
            return copy.deepcopy({"items": wanted, "metadata": {}})
        if request.method == "GET":
            if path not in self.objects:
                raise NotFound(404, "NotFound", path)
            return copy.deepcopy(self.objects[path])
        assert request.method == "PATCH", request
        live = self.objects.get(path, {})
        kind = next(
            kind
            for kind in (*RESOURCES, *CHILDREN)
            if kind.kind == request.body["kind"] and collection(kind, "shop") == path.rpartition("/")[0]
        )
        part = {**live, "status": request.body["status"]} if status else {**request.body}
        return self.put(ObjectRef(kind, "shop", path.rpartition("/")[2]), part)


class HandedEvents(EventThread):
    """A watch that delivers the events of the test."""

    current: HandedEvents

    def start(self) -> None:
        """Start no thread."""
        HandedEvents.current = self

    @property
    def alive(self) -> bool:
        """Whether the watch still runs, which it does until the end of the test."""
        return True

    async def stop(self, seconds: float) -> None:
        """Do nothing, because this stand-in has nothing to stop."""

    def hand(self, manifest: Manifest) -> None:
        """Report a change of a Cluster."""
        self._deliver(CLUSTER, "MODIFIED", manifest)


class Always:
    """A leadership that begins at once and never ends."""

    async def wait_until_leading(self) -> None:
        """Return at once."""

    async def wait_until_lost(self) -> None:
        """Wait forever."""
        await asyncio.Event().wait()


class CountedPasses:
    """Reconciler that announces the end of each pass."""

    def __init__(self, reconciler: ClusterReconciler) -> None:
        self._reconciler = reconciler
        self.ended = asyncio.Event()

    async def reconcile(self, key: Key) -> float | None:
        """Make a pass."""
        try:
            return await self._reconciler.reconcile(key)
        finally:
            self.ended.set()


def operator_on(server: MemoryServer) -> tuple[Watching, WorkLoop, CountedPasses]:
    """Return the operator's watch and loop over a server, with the passes that the loop runs."""
    log, clock, cache = structlog.get_logger(), StandingClock(), WatchedObjects()

    def written(kind: Kind, manifest: Manifest) -> None:
        watching.written(kind, manifest)

    api = ApiClient(server, log, may_write=lambda: 60.0, seen=written)
    watching = Watching(
        api, Connection(Path("none")), cache, Scope(("shop",)), identity="a", clock=clock, log=log
    )
    passes = CountedPasses(
        ClusterReconciler(
            api,
            cache,
            BrokerCalls(NO_BROKER),
            EtcdStep(api, EtcdMembersClient(), url=NO_BROKER, tls_url=NO_BROKER, log=log),
            certificates=CertificatesStep(api, clock, log),
            images=IMAGES,
            operator_namespace="operators",
            clock=clock,
            log=log,
        )
    )

    async def prepare() -> None:
        await watching.filled.wait()

    work = WorkLoop(
        {CLUSTER.kind: passes},
        term=Always(),
        existing=lambda: [Key(CLUSTER.kind, MAIN.namespace, MAIN.name)],
        exists=lambda key: True,
        prepare=prepare,
        resync_seconds=1000.0,
        clock=clock,
        chance=lambda: 0.5,
        telemetry=Telemetry(log),
    )
    watching.set_sink(work)
    return watching, work, passes


async def test_the_page_lists_the_way_of_a_change_of_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the event of a changed Cluster to the patch of a StatefulSet, the listed modules run."""
    monkeypatch.setattr(supervision, "EventThread", HandedEvents)
    server = MemoryServer()
    watching, work, passes = operator_on(server)
    cluster = server.put(MAIN, {"spec": {"brokers": [POOL]}})

    def replicas() -> int:
        return server.objects[path_of(BROKERS)]["spec"]["replicas"]

    async def change() -> None:
        wanted = cluster["spec"]["brokers"][0]["replicas"] + 1
        cluster["spec"]["brokers"] = [{**POOL, "replicas": wanted}]
        passes.ended.clear()
        HandedEvents.current.hand(
            server.put(MAIN, {**server.objects[path_of(MAIN)], "spec": cluster["spec"]})
        )
        await passes.ended.wait()
        assert replicas() == wanted

    trace = Trace(BESIDE, "operator")
    with tracing(trace):
        tasks = [asyncio.create_task(each.run()) for each in (watching, work)]
        await passes.ended.wait()
        way = await trace.of(change)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    assert way == set(listed("A change of")) - WITHOUT_A_CALL.keys()
    assert len(listed("A change of")) <= 20
