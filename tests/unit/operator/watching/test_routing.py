"""The keys that are reconciled after a change to an object."""

from __future__ import annotations

import copy
from typing import Any

from fairlead_operator.naming import (
    CLUSTER,
    CLUSTER_LABEL,
    CONFIG_MAP,
    FIELD_MANAGER,
    MANAGED_BY_LABEL,
    POD,
    REBALANCE,
    TOPIC,
)
from fairlead_operator.ports import Key
from fairlead_operator.watching.routing import concerns, keys_of_change, selector_of

Manifest = dict[str, Any]

MAIN: Manifest = {
    "metadata": {"name": "main", "namespace": "shop", "uid": "1", "resourceVersion": "5"},
    "spec": {"brokers": []},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def a_topic(
    name: str, *, namespace: str = "shop", cluster: str = "main", topic: str | None = None
) -> Manifest:
    """Return a Topic that refers to a Cluster in the namespace `shop`."""
    reference = {"name": cluster, **({"namespace": "shop"} if namespace != "shop" else {})}
    spec = {"clusterRef": reference, **({"name": topic} if topic else {})}
    return {"kind": "Topic", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


REBALANCE_OF_MAIN = {**a_topic("a"), "kind": "Rebalance"}
TOPICS = [a_topic("a"), a_topic("b", namespace="team", topic="a"), a_topic("c", cluster="other")]


def changed(manifest: Manifest, **parts: Any) -> Manifest:
    """Return a later version of an object with changed parts."""
    later = copy.deepcopy(manifest) | parts
    later["metadata"]["resourceVersion"] = "6"
    return later


def keys(kind: Any, before: Manifest | None, after: Manifest | None) -> set[tuple[str, ...]]:
    """Return the keys that a change affects."""
    return {tuple(key) for key in keys_of_change(kind, before, after, [*TOPICS, REBALANCE_OF_MAIN])}


def test_a_cluster_concerns_itself_and_its_dependents() -> None:
    """The creation, deletion or edit of a Cluster queues the Cluster, its Topics and its Rebalances."""
    topics = {("Topic", "shop", "a"), ("Topic", "team", "b"), ("Rebalance", "shop", "a")}
    edited = changed(MAIN, spec={"brokers": [{"name": "a"}]})

    for before, after in ((None, MAIN), (MAIN, None), (MAIN, edited)):
        assert keys(CLUSTER, before, after) == {("Cluster", "shop", "main"), *topics}


def test_own_statuses_queue_no_pass() -> None:
    """A change to a Cluster's status queues its dependents if its readiness changed, and nothing otherwise."""
    told = changed(MAIN, status={**MAIN["status"], "version": "1"})
    unready = changed(MAIN, status={"conditions": [{"type": "Ready", "status": "False"}]})

    assert keys(CLUSTER, MAIN, told) == set()
    assert keys(CLUSTER, MAIN, unready) == {
        ("Topic", "shop", "a"),
        ("Topic", "team", "b"),
        ("Rebalance", "shop", "a"),
    }
    assert keys(REBALANCE, REBALANCE_OF_MAIN, None) == {("Rebalance", "shop", "a")}
    assert keys(TOPIC, TOPICS[0], changed(TOPICS[0], status={"topicId": "x"})) == set()


def test_a_topic_that_goes_makes_room() -> None:
    """The deletion of a Topic queues all Topics that claim the same topic."""
    going = changed(TOPICS[0])
    going["metadata"]["deletionTimestamp"] = "now"

    assert keys(TOPIC, None, TOPICS[0]) == {("Topic", "shop", "a")}
    assert keys(TOPIC, TOPICS[0], going) == {("Topic", "shop", "a"), ("Topic", "team", "b")}
    assert keys(TOPIC, TOPICS[2], None) == {("Topic", "shop", "c")}


def test_children_concern_their_cluster() -> None:
    """A changed object queues the Clusters that its label names before and after the change."""
    pod = {"metadata": {"name": "main-a-0", "namespace": "shop", "labels": {CLUSTER_LABEL: "main"}}}
    stolen = {"metadata": {"name": "main-a-0", "namespace": "shop", "labels": {CLUSTER_LABEL: "other"}}}

    assert keys(POD, None, pod) == {("Cluster", "shop", "main")}
    assert keys(POD, pod, stolen) == {("Cluster", "shop", "main"), ("Cluster", "shop", "other")}
    assert list(keys_of_change(POD, {"metadata": {"name": "x", "namespace": "shop"}}, None, [])) == []


def test_changed_authorities_concern_the_users_of_a_cluster() -> None:
    """The Secrets of Users contain the authorities in a ConfigMap of the Cluster, and no other ConfigMap matters."""
    user, other = (
        {"kind": "User", "metadata": {"name": name, "namespace": "team"}, "spec": {"clusterRef": reference}}
        for name, reference in (("ann", {"name": "main", "namespace": "shop"}), ("bob", {"name": "main"}))
    )
    found = {
        name: set(
            keys_of_change(
                CONFIG_MAP,
                None,
                {"metadata": {"name": name, "namespace": "shop", "labels": {CLUSTER_LABEL: "main"}}},
                [user, other, *TOPICS],
            )
        )
        for name in ("main-ca", "main-brokers")
    }
    cluster = Key("Cluster", "shop", "main")

    assert found == {"main-ca": {cluster, Key("User", "team", "ann")}, "main-brokers": {cluster}}


def test_only_own_objects_are_watched() -> None:
    """Only objects with the operator's label are watched, except for Clusters and Topics."""
    ours = {"metadata": {"labels": {MANAGED_BY_LABEL: FIELD_MANAGER}}}

    assert selector_of(POD) == f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"
    assert selector_of(TOPIC) == ""
    assert concerns(POD, ours)
    assert not concerns(POD, {"metadata": {}})
    assert concerns(CLUSTER, {"metadata": {}})
