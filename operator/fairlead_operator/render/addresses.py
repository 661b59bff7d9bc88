"""Client addresses of the brokers, derived from the listener of the Cluster and the addresses of its Services.

`plan` writes these addresses into the status and compares them with the addresses that the brokers advertise. Brokers
read their advertised addresses from the configuration file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import (
    DATA_PORT,
    Manifest,
    bootstrap_service_name,
    broker_pod_name,
    broker_service_name,
    brokers_service_name,
)

POD_PLACE = "{pod}"


def internal_host(cluster: Cluster, pod: str = POD_PLACE) -> str:
    """Return the DNS name of a broker pod inside the Kubernetes cluster."""
    return f"{pod}.{brokers_service_name(cluster.name)}.{cluster.namespace}.svc"


def advertise_template(cluster: Cluster) -> str:
    """Return the address template of brokers without their own Service; may contain `{id}`, `{pod}`, `{namespace}`."""
    listener = cluster.spec.listeners.data
    if listener.advertised_host is None or (listener.type == "nodeport" and listener.per_broker):
        return f"{internal_host(cluster)}:{DATA_PORT}"
    return _with_port(listener.advertised_host, DATA_PORT)


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

    `services` must be live objects, since only live Services have load balancer addresses and node ports.
    """
    listener = cluster.spec.listeners.data
    if not listener.per_broker:
        return {}
    by_name = {service["metadata"]["name"]: service for service in services}
    addresses: dict[int, str] = {}
    for pool, broker in broker_ids(cluster, pool_replicas):
        service = by_name.get(broker_service_name(cluster.name, broker), {})
        host = _filled(cluster, pool, broker) if listener.advertised_host else _load_balancer(service)
        port = _node_port(service) if listener.type == "nodeport" else DATA_PORT
        if host and port:
            addresses[broker] = _with_port(host, port)
    return addresses


def broker_addresses(
    cluster: Cluster, pool_replicas: Mapping[str, int], advertised: Mapping[int, str]
) -> dict[int, str]:
    """Return the `host:port` that each broker should advertise, with all placeholders filled in."""
    template = advertise_template(cluster)
    return {
        broker: advertised.get(broker) or _fill(template, cluster, pool, broker)
        for pool, broker in broker_ids(cluster, pool_replicas)
    }


def bootstrap_address(cluster: Cluster, services: Iterable[Manifest]) -> str:
    """Return the bootstrap URL: the URL of the load balancer if there is one, else the URL of the Service."""
    name = bootstrap_service_name(cluster.name)
    service = next((each for each in services if each["metadata"]["name"] == name), {})
    host = _load_balancer(service) if cluster.spec.listeners.data.type == "loadbalancer" else ""
    return f"http://{_with_port(host or f'{name}.{cluster.namespace}.svc', DATA_PORT)}"


def _filled(cluster: Cluster, pool: str, broker: int) -> str:
    return _fill(cluster.spec.listeners.data.advertised_host or "", cluster, pool, broker)


def _fill(template: str, cluster: Cluster, pool: str, broker: int) -> str:
    pod = broker_pod_name(cluster.name, pool, broker)
    places = {"{id}": str(broker), POD_PLACE: pod, "{namespace}": cluster.namespace}
    for place, word in places.items():
        template = template.replace(place, word)
    return template


def _with_port(host: str, port: int) -> str:
    """Return `host:port`. A host that already has a port keeps it, and an IPv6 address is put in brackets."""
    _, colon, last = host.rpartition(":")
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]:{port}"
    return host if colon and last.isdigit() else f"{host}:{port}"


def _load_balancer(service: Mapping[str, Any]) -> str:
    balancer = service.get("status", {}).get("loadBalancer") or {}
    for ingress in balancer.get("ingress") or ():
        return str(ingress.get("hostname") or ingress.get("ip") or "")
    return ""


def _node_port(service: Mapping[str, Any]) -> int:
    for port in service.get("spec", {}).get("ports") or ():
        return int(port.get("nodePort") or 0)
    return 0
