"""The brokers' Services: for internal clients, and for external clients, optionally one for each broker."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_listeners import ListenerType
from fairlead_operator.naming import (
    BROKER_COMPONENT,
    DATA_PORT,
    DATA_PORT_NAME,
    EXTERNAL_PORT,
    EXTERNAL_PORT_NAME,
    KAFKA_PORT,
    KAFKA_PORT_NAME,
    OPS_PORT,
    OPS_PORT_NAME,
    PEER_PORT,
    PEER_PORT_NAME,
    POD_NAME_LABEL,
    SERVICE,
    TLS_PORT,
    TLS_PORT_NAME,
    Manifest,
    bootstrap_service_name,
    broker_pod_name,
    broker_service_name,
    brokers_service_name,
    external_service_name,
    kafka_service_name,
    pod_selector,
)
from fairlead_operator.render.addresses import broker_ids, data_scheme, serves_tls
from fairlead_operator.render.inputs import RenderInputs
from fairlead_operator.render.metadata import framed

SERVICE_TYPES: Final[dict[ListenerType, str]] = {
    "internal": "ClusterIP",
    "nodeport": "NodePort",
    "loadbalancer": "LoadBalancer",
    "clusterip": "ClusterIP",
}
H2C: Final = "kubernetes.io/h2c"
"""Protocol that brokers serve without TLS (HTTP/2); Gateways and some Ingress controllers read it from the Service."""


def service_port(name: str, port: int) -> Manifest:
    """Return a port of a Service that targets the container port of the same name."""
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def broker_services(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return all Services for the brokers."""
    services = [_headless(cluster), _bootstrap(cluster)]
    if cluster.spec.listeners.data.type != "internal":
        services.append(_external(cluster, inputs))
    if cluster.spec.listeners.data.per_broker:
        services += [
            _of_one(cluster, pool, broker, inputs)
            for pool, broker in broker_ids(cluster, inputs.pool_replicas)
        ]
    if cluster.spec.listeners.kafka.enabled and cluster.spec.listeners.kafka.type != "internal":
        services += [
            _kafka_of_one(cluster, pool, broker) for pool, broker in broker_ids(cluster, inputs.pool_replicas)
        ]
    return services


def _headless(cluster: Cluster) -> Manifest:
    """Return the headless Service.

    The headless Service includes unready brokers, because a broker must reach its peers before it becomes ready.
    """
    manifest = framed(cluster, SERVICE, brokers_service_name(cluster.name), component=BROKER_COMPONENT)
    manifest["spec"] = {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": pod_selector(cluster.name, BROKER_COMPONENT),
        "ports": [
            service_port(DATA_PORT_NAME, DATA_PORT),
            service_port(PEER_PORT_NAME, PEER_PORT),
            service_port(OPS_PORT_NAME, OPS_PORT),
            *_tls_ports(cluster),
            *_kafka_ports(cluster),
        ],
    }
    return manifest


def _bootstrap(cluster: Cluster) -> Manifest:
    """Return the bootstrap Service for internal clients, with a port for a proxy that serves external clients."""
    name = bootstrap_service_name(cluster.name)
    manifest = framed(cluster, SERVICE, name, component=BROKER_COMPONENT)
    manifest["spec"] = {
        "type": "ClusterIP",
        "selector": pod_selector(cluster.name, BROKER_COMPONENT),
        "ports": [
            service_port(DATA_PORT_NAME, DATA_PORT),
            service_port(EXTERNAL_PORT_NAME, EXTERNAL_PORT),
            *_tls_ports(cluster),
            *_kafka_ports(cluster),
        ],
    }
    return manifest


def _tls_ports(cluster: Cluster) -> list[Manifest]:
    return [service_port(TLS_PORT_NAME, TLS_PORT)] if serves_tls(cluster) else []


def _kafka_ports(cluster: Cluster) -> list[Manifest]:
    return [service_port(KAFKA_PORT_NAME, KAFKA_PORT)] if cluster.spec.listeners.kafka.enabled else []


def _kafka_of_one(cluster: Cluster, pool: str, broker: int) -> Manifest:
    """Return the Service of one broker for clients of Kafka's protocol, which call each leader directly."""
    listener, name = cluster.spec.listeners.kafka, kafka_service_name(cluster.name, broker)
    manifest = framed(
        cluster, SERVICE, name, component=BROKER_COMPONENT, annotations=dict(listener.annotations)
    )
    [port] = _kafka_ports(cluster)
    if listener.first_node_port is not None:
        port["nodePort"] = listener.first_node_port + broker
    pod = {POD_NAME_LABEL: broker_pod_name(cluster.name, pool, broker)}
    manifest["spec"] = {
        "type": SERVICE_TYPES[listener.type],
        "publishNotReadyAddresses": True,
        "selector": {**pod_selector(cluster.name, BROKER_COMPONENT), **pod},
        "ports": [port],
    }
    return manifest


def _external(cluster: Cluster, inputs: RenderInputs) -> Manifest:
    """Return the bootstrap Service for external clients."""
    port = _outside_port(cluster, inputs)
    if cluster.spec.listeners.data.node_port is not None:
        port["nodePort"] = cluster.spec.listeners.data.node_port
    return _reached(cluster, external_service_name(cluster.name), {}, port)


def _of_one(cluster: Cluster, pool: str, broker: int, inputs: RenderInputs) -> Manifest:
    """Return the Service of one broker. The Service includes an unready broker, since no other broker can answer."""
    pod = {POD_NAME_LABEL: broker_pod_name(cluster.name, pool, broker)}
    name = broker_service_name(cluster.name, broker)
    manifest = _reached(cluster, name, pod, _outside_port(cluster, inputs))
    manifest["spec"]["publishNotReadyAddresses"] = True
    return manifest


def _outside_port(cluster: Cluster, inputs: RenderInputs) -> Manifest:
    """Return the port of a Service for external clients; older brokers have one listener for all clients."""
    port = service_port(DATA_PORT_NAME, DATA_PORT)
    if cluster.spec.listeners.data.route is not None and data_scheme(cluster) == "http":
        port["appProtocol"] = H2C
    return {**port, "targetPort": EXTERNAL_PORT_NAME} if inputs.external else port


def _reached(cluster: Cluster, name: str, selector: dict[str, str], port: Manifest) -> Manifest:
    listener = cluster.spec.listeners.data
    manifest = framed(
        cluster, SERVICE, name, component=BROKER_COMPONENT, annotations=dict(listener.annotations)
    )
    manifest["spec"] = {
        "type": SERVICE_TYPES[listener.type],
        "selector": {**pod_selector(cluster.name, BROKER_COMPONENT), **selector},
        "ports": [port],
    }
    return manifest
