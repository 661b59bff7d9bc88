"""Releases of the charts: installed, upgraded, rolled back and uninstalled by Helm 4 and by Helm 3."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from chart_tools import CLUSTER_CHART, DEFINITIONS, OPERATOR_CHART, ROOT

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

READY = ("--wait", "--timeout", "90s")
CLAIM = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data-main-a-0, labels: {app.kubernetes.io/instance: main}}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"""


def next_release(folder: Path) -> Path:
    """Write the next release of the operator's chart, in which Topics have one more field."""
    chart = folder / "next"
    shutil.copytree(OPERATOR_CHART, chart)
    about = chart / "Chart.yaml"
    about.write_text(
        about.read_text(encoding="utf-8").replace("version: 0.1.0", "version: 0.2.0"), encoding="utf-8"
    )
    definition = chart / "definitions/topics.fairlead.dev.yaml"
    text = definition.read_text(encoding="utf-8")
    before = "              partitions:\n                type: integer\n"
    assert text.count(before) >= 1, "the definition of Topics is not written as this test expects"
    more = "              note:\n                type: string\n                maxLength: 40\n"
    definition.write_text(text.replace(before, more + before, 1), encoding="utf-8")
    return chart


def uids(kubernetes: Kubernetes, namespace: str) -> dict[str, str]:
    """Return the uids of objects that releases must keep: resources, and the claim that represents their data."""
    # kubectl retries while the API server switches to a different definition.
    words = ("get", "flc,flt,persistentvolumeclaim", "--namespace", namespace, "--output", "json")
    objects: list[Manifest] = json.loads(kubernetes.kubectl(*words))["items"]
    return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in objects}


def topic_fields(kubernetes: Kubernetes) -> set[str]:
    """Return the names of the fields in a Topic's spec."""
    definition = kubernetes.api.get("customresourcedefinition/topics.fairlead.dev")
    assert definition is not None, "the definition stays"
    schema: Manifest = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"])


def objects_of_release(kubernetes: Kubernetes, namespace: str) -> list[str]:
    """Return the objects of a release in a namespace, except objects that must outlive the release."""
    selector = "app.kubernetes.io/name=fairlead-operator"
    kinds = ("deployment", "role", "rolebinding", "service", "serviceaccount", "networkpolicy")
    return [
        one["metadata"]["name"] for kind in kinds for one in kubernetes.api.list(kind, namespace, selector)
    ]


@pytest.mark.scenario
def test_a_life(kubernetes_alone: Kubernetes, tmp_path: Path) -> None:
    """Definitions change with upgrade and rollback; Clusters, Topics and claims outlive the releases of both charts."""
    namespace, run = kubernetes_alone.namespace(), kubernetes_alone.run
    where = ("--namespace", namespace)
    run("helm4", "install", "operator", str(OPERATOR_CHART), *where, *READY)
    deployment: Any = kubernetes_alone.api.get("deployment/operator-fairlead-operator", namespace)
    run("helm4", "install", "main", str(CLUSTER_CHART), *where, "--set", "topics.orders.partitions=6")
    kubernetes_alone.api.apply(CLAIM, namespace)
    before, fields = uids(kubernetes_alone, namespace), topic_fields(kubernetes_alone)

    run("helm4", "upgrade", "operator", str(next_release(tmp_path)), *where, *READY)
    upgraded = topic_fields(kubernetes_alone)
    run("helm4", "rollback", "operator", "1", *where, *READY)
    rolled_back = topic_fields(kubernetes_alone)
    for release in ("operator", "main"):
        run("helm4", "uninstall", release, *where)

    assert deployment["status"]["readyReplicas"] == 1
    assert sorted(before) == ["Cluster/main", "PersistentVolumeClaim/data-main-a-0", "Topic/orders"]
    assert upgraded == fields | {"note"}
    assert rolled_back == fields
    assert uids(kubernetes_alone, namespace) == before
    assert objects_of_release(kubernetes_alone, namespace) == []

    run("helm4", "install", "operator", str(OPERATOR_CHART), *where, *READY)
    run("helm4", "install", "main", str(CLUSTER_CHART), *where, "--set", "topics.orders.partitions=6")

    assert uids(kubernetes_alone, namespace) == before


