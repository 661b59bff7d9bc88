"""Part of a Cluster's status: the addresses for internal and external clients, with and without TLS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_status import BrokerAddress, ListenerStatus
from fairlead_operator.render.addresses import kafka_bootstrap


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Addresses for clients outside the Kubernetes cluster."""

    bootstrap: str
    """Bootstrap URLs, separated by commas; empty while there are no URLs."""
    addresses: Mapping[int, str]
    """Address of each broker that does not share the bootstrap address."""
    deaf: frozenset[int] = frozenset()
    """Brokers without a listener for external clients."""
    missing_kind: str = ""
    """Kind of the route if the API server lacks this kind; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFacts:
    """Addresses for clients with TLS, while other clients still connect without TLS."""

    bootstrap: str
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Addresses for clients inside the Kubernetes cluster."""

    bootstrap: str
    addresses: Mapping[int, str]
    tls: TlsFacts | None = None
    """Addresses for clients with TLS, if they differ from those for other clients."""


def listeners_of(
    cluster: Cluster,
    inside: Inside,
    outside: Outside | None,
    kafka: Mapping[int, str] | None = None,
    *,
    rolls: bool,
) -> tuple[ListenerStatus, ...]:
    """Return the status of all listeners.

    `kafka`: address of each broker for Kafka's clients, if there are any; `rolls`: whether restarts of brokers are
    pending.
    """
    now = [_listener("data", "internal", inside.bootstrap, inside.addresses)]
    if inside.tls is not None:
        now.append(_listener("data-tls", "internal", inside.tls.bootstrap, inside.tls.addresses))
    before = [each for each in cluster.status.listeners if each.name not in {"external", "kafka"}]
    if before and rolls and _schemes(before) != _schemes(now):
        # The status shows the previous addresses until every broker has the new listeners.
        now = before
    if kafka:
        kind = cluster.spec.listeners.kafka.type
        # Outside the Kubernetes cluster, clients find the other brokers through any broker.
        bootstrap = kafka_bootstrap(cluster) if kind == "internal" else next(iter(kafka.values()))
        now = [*now, _listener("kafka", kind, bootstrap, kafka)]
    if outside is None:
        return tuple(now)
    type_ = cluster.spec.listeners.data.type
    return (*now, _listener("external", type_, outside.bootstrap, outside.addresses))


def _schemes(listeners: Iterable[ListenerStatus]) -> list[tuple[str, str]]:
    return [(each.name, (each.bootstrap or "").partition("://")[0]) for each in listeners]


def _listener(name: str, type_: str, bootstrap: str, addresses: Mapping[int, str]) -> ListenerStatus:
    brokers = tuple(BrokerAddress(id=broker, address=addresses[broker]) for broker in sorted(addresses))
    return ListenerStatus(name=name, type=type_, bootstrap=bootstrap, brokers=brokers)
