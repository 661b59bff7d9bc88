"""The brokers' addresses for clients, derived from the Cluster's listener and the addresses of its Services.

`plan` writes the derived addresses into the status and compares them with the addresses that the brokers advertise.
Brokers read their advertised addresses from the configuration file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import (
    DATA_PORT,
    KAFKA_PORT,
    TLS_PORT,
    Manifest,
    bootstrap_service_name,
    broker_pod_name,
    broker_service_name,
    brokers_service_name,
    external_service_name,
)

PORTS = {"http": 80, "https": 443}
POD_PLACE = "{pod}"
NODE_PLACE = "{node}"
"""Placeholder that a broker replaces with the address of its node."""
ASSIGNED_TYPES = ("nodeport", "loadbalancer")
"""Types of listener whose Services get addresses for external clients from Kubernetes."""
BOOTSTRAP_HOSTS_MAX = 3
"""Maximum number of nodes in the bootstrap URLs; a client needs only one node that answers."""
_ID_SUM = re.compile(r"\{id\+(\d+)\}")
"""Placeholder that a broker replaces with the sum of its id and a number."""


def internal_host(cluster: Cluster, pod: str = POD_PLACE) -> str:
    """Return the DNS name of a broker pod inside the Kubernetes cluster."""
    return f"{pod}.{brokers_service_name(cluster.name)}.{cluster.namespace}.svc"


def serves_tls(cluster: Cluster) -> bool:
    """Return whether the data listener of the Cluster has TLS."""
    security = cluster.spec.security
    return security is not None and security.tls.mode != "Off"


def data_scheme(cluster: Cluster) -> str:
    """Return the scheme of the data port."""
    security = cluster.spec.security
    return "https" if security is not None and security.tls.mode == "Required" else "http"


def _tls_port(cluster: Cluster) -> int:
    """Return the port that is advertised to clients with TLS."""
    return DATA_PORT if data_scheme(cluster) == "https" else TLS_PORT


def advertise_template(cluster: Cluster, *, tls: bool = False) -> str:
    """Return the address template for internal clients; the template may contain `{id}`, `{pod}` and `{namespace}`.

    `tls`: whether the template is for clients with TLS.

    With an internal listener, the advertised host of the Cluster replaces the DNS name of the pod.
    """
    listener, port = cluster.spec.listeners.data, _tls_port(cluster) if tls else DATA_PORT
    if listener.advertised_host is None or listener.type != "internal":
        return f"{internal_host(cluster)}:{port}"
    return _with_port(listener.advertised_host, port)


def kafka_template(cluster: Cluster) -> str:
    """Return the address template for clients of Kafka's protocol; each node port is a number plus the broker's id."""
    listener = cluster.spec.listeners.kafka
    if listener.type == "nodeport":
        return f"{_bracketed(listener.advertised_host or NODE_PLACE)}:{{id+{listener.first_node_port}}}"
    host = listener.advertised_host
    return _with_port(internal_host(cluster) if host is None else host, KAFKA_PORT)


def kafka_bootstrap(cluster: Cluster) -> str:
    """Return the address at which Kafka's clients inside the Kubernetes cluster find all brokers."""
    return f"{bootstrap_service_name(cluster.name)}.{cluster.namespace}.svc:{KAFKA_PORT}"


def kafka_addresses(
    cluster: Cluster, pool_replicas: Mapping[str, int], nodes: Mapping[int, str]
) -> dict[int, str]:
    """Return the advertised address of each broker for Kafka's clients; empty without a Kafka listener.

    `nodes`: the address of each broker's node. A node port without a host is left out until the node is known.
    """
    if not cluster.spec.listeners.kafka.enabled:
        return {}
    template = kafka_template(cluster)
    filled = {
        broker: _fill(template, cluster, pool, broker) for pool, broker in broker_ids(cluster, pool_replicas)
    }
    return at_nodes(filled, nodes)


def external_template(cluster: Cluster) -> str | None:
    """Return the address template for external clients; None if brokers share an address or each has a node port."""
    listener = cluster.spec.listeners.data
    if listener.type == "internal" or listener.advertised_host is None or listener.type == "nodeport":
        return None
    return _with_port(listener.advertised_host, DATA_PORT)


def broker_hosts(cluster: Cluster, pool_replicas: Mapping[str, int]) -> dict[int, str]:
    """Return the advertised host of each broker, without scheme and port; empty if the Cluster names no hosts."""
    return _hosts(cluster.spec.listeners.data.advertised_host, cluster, pool_replicas)


def kafka_hosts(cluster: Cluster, pool_replicas: Mapping[str, int]) -> dict[int, str]:
    """Return the advertised host of each broker for Kafka's clients, without its port; empty without a host."""
    listener = cluster.spec.listeners.kafka
    return _hosts(listener.advertised_host if listener.enabled else None, cluster, pool_replicas)


def _hosts(host: str | None, cluster: Cluster, pool_replicas: Mapping[str, int]) -> dict[int, str]:
    if host is None:
        return {}
    bare = host.rpartition("://")[2]
    template = bare.rpartition(":")[0] or bare
    return {
        broker: _fill(template, cluster, pool, broker) for pool, broker in broker_ids(cluster, pool_replicas)
    }


