from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import pytest

from fairlead_operator.schema.definitions import DEFINITIONS
from fairlead_operator.schema.structural import RULES
from kube_client import WAIT_SECONDS, Manifest, Refused
from operator_process import Operators, install_definitions
from resource_cases import SAMPLES, object_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kube_client import KubeClient
    from kubernetes_under_test import Kubernetes

CHECKS = frozenset(
    {RULES, "pattern", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"}
)


@pytest.fixture
def operators(kubernetes_alone: Kubernetes, tmp_path: Path) -> Iterator[Operators]:
    """Yield a starter of operators on the control plane whose definitions the test changes."""
    starter = Operators(kubernetes_alone, tmp_path)
    try:
        yield starter
    finally:
        starter.stop_all()


def other_definitions() -> list[Manifest]:
    """Return definitions that accept the objects of a future and of an earlier release.

    Compared with this release, these definitions have one more type of listener, one more policy and one more field,
    and check only types.
    """
    definitions = {str(each.kind): copy.deepcopy(specified(each.manifest())) for each in DEFINITIONS}
    clusters, topics = definitions["Cluster"], definitions["Topic"]
    spec = schema(clusters)["spec"]["properties"]
    spec["listeners"]["properties"]["data"]["properties"]["type"]["enum"].append("gateway")
    spec["quotas"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema(topics)["spec"]["properties"]["deletionPolicy"]["enum"].append("Archive")
    return [without(each, CHECKS) for each in definitions.values()]


def specified(manifest: Any) -> Manifest:
    """Return a manifest with the type that allows every key."""
    found: Manifest = manifest
    return found


def schema(definition: Manifest) -> Manifest:
    """Return the schema of a definition's kind."""
    fields: Manifest = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return fields


def without(value: Any, words: frozenset[str]) -> Any:
    """Return a schema without some keywords."""
    if isinstance(value, dict):
        return {word: without(each, words) for word, each in value.items() if word not in words}
    return [without(each, words) for each in value] if isinstance(value, list) else value


def define(kubernetes: Kubernetes, definitions: list[Manifest]) -> None:
    """Apply definitions and wait until the API server serves both kinds."""
    kubernetes.api.apply(definitions)
    for definition in definitions:
        kubernetes.api.wait(f"crd/{definition['metadata']['name']}", None, is_established)


def is_established(definition: Manifest | None) -> bool:
    """Return whether the kind of a definition is served."""
    conditions = ((definition or {}).get("status") or {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def store(kubernetes: Kubernetes, namespace: str, manifest: Manifest) -> None:
    """Create an object once the definitions that allow it take effect, shortly after they are stored."""
    wait_until(lambda: not refused(kubernetes, namespace, manifest), "the definitions never took effect")
    kubernetes.api.create(manifest, namespace)


def wait_until_refused(kubernetes: Kubernetes, namespace: str, manifest: Manifest) -> None:
    """Wait until the current definitions, which refuse the object, take effect."""
    another = manifest | {"metadata": {"name": "another"}}
    wait_until(lambda: refused(kubernetes, namespace, another), "the current definitions never took effect")


def refused(kubernetes: Kubernetes, namespace: str, manifest: Manifest) -> bool:
    """Return whether the API server refuses an object."""
    try:
        kubernetes.api.create(manifest, namespace, dry_run=True)
    except Refused:
        return True
    return False


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    """Repeat a check until it holds, because the API server does not report when it uses a new definition."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, otherwise


def conditions(manifest: Manifest | None) -> dict[str, tuple[str, str]]:
    """Return status and reason of an object's conditions by type."""
    found = ((manifest or {}).get("status") or {}).get("conditions") or []
    return {each["type"]: (each["status"], each["reason"]) for each in found}


def is_unreadable(manifest: Manifest | None) -> bool:
    """Return whether the operator reports an object as unreadable."""
    told = conditions(manifest)
    return told.get("InvalidSpec") == ("True", "Unreadable") and told["Ready"] == ("False", "InvalidSpec")


def is_read_again(manifest: Manifest | None) -> bool:
    """Return whether the operator no longer reports an object as unreadable."""
    told = conditions(manifest)
    return "InvalidSpec" not in told and told["Ready"][1] not in {"InvalidSpec", "NotReconciled"}


@pytest.mark.scenario
def test_objects_of_other_releases(kubernetes_alone: Kubernetes, operators: Operators) -> None:
    """Objects of a newer release with unknown fields are reported with the field, but not changed.

    Objects of an older release that the current rules refuse are read, get their status, and can be edited.
    """
    newer, older, api = kubernetes_alone.namespace(), kubernetes_alone.namespace(), kubernetes_alone.api
    define(kubernetes_alone, other_definitions())
    unknown = {"listeners": {"data": {"type": "gateway"}}, "quotas": {"bytes": 5}}
    pool = {"name": "a-b", "firstBrokerId": 0, "replicas": 2, "storage": {"size": "1Gi"}}
    refused_today = {"brokers": [pool], "config": {"A KEY": "1"}, "formatVersion": 99}
    objects = [
        (newer, object_of("Cluster", "main", {**SAMPLES["Cluster"], **unknown})),
        (newer, object_of("Topic", "orders", {**SAMPLES["Topic"], "deletionPolicy": "Archive"})),
        (older, object_of("Cluster", "main", refused_today)),
    ]
    for namespace, each in objects:
        store(kubernetes_alone, namespace, each)
    install_definitions(kubernetes_alone)
    for namespace, each in objects:
        wait_until_refused(kubernetes_alone, namespace, each)
    operator = operators.start(newer, scope="list", watch=[newer, older])
    is_left_alone(api, newer)
    is_served(api, older, pool)

    assert operator.process.poll() is None


def is_left_alone(api: KubeClient, namespace: str) -> None:
    """Check that objects of a newer release are reported and not changed until they can be read."""
    told = api.wait("flc/main", namespace, is_unreadable)
    api.wait("flt/orders", namespace, is_unreadable)
    made = api.list("statefulset", namespace)
    api.patch("flc/main", namespace, {"spec": {"listeners": {"data": {"type": "internal"}}}})
    api.patch("flt/orders", namespace, {"spec": {"deletionPolicy": "Retain"}})
    api.wait("flc/main", namespace, is_read_again)
    api.wait("flt/orders", namespace, is_read_again)
    api.wait("statefulset/main-a", namespace, lambda found: found is not None)
    message = next(each["message"] for each in told["status"]["conditions"] if each["type"] == "InvalidSpec")

    assert (
        message
        == "spec.listeners.data.type: Input should be 'internal', 'nodeport', 'loadbalancer' or 'clusterip'"
    )
    assert made == []


def is_served(api: KubeClient, namespace: str, pool: Manifest) -> None:
    """Check that a Cluster of an older release is read, and that its size and its format can be changed."""
    api.wait("flc/main", namespace, lambda found: conditions(found).get("Warning") is not None)
    api.patch("flc/main", namespace, {"spec": {"brokers": [{**pool, "replicas": 3}]}})
    api.patch("flc/main", namespace, {"spec": {"formatVersion": 1}})
    grown = api.wait(
        "statefulset/main-a-b", namespace, lambda found: found and found["spec"]["replicas"] == 3
    )
    told = api.wait("flc/main", namespace, lambda found: found and found["status"]["observedGeneration"] == 3)

    assert "InvalidSpec" not in conditions(told)
    assert grown["metadata"]["labels"]["fairlead.dev/pool"] == "a-b"
