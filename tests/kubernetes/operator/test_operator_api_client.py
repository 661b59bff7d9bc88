"""The operator's client of the API server: its writes, the fields that it leaves alone, and its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.api_server.client import ApiClient, Requests, reference_to
from fairlead_operator.api_server.connection import Connection
from fairlead_operator.api_server.events import BURST, REFILL_SECONDS, Events
from fairlead_operator.clock import SystemClock
from fairlead_operator.naming import CLUSTER, CONFIG_MAP, SERVICE, Manifest, ObjectRef
from fairlead_operator.ports import Conflict, Forbidden, Invalid, NotFound, Unavailable
from fairlead_operator.render import EtcdInputs, Images, RenderInputs, render_cluster
from fairlead_operator.telemetry import Telemetry
from operator_process import ACCOUNT, Operators
from refusals import raises

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from doors import Door

LOG = structlog.get_logger()


class Laboratory:
    """Clients with the rights of one operator."""

    def __init__(self, operators: Operators, namespace: str, server: str | None = None) -> None:
        self.kubernetes = operators.kubernetes
        self.namespace = namespace
        self.user = operators.grant(namespace)
        self.kubeconfig = self.kubernetes.account_kubeconfig(ACCOUNT, namespace, server=server)
        self.open: list[Requests] = []

    async def client(self, may_write: Callable[[], float] = lambda: 3600.0) -> ApiClient:
        """Return a client that has no memory of earlier writes."""
        connection = Connection(self.kubeconfig)
        await connection.load()
        requests = Requests(connection, Telemetry(LOG), lambda: 0.5)
        self.open.append(requests)
        return ApiClient(requests, LOG, may_write=may_write, seen=lambda kind, manifest: None)

    def writes(self, since: int) -> list[str]:
        """Return the writes of the operator's account since a mark."""
        events = self.kubernetes.audit(since=since, user=self.user, writes=True)
        return [f"{event.verb} {event.resource}/{event.name}" for event in events]


@pytest.fixture
async def laboratory(operators: Operators, namespace: str) -> AsyncIterator[Laboratory]:
    """Yield clients of a namespace that only this test uses."""
    made = Laboratory(operators, namespace)
    yield made
    for requests in made.open:
        await requests.close()


