"""Rendered objects of Clusters are accepted by a real API server, under restricted Pod Security."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.plan.securing.certificates import broker_names
from fairlead_operator.render import Images, render_cluster
from fairlead_operator.render.inputs import EtcdInputs, EtcdTransport, Transport
from fairlead_operator.render.security import client_certificates
from go_programs import module_folder
from render_kit import POOL, inputs_of

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

IMAGES = Images("localhost/fairlead:dev", "localhost/fairlead-etcd:dev")
CERTIFICATES = "certificates.cert-manager.io"
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
            ],
            "egress": [{"ipBlock": {"cidr": "192.0.2.0/24"}}],
        },
    },
    "secure": {
        "brokers": [POOL],
        "security": {
            "mode": "Enforce",
            "tls": {"mode": "Required", "clientCaConfigMap": {"name": "staff"}},
            "issuers": [
                {"name": "corp", "issuer": "https://login.example", "caConfigMap": {"name": "login"}}
            ],
        },
    },
    "nodeports": {
        "brokers": [{**POOL, "replicas": 1}, {**POOL, "name": "b", "firstBrokerId": 100}],
        "listeners": {"data": {"type": "nodeport", "perBroker": True, "advertisedHost": "b{id}.example.com"}},
        "etcd": {"managed": {"replicas": 1, "resources": {"limits": {"memory": "512Mi"}}}},
    },
}


def drawn(namespace: str, spec: dict[str, Any]) -> list[Manifest]:
    """Render a Cluster in a namespace; the definition of Clusters is not needed."""
    metadata = {"name": "main", "namespace": namespace, "uid": "none"}
    cluster = Cluster.parse({"metadata": metadata, "spec": {**spec, "deletionPolicy": "Retain"}})
    given: dict[str, Any] = {"etcd": None} if cluster.spec.etcd.managed is None else {}
    if cluster.spec.security is not None:
        transport = EtcdTransport("both", "https", "https", "authorities")
        given = {"etcd": EtcdInputs(3, transport=transport), "transport": Transport(authorities="PEM")}
    return render_cluster(cluster, inputs_of(images=IMAGES, kinds=frozenset(), **given))


def test_cert_manager_accepts_the_certificate_for_clients(kubernetes: Kubernetes, namespace: str) -> None:
    """The Certificate of a Cluster that names an issuer matches cert-manager's definition, with every field."""
    definition = (
        module_folder("cert-manager", "github.com/cert-manager/cert-manager")
        / "deploy/crds/cert-manager.io_certificates.yaml"
    )
    api = kubernetes.api
    api.apply(yaml.safe_load(definition.read_text(encoding="utf-8")))
    kubernetes.kubectl("wait", "--for=condition=Established", f"crd/{CERTIFICATES}")
    tls = {"mode": "Required", "certificate": {"issuerRef": {"name": "corp", "kind": "ClusterIssuer"}}}
    metadata = {"name": "main", "namespace": namespace, "uid": "none"}
    spec = {"brokers": [POOL], "security": {"tls": tls}, "deletionPolicy": "Retain"}
    cluster = Cluster.parse({"metadata": metadata, "spec": spec})
    try:
        (stored,) = api.apply(client_certificates(cluster, broker_names(cluster)))
    finally:
        api.delete(f"customresourcedefinition/{CERTIFICATES}")

    assert stored["spec"]["issuerRef"] == {
        "name": "corp",
        "kind": "ClusterIssuer",
        "group": "cert-manager.io",
    }
    assert "localhost" in stored["spec"]["dnsNames"]


def version_of(manifest: Manifest) -> tuple[str, object]:
    """Return the version that changes with the operator's writes and not with the status of controllers."""
    metadata = manifest["metadata"]
    return metadata["name"], metadata.get("generation") or metadata["resourceVersion"]


def is_complete(live: Manifest | None) -> bool:
    """Return whether a StatefulSet has all its pods, and all of them are ready."""
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
