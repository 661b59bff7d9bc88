"""Routing of changes, without I/O: maps a changed object to the keys to reconcile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from fairlead_operator.naming import (
    API_VERSION,
    BACKUP_LABEL,
    CLAIM,
    CLUSTER,
    CLUSTER_LABEL,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ETCD_BACKUP,
    FIELD_MANAGER,
    HTTP_ROUTE,
    INGRESS,
    JOB,
    LINK,
    MANAGED_BY_LABEL,
    NETWORK_POLICY,
    POD,
    POD_MONITOR,
    REBALANCE,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    TLS_ROUTE,
    TOPIC,
    USER,
    Kind,
    Manifest,
    authority_name,
)
from fairlead_operator.ports import Key

RESOURCES: Final = (CLUSTER, TOPIC, USER, REBALANCE, ETCD_BACKUP, LINK)
"""Kinds that are reconciled; all objects of these kinds are watched."""
DEPENDENTS: Final = (TOPIC, USER, REBALANCE, ETCD_BACKUP, LINK)
"""Kinds whose objects name a Cluster in `clusterRef`."""
CHILDREN: Final = (
    SERVICE_ACCOUNT, CONFIG_MAP, SERVICE, STATEFUL_SET, DEPLOYMENT, POD, CLAIM, DISRUPTION_BUDGET, NETWORK_POLICY,
    INGRESS, HTTP_ROUTE, TLS_ROUTE, POD_MONITOR, CRON_JOB, JOB,
)  # fmt: skip
"""Kinds for which only objects with the operator's label are watched."""
OPTIONAL_GROUPS: Final = (API_VERSION, HTTP_ROUTE.api_version, POD_MONITOR.api_version)
"""API groups whose definitions may be missing, or may be installed or removed while the operator runs."""
OWN_SELECTOR: Final = f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"


def selector_of(kind: Kind) -> str:
    """Return the label selector for the watched objects of the kind."""
    return "" if kind in RESOURCES else OWN_SELECTOR


def concerns(kind: Kind, manifest: Manifest) -> bool:
    """Return whether the operator watches the object."""
    if kind in RESOURCES:
        return True
    return (
        kind in CHILDREN and (manifest["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == FIELD_MANAGER
    )


def keys_of_change(
    kind: Kind, before: Manifest | None, after: Manifest | None, dependents: Iterable[Manifest]
) -> Iterator[Key]:
    """Yield the keys that a change affects; `before` is None for a new object, `after` for a deleted object.

    `dependents` must contain all known objects of the kinds in `DEPENDENTS`.
    """
    manifest = after if after is not None else before
    assert manifest is not None, "a change has an object before or after it"
    namespace, name = _named(manifest)
    if kind == CLUSTER:
        if _asked(before) != _asked(after):
            yield Key(CLUSTER.kind, namespace, name)
        if _matters_to_dependents(before) != _matters_to_dependents(after):
            yield from (_key_of(each) for each in dependents if cluster_of(each) == (namespace, name))
    elif kind in DEPENDENTS:
        if _asked(before) != _asked(after):
            yield Key(kind.kind, namespace, name)
        if (
            kind == TOPIC
            and before is not None
            and (after is None or "deletionTimestamp" in after["metadata"])
        ):
            # Another Topic may be waiting for the name of the topic.
            wanted = _topic_named(before)
            topics = (each for each in dependents if each["kind"] == TOPIC.kind)
            yield from (_key_of(topic) for topic in topics if _topic_named(topic) == wanted)
    else:
        for state in (before, after):
            labels = (state["metadata"].get("labels") or {}) if state is not None else {}
            for owner, label in ((CLUSTER, CLUSTER_LABEL), (ETCD_BACKUP, BACKUP_LABEL)):
                if labels.get(label):
                    yield Key(owner.kind, namespace, labels[label])
            cluster = labels.get(CLUSTER_LABEL, "")
            if kind == CONFIG_MAP and cluster and name == authority_name(cluster):
                # The Secrets of Users contain the authorities that clients trust.
                users = (each for each in dependents if each["kind"] == USER.kind)
                yield from (_key_of(each) for each in users if cluster_of(each) == (namespace, cluster))


def cluster_of(dependent: Manifest) -> tuple[str, str]:
    """Return the namespace and the name of the Cluster that an object names."""
    reference = dependent.get("spec", {}).get("clusterRef") or {}
    return reference.get("namespace") or dependent["metadata"]["namespace"], reference.get("name", "")


def _topic_named(topic: Manifest) -> tuple[tuple[str, str], str]:
    return cluster_of(topic), topic.get("spec", {}).get("name") or topic["metadata"]["name"]


def _key_of(dependent: Manifest) -> Key:
    return Key(dependent["kind"], *_named(dependent))


def _named(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def _asked(manifest: Manifest | None) -> Any:
    """Return the parts of a resource whose change causes a pass, without the status, which the operator writes."""
    if manifest is None:
        return None
    ignored = {"resourceVersion", "managedFields"}
    metadata = {name: value for name, value in manifest["metadata"].items() if name not in ignored}
    return metadata, manifest.get("spec")


def _matters_to_dependents(cluster: Manifest | None) -> Any:
    if cluster is None:
        return None
    ready = [
        condition.get("status")
        for condition in (cluster.get("status") or {}).get("conditions") or []
        if condition.get("type") == "Ready"
    ]
    return _asked(cluster), ready
