from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
import yaml

import render_kit
from fairlead_api.resources.user import User
from fairlead_operator.naming import TLS_PORT, Manifest
from fairlead_operator.render.addresses import bootstrap_address
from fairlead_operator.render.etcd import etcd_ports
from fairlead_operator.render.inputs import EtcdInputs, EtcdTransport, Transport
from fairlead_operator.render.security import authorities_map, floor_of
from fairlead_operator.render.users import account_map, user_secret

TRANSPORT = Transport(authorities="PEM\n", superusers=("k8s:operators:fairlead-operator",), names=("a", "b"))


def drawn(security: dict[str, Any], **inputs: Any) -> dict[str, Manifest]:
    """Return the objects of a Cluster with security."""
    return render_kit.drawn(
        render_kit.cluster_of(security=security), render_kit.inputs_of(transport=TRANSPORT, **inputs)
    )


@pytest.mark.parametrize(
    ("mode", "listen", "bootstrap"),
    [
        ("Off", "http://[::]:9520", "http://main-bootstrap.shop.svc:9520"),
        ("Both", "http://[::]:9520,https://[::]:9524", "http://main-bootstrap.shop.svc:9520"),
        ("Required", "https://[::]:9520,https://[::]:9524", "https://main-bootstrap.shop.svc:9520"),
    ],
)
def test_listeners_follow_the_tls_mode(mode: str, listen: str, bootstrap: str) -> None:
    """Listeners and bootstrap address follow the TLS mode.

    In TLS mode Both, brokers serve http and https, so that clients can change from http to https.
    """
    objects = drawn({"tls": {"mode": mode}})
    variables = render_kit.variables_of(objects["StatefulSet/main-a"])
    ports = [each["port"] for each in objects["Service/main-bootstrap"]["spec"]["ports"]]

    assert variables["FAIRLEAD_LISTEN"] == listen
    assert variables["FAIRLEAD_PEER_LISTEN"] == "https://[::]:9521"
    assert variables["FAIRLEAD_METRICS_ACCESS"] == "open"
    assert ("FAIRLEAD_TLS" in variables) == (TLS_PORT in ports) == (mode != "Off")
    assert bootstrap_address(render_kit.cluster_of(security={"tls": {"mode": mode}})) == bootstrap


def test_a_broker_that_enforces_always_has_tls() -> None:
    """A broker starts with Enforce as its least strict mode only if every client has TLS, or a mesh terminates TLS."""

    def floor(**security: Any) -> str:
        return floor_of(render_kit.cluster_of(security=security).spec.security)

    assert floor_of(None) == "open"
    assert floor(mode="Enforce", tls={"mode": "Both"}) == "observe"
    assert floor(mode="Enforce", tls={"mode": "Required"}) == "enforce"
    assert floor(mode="Enforce", allowPlaintext=True) == "enforce"
    variables = render_kit.variables_of(drawn({"allowPlaintext": True})["StatefulSet/main-a"])
    assert variables["FAIRLEAD_ALLOW_PLAINTEXT"] == "true"


def test_brokers_know_superusers_and_issuers_from_their_file() -> None:
    """The brokers' configuration file has the operator as a superuser, and the issuers with the Cluster's audience."""
    issuers = [
        {
            "name": "corp",
            "issuer": "https://login.example",
            "groupsClaim": "groups",
            "caConfigMap": {"name": "login", "key": "root.pem"},
        },
        {"name": "public", "issuer": "https://public.example"},
    ]
    security = {"superusers": ["group:corp:platform"], "issuers": issuers}
    settings = yaml.safe_load(drawn(security)["ConfigMap/main-config"]["data"]["broker.yaml"])
    objects = render_kit.drawn(
        render_kit.cluster_of(security={"serviceAccounts": False}),
        render_kit.inputs_of(transport=Transport(authorities="PEM")),
    )
    bare = yaml.safe_load(objects["ConfigMap/main-config"]["data"]["broker.yaml"])

    assert settings["superusers"] == ["k8s:operators:fairlead-operator", "group:corp:platform"]
    assert settings["issuers"] == {
        "k8s": {"kubernetes": True, "audience": "fairlead/shop/main"},
        "corp": {
            "issuer": "https://login.example",
            "audience": "fairlead/shop/main",
            "groups_claim": "groups",
            "ca": "/etc/fairlead-issuers/corp/ca.crt",
        },
        "public": {"issuer": "https://public.example", "audience": "fairlead/shop/main"},
    }
    volumes = drawn(security)["StatefulSet/main-a"]["spec"]["template"]["spec"]["volumes"]
    assert {
        "name": "issuer-corp-ca",
        "configMap": {"name": "login", "items": [{"key": "root.pem", "path": "ca.crt"}]},
    } in volumes
    assert bare.keys().isdisjoint({"superusers", "issuers"})
    assert "FAIRLEAD_TOKEN_FILE" not in render_kit.variables_of(objects["StatefulSet/main-a"])


