"""Routes from an Ingress controller or a Gateway to the brokers' Services for external clients.

An HTTPRoute has no limit on the time of a request, since a long poll takes 40 seconds and a tail has no end. For an
Ingress, the limit on the time of a request and HTTP/2 to the brokers are set by annotations that differ between
controllers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_listeners import ListenerRoute
from fairlead_operator.naming import (
    BROKER_COMPONENT,
    DATA_PORT,
    HTTP_ROUTE,
    INGRESS,
    TLS_ROUTE,
    Kind,
    Manifest,
    broker_service_name,
    external_service_name,
)
from fairlead_operator.render.addresses import broker_hosts
from fairlead_operator.render.inputs import RenderInputs
from fairlead_operator.render.metadata import framed

ROUTE_KINDS: Final = {each.kind: each for each in (INGRESS, HTTP_ROUTE, TLS_ROUTE)}
NO_TIMEOUT: Final = {"request": "0s"}


def missing_kind(route: ListenerRoute | None, kinds: frozenset[str]) -> str:
    """Return the kind of the route if the API server lacks the kind, else an empty text. Ingress always exists."""
    return "" if route is None or route.kind == INGRESS.kind or route.kind in kinds else route.kind


def routes(cluster: Cluster, inputs: RenderInputs) -> list[Manifest]:
    """Return the routes of a Cluster; empty without `route`, and while the API server lacks the kind of the routes."""
    route = cluster.spec.listeners.data.route
    if route is None or missing_kind(route, inputs.kinds):
        return []
    services = dict(_services(cluster, route, inputs))
    kind = ROUTE_KINDS[route.kind]
    if kind == INGRESS:
        return [_ingress(cluster, route, services)]
    return [_gateway_route(cluster, route, kind, host, service) for service, host in services.items()]


def _services(cluster: Cluster, route: ListenerRoute, inputs: RenderInputs) -> Iterator[tuple[str, str]]:
    """Yield each Service with its host, beginning with the bootstrap Service."""
    yield external_service_name(cluster.name), route.host
    if cluster.spec.listeners.data.per_broker:
        for broker, host in broker_hosts(cluster, inputs.pool_replicas).items():
            yield broker_service_name(cluster.name, broker), host


def _ingress(cluster: Cluster, route: ListenerRoute, services: dict[str, str]) -> Manifest:
    manifest = _framed(cluster, route, INGRESS, external_service_name(cluster.name))
    backends = {
        host: {"service": {"name": service, "port": {"number": DATA_PORT}}}
        for service, host in services.items()
    }
    manifest["spec"] = {
        "rules": [
            {"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
            for host, backend in backends.items()
        ]
    }
    if route.ingress_class_name is not None:
        manifest["spec"]["ingressClassName"] = route.ingress_class_name
    if route.tls_secret_name is not None:
        manifest["spec"]["tls"] = [{"hosts": list(backends), "secretName": route.tls_secret_name}]
    return manifest


def _gateway_route(cluster: Cluster, route: ListenerRoute, kind: Kind, host: str, service: str) -> Manifest:
    manifest = _framed(cluster, route, kind, service)
    rule: Manifest = {"backendRefs": [{"name": service, "port": DATA_PORT}]}
    if kind == HTTP_ROUTE:
        rule["timeouts"] = dict(NO_TIMEOUT)
    manifest["spec"] = {
        "parentRefs": [each.manifest() for each in route.gateways],
        "hostnames": [host],
        "rules": [rule],
    }
    return manifest


def _framed(cluster: Cluster, route: ListenerRoute, kind: Kind, name: str) -> Manifest:
    return framed(cluster, kind, name, component=BROKER_COMPONENT, annotations=dict(route.annotations))
