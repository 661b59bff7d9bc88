"""A managed etcd on real nodes: the operator changes one member at a time and replaces a member without its volume.

The plan itself is tested with etcd in tests/etcd, and here with pods, claims and DNS names of a real Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster_words import a_cluster, condition_of
from fairlead_operator.naming import ETCD_MEMBER_ANNOTATION
from kube_client import Manifest
from operator_process import OperatorProcess, Operators, install_definitions
from pods import KubernetesPods

pytestmark = pytest.mark.timeout(400)
CLUSTER = "clusters.fairlead.dev/main"
LOCAL = {"size": "128Mi", "storageClassName": "local"}
JOIN_SECONDS = 120.0
"""Timeout in seconds for a join: etcd accepts a member once all others have been connected for five seconds, and
containers start slowly.
"""
URLS = {
    "FAIRLEAD_OPERATOR_BROKER_URL": "http://127.0.0.1:1",
    "FAIRLEAD_OPERATOR_ETCD_URL": "http://{pod}.{cluster}-etcd-peers.{namespace}.svc:2379",
}


@pytest.fixture
def operator_of(kubernetes_pods: KubernetesPods, tmp_path: Path) -> Iterator[Operators]:
    """Yield `Operators` that can resolve the names of pods, and stop all its operators at the end."""
    install_definitions(kubernetes_pods)
    operators = Operators(kubernetes_pods, tmp_path)
    yield operators
    operators.stop_all()


def members_of(cluster: Manifest | None) -> dict[str, str]:
    """Return the ids of the healthy voters of a Cluster's etcd by their names."""
    etcd = ((cluster or {}).get("status") or {}).get("etcd") or {}
    return {
        each["name"]: each["id"]
        for each in etcd.get("members") or []
        if each["healthy"] and each["role"] in {"leader", "follower"}
    }


def has_members(count: int, *, but: str = "") -> Callable[[Manifest | None], bool]:
    """Return a function that checks whether etcd is healthy with `count` members, none of which has a given id."""

    def holds(cluster: Manifest | None) -> bool:
        members = members_of(cluster)
        healthy = condition_of(cluster, "EtcdHealthy").get("reason") == "Healthy"
        return healthy and len(members) == count and but not in members.values()

    return holds


def resize(kubernetes: KubernetesPods, namespace: str, replicas: int) -> None:
    """Request `replicas` members."""
    kubernetes.api.patch(CLUSTER, namespace, {"spec": {"etcd": {"managed": {"replicas": replicas}}}})


@pytest.mark.scenario
def test_members_join_are_replaced_and_leave(kubernetes_pods: KubernetesPods, operator_of: Operators) -> None:
    """Etcd grows from 1 to 3 members, replaces a member that lost its claim, and shrinks again, without losing data."""
    kubernetes, namespace = kubernetes_pods, kubernetes_pods.namespace()
    operator: OperatorProcess = operator_of.start(namespace, environment=URLS)
    cluster = a_cluster(1, etcd={"managed": {"replicas": 1, "storage": LOCAL}}, pool={"storage": LOCAL})
    kubernetes.api.apply(cluster, namespace)
    kubernetes.api.wait(CLUSTER, namespace, has_members(1), seconds=JOIN_SECONDS)
    kubernetes.exec("main-etcd-0", namespace, "etcdctl", "put", "kept", "precious")
    resize(kubernetes, namespace, 3)
    grown = kubernetes.api.wait(CLUSTER, namespace, has_members(3), seconds=JOIN_SECONDS)
    lost = members_of(grown)["main-etcd-1"]
    kubernetes.api.delete("persistentvolumeclaim/data-main-etcd-1", namespace)
    kubernetes.api.delete("pod/main-etcd-1", namespace)
    healed = kubernetes.api.wait(CLUSTER, namespace, has_members(3, but=lost), seconds=JOIN_SECONDS)
    read = kubernetes.exec("main-etcd-1", namespace, "etcdctl", "get", "kept", "--print-value-only")
    claim = kubernetes.api.get("persistentvolumeclaim/data-main-etcd-1", namespace)
    resize(kubernetes, namespace, 1)
    kubernetes.api.wait(CLUSTER, namespace, has_members(1), seconds=JOIN_SECONDS)
    left = kubernetes.exec("main-etcd-0", namespace, "etcdctl", "get", "kept", "--print-value-only")

    assert read.strip() == left.strip() == "precious"
    assert claim is not None
    assert claim["metadata"]["annotations"][ETCD_MEMBER_ANNOTATION] == members_of(healed)["main-etcd-1"]
    kubernetes.api.wait_list(
        "persistentvolumeclaim",
        namespace,
        lambda claims: (
            [each["metadata"]["name"] for each in claims if "etcd" in each["metadata"]["name"]]
            == ["data-main-etcd-0"]
        ),
    )
    assert operator_of.forbidden(operator.user, 0) == []
