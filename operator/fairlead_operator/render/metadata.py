"""Metadata of the objects of a Cluster: kind, name, labels and owner."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import CLUSTER, CLUSTER_LABEL, Kind, Manifest, owned_labels


def framed(
    cluster: Cluster,
    kind: Kind,
    name: str,
    *,
    component: str | None = None,
    pool: str | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return an object of the Cluster that contains only metadata.

    The Cluster owns the object, so Kubernetes deletes the object together with the Cluster. With `deletionPolicy:
    Retain`, the object has no owner and is kept. A finalizer on the Cluster that removes the owner at deletion would
    block the deletion of the namespace while no operator runs.
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
    """Return the owner reference to the Cluster; a foreground deletion of the Cluster waits for the owned objects."""
    return {
        "apiVersion": CLUSTER.api_version,
        "kind": CLUSTER.kind,
        "name": cluster.name,
        "uid": cluster.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def belongs_to(live: Manifest, cluster: str, uid: str) -> bool:
    """Return whether the operator created the object for the Cluster with this name and uid, or may adopt it (rule K6).

    An object with the operator's labels but without an owner was retained when an earlier Cluster of the same name was
    deleted.
    """
    metadata = live["metadata"]
    if (metadata.get("labels") or {}).get(CLUSTER_LABEL) != cluster:
        return False
    owners = {owner["uid"] for owner in metadata.get("ownerReferences") or [] if owner.get("controller")}
    return owners <= {uid}
