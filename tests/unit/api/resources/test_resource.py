from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.resource import Fault, InvalidResource, Metadata
from fairlead_api.resources.topic import Topic

TOPIC: dict[str, Any] = {
    "metadata": {"name": "orders", "namespace": "shop", "uid": "u", "generation": 2},
    "spec": {"clusterRef": {"name": "main"}},
}


def test_fields_that_a_model_does_not_know_are_left_out() -> None:
    """Unknown fields in a stored object, written by a newer release, are ignored."""
    newer = {**TOPIC, "spec": {"clusterRef": {"name": "main", "zone": 1}, "quota": {"bytes": 5}}, "more": 1}
    topic = Topic.parse(newer)

    assert topic.manifest()["spec"] == {
        "clusterRef": {"name": "main"},
        "partitions": 1,
        "config": {},
        "unmanagedConfig": [],
        "deletionPolicy": "Delete",
    }


def test_what_the_schema_alone_forbids_is_read() -> None:
    """A stored object that violates only schema rules is read, because an older definition may have allowed it."""
    old = {
        **TOPIC,
        "spec": {"clusterRef": {"name": "Main Cluster"}, "name": "x" * 999, "config": {"A B": "1"}},
    }

    assert Topic.parse(old).topic_name == "x" * 999


def test_an_object_that_cannot_be_read_says_where_and_why() -> None:
    """An invalid object is refused, and the error lists every fault with its path in the API server's notation."""
    broken = {
        "metadata": {"name": "main", "namespace": "shop"},
        "spec": {
            "brokers": [{"name": "a", "replicas": -3, "storage": {"size": "1Gi"}}],
            "deletionPolicy": "Orphan",
        },
    }
    with pytest.raises(InvalidResource) as caught:
        Cluster.parse(broken)

    assert caught.value.subject == "Cluster shop/main"
    assert caught.value.path == "spec.brokers[0].replicas"
    assert caught.value.reason == "Input should be greater than or equal to 0"
    assert caught.value.faults[1] == Fault("spec.deletionPolicy", "Input should be 'Delete' or 'Retain'")
    assert str(caught.value) == (
        "Cluster shop/main: spec.brokers[0].replicas: Input should be greater than or equal to 0; "
        "spec.deletionPolicy: Input should be 'Delete' or 'Retain'"
    )


@pytest.mark.parametrize(
    ("manifest", "subject", "path"),
    [
        ({}, "Topic", "metadata"),
        ({"metadata": None, "spec": {"clusterRef": {"name": "a"}}}, "Topic", "metadata"),
        (
            {"metadata": {"name": "a"}, "spec": {"clusterRef": {"name": "a"}}},
            "Topic ?/a",
            "metadata.namespace",
        ),
    ],
)
def test_what_has_no_metadata_is_named_as_far_as_it_goes(
    manifest: dict[str, object], subject: str, path: str
) -> None:
    """An object without a name or metadata is refused with the same typed error as other invalid objects."""
    with pytest.raises(InvalidResource) as caught:
        Topic.parse(manifest)

    assert (caught.value.subject, caught.value.path) == (subject, path)


def test_a_status_that_cannot_be_read_counts_as_not_written() -> None:
    """A malformed status counts as empty, because the operator writes it again."""
    topic = Topic.parse({**TOPIC, "status": {"conditions": "all fine", "partitions": 5}})

    assert topic.status == Topic.parse(TOPIC).status
    assert topic.status.partitions is None


def test_faults_of_the_spec_are_reported_without_those_of_the_status() -> None:
    """Errors in the spec are reported, but not errors in the status, which users do not write."""
    with pytest.raises(InvalidResource) as caught:
        Topic.parse({**TOPIC, "spec": {}, "status": {"partitions": "many"}})

    assert [fault.path for fault in caught.value.faults] == ["spec.clusterRef"]


def test_a_status_that_is_no_object_counts_as_not_written() -> None:
    """A status that is not an object counts as empty."""
    assert Topic.parse({**TOPIC, "status": 7}).status.conditions == ()


def test_metadata_and_names_are_at_hand() -> None:
    """The metadata of a resource contains only the fields that the operator reads, with their types."""
    topic = Topic.parse(
        {**TOPIC, "metadata": {**TOPIC["metadata"], "managedFields": [{}], "labels": {"a": "b"}}}
    )

    assert (topic.namespace, topic.name) == ("shop", "orders")
    assert topic.metadata == Metadata(
        name="orders", namespace="shop", uid="u", generation=2, labels={"a": "b"}
    )
