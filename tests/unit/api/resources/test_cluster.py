from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.resource import InvalidResource
from refusals import raises

METADATA = {"name": "main", "namespace": "shop"}


def pool(name: str, first: int = 0) -> dict[str, Any]:
    """Return a pool of three brokers."""
    return {"name": name, "firstBrokerId": first, "replicas": 3, "storage": {"size": "1Gi"}}


def parsed(**spec: Any) -> Cluster:
    """Return a Cluster with the given spec."""
    return Cluster.parse({"metadata": METADATA, "spec": spec})


def test_the_smallest_cluster_has_a_managed_etcd_of_three() -> None:
    """The smallest Cluster has the defaults of the schema, with a managed etcd of three members."""
    cluster = parsed(brokers=[pool("a")])

    assert cluster.spec.etcd.managed is not None
    assert (cluster.spec.etcd.managed.replicas, cluster.spec.etcd.managed.storage.size) == (3, "2Gi")
    assert cluster.spec.claim_policy.when_deleted == "Retain"
    assert cluster.spec.network_policy.clients is None


def test_pools_whose_ids_do_not_meet_stand_side_by_side() -> None:
    """Pools whose first ids are a hundred apart do not overlap and are accepted."""
    assert [each.name for each in parsed(brokers=[pool("a"), pool("b", 100)]).spec.brokers] == ["a", "b"]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(pool("b", 99), id="ids"),
        pytest.param(pool("a", 100), id="name"),
    ],
)
def test_two_brokers_of_one_id_are_never_read(second: dict[str, Any]) -> None:
    """A Cluster with overlapping broker ids or pool names is refused, even if its definition was changed by hand."""
    with raises(InvalidResource, "pools", "a"):
        parsed(brokers=[pool("a"), second])


@pytest.mark.parametrize("etcd", [{}, {"managed": {}, "external": {"endpoints": ["http://a:1"]}}])
def test_etcd_is_one_of_two(etcd: dict[str, Any]) -> None:
    """A Cluster is refused unless it has either a managed or an external etcd."""
    with raises(InvalidResource, "etcd.managed", "etcd.external"):
        parsed(brokers=[pool("a")], etcd=etcd)


def test_a_peer_may_leave_addresses_out() -> None:
    """The address block of a network policy peer may have exceptions, in the field `except` as in a NetworkPolicy."""
    block = {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}
    cluster = parsed(brokers=[pool("a")], networkPolicy={"clients": [{"ipBlock": block}]})
    clients = cluster.spec.network_policy.clients

    assert clients is not None
    assert clients[0].manifest() == {"ipBlock": block}
