from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.resources.resource import InvalidResource
from fairlead_api.resources.topic import Topic


def parsed(**spec: Any) -> Topic:
    """Return a Topic with the given spec."""
    return Topic.parse({"metadata": {"name": "orders", "namespace": "shop"}, "spec": spec})


def test_names_come_from_the_resource_unless_they_are_said() -> None:
    """If its spec contains no names, a Topic is named like the resource, and its Cluster is in the same namespace."""
    plain, said = (
        parsed(clusterRef={"name": "main"}),
        parsed(clusterRef={"name": "main", "namespace": "logs"}, name="O.1"),
    )

    assert (plain.topic_name, plain.cluster_namespace) == ("orders", "shop")
    assert (said.topic_name, said.cluster_namespace) == ("O.1", "logs")


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"partitions": 0}, "spec.partitions"),
        ({"replicas": 0}, "spec.replicas"),
        ({"config": {"retention.ms": None}}, "spec.config.retention.ms"),
        ({"config": {"retention.ms": 1000}}, "spec.config.retention.ms"),
    ],
)
def test_numbers_and_types_hold_wherever_they_come_from(spec: dict[str, Any], path: str) -> None:
    """Numbers and types in a Topic's spec are checked when it is read, even if its definition was changed by hand."""
    with pytest.raises(InvalidResource) as caught:
        parsed(clusterRef={"name": "main"}, **spec)

    assert caught.value.path == path