@pytest.mark.scenario
def test_from_helm_3_to_helm_4(kubernetes_alone: Kubernetes, tmp_path: Path) -> None:
    """Helm 4 upgrades a release of Helm 3 with its definitions and resources, even with server-side apply."""
    namespace, run = kubernetes_alone.namespace(), kubernetes_alone.run
    where = ("--namespace", namespace)
    run("helm3", "install", "operator", str(OPERATOR_CHART), *where, *READY)
    run("helm3", "install", "main", str(CLUSTER_CHART), *where, "--set", "topics.orders.partitions=6")
    before, fields = uids(kubernetes_alone, namespace), topic_fields(kubernetes_alone)

    server_side = ("--server-side=true", "--force-conflicts")
    run(
        "helm4",
        "upgrade",
        "operator",
        str(next_release(tmp_path)),
        *where,
        *READY,
        *server_side,
        "--set",
        "replicas=2",
    )
    run("helm4", "upgrade", "main", str(CLUSTER_CHART), *where, "--set", "topics.orders.partitions=12")
    deployment: Any = kubernetes_alone.api.get("deployment/operator-fairlead-operator", namespace)
    topic: Any = kubernetes_alone.api.get("flt/orders", namespace)

    assert topic_fields(kubernetes_alone) == fields | {"note"}
    assert deployment["status"]["readyReplicas"] == 2
    assert topic["spec"]["partitions"] == 12
    assert uids(kubernetes_alone, namespace) == before


@pytest.mark.scenario
def test_two_operators(kubernetes_alone: Kubernetes) -> None:
    """Releases of the same name in two namespaces share only definitions; removing one does not affect the other."""
    one, two = kubernetes_alone.namespace(), kubernetes_alone.namespace()
    run, words = (
        kubernetes_alone.run,
        ("install", "operator", str(OPERATOR_CHART), *READY, "--set", "watch.scope=all"),
    )
    run("helm4", *words, "--namespace", one)
    refused = run("helm4", *words, "--namespace", two, check=False)
    run("helm4", "uninstall", "operator", "--namespace", two, check=False)
    run("helm4", *words, "--namespace", two, "--set", "crds.enabled=false")

    both = {
        role["metadata"]["name"]
        for role in kubernetes_alone.api.list("clusterrole")
        if "fairlead" in str(role)
    }
    run("helm4", "uninstall", "operator", "--namespace", one)
    left = {
        role["metadata"]["name"]
        for role in kubernetes_alone.api.list("clusterrole")
        if "fairlead" in str(role)
    }
    deployment: Any = kubernetes_alone.api.get("deployment/operator-fairlead-operator", two)

    assert refused.returncode == 1
    assert "invalid ownership metadata" in refused.stderr
    assert {name for name in both if name.startswith(one)} >= {f"{one}-operator-fairlead-operator"}
    assert not {name for name in left if name.startswith(one)}
    assert {name for name in left if name.startswith(two)} == {name for name in both if name.startswith(two)}
    assert deployment["status"]["readyReplicas"] == 1
    assert all(kubernetes_alone.api.get(f"customresourcedefinition/{name}") for name in DEFINITIONS)


@pytest.mark.scenario
def test_from_kubectl_to_helm(kubernetes_alone: Kubernetes) -> None:
    """A Helm release adopts the objects of `install.yaml` and the Clusters, and later upgrades meet no conflict."""
    run, api = kubernetes_alone.run, kubernetes_alone.api
    kubernetes_alone.kubectl(
        "apply", "--server-side", "--field-manager=helm", "--filename", str(ROOT / "manifests/install.yaml")
    )
    api.wait(
        "deployment/fairlead-operator",
        "fairlead",
        lambda found: found and found["status"].get("readyReplicas") == 1,
    )
    kubernetes_alone.kubectl("apply", "-n", "fairlead", "-f", str(ROOT / "manifests/samples/cluster.yaml"))
    before = uids(kubernetes_alone, "fairlead")

    upgrade = ("upgrade", "fairlead-operator", str(OPERATOR_CHART), "--namespace", "fairlead", *READY)
    run("helm4", *upgrade, "--install", "--take-ownership")
    run("helm4", *upgrade, "--set", "replicas=2")
    deployment: Any = api.get("deployment/fairlead-operator", "fairlead")
    run("helm4", "uninstall", "fairlead-operator", "--namespace", "fairlead")

    assert deployment["status"]["readyReplicas"] == 2
    assert uids(kubernetes_alone, "fairlead") == before
    assert "Cluster/main" in before
