from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.resource import InvalidResource, Resource
from fairlead_api.resources.topic import Topic

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
CLUSTER: dict[str, Any] = {
    "metadata": {"name": "main", "namespace": "shop", "generation": 3, "annotations": {"a": "b"}},
    "spec": {
        "brokers": [
            {
                "name": "a",
                "replicas": 3,
                "storage": {"size": "1Gi"},
                "template": {"spec": {"containers": []}},
            },
            {"name": "b", "firstBrokerId": 100, "replicas": 1, "storage": {"size": "1Gi"}},
        ],
        "etcd": {"managed": {"replicas": 3, "resources": {"requests": {"cpu": 1}}}},
        "networkPolicy": {"clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "config": {"retention.ms": "1"},
    },
    "status": {
        "conditions": [{"type": "Ready", "status": "True", "reason": "Available"}],
        "pools": [{"name": "a"}],
    },
}
TOPIC: dict[str, Any] = {
    "metadata": {"name": "orders", "namespace": "shop"},
    "spec": {
        "clusterRef": {"name": "main"},
        "partitions": 3,
        "config": {"retention.ms": "1"},
        "unmanagedConfig": ["a"],
    },
    "status": {"reassignment": {"partitionsTotal": 3, "partitionsLeft": 1}},
}


@st.composite
def damaged(draw: st.DrawFn) -> tuple[type[Resource], dict[str, Any]]:
    """Draw a manifest in which up to three fields are removed or replaced by any value."""
    kind, manifest = draw(st.sampled_from([(Cluster, CLUSTER), (Topic, TOPIC)]))
    result = copy.deepcopy(manifest)
    for _ in range(draw(st.integers(1, 3))):
        node: Any = result
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.booleans()):
                node = node[key]
            elif isinstance(node, dict) and draw(st.booleans()):
                del node[key]
                break
            else:
                node[key] = draw(JSON)
                break
    return kind, result


@given(damaged())
def test_whatever_is_stored_is_read_or_refused_with_a_place(
    stored: tuple[type[Resource], dict[str, Any]],
) -> None:
    """A damaged stored object is read, or refused with the path of the fault, and raises no other error."""
    kind, manifest = stored
    places, again, parsed = [], None, None
    try:
        parsed = kind.parse(manifest)
        again = kind.parse(parsed.manifest())
    except InvalidResource as refusal:
        places = [fault.path for fault in refusal.faults]

    assert all(place.startswith(("metadata", "spec")) for place in places)
    assert again == parsed
    assert (parsed is None) == bool(places)
