"""Manifests of Clusters for tests, and functions that read Clusters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kube_client import Manifest

BROKERS = "fairlead.dev/cluster=main,app.kubernetes.io/component=broker"
"""Label selector for the broker pods and claims of the Cluster `main`."""
USUAL_WARNINGS = ("SecurityOpen", "SingleBroker")
"""Reasons of the warnings that follow from the spec of many Clusters of tests."""


def a_cluster(replicas: int = 3, *, size: str = "1Gi", pool: Manifest | None = None, **spec: Any) -> Manifest:
    """Return the Cluster `main` with one pool `a` and one etcd member; `pool` and `spec` add fields."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "main"},
        "spec": {
            "brokers": [{"name": "a", "replicas": replicas, "storage": {"size": size}, **(pool or {})}],
            "etcd": {"managed": {"replicas": 1, "storage": {"size": "1Gi"}}},
            **spec,
        },
    }


def condition_of(cluster: Manifest | None, type_: str) -> Manifest:
    """Return a condition of a Cluster for its current spec, {} when missing."""
    if cluster is None:
        return {}
    status = cluster.get("status") or {}
    if status.get("observedGeneration") != cluster["metadata"]["generation"]:
        return {}
    return next((each for each in status.get("conditions") or [] if each["type"] == type_), {})


def has(type_: str, reason: str, status: str = "True") -> Callable[[Manifest | None], bool]:
    """Return a function that checks whether a Cluster has a condition with the given reason."""

    def holds(cluster: Manifest | None) -> bool:
        found = condition_of(cluster, type_)
        return (found.get("reason"), found.get("status")) == (reason, status)

    return holds


def is_done(cluster: Manifest | None) -> bool:
    """Return whether a Cluster is ready and no change is in progress."""
    return has("Ready", "Available")(cluster) and has("Progressing", "UpToDate", "False")(cluster)


def is_warned(cluster: Manifest | None) -> bool:
    """Return whether a Cluster has a warning that does not follow from its spec."""
    return condition_of(cluster, "Warning").get("reason") not in (None, *USUAL_WARNINGS)


def uids(objects: list[Manifest]) -> dict[str, str]:
    """Return the uid of each object by its name."""
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in objects}
