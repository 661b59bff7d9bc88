"""The admission of a Topic: its Cluster, its namespace, and other Topics that claim the same topic."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.resources.topic import Topic
from fairlead_operator.naming import Manifest
from fairlead_operator.plan.topic_admission import (
    ClaimedTopic,
    claimed_by,
    claims_of,
    conflict,
    desired_brokers,
    is_leaving,
    may_use,
    refusal,
)
from fairlead_operator.plan.topic_claims import Claim, winner


def cluster(*, deleting: bool = False, **spec: Any) -> Manifest:
    """Return the Cluster `shop/main`."""
    metadata: Manifest = {"name": "main", "namespace": "shop"}
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": metadata, "spec": spec}


def topic(name: str = "flights", namespace: str = "shop", *, uid: str = "u", **about: Any) -> Manifest:
    """Return a Topic of `shop/main`."""
    metadata = {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    reference = {"name": "main", "namespace": "shop"}
    return {
        "metadata": {**metadata, **about.pop("metadata", {})},
        "spec": {"clusterRef": reference, **about},
        "status": {"topicId": "t"} if uid == "holder" else None,
    }


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "ClusterNotFound"),
        (cluster(deleting=True), "ClusterNotFound"),
        (cluster(), "NamespaceNotAllowed"),
        (cluster(topicNamespaces=["apps"]), None),
    ],
)
def test_why_a_topic_is_not_taken(found: Manifest | None, reason: str | None) -> None:
    """A Topic of another namespace needs a Cluster that exists, is not being deleted, and allows the namespace."""
    finding = refusal(Topic.parse(topic(namespace="apps")), found)

    assert (finding.reason if finding else None) == reason


def test_namespaces() -> None:
    """A Cluster admits Topics of its own namespace, of listed namespaces, and of all namespaces if a star is listed."""
    assert may_use(cluster(), "shop")
    assert may_use(cluster(topicNamespaces=["*"]), "anywhere")
    assert not may_use(cluster(topicNamespaces=["apps"]), "anywhere")


def test_a_topic_is_claimed_by_its_name_or_the_resources() -> None:
    """A Topic claims the topic named in its spec, by default its own name, and no topic if the spec is unreadable."""
    own = {"metadata": {"name": "flights", "namespace": "apps"}, "spec": {"clusterRef": {"name": "main"}}}

    assert claimed_by(topic(name="a", namespace="apps")) == ClaimedTopic("shop", "main", "a")
    assert claimed_by(topic(name="resource") | {"spec": {**topic()["spec"], "name": "b"}}) == ClaimedTopic(
        "shop", "main", "b"
    )
    assert claimed_by(own) == ClaimedTopic("apps", "main", "flights")
    unreadable: tuple[Any, ...] = (None, {}, {"clusterRef": "main"}, {"clusterRef": {}})
    for spec in unreadable:
        assert claimed_by({"metadata": own["metadata"], "spec": spec}) is None


def test_only_permitted_claims_count() -> None:
    """Claims of other topics, of namespaces that are not allowed, and of the given Topic itself are ignored."""
    mine = topic(uid="a")
    others = [topic("other", uid="b"), topic(namespace="apps", uid="c"), topic(uid="holder")]
    claims = claims_of(ClaimedTopic("shop", "main", "flights"), [mine, *others], cluster(), but="a")

    assert [(claim.uid, claim.held_id, claim.deleting) for claim in claims] == [("holder", "t", False)]


def claim(uid: str, created: int, held: str | None = None, *, deleting: bool = False) -> Claim:
    """Return a claim that was created in the given second."""
    return Claim("shop", uid, uid, f"2026-01-01T00:00:0{created}Z", held, deleting)


def test_the_owner_of_the_topic_keeps_it() -> None:
    """The owner of the topic wins, then the oldest Topic, then the lowest uid, and a Topic being deleted loses."""
    assert winner([]) is None
    assert winner([claim("b", 1), claim("a", 1), claim("c", 2)]) == claim("a", 1)
    assert winner([claim("a", 1), claim("b", 2, "t")]) == claim("b", 2, "t")
    assert winner([claim("a", 1), claim("b", 2, "t", deleting=True)]) == claim("a", 1)


def test_a_losing_topic_names_the_owner() -> None:
    """The condition of a Topic that lost its topic names the winning Topic, which has no conflict."""
    loser = Topic.parse(topic(uid="b"))
    finding = conflict(loser, claim("a", 1))

    assert finding is not None
    assert "shop/a owns topic flights" in finding.message
    assert conflict(loser, claim("b", 1)) is None
    assert conflict(loser, None) is None


def test_what_is_read_of_a_cluster() -> None:
    """The number of brokers and the deletion of a Cluster are read from its manifest."""
    pools = [{"name": "a", "replicas": 3}, {"name": "b", "replicas": 2}]

    assert (desired_brokers(cluster(brokers=pools)), desired_brokers(cluster())) == (5, 0)
    assert (is_leaving(None), is_leaving(cluster()), is_leaving(cluster(deleting=True))) == (
        True,
        False,
        True,
    )
