"""The operator's foundation on a real API server: rights, leadership, late definitions, faults of the server.

Other tests check the objects of a Cluster and their changes. In the tests of this file, a deleted Service that is
created again shows that the operator works.
"""

from __future__ import annotations

import signal
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from operator_process import OperatorProcess, Operators, install_definitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from doors import Door
    from kubernetes_under_test import Kubernetes

Manifest = dict[str, Any]
TAKEOVER_SECONDS = 20.0
POD_MONITORS: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


def a_cluster(name: str = "main") -> Manifest:
    """Return a small Cluster with one etcd member."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": {
            "brokers": [{"name": "a", "replicas": 1, "storage": {"size": "1Gi"}}],
            "etcd": {"managed": {"replicas": 1, "storage": {"size": "1Gi"}}},
        },
    }


def bring_back(kubernetes: Kubernetes, namespace: str, name: str = "main-bootstrap") -> None:
    """Delete a Service and wait until the operator has created it again."""
    before = kubernetes.api.wait(f"service/{name}", namespace, bool)["metadata"]["uid"]
    kubernetes.api.delete(f"service/{name}", namespace)
    kubernetes.api.wait(
        f"service/{name}", namespace, lambda found: found and found["metadata"]["uid"] != before
    )


@pytest.fixture
def operators_alone(kubernetes_alone: Kubernetes, tmp_path: Path) -> Iterator[Operators]:
    """Yield a starter of operators in an exclusive control plane, initially without definitions."""
    starter = Operators(kubernetes_alone, tmp_path)
    try:
        yield starter
    finally:
        starter.stop_all()


@pytest.mark.scenario
def test_namespaces_are_all_that_it_needs(
    kubernetes: Kubernetes, operators: Operators, namespace: str
) -> None:
    """An operator works in its own namespace or in listed namespaces without a forbidden request."""
    listed = kubernetes.namespace()
    mark = kubernetes.audit_mark()
    quick = {"FAIRLEAD_OPERATOR_RESYNC_SECONDS": "5", "FAIRLEAD_OPERATOR_LOG_LEVEL": "debug"}
    own = operators.start(namespace, environment=quick)
    other = operators.start(kubernetes.namespace(), scope="list", watch=[listed, kubernetes.namespace()])
    for each in (namespace, listed):
        kubernetes.api.apply(a_cluster(), each)
        bring_back(kubernetes, each)
        kubernetes.api.wait(
            "statefulset/main-a", each, lambda found: found and found["status"].get("readyReplicas") == 1
        )
    settled = own.wait_for("object reconciled", seen=own.count("object reconciled") + 1)
    idle = kubernetes.audit_mark()
    own.wait_for("object reconciled", seen=own.count("object reconciled") + 2)
    metrics = operators.ask(own, "/metrics")

    assert settled["key"] == f"Cluster {namespace}/main"
    assert operators.writes(own.user, idle) == []
    assert 'fairlead_operator_reconcile_total{kind="Cluster",result="ok"}' in metrics
    assert "fairlead_operator_leader 1.0" in metrics
    assert operators.ask(own, "/healthz") == operators.ask(own, "/readyz") == "ok\n"
    assert operators.forbidden(own.user, mark) + operators.forbidden(other.user, mark) == []
    assert own.stop() == 0
    assert own.count("lease released") == 1


@pytest.mark.scenario
def test_a_listed_namespace_that_is_not_there_keeps_no_other_waiting(
    kubernetes: Kubernetes, operators: Operators, namespace: str
) -> None:
    """An operator reports that a listed namespace does not exist, and works in all other namespaces."""
    missing = f"{namespace}-gone"
    kubernetes.api.apply(a_cluster(), namespace)
    named = {"FAIRLEAD_OPERATOR_NAMESPACES": f"{missing},{namespace}"}
    operator = operators.start(kubernetes.namespace(), scope="list", watch=[namespace], environment=named)
    bring_back(kubernetes, namespace)

    assert operator.wait_for("namespaces left out")["namespaces"] == [missing]
    assert operators.ask(operator, "/readyz") == "ok\n"


def test_one_leads_and_another_takes_over(
    kubernetes: Kubernetes, door: Door, operators: Operators, namespace: str
) -> None:
    """A leader that is cut off stops before another leader acts, and a killed leader is replaced within 20 s.

    Two operators never write at the same time.
    """
    kubernetes.api.apply(a_cluster(), namespace)
    mark = kubernetes.audit_mark()
    first = operators.start(namespace, server=door.server)
    leader = first.identity
    second = operators.start(namespace)
    second.wait_for("watching has started")
    bring_back(kubernetes, namespace)
    door.go_away()
    follower = second.identity
    bring_back(kubernetes, namespace)
    door.clear()
    stopped = first.wait_for("operator no longer leads")
    taken = second.wait_for("leadership taken")
    killed_at = last_renewal(kubernetes, namespace)
    second.stop(signal.SIGKILL)
    back = first.wait_for("leadership taken", seen=1)
    bring_back(kubernetes, namespace)
    events = operators.writes(first.user, mark, turns=3)
    writers = [name for name, _ in groupby(event.user_agent.partition("/")[2] for event in events)]

    assert at(stopped) < at(taken)
    assert writers == [leader, follower, leader]
    assert (at(back) - killed_at).total_seconds() < TAKEOVER_SECONDS


@pytest.mark.scenario
def test_a_leader_that_stops_hands_over(kubernetes: Kubernetes, operators: Operators, namespace: str) -> None:
    """A leader that stops releases its Lease, and another operator leads without waiting for the Lease to expire."""
    kubernetes.api.apply(a_cluster(), namespace)
    first = operators.start(namespace)
    first.wait_for("leadership taken")
    second = operators.start(namespace)
    second.wait_for("watching has started")
    code = first.stop()
    second.wait_for("leadership taken")
    bring_back(kubernetes, namespace)

    assert code == 0
    assert first.said(2).count("operator has stopped") == 1
    assert at(second.wait_for("leadership taken")) >= at(first.wait_for("lease released"))


@pytest.mark.scenario
@pytest.mark.serial
def test_definitions_may_come_late_and_the_server_may_go(operators_alone: Operators) -> None:
    """An operator runs without definitions, starts its work when they are installed, and outlives the API server."""
    kubernetes = operators_alone.kubernetes
    namespace = kubernetes.namespace()
    mark = kubernetes.audit_mark()
    operator = operators_alone.start(kubernetes.namespace(), scope="all")
    missing = operator.wait_for("definitions missing")
    operator.wait_for("leadership taken")
    health = [operators_alone.ask(operator, path) for path in ("/healthz", "/readyz")]
    install_definitions(kubernetes)
    kubernetes.api.apply(a_cluster(), namespace)
    bring_back(kubernetes, namespace)
    kubernetes.api.apply(POD_MONITORS)
    operator.wait_for("object applied", lambda line: line["object"] == f"PodMonitor {namespace}/main")
    monitor = kubernetes.api.get("podmonitor/main", namespace)
    # A server that has just started forbids requests until it has read the roles.
    forbidden = operators_alone.forbidden(operator.user, mark)
    kubernetes.restart_api_server()
    bring_back(kubernetes, namespace)
    kubernetes.api.delete("customresourcedefinition/podmonitors.monitoring.coreos.com")
    bring_back(kubernetes, namespace)

    assert missing["kinds"] == ["Cluster", "Topic"]
    assert health == ["ok\n", "ok\n"]
    assert monitor is not None
    assert monitor["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "fairlead-operator"
    assert forbidden == []
    assert operator.stop() == 0


@pytest.mark.scenario
def test_a_server_in_trouble_delays_and_breaks_nothing(
    kubernetes: Kubernetes, door: Door, operators: Operators, namespace: str
) -> None:
    """An operator is only delayed by an API server that is slow, answers 409 and 500, loses answers or is down."""
    door.delay(0.3, times=40)
    door.answer(500, times=6, methods=["PATCH"])
    door.answer(409, times=3, methods=["PATCH"], path="/statefulsets/")
    door.answer(500, times=4, methods=["PATCH"], after=True)
    operator = operators.start(namespace, server=door.server)
    kubernetes.api.apply(a_cluster(), namespace)
    kubernetes.api.wait(
        "statefulset/main-a", namespace, lambda found: found and found["status"].get("readyReplicas") == 1
    )
    answered = door.clear()
    door.go_away()
    operator.wait_for("operator no longer leads")
    kubernetes.api.delete("service/main-bootstrap", namespace)
    door.clear()
    kubernetes.api.wait("service/main-bootstrap", namespace, bool)
    made = kubernetes.api.get("statefulset/main-a", namespace)

    assert answered >= 13
    assert made is not None
    assert made["metadata"]["generation"] == 1
    assert still_runs(operator)


def still_runs(operator: OperatorProcess) -> bool:
    """Return whether the operator's process still runs, without a restart."""
    return operator.process.poll() is None and operator.count("operator starts") == 1


def last_renewal(kubernetes: Kubernetes, namespace: str) -> datetime:
    """Return when the holder of the Lease last renewed it."""
    lease = kubernetes.api.get("lease/fairlead-operator", namespace)
    assert lease is not None
    return datetime.fromisoformat(lease["spec"]["renewTime"])


def at(line: dict[str, Any]) -> datetime:
    """Return the time of a log line."""
    return datetime.fromisoformat(line["timestamp"])
