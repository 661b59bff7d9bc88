"""The status of the listeners of a Cluster with TLS."""

from __future__ import annotations

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import ClusterStatus
from fairlead_operator.plan.securing.listeners import Inside, TlsFacts, listeners_of
from fairlead_operator.render.addresses import kafka_addresses
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


def test_the_kafka_listener_has_the_address_of_each_broker() -> None:
    """Kafka's clients begin at the bootstrap Service, or outside of Kubernetes at a broker, and call every broker."""
    inside = cluster_of(listeners={"kafka": {"enabled": True}})
    hosts = {"enabled": True, "type": "loadbalancer", "advertisedHost": "kafka-{id}.example.com"}
    outside = cluster_of(listeners={"kafka": hosts})
    ports = {"enabled": True, "type": "nodeport", "firstNodePort": 30920}
    nodes = cluster_of(listeners={"kafka": ports})

    found = [
        listeners_of(
            each, PLAIN, None, kafka_addresses(each, {}, {0: "2001:db8::1", 1: "192.0.2.2"}), rolls=False
        )[-1]
        for each in (inside, outside, nodes)
    ]

    assert [(each.name, each.type, each.bootstrap, each.brokers[0].address) for each in found] == [
        (
            "kafka",
            "internal",
            "main-bootstrap.shop.svc:9092",
            "main-a-0.main-brokers.shop.svc:9092",
        ),
        ("kafka", "loadbalancer", "kafka-0.example.com:9092", "kafka-0.example.com:9092"),
        ("kafka", "nodeport", "[2001:db8::1]:30920", "[2001:db8::1]:30920"),
    ]
    assert [each.address for each in found[2].brokers] == ["[2001:db8::1]:30920", "192.0.2.2:30921"]
    assert kafka_addresses(cluster_of(), {}, {}) == {}


def test_a_kafka_listener_does_not_delay_new_addresses() -> None:
    """The addresses of Kafka's clients are not compared with those of other listeners during a roll."""
    before = with_status(PLAIN)

    found = listeners_of(before, PLAIN, None, {0: "main-0:9092"}, rolls=True)

    assert [each.name for each in found] == ["data", "kafka"]