def broker_ids(cluster: Cluster, pool_replicas: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the pool and the id of every broker that runs in this step, ordered by id."""
    return sorted(
        (
            (pool.name, broker)
            for pool in cluster.spec.brokers
            for broker in range(
                pool.first_broker_id, pool.first_broker_id + pool_replicas.get(pool.name, pool.replicas)
            )
        ),
        key=lambda each: each[1],
    )


def advertised_addresses(
    cluster: Cluster, pool_replicas: Mapping[str, int], services: Iterable[Manifest]
) -> dict[int, str]:
    """Return the `host:port` of each broker that has its own Service with a known external address.

    `services` must be live objects, since only live Services have load balancer addresses and node ports. The host
    `{node}` stands for the node of the broker's pod.
    """
    listener = cluster.spec.listeners.data
    if not listener.per_broker or listener.type not in ASSIGNED_TYPES:
        return {}
    by_name = {service["metadata"]["name"]: service for service in services}
    addresses: dict[int, str] = {}
    for pool, broker in broker_ids(cluster, pool_replicas):
        service = by_name.get(broker_service_name(cluster.name, broker), {})
        host, port = _load_balancer(service), DATA_PORT
        if listener.type == "nodeport":
            host, port = NODE_PLACE, _node_port(service)
        if listener.advertised_host:
            host = _filled(cluster, pool, broker)
        if host and port:
            addresses[broker] = _with_port(host, port)
    return addresses


def at_nodes(advertised: Mapping[int, str], nodes: Mapping[int, str]) -> dict[int, str]:
    """Return external addresses with the address of each broker's node, without brokers whose node is unknown."""
    return {
        broker: address.replace(NODE_PLACE, _bracketed(nodes.get(broker, "")))
        for broker, address in advertised.items()
        if NODE_PLACE not in address or nodes.get(broker)
    }


def broker_addresses(
    cluster: Cluster, pool_replicas: Mapping[str, int], *, tls: bool = False
) -> dict[int, str]:
    """Return the `host:port` of each broker for internal clients, with all placeholders filled in.

    `tls`: whether the addresses are for clients with TLS.
    """
    template = advertise_template(cluster, tls=tls)
    return {
        broker: _fill(template, cluster, pool, broker) for pool, broker in broker_ids(cluster, pool_replicas)
    }


def external_addresses(
    cluster: Cluster, pool_replicas: Mapping[str, int], advertised: Mapping[int, str]
) -> dict[int, str]:
    """Return the `host:port` of each broker for external clients; brokers that share an address are left out."""
    template = external_template(cluster)
    filled = (
        {}
        if template is None
        else {
            broker: _fill(template, cluster, pool, broker)
            for pool, broker in broker_ids(cluster, pool_replicas)
        }
    )
    return {**filled, **advertised}


def bootstrap_address(cluster: Cluster, *, tls: bool = False) -> str:
    """Return the bootstrap URL for internal clients; `tls`: whether the URL is for clients with TLS."""
    scheme, port = ("https", _tls_port(cluster)) if tls else (data_scheme(cluster), DATA_PORT)
    return f"{scheme}://{bootstrap_service_name(cluster.name)}.{cluster.namespace}.svc:{port}"


def external_bootstrap(cluster: Cluster, services: Iterable[Manifest], nodes: Mapping[int, str]) -> str:
    """Return the bootstrap URLs for external clients, separated by commas; empty while there are no URLs.

    Node ports have one URL for each of the first nodes with a broker, unless the Cluster names one host of all nodes.
    A route has the URL of its Ingress controller or Gateway.
    """
    listener, name = cluster.spec.listeners.data, external_service_name(cluster.name)
    if listener.route is not None:
        route = listener.route
        return f"{route.scheme}://{_with_port(route.host, route.port or PORTS[route.scheme])}"
    service = next((each for each in services if each["metadata"]["name"] == name), {})
    if listener.type == "nodeport":
        named, port = listener.advertised_host, _node_port(service)
        shared = named is not None and "{" not in named
        hosts = [named or ""] if shared else list(dict.fromkeys(nodes[each] for each in sorted(nodes)))
    else:
        hosts, port = [_load_balancer(service)], DATA_PORT
    return ",".join(
        f"{data_scheme(cluster)}://{_with_port(host, port)}"
        for host in hosts[:BOOTSTRAP_HOSTS_MAX]
        if host and port
    )


def _filled(cluster: Cluster, pool: str, broker: int) -> str:
    return _fill(cluster.spec.listeners.data.advertised_host or "", cluster, pool, broker)


def _fill(template: str, cluster: Cluster, pool: str, broker: int) -> str:
    pod = broker_pod_name(cluster.name, pool, broker)
    places = {"{id}": str(broker), POD_PLACE: pod, "{namespace}": cluster.namespace}
    for place, word in places.items():
        template = template.replace(place, word)
    return _ID_SUM.sub(lambda match: str(broker + int(match[1])), template)


def _with_port(host: str, port: int) -> str:
    """Return `host:port`. A port or scheme in the host is kept, and an IPv6 address gets brackets."""
    scheme, divider, rest = host.rpartition("://")
    if divider:
        return f"{scheme}://{_with_port(rest, PORTS.get(scheme, port))}"
    _, colon, last = host.rpartition(":")
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]:{port}"
    return host if colon and last.isdigit() else f"{host}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _load_balancer(service: Mapping[str, Any]) -> str:
    balancer = service.get("status", {}).get("loadBalancer") or {}
    for ingress in balancer.get("ingress") or ():
        return str(ingress.get("hostname") or ingress.get("ip") or "")
    return ""


def _node_port(service: Mapping[str, Any]) -> int:
    for port in service.get("spec", {}).get("ports") or ():
        return int(port.get("nodePort") or 0)
    return 0