def a_service(namespace: str, **spec: Any) -> Manifest:
    """Return a Service to apply."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "it", "namespace": namespace, "labels": {"ours": "1", "also": "2"}},
        "spec": {"ports": [{"name": "http", "port": 9520}], "selector": {"app": "x"}, **spec},
    }


async def test_what_is_drawn_is_written_once(laboratory: Laboratory) -> None:
    """Unchanged objects of a Cluster are applied only once, regardless of the fields that the server added."""
    kubernetes, namespace = laboratory.kubernetes, laboratory.namespace
    (made,) = kubernetes.api.apply(
        {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": "main", "namespace": namespace},
            "spec": {
                "brokers": [
                    {
                        "name": "a",
                        "replicas": 3,
                        "storage": {"size": "1024Mi"},
                        "resources": {"requests": {"cpu": "0.1", "memory": "1024Mi"}},
                    }
                ]
            },
        }
    )
    etcd = EtcdInputs(replicas=3)
    inputs = RenderInputs(
        images=Images("localhost/fairlead:dev", "localhost/fairlead-etcd:dev"),
        pool_replicas={"a": 3},
        etcd=etcd,
        kinds=frozenset(),
        operator_namespace=namespace,
    )
    drawn = render_cluster(Cluster.parse(made), inputs)
    api = await laboratory.client()
    first = [await api.apply_if_changed(manifest, None) for manifest in drawn]
    kubernetes.api.wait(
        "statefulset/main-a", namespace, lambda found: found and found["status"].get("readyReplicas") == 3
    )
    mark = kubernetes.audit_mark()
    again = []
    # The second client has no memory of the first client's writes, as after a restart.
    for each in (api, await laboratory.client()):
        for manifest in drawn:
            live = await each.get(reference_to(manifest))
            again.append((str(reference_to(manifest)), await each.apply_if_changed(manifest, live)))

    assert all(first)
    assert [name for name, changed in again if changed] == []
    assert laboratory.writes(mark) == []


async def test_drift_is_reverted_and_foreign_fields_stay(laboratory: Laboratory) -> None:
    """A changed field of the operator is restored, a dropped field is removed, and fields of other writers stay."""
    api, kube = await laboratory.client(), laboratory.kubernetes.api
    service = a_service(laboratory.namespace)
    ref = reference_to(service)
    await api.apply_if_changed(service, None)
    kube.patch(
        "service/it",
        laboratory.namespace,
        {
            "metadata": {"labels": {"ours": "stolen", "theirs": "1"}},
            "spec": {"selector": {"b": "z"}},
        },
    )
    reverted = await api.apply_if_changed(service, await api.get(ref))
    after = await api.get(ref)
    less = a_service(laboratory.namespace)
    del less["metadata"]["labels"]["also"]
    taken = await api.apply_if_changed(less, after)
    last = await api.get(ref)

    assert reverted
    assert after is not None
    assert after["metadata"]["labels"] == {"ours": "1", "also": "2", "theirs": "1"}
    assert after["spec"]["selector"] == {"app": "x"}
    assert taken
    assert last is not None
    assert last["metadata"]["labels"] == {"ours": "1", "theirs": "1"}
    assert not await api.apply_if_changed(less, last)


async def test_objects_of_others_are_left_alone(laboratory: Laboratory) -> None:
    """An object that another owner controls is refused, and an object without an owner is adopted."""
    api, kube, namespace = await laboratory.client(), laboratory.kubernetes.api, laboratory.namespace
    foreign = a_service(namespace)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "other", "controller": True}
    (root,) = kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, namespace)
    foreign["metadata"]["ownerReferences"] = [{**owner, "uid": root["metadata"]["uid"]}]
    kube.apply(foreign)

    owned = a_service(namespace)
    owned["metadata"]["ownerReferences"] = [owner]

    with raises(Conflict, "ConfigMap"):
        await api.apply_if_changed(owned, None)

    free = {**a_service(namespace), "metadata": {"name": "free", "namespace": namespace}}
    kube.apply(free)
    ours = {**free, "metadata": {**free["metadata"], "labels": {"ours": "1"}}}

    assert await api.apply_if_changed(ours, None)


async def test_answers_become_errors_by_the_next_move(laboratory: Laboratory) -> None:
    """Answers for missing, refused, invalid and outdated objects become different errors with the server's message."""
    api, namespace = await laboratory.client(), laboratory.namespace
    service = a_service(namespace)
    ref = reference_to(service)
    made = await api.apply(service)

    assert await api.get(ObjectRef(SERVICE, namespace, "none")) is None
    assert not await api.delete(ObjectRef(SERVICE, namespace, "none"))
    with pytest.raises(NotFound):
        await api.patch(ObjectRef(SERVICE, namespace, "none"), {"metadata": {}})
    with raises(Forbidden, "secrets"):
        await api.list(type(SERVICE)("v1", "Secret", "secrets"), namespace)
    with raises(Invalid, "ports"):
        await api.apply(a_service(namespace, ports=[{"port": 70000}]))
    with raises(Invalid, "unknown"):
        await api.apply({**service, "spec": {**service["spec"], "unknown": 1}}, dry_run=True)
    with pytest.raises(Conflict):
        await api.patch(ref, {"metadata": {"labels": {"a": "b"}}}, resource_version="1")
    with pytest.raises(Invalid):
        await api.patch(ref, [{"op": "remove", "path": "/spec/none"}], resource_version="1")
    with pytest.raises(Conflict):
        await api.delete(ref, uid="another")
    assert await api.delete(ref, uid=made["metadata"]["uid"])
    assert [each["kind"] for each in await api.list(CONFIG_MAP, namespace)] == ["ConfigMap"]


