"""Routes to the brokers: one Ingress for all hosts, and a route of the Gateway API for each host."""

from __future__ import annotations

from typing import Any

import pytest

import render_kit
from fairlead_operator.naming import HTTP_ROUTE, POD_MONITOR
from fairlead_operator.plan.securing.certificates import broker_names
from fairlead_operator.render.addresses import external_bootstrap
from fairlead_operator.render.routes import missing_kind

HOST = "fairlead.example.com"
HOSTS = {"main-external": HOST, **{f"main-broker-{broker}": f"b-{broker}.example.com" for broker in range(3)}}
GATEWAYS = [{"name": "web", "namespace": "infra", "sectionName": "tls"}]


def listening(kind: str, **route: Any) -> dict[str, Any]:
    """Return a listener with a route and a host for each broker."""
    given = {"kind": kind, "host": HOST, **({} if kind == "Ingress" else {"gateways": GATEWAYS}), **route}
    return {
        "data": {
            "type": "clusterip",
            "perBroker": True,
            "advertisedHost": "https://b-{id}.example.com:443",
            "route": given,
        }
    }


def test_an_ingress_has_a_rule_for_each_host() -> None:
    """The Ingress routes the hosts of the Cluster and of each broker to their Services, with one certificate."""
    route = {"ingressClassName": "nginx", "tlsSecretName": "web-tls", "annotations": {"a": "b"}}
    objects = render_kit.drawn(render_kit.cluster_of(listeners=listening("Ingress", **route)))
    ingress = objects["Ingress/main-external"]
    rules = {each["host"]: each["http"]["paths"] for each in ingress["spec"]["rules"]}
    port = objects["Service/main-external"]["spec"]["ports"][0]

    assert ingress["metadata"]["annotations"] == {"a": "b"}
    assert ingress["spec"]["ingressClassName"] == "nginx"
    assert ingress["spec"]["tls"] == [{"hosts": list(HOSTS.values()), "secretName": "web-tls"}]
    assert rules == {
        host: [
            {
                "path": "/",
                "pathType": "Prefix",
                "backend": {"service": {"name": service, "port": {"number": port["port"]}}},
            }
        ]
        for service, host in HOSTS.items()
    }
    assert (port["targetPort"], port["appProtocol"]) == ("external", "kubernetes.io/h2c")


def test_an_ingress_may_use_defaults() -> None:
    """Without a class, a certificate and hosts of brokers, the Ingress has a single rule."""
    for per_broker in (False, True):
        listener = {"type": "clusterip", "perBroker": per_broker, "route": {"kind": "Ingress", "host": HOST}}
        objects = render_kit.drawn(render_kit.cluster_of(listeners={"data": listener}))
        spec = objects["Ingress/main-external"]["spec"]

        assert list(spec) == ["rules"]
        assert [each["host"] for each in spec["rules"]] == [HOST]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("HTTPRoute", {}),
        ("TLSRoute", {"security": {"tls": {"mode": "Required"}}}),
    ],
)
def test_a_gateway_has_a_route_for_each_host(kind: str, spec: dict[str, Any]) -> None:
    """Each route is attached to the Gateways, and an HTTPRoute turns off the request timeout."""
    cluster = render_kit.cluster_of(listeners=listening(kind), **spec)
    objects = render_kit.drawn(cluster)
    timeouts = {"timeouts": {"request": "0s"}} if kind == "HTTPRoute" else {}

    assert {name: each["spec"] for name, each in objects.items() if name.startswith(kind)} == {
        f"{kind}/{service}": {
            "parentRefs": GATEWAYS,
            "hostnames": [host],
            "rules": [{"backendRefs": [{"name": service, "port": 9520}], **timeouts}],
        }
        for service, host in HOSTS.items()
    }
    assert ("appProtocol" in objects["Service/main-external"]["spec"]["ports"][0]) == (kind == "HTTPRoute")
    assert set(HOSTS.values()) <= set(broker_names(cluster))


def test_a_kind_that_is_not_installed_gets_no_objects() -> None:
    """Routes of the Gateway API are created only if their definition is installed; an Ingress is always created."""
    ingress, route = (
        render_kit.cluster_of(listeners={"data": {"type": "clusterip", "route": given}})
        for given in (
            {"kind": "Ingress", "host": HOST},
            {"kind": "HTTPRoute", "host": HOST, "gateways": GATEWAYS},
        )
    )
    kinds = frozenset({POD_MONITOR.kind})
    objects = render_kit.drawn(route, render_kit.inputs_of(kinds=kinds))
    missing = [
        missing_kind(each and each.spec.listeners.data.route, given)
        for each, given in ((None, kinds), (ingress, kinds), (route, kinds), (route, {HTTP_ROUTE.kind}))
    ]

    assert not [name for name in objects if name.startswith("HTTPRoute")]
    assert missing == ["", "", "HTTPRoute", ""]


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ({}, f"https://{HOST}:443"),
        ({"scheme": "http"}, f"http://{HOST}:80"),
        ({"scheme": "http", "port": 8080}, f"http://{HOST}:8080"),
    ],
)
def test_the_bootstrap_address_is_that_of_the_route(route: dict[str, Any], expected: str) -> None:
    """The external bootstrap address has the scheme and port of the Ingress controller or the Gateway."""
    cluster = render_kit.cluster_of(listeners=listening("Ingress", **route))

    assert external_bootstrap(cluster, [], {}) == expected


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [("Ingress", "https"), ("Ingress", "http"), ("HTTPRoute", "https"), ("TLSRoute", None)],
)
def test_brokers_know_the_scheme_of_a_proxy_that_ends_tls(kind: str, scheme: str | None) -> None:
    """Brokers restart with the scheme of the route, since they do not read proxies' headers (rule T14)."""

    def brokers_of(listeners: dict[str, Any]) -> tuple[object, str]:
        """Return the external scheme of the brokers, and the fingerprint of their pods."""
        found = render_kit.drawn(render_kit.cluster_of(listeners=listeners))["StatefulSet/main-a"]
        annotations = found["spec"]["template"]["metadata"]["annotations"]
        told = render_kit.variables_of(found).get("FAIRLEAD_EXTERNAL_SCHEME")
        return told, annotations["fairlead.dev/pod-spec-hash"]

    listeners = listening(kind, **({} if scheme is None else {"scheme": scheme}))
    direct = {"data": {name: each for name, each in listeners["data"].items() if name != "route"}}
    (told, restarted), (untold, before) = brokers_of(listeners), brokers_of(direct)

    assert (told, untold) == (scheme, None)
    assert (restarted != before) == (scheme is not None)
