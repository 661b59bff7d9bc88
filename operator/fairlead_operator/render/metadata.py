"""Frames of objects: kind, name, labels, and whose they are."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import CLUSTER, Kind, Manifest, owned_labels


def framed(
    cluster: Cluster,
    kind: Kind,
    name: str,
    *,
    component: str | None = None,
    pool: str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return an object of the Cluster without its content.

    The Cluster owns it, so both are deleted together; with `deletionPolicy: Retain` it has no owner, and stays.
    A finalizer that removes owners would hold up the deletion of the namespace when no operator runs.
    """
    metadata: Manifest = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": owned_labels(cluster.name, component, pool),
    }
    if annotations:
        metadata["annotations"] = dict(sorted(annotations.items()))
    if cluster.spec.deletion_policy == "Delete":
        metadata["ownerReferences"] = [owner_reference(cluster)]
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}


def owner_reference(cluster: Cluster) -> Manifest:
    """Return the reference by which an object belongs to the Cluster, and a deletion in the foreground waits for it."""
    return {
        "apiVersion": CLUSTER.api_version,
        "kind": CLUSTER.kind,
        "name": cluster.name,
        "uid": cluster.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
