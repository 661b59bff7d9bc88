"""The chart's rights suffice in every mode for all requests from the operator, not only on Clusters and Topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_words import condition_of, is_done
from operator_process import ACCOUNT, OperatorProcess, Operators, install_definitions
from topic_stage import Brokers, ready_reason, running_brokers
from warm_programs import FAIRLEAD

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

CLUSTER = "clusters.fairlead.dev/main"
TOPIC = "topics.fairlead.dev/orders"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Yield three brokers that serve as the brokers of every Cluster whose ids begin at 1."""
    with running_brokers(tmp_path_factory.mktemp("brokers")) as running:
        yield running


def start_operator(
    kubernetes: Kubernetes, operators: Operators, brokers: Brokers, own: str, scope: str, watch: str
) -> OperatorProcess:
    """Start an operator in the network of the brokers, with the rights of a `scope`: own, list or all."""
    user = operators.grant(own, scope=scope, watch=[watch] if scope == "list" else [])
    settings = {
        "FAIRLEAD_OPERATOR_NAMESPACES": {"own": "", "list": watch, "all": "*"}[scope],
        "FAIRLEAD_OPERATOR_POD_NAMESPACE": own,
        "FAIRLEAD_OPERATOR_BROKER_URL": brokers.url,
        "FAIRLEAD_OPERATOR_RESYNC_SECONDS": "5",
        "FAIRLEAD_OPERATOR_METRICS_LISTEN": "127.0.0.1:0",
        "FAIRLEAD_OPERATOR_LOG_FORMAT": "json",
    }
    operator = OperatorProcess(
        [FAIRLEAD, "operator", "start"],
        {**kubernetes.environment(kubernetes.account_kubeconfig(ACCOUNT, own)), **settings},
        operators.folder / f"operator-{scope}.log",
        user,
    )
    operators.started.append(operator)
    return operator


def a_cluster(brokers: Brokers, *, size: str = "1Gi", **spec: object) -> Manifest:
    """Return a Cluster whose brokers are the running brokers."""
    pool = {"name": "a", "firstBrokerId": 1, "replicas": 3, "storage": {"size": size}}
    etcd = {"external": {"endpoints": list(brokers.etcd)}}
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "main"},
        "spec": {"brokers": [pool], "etcd": etcd, **spec},
    }


def a_topic(name: str, **spec: object) -> Manifest:
    """Return the Topic `orders`, whose topic has another name at the brokers."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": "orders"},
        "spec": {"clusterRef": {"name": "main"}, "name": name, **spec},
    }


@pytest.mark.scenario
@pytest.mark.parametrize("scope", ["own", "list", "all"])
def test_nothing_that_the_operator_asks_is_forbidden(
    kubernetes_alone: Kubernetes, brokers: Brokers, tmp_path: Path, scope: str
) -> None:
    """An operator sends no forbidden request while objects and Topics are created, changed, restored and deleted."""
    kubernetes, api = kubernetes_alone, kubernetes_alone.api
    install_definitions(kubernetes)
    own = kubernetes.namespace()
    place = own if scope == "own" else kubernetes.namespace()
    operators = Operators(kubernetes, tmp_path)
    mark = kubernetes.audit_mark()
    operator = start_operator(kubernetes, operators, brokers, own, scope, place)
    try:
        api.apply(a_cluster(brokers), place)
        api.apply(a_topic(f"rights-{scope}", replicas=1), place)
        api.wait(TOPIC, place, lambda each: ready_reason(each) == "Available")
        api.wait(CLUSTER, place, is_done)
        api.apply(a_topic(f"rights-{scope}", partitions=3, replicas=2), place)
        api.apply(
            a_cluster(
                brokers,
                size="2Gi",
                networkPolicy={"enabled": False},
                deletionPolicy="Retain",
                listeners={"data": {"type": "nodeport", "perBroker": True}},
                config={"retention.ms": "70000", "log.dirs": "/nowhere"},
            ),
            place,
        )
        api.wait(CLUSTER, place, lambda each: "log.dirs" in condition_of(each, "Warning").get("message", ""))
        api.wait("networkpolicy/main-brokers", place, lambda each: each is None)
        api.delete("service/main-bootstrap", place)
        api.wait("service/main-bootstrap", place, bool)
        api.wait(TOPIC, place, lambda each: each and each["status"].get("replicas") == 2)
        api.apply(a_cluster(brokers, size="2Gi"), place)
        api.wait("networkpolicy/main-brokers", place, bool)
        api.delete(TOPIC, place)
        api.wait(TOPIC, place, lambda each: each is None)
        api.delete(CLUSTER, place)
        api.wait(CLUSTER, place, lambda each: each is None)
        # Requests during the operator's stop must not be forbidden either.
        assert operator.stop() == 0
        forbidden = [f"{each.verb} {each.uri}" for each in operators.forbidden(operator.user, mark)]
        asked = {(each.verb, each.resource) for each in kubernetes.audit(since=mark, user=operator.user)}
    finally:
        operators.stop_all()

    assert forbidden == []
    assert brokers.topic(f"rights-{scope}") is None
    assert {("patch", "services"), ("delete", "networkpolicies"), ("patch", "topics/status")} <= asked
    assert operator.count("operator starts") == 1
