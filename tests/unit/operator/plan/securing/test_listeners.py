"""The status of the listeners of a Cluster with TLS."""

from __future__ import annotations

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import ClusterStatus
from fairlead_operator.plan.securing.listeners import Inside, TlsFacts, listeners_of
from render_kit import cluster_of

PLAIN = Inside(bootstrap="http://main:9520", addresses={0: "main-0:9520"})
TLS = Inside(bootstrap="https://main:9520", addresses={0: "main-0:9520"})
BOTH = Inside(
    bootstrap="http://main:9520",
    addresses={0: "main-0:9520"},
    tls=TlsFacts(bootstrap="https://main:9524", addresses={0: "main-0:9524"}),
)


def with_status(inside: Inside) -> Cluster:
    """Return a Cluster whose status has the given listeners."""
    cluster = cluster_of()
    status = ClusterStatus(listeners=listeners_of(cluster, inside, None, rolls=False))
    return cluster.model_copy(update={"status": status})


def test_both_transports_have_a_listener_each() -> None:
    """While a Cluster serves both plaintext and TLS, clients with TLS use a separate address."""
    found = listeners_of(cluster_of(), BOTH, None, rolls=False)

    assert [(each.name, each.bootstrap) for each in found] == [
        ("data", "http://main:9520"),
        ("data-tls", "https://main:9524"),
    ]


def test_clients_keep_the_known_addresses_during_a_roll() -> None:
    """The status reports addresses with a new transport only when every broker has restarted with that transport."""
    before = with_status(PLAIN)

    assert listeners_of(before, TLS, None, rolls=True) == before.status.listeners
    assert [each.bootstrap for each in listeners_of(before, TLS, None, rolls=False)] == ["https://main:9520"]