@pytest.mark.scenario
async def test_faults_of_the_server_are_waited_out(door: Door, operators: Operators, namespace: str) -> None:
    """A request is retried after 429, 5xx, lost and slow answers within the deadline, but not after a conflict."""
    laboratory = Laboratory(operators, namespace, door.server)
    api = await laboratory.client()
    door.answer(429, times=1)
    door.answer(503, times=1)
    door.answer(500, times=1, methods=["PATCH"], after=True)
    first = await api.apply_if_changed(a_service(namespace), None)
    door.answer(409, times=1, methods=["PATCH"])
    with pytest.raises(Conflict):
        await api.apply(a_service(namespace))
    door.clear()
    door.go_away()
    with pytest.raises(Unavailable):
        await (await laboratory.client(lambda: 1.0)).apply(a_service(namespace))
    door.clear()
    live = await api.get(reference_to(a_service(namespace)))
    for requests in laboratory.open:
        await requests.close()

    assert first
    assert live is not None
    assert not await api.apply_if_changed(a_service(namespace), live)


async def test_an_operator_without_leadership_writes_nothing(laboratory: Laboratory) -> None:
    """An operator that no longer leads sends no writes and continues to read."""
    api, namespace = await laboratory.client(lambda: 0.0), laboratory.namespace
    mark = laboratory.kubernetes.audit_mark()
    service = a_service(namespace)
    with pytest.raises(Unavailable):
        await api.apply_if_changed(service, None)
    with pytest.raises(Unavailable):
        await api.delete(reference_to(service))
    with pytest.raises(Unavailable):
        await api.patch(reference_to(service), {})

    assert await api.list(SERVICE, namespace) == []
    assert laboratory.writes(mark) == []


class JumpingClock(SystemClock):
    """The machine's clock plus the jumps of the test."""

    ahead = 0.0

    def monotonic(self) -> float:
        """Return seconds, including the jumps."""
        return super().monotonic() + self.ahead

    def now(self) -> datetime:
        """Return the wall time, which does not jump."""
        return super().now()


async def test_equal_events_are_one_series_with_a_count(laboratory: Laboratory) -> None:
    """Events with the same text about the same object are one series, even from the next operator."""
    api, namespace = await laboratory.client(), laboratory.namespace
    (about,) = laboratory.kubernetes.api.apply(
        {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": "main", "namespace": namespace},
            "spec": {"brokers": [{"name": "a", "replicas": 1, "storage": {"size": "1Gi"}}]},
        }
    )
    clock = JumpingClock()
    first, second = (Events(api, clock, LOG, instance=name) for name in ("one", "two"))
    mark = laboratory.kubernetes.audit_mark()
    await first.write(about, "Warning", "RollBlocked", "waits for orders-3")
    await first.write(about, "Warning", "RollBlocked", "waits for orders-3")
    twice = the_event(laboratory, "RollBlocked")
    for _ in range(2 * BURST):
        await first.write(about, "Warning", "RollBlocked", "waits for orders-3")
    writes = laboratory.writes(mark)
    clock.ahead = REFILL_SECONDS + 1
    await first.write(about, "Warning", "RollBlocked", "waits for orders-3")
    await second.write(about, "Warning", "RollBlocked", "waits for orders-3")
    await first.write(about, "Normal", "Restarted", "restarted broker 1" + "!" * 2000)
    blocked, restarted = (the_event(laboratory, reason) for reason in ("RollBlocked", "Restarted"))

    assert twice["series"]["count"] == 2
    assert twice["series"]["lastObservedTime"] >= twice["eventTime"]
    assert len(writes) == 1 + BURST
    assert blocked["note"] == "waits for orders-3"
    assert blocked["series"]["count"] == 2 + 2 * BURST + 2
    assert restarted["note"].startswith("restarted broker 1")
    assert "series" not in restarted
    assert {each["regarding"]["kind"] for each in (blocked, restarted)} == {CLUSTER.kind}


def the_event(laboratory: Laboratory, reason: str) -> Manifest:
    """Return the only Event about the Cluster `main` with the given reason."""
    [found] = [
        event
        for event in laboratory.kubernetes.api.list("events.events.k8s.io", laboratory.namespace)
        if event["regarding"].get("name") == "main"
        and event["reportingController"] == "fairlead-operator"
        and event["reason"] == reason
    ]
    return found