def test_only_what_a_broker_cannot_change_restarts_it() -> None:
    """A new TLS mode restarts pods; a stricter mode, a new name or a new authority does not (rule K3)."""

    def fingerprint(security: dict[str, Any], transport: Transport = TRANSPORT) -> str:
        objects = render_kit.drawn(
            render_kit.cluster_of(security=security), render_kit.inputs_of(transport=transport)
        )
        annotations = objects["StatefulSet/main-a"]["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["fairlead.dev/pod-spec-hash"])

    first = fingerprint({"tls": {"mode": "Both"}})

    assert fingerprint({"mode": "Observe", "tls": {"mode": "Both", "extraNames": ["x"]}}) == first
    assert (
        fingerprint({"tls": {"mode": "Both"}}, Transport(authorities="ELSE", superusers=TRANSPORT.superusers))
        == first
    )
    assert fingerprint({"tls": {"mode": "Required"}}) != first
    without = Transport(authorities="PEM", peer_scheme="http", superusers=TRANSPORT.superusers)
    assert fingerprint({"tls": {"mode": "Both"}}, without) != first


@pytest.mark.parametrize(
    ("transport", "ports", "urls"),
    [
        (EtcdTransport(), [2379, 2380], "http://0.0.0.0:2379"),
        (
            EtcdTransport("both", "https", "http", "ca"),
            [2379, 2479, 2380, 2480],
            "http://0.0.0.0:2379,https://0.0.0.0:2479",
        ),
        (EtcdTransport("tls", "https", "https", "ca"), [2479, 2480], "https://0.0.0.0:2479"),
    ],
)
def test_etcd_has_the_listeners_of_its_step(transport: EtcdTransport, ports: list[int], urls: str) -> None:
    """Ports, arguments and network policies of etcd agree (rules K2, K8).

    Brokers that call etcd over TLS have a client certificate.
    """
    objects = drawn({}, etcd=EtcdInputs(3, transport=transport))
    members, brokers = objects["StatefulSet/main-etcd"], objects["StatefulSet/main-a"]
    arguments = render_kit.container_of(members, "etcd")["args"]
    listed = [each["port"] for each in objects["Service/main-etcd-peers"]["spec"]["ports"]]
    rules = objects["NetworkPolicy/main-etcd"]["spec"]["ingress"]
    open_ports = [each["port"] for rule in rules[:2] for each in rule["ports"]]
    variables = render_kit.variables_of(brokers)
    tools = render_kit.variables_of(members, "etcd")

    assert listed == open_ports == ports == [*etcd_ports(transport.phase)[0], *etcd_ports(transport.phase)[1]]
    assert f"--listen-client-urls={urls}" in arguments
    assert ("--client-cert-auth" in arguments) == (transport.phase != "plain")
    assert ("ETCDCTL_CERT" in tools) == (transport.phase == "tls")
    by_tls = transport.client_scheme == "https"
    first = "https://main-etcd-0.main-etcd-peers.shop.svc:2479,"
    assert str(variables["FAIRLEAD_ETCD"]).startswith(first) == by_tls
    assert (variables.get("FAIRLEAD_ETCD_CREDENTIALS") is not None) == by_tls


def test_members_of_etcd_restart_for_other_authorities_and_brokers_do_not() -> None:
    """New authorities restart etcd, which reads them at startup, but not the brokers (rules K3, K5)."""

    def hashes(authorities: str) -> list[str]:
        transport = EtcdTransport("tls", "https", "https", authorities)
        objects = drawn({}, etcd=EtcdInputs(3, transport=transport))
        return [
            objects[name]["spec"]["template"]["metadata"]["annotations"]["fairlead.dev/pod-spec-hash"]
            for name in ("StatefulSet/main-etcd", "StatefulSet/main-a")
        ]

    (etcd, brokers), (other_etcd, other_brokers) = hashes("one"), hashes("two")

    assert etcd != other_etcd
    assert brokers == other_brokers


@pytest.mark.parametrize(
    ("certificate", "secret"),
    [
        (None, "main-brokers-tls"),
        ({"secretName": "mine"}, "mine"),
        ({"issuerRef": {"name": "corp", "kind": "ClusterIssuer"}}, "main-clients-tls"),
    ],
)
def test_clients_may_see_another_certificate(certificate: dict[str, Any] | None, secret: str) -> None:
    """The data listener has the certificate of the spec, and the peer listener always has the operator's (rule K2)."""
    tls = {"mode": "Required", **({} if certificate is None else {"certificate": certificate})}
    objects = drawn({"tls": tls})
    volumes = objects["StatefulSet/main-a"]["spec"]["template"]["spec"]["volumes"]
    secrets = {each["name"]: each["secret"]["secretName"] for each in volumes if "secret" in each}
    requested = objects.get("Certificate/main-clients-tls")

    assert secrets.items() >= {"peer-tls": "main-brokers-tls", "tls": secret}.items()
    assert objects["ConfigMap/main-ca"]["data"] == {"ca.crt": "PEM\n"}
    assert authorities_map(render_kit.cluster_of(), replace(TRANSPORT, authorities_since="NOW"))["metadata"][
        "annotations"
    ] == {"fairlead.dev/authorities-since": "NOW"}
    assert (requested is not None) == (secret == "main-clients-tls")
    if requested is not None:
        assert requested["spec"]["dnsNames"] == ["a", "b"]
        assert requested["spec"]["issuerRef"] == {
            "name": "corp", "kind": "ClusterIssuer", "group": "cert-manager.io",
        }  # fmt: skip


@pytest.mark.parametrize(("mode", "scheme"), [("Off", "http"), ("Both", "https"), ("Required", "https")])
def test_metrics_may_need_a_token(mode: str, scheme: str) -> None:
    """With `metrics: Token`, Prometheus sends the token of a User, over TLS unless TLS is off (rule K13)."""
    objects, open_ = drawn({"metrics": "Token", "tls": {"mode": mode}}), drawn({"tls": {"mode": mode}})
    brokers = objects["StatefulSet/main-a"]
    variables = render_kit.variables_of(brokers)
    container = render_kit.container_of(brokers)
    endpoint, of_etcd = objects["PodMonitor/main"]["spec"]["podMetricsEndpoints"]
    names = {each["metadata"]["annotations"]["fairlead.dev/pod-spec-hash"] for each in (
        found["StatefulSet/main-a"]["spec"]["template"] for found in (objects, open_)
    )}  # fmt: skip

    assert variables["FAIRLEAD_METRICS_ACCESS"] == "token"
    assert str(variables["FAIRLEAD_OPS_LISTEN"]).startswith(f"{scheme}://")
    assert container["livenessProbe"]["httpGet"].get("scheme") == ("HTTPS" if scheme == "https" else None)
    assert endpoint["authorization"]["credentials"] == {"name": "main-metrics", "key": "token"}
    assert endpoint.get("scheme", "http") == scheme
    if scheme == "https":
        assert endpoint["tlsConfig"]["serverName"] == "main-bootstrap.shop.svc"
    assert "authorization" not in of_etcd
    assert objects["User/main-metrics"]["spec"] == {"clusterRef": {"name": "main"}}
    assert "authorization" not in open_["PodMonitor/main"]["spec"]["podMetricsEndpoints"][0]
    assert "User/main-metrics" not in open_
    assert len(names) == 2


@pytest.mark.parametrize("mode", ["Off", "Required"])
def test_clients_may_need_a_certificate(mode: str) -> None:
    """With `clientCaConfigMap`, brokers request certificates, and programs in their pods use the brokers' own."""
    tls = {"mode": mode, "clientCaConfigMap": {"name": "staff", "key": "root.pem"}}
    asks = mode != "Off"
    brokers = drawn({"tls": tls})["StatefulSet/main-a"]
    variables = render_kit.variables_of(brokers)
    volumes = {each["name"]: each for each in brokers["spec"]["template"]["spec"]["volumes"]}
    other = drawn({"tls": {"mode": mode}})["StatefulSet/main-a"]
    hashes = {
        each["spec"]["template"]["metadata"]["annotations"]["fairlead.dev/pod-spec-hash"]
        for each in (brokers, other)
    }

    assert variables.get("FAIRLEAD_CLIENT_CA") == ("/etc/fairlead-client-ca/ca.crt" if asks else None)
    assert variables.get("FAIRLEAD_CLIENT_KEY_FILE") == ("/etc/fairlead-peer-tls/tls.key" if asks else None)
    assert volumes.get("client-ca", {}).get("configMap") == (
        {"name": "staff", "items": [{"key": "root.pem", "path": "ca.crt"}]} if asks else None
    )
    assert (len(hashes) == 2) == asks


def test_the_secret_of_a_user_has_all_that_a_program_needs() -> None:
    """The Secret of a User has token, address, authorities and a profile (rule K9).

    A User with a service account gets a ConfigMap with the audience instead of a token.
    """
    user = User.parse(
        {
            "metadata": {"name": "ann", "namespace": "shop", "uid": "u"},
            "spec": {"clusterRef": {"name": "main"}, "token": {"secretName": "ann-token"}},
        }
    )
    secret = user_secret(user, "flt_a_b", "https://main:9520", "PEM")
    plain = user_secret(user, "flt_a_b", "http://main:9520", "")
    content = {name: base64.b64decode(each).decode() for name, each in secret["data"].items()}
    account = account_map(user, "https://main:9520", "PEM")

    assert secret["metadata"]["name"] == "ann-token"
    assert (content["token"], content["bootstrap"], content["ca.crt"]) == (
        "flt_a_b",
        "https://main:9520",
        "PEM",
    )
    assert 'ca_file = "/var/run/secrets/fairlead/ca.crt"' in content["profile.toml"]
    assert "ca_file" not in base64.b64decode(plain["data"]["profile.toml"]).decode()
    assert account["data"]["audience"] == "fairlead/shop/main"
