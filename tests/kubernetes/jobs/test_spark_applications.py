"""The manifests for Spark operators: a real API server accepts them according to these operators' definitions.

The definition of Kubeflow's operator is in its Go module. The definition of Apache's operator is not in a Go module, so
its members are listed here. The parts about pods belong to Kubernetes and are checked by the server itself.
"""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from chart_tools import ROOT
from go_programs import module_folder
from kube_client import Refused
from refusals import raises
from waiting import COMMAND_SECONDS, pause_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_client import Manifest
    from kubernetes_under_test import Kubernetes

MANIFESTS = ROOT / "manifests/spark"
FieldPath = tuple[str | int, ...]
KUBEFLOW = "github.com/kubeflow/spark-operator/v2"
SERVED_SECONDS_MAX = 60.0
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
TEMPLATE = {
    "type": "object",
    "properties": {
        "podTemplateSpec": {
            "type": "object",
            "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }
    },
}
RESTARTS_UNLESS_SAID = 3
"""Number of restarts of a job, with any restart policy, if a manifest for Apache's operator sets none."""
# Version v1 of the operator of Apache Spark, without members that the manifest does not use.
APACHE = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["runtimeVersions"],
            "properties": {
                "pyFiles": {"type": "string"},
                "mainClass": {"type": "string"},
                "jars": {"type": "string"},
                "deploymentMode": {"type": "string", "enum": ["ClusterMode", "ClientMode"]},
                "driverArgs": {"type": "array", "items": {"type": "string"}},
                "sparkConf": TEXTS,
                "runtimeVersions": {
                    "type": "object",
                    "required": ["sparkVersion"],
                    "properties": {name: {"type": "string"} for name in ("sparkVersion", "jdkVersion")},
                },
                "applicationTolerations": {
                    "type": "object",
                    "properties": {
                        "resourceRetainPolicy": {"type": "string", "enum": ["Always", "Never", "OnFailure"]},
                        "restartConfig": {
                            "type": "object",
                            "properties": {
                                "restartPolicy": {
                                    "type": "string",
                                    "enum": ["Always", "Never", "OnFailure", "OnInfrastructureFailure"],
                                },
                                "maxRestartAttempts": {"type": "integer"},
                                "restartBackoffMillis": {"type": "integer"},
                            },
                        },
                    },
                },
                "driverSpec": TEMPLATE,
                "executorSpec": TEMPLATE,
            },
        }
    },
}


def kubeflow_definition() -> Manifest:
    """Return the definition of Kubeflow's operator, from the Go module with a pinned hash."""
    folder = module_folder("spark-operator", KUBEFLOW) / "config/crd/bases"
    text = (folder / "sparkoperator.k8s.io_sparkapplications.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))


def apache_definition() -> Manifest:
    """Return a definition with the members of Apache's operator."""
    names = {"plural": "sparkapplications", "singular": "sparkapplication", "kind": "SparkApplication"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": APACHE}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "sparkapplications.spark.apache.org"},
        "spec": {
            "group": "spark.apache.org",
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def is_established(definition: Manifest | None) -> bool:
    """Return whether the API server serves a definition."""
    # `conditions` is null at first, not missing.
    conditions = (definition or {}).get("status", {}).get("conditions")
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions or [])


def served(kubernetes: Kubernetes, definition: Manifest) -> None:
    """Install a definition and wait until it is served."""
    name = definition["metadata"]["name"]
    kubernetes.api.apply(definition)
    kubernetes.api.wait(f"customresourcedefinition/{name}", None, is_established)
    deadline = time.monotonic() + SERVED_SECONDS_MAX
    while not is_served(kubernetes, name):
        assert time.monotonic() < deadline, f"{name} is established but not served"
        pause_blocking(COMMAND_SECONDS)


def is_served(kubernetes: Kubernetes, name: str) -> bool:
    """Return whether objects of a definition can be listed, which may be later than the definition is established."""
    try:
        kubernetes.kubectl("get", name, "--all-namespaces")
    except AssertionError:
        return False
    return True


def apply(kubernetes: Kubernetes, namespace: str, text: str) -> str:
    """Validate a manifest with a dry run of kubectl on the server, which refuses unknown fields."""
    words = ("apply", "--namespace", namespace, "--dry-run=server", "--validate=strict", "--filename", "-")
    return kubernetes.kubectl(*words, stdin=text)


def pods_of(application: Manifest) -> list[Manifest]:
    """Return the pods of driver and executors according to their templates; Spark adds image and arguments."""
    spec, pods = application["spec"], []
    for name in ("driver", "executor"):
        pod = spec[f"{name}Spec"]["podTemplateSpec"] if "driverSpec" in spec else spec[name]["template"]
        (container,) = pod["spec"]["containers"]
        made = {**pod["spec"], "containers": [{**container, "image": "localhost/fairlead-spark:dev"}]}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made})
    return pods


