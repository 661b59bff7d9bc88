from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.resource import InvalidResource

METADATA = {"name": "main", "namespace": "shop"}


def pool(name: str, first: int = 0) -> dict[str, Any]:
    """Return a pool of three brokers."""
    return {"name": name, "firstBrokerId": first, "replicas": 3, "storage": {"size": "1Gi"}}


def parsed(**spec: Any) -> Cluster:
    """Return a Cluster of a spec."""
    return Cluster.parse({"metadata": METADATA, "spec": spec})


def test_the_smallest_cluster_has_a_managed_etcd_of_three() -> None:
    """What is not said is decided, the same way as in the schema."""
    cluster = parsed(brokers=[pool("a")])

    assert cluster.spec.etcd.managed is not None
    assert (cluster.spec.etcd.managed.replicas, cluster.spec.etcd.managed.storage.size) == (3, "2Gi")
    assert cluster.spec.claim_policy.when_deleted == "Retain"
    assert cluster.spec.network_policy.clients is None


def test_pools_whose_ids_do_not_meet_stand_side_by_side() -> None:
    """A hundred ids apart is enough."""
    assert [each.name for each in parsed(brokers=[pool("a"), pool("b", 100)]).spec.brokers] == ["a", "b"]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(pool("b", 99), id="ids"),
        pytest.param(pool("a", 100), id="name"),
    ],
)
def test_two_brokers_of_one_id_are_never_read(second: dict[str, Any]) -> None:
    """Definitions changed by hand cannot lead to two brokers of one id."""
    with pytest.raises(InvalidResource, match=r"spec: pools a and \w overlap in their name or broker ids"):
        parsed(brokers=[pool("a"), second])


@pytest.mark.parametrize("etcd", [{}, {"managed": {}, "external": {"endpoints": ["http://a:1"]}}])
def test_etcd_is_one_of_two(etcd: dict[str, Any]) -> None:
    """Neither and both are refused here too."""
    with pytest.raises(InvalidResource, match=r"exactly one of etcd\.managed and etcd\.external is set"):
        parsed(brokers=[pool("a")], etcd=etcd)


def test_a_peer_may_leave_addresses_out() -> None:
    """`except` is a word of Python; on the wire it is what NetworkPolicy calls it."""
    block = {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}
    cluster = parsed(brokers=[pool("a")], networkPolicy={"clients": [{"ipBlock": block}]})
    clients = cluster.spec.network_policy.clients

    assert clients is not None
    assert clients[0].manifest() == {"ipBlock": block}
