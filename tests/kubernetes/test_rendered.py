"""Rendered objects of Clusters are accepted by a real API server, under restricted Pod Security."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.render import Images, render_cluster
from render_kit import POOL, inputs_of

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

IMAGES = Images("localhost/fairlead:dev", "localhost/fairlead-etcd:dev")
TEMPLATE = {
    "metadata": {"labels": {"team": "orders"}, "annotations": {"example.com/note": "kept"}},
    "spec": {
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "terminationGracePeriodSeconds": 300,
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}],
        "containers": [
            {"name": "broker", "env": [{"name": "FAIRLEAD_LOG_LEVEL", "value": "debug"}]},
        ],
    },
}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"brokers": [POOL]},
    "outside": {
        "brokers": [{**POOL, "template": TEMPLATE, "resources": {"requests": {"cpu": 1, "memory": "1Gi"}}}],
        "listeners": {"data": {"type": "loadbalancer", "perBroker": True, "annotations": {"dns": "yes"}}},
        "etcd": {"external": {"endpoints": ["https://etcd.example.com:2379"], "secretName": "etcd"}},
        "networkPolicy": {
            "clients": [
                {"podSelector": {}, "namespaceSelector": {"matchLabels": {"team": "orders"}}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
            ]
        },
    },
    "nodeports": {
        "brokers": [{**POOL, "replicas": 1}, {**POOL, "name": "b", "firstBrokerId": 100}],
        "listeners": {"data": {"type": "nodeport", "perBroker": True, "advertisedHost": "b{id}.example.com"}},
        "etcd": {"managed": {"replicas": 1, "resources": {"limits": {"memory": "512Mi"}}}},
    },
}


def drawn(namespace: str, spec: dict[str, Any]) -> list[Manifest]:
    """Render a Cluster of a namespace; the definition of Clusters is not needed."""
    metadata = {"name": "main", "namespace": namespace, "uid": "none"}
    cluster = Cluster.parse({"metadata": metadata, "spec": {**spec, "deletionPolicy": "Retain"}})
    etcd = {"etcd": None} if cluster.spec.etcd.managed is None else {}
    return render_cluster(cluster, inputs_of(images=IMAGES, kinds=frozenset(), **etcd))


def version_of(manifest: Manifest) -> tuple[str, object]:
    """Return the version that changes with the operator's writes and not with the status of controllers."""
    metadata = manifest["metadata"]
    return metadata["name"], metadata.get("generation") or metadata["resourceVersion"]


def is_complete(live: Manifest | None) -> bool:
    """Return whether a StatefulSet has all its pods and they are ready."""
    return live is not None and live["status"].get("readyReplicas") == live["spec"]["replicas"]


@pytest.mark.parametrize("name", SPECS)
def test_the_api_server_takes_what_is_drawn(kubernetes: Kubernetes, namespace: str, name: str) -> None:
    """Objects of a Cluster are stored, their pods become ready, and rendering them again writes nothing."""
    manifests = drawn(namespace, SPECS[name])
    first = kubernetes.api.apply(manifests)
    sets = [manifest for manifest in manifests if manifest["kind"] == "StatefulSet"]
    for each in sets:
        kubernetes.api.wait(f"statefulset/{each['metadata']['name']}", namespace, is_complete)
    again = kubernetes.api.apply(manifests)

    assert list(map(version_of, again)) == list(map(version_of, first))
    pods = kubernetes.api.list("pod", namespace)
    assert len(pods) == sum(each["spec"]["replicas"] for each in sets)
    assert all(pod["metadata"]["labels"]["topology.kubernetes.io/zone"] for pod in pods)