def fields(value: Any, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the path of every member of a manifest, including nested members but not settings."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from fields(item, (*path, index))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            if name != "sparkConf":
                yield from fields(inner, (*path, name))


def mistakes(manifest: Manifest, path: FieldPath) -> Iterator[Manifest]:
    """Yield the manifest with one member renamed, and with one member of a different type."""
    *parents, name = path
    for is_name in (True, False):
        wrong = copy.deepcopy(manifest)
        owner: Any = wrong
        for parent in parents:
            owner = owner[parent]
        if is_name:
            owner[f"{name}X"] = owner.pop(name)
        else:
            owner[name] = (
                {"no": "text"} if isinstance(owner[name], str) else "no number, no truth, no members"
            )
        yield wrong


def judge(kubernetes: Kubernetes, path: str, manifest: Manifest) -> None:
    """Validate a manifest on the server, which refuses unknown fields. Raise `Refused`."""
    kubernetes.api.request("POST", path, manifest, query={"dryRun": "All", "fieldValidation": "Strict"})


def unjudged(kubernetes: Kubernetes, path: str, manifest: Manifest) -> list[FieldPath]:
    """Return the members of a specification that the server accepts under a different name or with a different type.

    Nested pods are skipped, because they are validated as pods.
    """
    judge(kubernetes, path, manifest)
    taken = []
    for member in fields(manifest["spec"], ("spec",)):
        if "podTemplateSpec" in member[:-2]:
            continue
        for wrong in mistakes(manifest, member):
            try:
                judge(kubernetes, path, wrong)
            except Refused:
                continue
            taken.append(member)
    return taken


@pytest.mark.parametrize("kind", [pytest.param("kubeflow", marks=pytest.mark.scenario), "apache"])
def test_an_operators_application(kubernetes: Kubernetes, namespace: str, kind: str) -> None:
    """The manifest of an application is accepted by its definition, its pods by Pod Security, and a typo is refused."""
    served(kubernetes, kubeflow_definition() if kind == "kubeflow" else apache_definition())
    text = (MANIFESTS / f"{kind}-operator.yaml").read_text(encoding="utf-8")
    application: Any = yaml.safe_load(text)
    said = apply(kubernetes, namespace, text)
    for pod in pods_of(application):
        judge(kubernetes, f"/api/v1/namespaces/{namespace}/pods", pod)

    assert "sparkapplication" in said
    with raises((AssertionError, Refused), "sparkConfs"):
        apply(kubernetes, namespace, text.replace("sparkConf:", "sparkConfs:"))


def test_every_member_of_apaches_application_is_judged(kubernetes: Kubernetes, namespace: str) -> None:
    """The definition of Apache's operator checks name and type of every member, and allows enough restarts."""
    served(kubernetes, apache_definition())
    application: Any = yaml.safe_load((MANIFESTS / "apache-operator.yaml").read_text(encoding="utf-8"))
    taken = unjudged(
        kubernetes, f"/apis/spark.apache.org/v1/namespaces/{namespace}/sparkapplications", application
    )
    for pod in pods_of(application):
        taken += unjudged(kubernetes, f"/api/v1/namespaces/{namespace}/pods", pod)
    restarts = application["spec"]["applicationTolerations"]["restartConfig"]

    assert taken == []
    assert restarts["maxRestartAttempts"] > RESTARTS_UNLESS_SAID * 1_000_000


def test_what_an_application_stands_on(kubernetes: Kubernetes, namespace: str) -> None:
    """The service account, rights and claim of both applications exist under the names that they use."""
    text = (MANIFESTS / "application.yaml").read_text(encoding="utf-8")
    said = apply(kubernetes, namespace, text)
    used = [
        (MANIFESTS / f"{kind}-operator.yaml").read_text(encoding="utf-8") for kind in ("kubeflow", "apache")
    ]

    assert said.count("(server dry run)") == 4
    assert all("flights-application" in one for one in used)
    assert all("claimName: flights-checkpoint" in one for one in used)
