"""Routes from an Ingress controller or a Gateway to the Services for external clients and to the console's Service.

An HTTPRoute disables the request timeout, since a long poll takes 40 seconds and a tail has no end. For an Ingress, the
request timeout and the use of HTTP/2 towards brokers are set by annotations, which differ between controllers.
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
    return route_objects(cluster, route, services, DATA_PORT, BROKER_COMPONENT)


def route_objects(
    cluster: Cluster, route: ListenerRoute, services: dict[str, str], port: int, component: str
) -> list[Manifest]:
    """Return the objects of a route to one port of Services; `services` has each Service with its host.

    An Ingress for all hosts has the name of the first Service.
    """
    kind = ROUTE_KINDS[route.kind]

    def frame(service: str) -> Manifest:
        return framed(cluster, kind, service, component=component, annotations=dict(route.annotations))

    if kind == INGRESS:
        return [_ingress(frame(next(iter(services))), route, services, port)]
    return [
        _gateway_route(frame(service), route, kind, host, service, port) for service, host in services.items()
    ]


def _services(cluster: Cluster, route: ListenerRoute, inputs: RenderInputs) -> Iterator[tuple[str, str]]:
    """Yield each Service with its host, beginning with the bootstrap Service."""
    yield external_service_name(cluster.name), route.host
    if cluster.spec.listeners.data.per_broker:
        for broker, host in broker_hosts(cluster, inputs.pool_replicas).items():
            yield broker_service_name(cluster.name, broker), host


def _ingress(manifest: Manifest, route: ListenerRoute, services: dict[str, str], port: int) -> Manifest:
    backends = {
        host: {"service": {"name": service, "port": {"number": port}}} for service, host in services.items()
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


def _gateway_route(
    manifest: Manifest, route: ListenerRoute, kind: Kind, host: str, service: str, port: int
) -> Manifest:
    rule: Manifest = {"backendRefs": [{"name": service, "port": port}]}
    if kind == HTTP_ROUTE:
        rule["timeouts"] = dict(NO_TIMEOUT)
    manifest["spec"] = {
        "parentRefs": [each.manifest() for each in route.gateways],
        "hostnames": [host],
        "rules": [rule],
    }
    return manifest
