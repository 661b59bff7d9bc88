"""The console of a Cluster: its pod, its route and its network policy."""

from __future__ import annotations

import render_kit
from fairlead_operator.render.inputs import Transport

GATEWAY = {"kind": "HTTPRoute", "host": "see.example.com", "port": 8443, "gateways": [{"name": "web"}]}
PEERS = [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
CONSOLE = {
    "readOnly": True,
    "hideRecords": ["pay*"],
    "route": {"kind": "Ingress", "host": "see.example.com", "tlsSecretName": "see-tls"},
    "oidc": {
        "issuer": "https://login.example",
        "clientSecretName": "client",
        "caConfigMap": {"name": "login", "key": "root.pem"},
    },
    "sessionSecretName": "session",
    "template": {"spec": {"containers": [{"name": "console", "args": ["x"], "env": [{"name": "A"}]}]}},
}


def test_a_console_exists_only_if_the_spec_has_one() -> None:
    """A Cluster without `spec.console` has no object of a console; an empty one has no route and is open to all."""
    plain = render_kit.drawn(render_kit.cluster_of(console={}))
    container = render_kit.container_of(plain["Deployment/main-console"], "console")

    assert not [name for name in render_kit.drawn(render_kit.cluster_of()) if "console" in name]
    assert [name.partition("/")[0] for name in plain if "console" in name] == [
        "NetworkPolicy",
        "Service",
        "Deployment",
    ]
    assert container["args"] == [
        "console",
        "--bootstrap=http://main-bootstrap.shop.svc:9520",
        "--listen=[::]:9580",
    ]
    assert plain["NetworkPolicy/main-console"]["spec"]["ingress"] == [
        {"ports": [{"protocol": "TCP", "port": 9580}]}
    ]


def test_a_console_has_a_restricted_pod_with_the_options_of_the_spec() -> None:
    """Options are arguments that a template cannot replace, files are volumes, and the pod has no token."""
    cluster = render_kit.cluster_of(
        security={"mode": "Enforce", "tls": {"mode": "Required"}}, console=CONSOLE
    )
    drawn = render_kit.drawn(cluster, render_kit.inputs_of(transport=Transport(authorities="pem")))
    pod = drawn["Deployment/main-console"]["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert container["args"] == [
        "console",
        "--bootstrap=https://main-bootstrap.shop.svc:9520",
        "--listen=[::]:9580",
        "--read-only",
        "--hide-records=pay*",
        "--public-url=https://see.example.com",
        "--session-key-file=/etc/fairlead-session/session-key",
        "--oidc-issuer=https://login.example",
        "--oidc-client-id=fairlead",
        "--oidc-client-secret-file=/etc/fairlead-oidc/client-secret",
        "--oidc-ca-file=/etc/fairlead-issuer-ca/ca.crt",
    ]
    assert container["env"] == [{"name": "A"}]
    assert {each["mountPath"]: each.get("readOnly") for each in container["volumeMounts"]} == {
        "/var/run/secrets/fairlead": True,
        "/etc/fairlead-session": True,
        "/etc/fairlead-oidc": True,
        "/etc/fairlead-issuer-ca": True,
        "/tmp": None,
    }
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["automountServiceAccountToken"] is False


def test_a_console_of_a_public_issuer_has_no_files_for_it() -> None:
    """An issuer without a client secret and with a public authority needs no volume."""
    console = {"oidc": {"issuer": "https://login.example"}}
    pod = render_kit.drawn(render_kit.cluster_of(console=console))["Deployment/main-console"]["spec"][
        "template"
    ]["spec"]

    assert pod["containers"][0]["args"][-2:] == [
        "--oidc-issuer=https://login.example",
        "--oidc-client-id=fairlead",
    ]
    assert [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]] == ["/tmp"]


def test_a_console_is_reached_by_its_route_and_reaches_the_brokers() -> None:
    """The policies let the console call the brokers, and let only clients call it; a route has the console's port."""
    drawn = render_kit.drawn(
        render_kit.cluster_of(networkPolicy={"clients": PEERS, "egress": PEERS}, console=CONSOLE)
    )
    routed = render_kit.cluster_of(console={"route": GATEWAY}, networkPolicy={"egress": []})
    gateway = render_kit.drawn(routed)
    policy = drawn["NetworkPolicy/main-console"]["spec"]
    pods = {
        name: {"podSelector": {"matchLabels": drawn[f"Service/{name}"]["spec"]["selector"]}}
        for name in ("main-bootstrap", "main-console")
    }

    assert policy["ingress"][0]["from"] == PEERS
    assert [each.get("to") for each in policy["egress"]] == [[pods["main-bootstrap"]], None, PEERS]
    assert pods["main-console"] in drawn["NetworkPolicy/main-brokers"]["spec"]["ingress"][0]["from"]
    assert drawn["Ingress/main-console"]["spec"]["tls"][0]["hosts"] == ["see.example.com"]
    assert gateway["HTTPRoute/main-console"]["spec"]["rules"][0]["backendRefs"] == [
        {"name": "main-console", "port": 9580}
    ]
    assert len(gateway["NetworkPolicy/main-console"]["spec"]["egress"]) == 2
    assert "HTTPRoute/main-console" not in render_kit.drawn(routed, render_kit.inputs_of(kinds=frozenset()))
    options = render_kit.container_of(gateway["Deployment/main-console"], "console")["args"]
    assert "--public-url=https://see.example.com:8443" in options
