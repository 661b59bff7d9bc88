"""Admission of a Topic: checks its Cluster, its namespace, and other Topics for the same topic.

`reconcile` calls this module before any call to brokers, with the last observed state of objects. The module does no
I/O, and reads single fields from the manifests of other objects instead of parsing whole manifests, since hundreds of
Topics may refer to the same Cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlead_api.resources.topic import Topic
from fairlead_operator.naming import Manifest
from fairlead_operator.plan.findings import Finding
from fairlead_operator.plan.topic_claims import Claim

ANY_NAMESPACE = "*"


class ClaimedTopic(NamedTuple):
    """A topic of a cluster, which several Topics may name."""

    cluster_namespace: str
    cluster: str
    name: str


def claimed_by(manifest: Manifest) -> ClaimedTopic | None:
    """Return the topic that a Topic names; None if the spec of the Topic cannot be read."""
    metadata, spec = manifest["metadata"], manifest.get("spec")
    reference = spec.get("clusterRef") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(reference, dict) or "name" not in reference:
        return None
    namespace = reference.get("namespace") or metadata["namespace"]
    return ClaimedTopic(namespace, reference["name"], spec.get("name") or metadata["name"])


def claims_of(
    wanted: ClaimedTopic, topics: Iterable[Manifest], cluster: Manifest, *, but: str = ""
) -> list[Claim]:
    """Return the admitted Topics that name a topic; `but` is the uid of a Topic to leave out."""
    return [
        _claim(each)
        for each in topics
        if claimed_by(each) == wanted
        and each["metadata"]["uid"] != but
        and may_use(cluster, each["metadata"]["namespace"])
    ]


def may_use(cluster: Manifest, namespace: str) -> bool:
    """Return whether the Cluster admits Topics of a namespace."""
    if namespace == cluster["metadata"]["namespace"]:
        return True
    allowed = cluster.get("spec", {}).get("topicNamespaces") or []
    return namespace in allowed or ANY_NAMESPACE in allowed


def is_leaving(cluster: Manifest | None) -> bool:
    """Return whether the Cluster does not exist or is being deleted."""
    return cluster is None or cluster["metadata"].get("deletionTimestamp") is not None


def desired_brokers(cluster: Manifest) -> int:
    """Return the number of brokers in the Cluster's spec."""
    return sum(int(pool.get("replicas", 0)) for pool in cluster.get("spec", {}).get("brokers") or [])


def refusal(topic: Topic, cluster: Manifest | None) -> Finding | None:
    """Return the reason why the Topic cannot have a topic in its Cluster; None if the Topic is admitted."""
    name = f"{topic.cluster_namespace}/{topic.spec.cluster_ref.name}"
    if cluster is None:
        return Finding("ClusterNotFound", f"there is no Cluster {name}")
    if is_leaving(cluster):
        return Finding("ClusterNotFound", f"Cluster {name} is being deleted")
    if not may_use(cluster, topic.namespace):
        return Finding(
            "NamespaceNotAllowed",
            f"Cluster {name} accepts no topics from namespace {topic.namespace}; "
            f"add {topic.namespace} to its spec.topicNamespaces",
        )
    return None


def conflict(topic: Topic, holder: Claim | None) -> Finding | None:
    """Return a finding if another Topic owns the topic, else None."""
    if holder is None or holder.uid == topic.metadata.uid:
        return None
    return Finding(
        "ResourceConflict",
        f"Topic {holder} owns topic {topic.topic_name}; this Topic takes over when {holder} is deleted",
    )


def _claim(manifest: Manifest) -> Claim:
    metadata = manifest["metadata"]
    status = manifest.get("status") or {}
    return Claim(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        created=metadata.get("creationTimestamp", ""),
        held_id=status.get("topicId"),
        deleting=metadata.get("deletionTimestamp") is not None,
    )
