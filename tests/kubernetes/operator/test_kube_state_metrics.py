"""kube-state-metrics with the configuration and the rights in `manifests/kube-state-metrics/`, on a real API server."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from urllib.error import URLError

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from chart_tools import ROOT
from go_programs import program
from monitored_cluster import free_port, get, stop, wait_for
from operator_process import install_definitions
from resource_cases import every_field

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kubernetes_under_test import Kubernetes

FOLDER = ROOT / "manifests/kube-state-metrics"
ACCOUNT = "kube-state-metrics"
LOST = {
    "type": "EtcdHealthy",
    "status": "Unknown",
    "reason": "NotReconciled",
    "message": "",
    "lastTransitionTime": "2026-05-01T10:00:00Z",
}
"""Condition whose status is neither True nor False."""
Series = tuple[str, tuple[tuple[str, str], ...], float]


def series(metric: str, value: float, **labels: str) -> Series:
    """Return one series with its value."""
    return f"kube_fairlead_{metric}", tuple(sorted(labels.items())), value


EXPECTED = {
    series("cluster_condition", 1, name="managed", type="Ready", status="True", reason="Available"),
    series(
        "cluster_condition", 0, name="managed", type="EtcdHealthy", status="Unknown", reason="NotReconciled"
    ),
    series("cluster_brokers_desired", 3, name="managed"),
    series("cluster_brokers_ready", 3, name="managed"),
    series("cluster_etcd_members_ready", 5, name="managed"),
    series(
        "cluster_info", 1, name="managed", version="0.2.0", cluster_id="4f0c8a6e-6a53-4d8e-9a53-6a2c1f1e9d11"
    ),
    series("topic_condition", 0, name="orders", type="Ready", status="False", reason="Reassigning"),
    series("topic_partitions", 12, name="orders"),
    series("user_condition", 1, name="reporting", type="Ready", status="True", reason="Available"),
    series("user_condition", 0, name="checkout", type="Ready", status="Unknown", reason="NotReconciled"),
    series("user_token_expiry_time_seconds", 1780221600, name="reporting"),
    series("rebalance_condition", 0, name="wider", type="Ready", status="False", reason="Rebalancing"),
    series("rebalance_partitions_total", 1, name="wider"),
    series("rebalance_partitions_moved", 0, name="wider"),
    series("etcdbackup_condition", 1, name="nightly", type="Ready", status="True", reason="Scheduled"),
    series("etcdbackup_snapshot_bytes", 1000, name="nightly"),
    series("etcdbackup_snapshot_time_seconds", 1777604400, name="nightly"),
}
NAMES = {name for _, labels, _ in EXPECTED for key, name in labels if key == "name"}


@contextmanager
def kube_state_metrics(kubernetes: Kubernetes, namespace: str, folder: Path) -> Iterator[str]:
    """Run kube-state-metrics for the custom resources of a namespace, and yield the URL of its metrics."""
    kubeconfig = kubernetes.account_kubeconfig(ACCOUNT, namespace)
    port, telemetry = free_port(), free_port()
    command = [
        str(program("kube-state-metrics")),
        f"--kubeconfig={kubeconfig}",
        f"--namespaces={namespace}",
        "--host=127.0.0.1",
        f"--port={port}",
        "--telemetry-host=127.0.0.1",
        f"--telemetry-port={telemetry}",
        "--custom-resource-state-only",
        f"--custom-resource-state-config-file={FOLDER / 'custom-resource-state.yaml'}",
    ]
    with (folder / "kube-state-metrics.log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            yield f"http://127.0.0.1:{port}/metrics"
        finally:
            stop(process)


def scraped(url: str, namespace: str) -> set[Series]:
    """Return all series of the resources in a namespace, without the label of the namespace."""
    found = set()
    for family in text_string_to_metric_families(get(url)):
        for sample in family.samples:
            labels = dict(sample.labels)
            if labels.pop("namespace", "") == namespace and labels.get("name") in NAMES:
                labels = {key: text for key, text in labels.items() if not key.startswith("customresource_")}
                found.add((sample.name, tuple(sorted(labels.items())), sample.value))
    return found


@pytest.mark.scenario
@pytest.mark.timeout(1800)  # The first run builds kube-state-metrics.
def test_every_series_of_the_configuration(kubernetes: Kubernetes, namespace: str, tmp_path: Path) -> None:
    """Each condition and each number of the five kinds is a series, and the rights in the manifest suffice."""
    api = kubernetes.api
    install_definitions(kubernetes)
    bind_rights(kubernetes, namespace)
    for manifest in every_field():
        if manifest["metadata"]["name"] in NAMES:
            api.apply(manifest, namespace)
            if status := manifest.get("status"):
                path = f"{manifest['kind'].lower()}s.fairlead.dev/{manifest['metadata']['name']}"
                further = [LOST] if manifest["kind"] == "Cluster" else []
                changed = {**status, "conditions": [*status["conditions"], *further]}
                api.patch(path, namespace, {"status": changed}, subresource="status")
    mark = kubernetes.audit_mark()
    user = f"system:serviceaccount:{namespace}:{ACCOUNT}"

    def all_series(url: str) -> set[Series] | None:
        """Return the series once there are as many as expected."""
        try:
            found = scraped(url, namespace)
        except (URLError, ConnectionError):
            return None
        return found if len(found) >= len(EXPECTED) else None

    with kube_state_metrics(kubernetes, namespace, tmp_path) as url:
        found = wait_for("the series are incomplete", partial(all_series, url))
    refused = [each.uri for each in kubernetes.audit(since=mark, user=user) if not each.has_right]

    assert found == EXPECTED
    assert refused == []


def bind_rights(kubernetes: Kubernetes, namespace: str) -> None:
    """Create the service account of kube-state-metrics with the rights of the manifest."""
    role = yaml.safe_load((FOLDER / "cluster-role.yaml").read_text(encoding="utf-8"))
    kubernetes.api.apply(role)
    kubernetes.api.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}, namespace
    )
    kubernetes.api.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"generateName": f"{ACCOUNT}-"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role["metadata"]["name"],
            },
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        }
    )
