"""Objects of charts and manifests are accepted by a real API server and admitted by restricted Pod Security."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from chart_tools import (
    CI_VALUES,
    DEFINITIONS,
    OPERATOR_CHART,
    POD_MONITORS,
    PROMETHEUS_RULES,
    ROOT,
    render,
    tool,
)
from server_schemas import write_schemas

if TYPE_CHECKING:
    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

CRDS = sorted((ROOT / "manifests/crds").glob("*.fairlead.dev.yaml"))
KUSTOMIZATIONS = ("manifests/base", "manifests/overlays/two-replicas", "manifests/overlays/all-namespaces")


@pytest.fixture
def server(kubernetes_alone: Kubernetes) -> Kubernetes:
    """Return a control plane with the definitions of Fairlead and of the Prometheus operator."""
    api = kubernetes_alone.api
    api.apply(POD_MONITORS)
    api.apply(PROMETHEUS_RULES)
    api.wait("customresourcedefinition/prometheusrules.monitoring.coreos.com", None, is_established)
    for path in CRDS:
        api.apply(path.read_text(encoding="utf-8"))
    for name in DEFINITIONS:
        api.wait(f"customresourcedefinition/{name}", None, is_established)
    for name in DEFINITIONS:
        # The storage of a kind is ready a little later than its definition.
        api.wait_list(name, None, lambda _: True)
    if api.get("namespace/fairlead") is None:
        api.apply((ROOT / "manifests/base/namespace.yaml").read_text(encoding="utf-8"))
    return kubernetes_alone


def is_established(definition: Manifest | None) -> bool:
    """Return whether the API server serves a definition."""
    # `conditions` is null at first, not missing.
    conditions = (definition or {}).get("status", {}).get("conditions")
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or [])


@pytest.mark.scenario
def test_values_of_ci(server: Kubernetes, tmp_path: Path) -> None:
    """Objects rendered with each values file pass kubeconform with the server's schemas, and the server's dry run."""
    location = write_schemas(json.loads(server.kubectl("get", "--raw", "/openapi/v2")), CRDS, tmp_path)
    rendered = {path: render(path.parents[1], "--values", path) for path in CI_VALUES}
    rendered[ROOT / "install"] = (ROOT / "manifests/install.yaml").read_text(encoding="utf-8")
    files = []
    for number, text in enumerate(rendered.values()):
        files.append(tmp_path / f"rendered-{number}.yaml")
        files[-1].write_text(text, encoding="utf-8")
    # The kinds of the Prometheus operator are defined by the test and have no schema.
    words = (
        "-strict",
        "-summary",
        "-skip",
        "PodMonitor,PrometheusRule,CustomResourceDefinition",
        "-schema-location",
        location,
    )
    summary = tool("kubeconform", *words, *files).stdout

    assert "Invalid: 0, Errors: 0" in summary
    for path, text in rendered.items():
        objects = [one for one in yaml.safe_load_all(text) if one]
        assert len(server.api.apply(objects, "fairlead", dry_run=True)) == len(objects), path


@pytest.mark.scenario
def test_kubeconform_is_strict(server: Kubernetes, tmp_path: Path) -> None:
    """The schemas of the server's description refuse unknown members in a pod and in a Cluster."""
    location = write_schemas(json.loads(server.kubectl("get", "--raw", "/openapi/v2")), CRDS, tmp_path)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        render(OPERATOR_CHART, "--set", "crds.enabled=false").replace("runAsNonRoot", "runAsNoRoot")
        + "---\n"
        + (ROOT / "manifests/samples/cluster.yaml").read_text(encoding="utf-8").replace("size:", "sizes:"),
        encoding="utf-8",
    )
    answer = tool("kubeconform", "-strict", "-schema-location", location, wrong, check=False)

    assert answer.returncode == 1
    assert "runAsNoRoot" in answer.stdout
    assert "sizes" in answer.stdout


def test_manifests(server: Kubernetes) -> None:
    """The samples and every kustomization pass the server's dry run, and overlays differ from the base as described.

    The operator's pod and both test pods of the chart are admitted to a namespace with restricted Pod Security.
    """
    samples = server.kubectl(
        "apply", "--dry-run=server", "--namespace", "fairlead", "--filename", str(ROOT / "manifests/samples")
    )
    built = {name: server.kubectl("kustomize", str(ROOT / name)) for name in KUSTOMIZATIONS}
    kinds = {}
    for name, text in built.items():
        objects = [one for one in yaml.safe_load_all(text) if one]
        assert len(server.api.apply(objects, dry_run=True)) == len(objects)
        kinds[name] = sorted(one["kind"] for one in objects)

    assert samples.count("(server dry run)") == 9
    base, two, everywhere = (kinds[name] for name in KUSTOMIZATIONS)
    assert "ClusterRole" not in base
    assert sorted([*base, "PodDisruptionBudget"]) == two
    assert everywhere.count("ClusterRole") == 4
    assert everywhere.count("Role") == base.count("Role") - 1
    assert "replicas: 2" in built[KUSTOMIZATIONS[1]]
    assert admitted(server) == ["Deployment", "Pod", "Deployment", "Pod"]


def admitted(server: Kubernetes) -> list[str]:
    """Create the chart's pods in a restricted namespace by a dry run, and return the kinds of their objects."""
    namespace = server.namespace()
    settings = ("--set", "test.bootstrap=http://main-bootstrap:9520", "--set", "crds.enabled=false")
    pods = [
        one
        for text in (render(OPERATOR_CHART, *settings), render(OPERATOR_CHART, *settings[2:]))
        for one in yaml.safe_load_all(text)
        if one and one["kind"] in {"Deployment", "Pod"}
    ]
    for one in pods:
        one["metadata"]["namespace"] = namespace
        template = one.get("spec", {}).get("template")
        pod = {"apiVersion": "v1", "kind": "Pod", **template} if template else one
        pod["metadata"] |= {"name": one["metadata"]["name"], "namespace": namespace}
        pod["spec"]["serviceAccountName"] = "default"
        server.api.create(pod, dry_run=True)
    return [one["kind"] for one in pods]
