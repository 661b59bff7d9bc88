"""Clients outside the Kubernetes cluster, in a network that reaches nodes and load balancers, but no pod."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster_words import BROKERS
from gateway import NAME, PASSED_THROUGH, PLAIN, PORT, gateway
from pods_stage import SLOW_SECONDS, PodsStage, pods_stage, serves

if TYPE_CHECKING:
    from pods import KubernetesPods

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(900)]
NODES = ("10.88.1.1", "10.88.2.1", "10.88.3.1")
BALANCERS = "198.51.100.0/24"
BOX_ADDRESS, OUTSIDE_ADDRESS = "10.99.0.1", "10.99.0.2"
RECORDS = 30
WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'
HOST, PROXY_PORT = "fairlead.test", 8080
PROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend clients
    bind {address}:{port}
    use_backend %[req.hdr(host),field(1,:),lower]
"""
BACKEND = """
backend {host}
    server service {address}:{port} proto h2
"""
ONE_ADDRESS = Path(__file__).parents[1] / "stages/outside_program.py"
PROGRAM = str(Path(sys.executable).with_name("fairlead"))
TOPICS = itertools.count(1)


class OutsideNetwork:
    """A network namespace with a veth pair to the box, and routes only to the box's nodes and load balancers."""

    def __init__(self, kubernetes: KubernetesPods, process: subprocess.Popen[bytes]) -> None:
        """Use the network of a process."""
        self._kubernetes = kubernetes
        self._enter = ["nsenter", f"--target={process.pid}", "--net"]

    def run(
        self, *words: str, typed: str = "", check: bool = True, hosts: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in this network; `hosts` replaces /etc/hosts for the command."""
        named = [] if hosts is None else ["unshare", "--mount", "sh", "-c", WITH_HOSTS, str(hosts)]
        done = subprocess.run(
            [*self._enter, *named, *words],
            env=self._kubernetes.environment(),
            input=typed,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done


@contextmanager
def wired(kubernetes: KubernetesPods) -> Iterator[OutsideNetwork]:
    """Yield a network outside the box."""
    box = kubernetes.box.pid()
    assert box is not None, "the box runs"
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE) as process:
        try:
            outside = OutsideNetwork(kubernetes, process)
            kubernetes.run("ip", "link", "add", "out0", "type", "veth", "peer", "name", "out1")
            kubernetes.run("ip", "link", "set", "out1", "netns", str(process.pid))
            kubernetes.run("ip", "address", "add", f"{BOX_ADDRESS}/30", "dev", "out0")
            kubernetes.run("ip", "link", "set", "out0", "up")
            outside.run("ip", "address", "add", f"{OUTSIDE_ADDRESS}/30", "dev", "out1")
            outside.run("ip", "link", "set", "out1", "up")
            # Spark's driver and its Python workers call each other by the loopback interface.
            outside.run("ip", "link", "set", "lo", "up")
            for place in (*NODES, BALANCERS):
                outside.run("ip", "route", "add", place, "via", BOX_ADDRESS)
            yield outside
        finally:
            process.kill()


@pytest.fixture(scope="module")
def outside(kubernetes_pods: KubernetesPods) -> Iterator[OutsideNetwork]:
    """Yield a network outside the box for all tests of the file."""
    with wired(kubernetes_pods) as network:
        yield network


def external(cluster: Any) -> dict[str, Any]:
    """Return the addresses for external clients in the status of a Cluster; empty without such a listener."""
    listeners: list[dict[str, Any]] = cluster["status"].get("listeners", [])
    return next((each for each in listeners if each["name"] == "external"), {})


def is_settled(cluster: Any) -> bool:
    """Return whether the newest spec of a Cluster is in effect, and no restart is pending."""
    return serves(cluster) and cluster["status"]["observedGeneration"] == cluster["metadata"]["generation"]


def listening(stage: PodsStage, brokers: int, **listener: Any) -> dict[str, Any]:
    """Set the listener of the Cluster; return the addresses for external clients once `brokers` brokers have one."""
    stage.set("listeners", {"data": listener})

    def has_addresses(cluster: Any) -> bool:
        """Return whether the status has the addresses, and no restart is pending."""
        found = external(cluster)
        return (
            is_settled(cluster)
            and found.get("type") == listener["type"]
            and bool(found.get("bootstrap"))
            and len(found.get("brokers", ())) == brokers
        )

    return external(stage.wait(has_addresses, 2 * SLOW_SECONDS))


def without_external_access(stage: PodsStage) -> None:
    """Remove the listener for external clients, and wait for restarts of brokers that advertised its addresses."""
    stage.set("listeners", {})
    stage.wait(lambda cluster: is_settled(cluster) and not external(cluster), 2 * SLOW_SECONDS)


@contextmanager
def ingress_controller(stage: PodsStage, brokers: int, folder: Path) -> Iterator[Path]:
    """Run a proxy that is configured from the Ingress of the Cluster; yield a file with its host names."""
    api = stage.kubernetes.api
    ingress = api.wait(
        "ingress/main-external",
        stage.namespace,
        lambda each: each and len(each["spec"]["rules"]) == brokers + 1,
    )
    config = PROXY.format(address=BOX_ADDRESS, port=PROXY_PORT)
    for rule in ingress["spec"]["rules"]:
        [path] = rule["http"]["paths"]
        service = path["backend"]["service"]
        found = api.get(f"service/{service['name']}", stage.namespace)
        assert found is not None, "a rule leads to a Service"
        address = found["spec"]["clusterIP"]
        config += BACKEND.format(host=rule["host"], address=address, port=service["port"]["number"])
    file, hosts = folder / f"proxy-{brokers}.cfg", folder / f"hosts-{brokers}"
    file.write_text(config)
    hosts.write_text("".join(f"{BOX_ADDRESS} {rule['host']}\n" for rule in ingress["spec"]["rules"]))
    with subprocess.Popen([*stage.kubernetes.enter, "haproxy", "-db", "-f", str(file)]) as process:
        try:
            yield hosts
        finally:
            process.kill()


def exchange(
    outside: OutsideNetwork, bootstrap: str, hosts: Path | None = None, settings: tuple[str, ...] = ()
) -> list[int]:
    """Write records from outside to every partition and read them there as a group; return their numbers.

    `settings`: variables of the clients, such as `FAIRLEAD_CA_FILE=ca.crt`.
    """
    topic, command = f"outside-{next(TOPICS)}", ("env", *settings, PROGRAM)
    options = ("--bootstrap", bootstrap)
    outside.run(*command, "topic", "create", topic, "-p", "3", "-r", "3", *options, hosts=hosts)
    for partition in range(3):
        typed = "".join(f"{number}\n" for number in range(partition, RECORDS, 3))
        produce = ("produce", topic, "--partition", str(partition))
        outside.run(*command, *produce, *options, typed=typed, hosts=hosts)
    wanted = ("--group", topic, "--from-beginning", "-n", str(RECORDS))
    read = outside.run(*command, "consume", topic, *wanted, *options, hosts=hosts)
    return sorted(map(int, read.stdout.split()))


def by_one_address(stage: PodsStage, outside: OutsideNetwork) -> dict[str, list[int]]:
    """Write and read with the SDK, the command line and Spark through the node port of a Service that a user made.

    The Service leads to the listener for clients in pods, whose addresses clients outside cannot reach.
    """
    port = {"name": "data", "port": 9520, "targetPort": 9520, "nodePort": 30521}
    labels = dict(each.split("=") for each in BROKERS.split(","))
    spec = {"type": "NodePort", "selector": labels, "ports": [port]}
    metadata = {"name": "made-by-user", "namespace": stage.namespace}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}
    stage.kubernetes.api.apply(service)
    topic = stage.make_topic()
    done = outside.run(sys.executable, str(ONE_ADDRESS), f"http://{NODES[0]}:30521", topic)
    found: dict[str, list[int]] = json.loads(done.stdout)
    return found


def addresses(listed: str) -> list[str]:
    """Return the addresses in the output of `fairlead broker list --output json`."""
    return [each["address"] for each in json.loads(listed)]


def test_one_node_port_is_enough(stage: PodsStage, outside: OutsideNetwork) -> None:
    """External clients write and read through one node port without any setting, and no broker is restarted.

    Through another node port, whose Service does not lead to the listener for external clients, the setting for one
    address is enough.
    """
    without_external_access(stage)
    before = stage.pods()
    found = listening(stage, 0, type="nodeport", nodePort=30520)
    inside = outside.run(PROGRAM, "topic", "list", "--bootstrap", stage.bootstrap, check=False)
    read = exchange(outside, found["bootstrap"])
    one = by_one_address(stage, outside)

    assert sorted(found["bootstrap"].split(",")) == [f"http://{node}:30520" for node in NODES]
    assert one == {name: list(range(RECORDS)) for name in ("sdk", "command line", "spark")}
    assert read == list(range(RECORDS))
    assert inside.returncode == 5, "the network outside reaches no Service"
    assert stage.pods() == before


def test_each_broker_has_a_node_port(stage: PodsStage, outside: OutsideNetwork) -> None:
    """Clients outside the cluster connect to the leader's node port, and clients inside to the leader's pod."""
    found = listening(stage, 3, type="nodeport", perBroker=True)
    options = ("broker", "list", "--output", "json", "--bootstrap")
    far = addresses(outside.run(PROGRAM, *options, found["bootstrap"]).stdout)
    near = [each["address"] for each in stage.ask("broker", "list")]
    read = exchange(outside, found["bootstrap"])

    assert far == [f"http://{each['address']}" for each in found["brokers"]]
    assert {address.removeprefix("http://").partition(":")[0] for address in far} == set(NODES)
    assert all("main-brokers" in address for address in near)
    assert read == list(range(RECORDS))


def test_each_broker_has_a_load_balancer(stage: PodsStage, outside: OutsideNetwork) -> None:
    """External clients connect to the load balancer of each leader once a provider has assigned the addresses."""
    stage.set("listeners", {"data": {"type": "loadbalancer", "perBroker": True}})
    warned = stage.wait(lambda each: "NoExternalAddress" in json.dumps(each["status"].get("conditions")))
    api = stage.kubernetes.api
    for name, host in (("external", 1), *((f"broker-{broker}", 10 + broker) for broker in range(3))):
        api.wait(
            f"service/main-{name}",
            stage.namespace,
            lambda each: each and each["spec"]["type"] == "LoadBalancer",
        )
        given = {"status": {"loadBalancer": {"ingress": [{"ip": f"198.51.100.{host}"}]}}}
        api.patch(f"service/main-{name}", stage.namespace, given, subresource="status")
    found = listening(stage, 3, type="loadbalancer", perBroker=True)
    far = addresses(
        outside.run(PROGRAM, "broker", "list", "--output", "json", "--bootstrap", found["bootstrap"]).stdout
    )
    read = exchange(outside, found["bootstrap"])

    assert warned["status"]["listeners"][1]["bootstrap"] == ""
    assert found["bootstrap"] == "http://198.51.100.1:9520"
    assert far == [f"http://198.51.100.{10 + broker}:9520" for broker in range(3)]
    assert read == list(range(RECORDS))


def test_an_ingress_leads_to_the_brokers(stage: PodsStage, outside: OutsideNetwork, tmp_path: Path) -> None:
    """A proxy that follows the Ingress serves external clients, at one host for all brokers and one host per broker."""
    route = {"kind": "Ingress", "host": HOST, "scheme": "http", "port": PROXY_PORT}
    found = listening(stage, 0, type="clusterip", route=route)
    with ingress_controller(stage, 0, tmp_path) as hosts:
        shared = exchange(outside, found["bootstrap"], hosts)
    each = f"http://b-{{id}}.{HOST}:{PROXY_PORT}"
    found = listening(stage, 3, type="clusterip", perBroker=True, advertisedHost=each, route=route)
    with ingress_controller(stage, 3, tmp_path) as hosts:
        told = ("broker", "list", "--output", "json", "--bootstrap")
        far = addresses(outside.run(PROGRAM, *told, found["bootstrap"], hosts=hosts).stdout)
        direct = exchange(outside, found["bootstrap"], hosts)

    assert found["bootstrap"] == f"http://{HOST}:{PROXY_PORT}"
    assert far == [f"http://b-{broker}.{HOST}:{PROXY_PORT}" for broker in range(3)]
    assert shared == direct == list(range(RECORDS))


def route_hosts(stage: PodsStage, kind: str, brokers: int, folder: Path) -> Path:
    """Wait until the Gateway has taken the routes of the Cluster; return a file with their host names."""

    def taken(routes: list[dict[str, Any]]) -> bool:
        found = [parent for each in routes for parent in each.get("status", {}).get("parents", ())]
        accepted = [
            {condition["type"] for condition in each["conditions"] if condition["status"] == "True"}
            for each in found
        ]
        return len(accepted) == brokers + 1 and all(each >= {"Accepted", "ResolvedRefs"} for each in accepted)

    routes = stage.kubernetes.api.wait_list(kind, stage.namespace, taken, seconds=SLOW_SECONDS)
    hosts = folder / f"routes-{brokers}"
    hosts.write_text(
        "".join(f"{BOX_ADDRESS} {host}\n" for each in routes for host in each["spec"]["hostnames"])
    )
    return hosts


def test_a_gateway_leads_to_the_brokers(stage: PodsStage, outside: OutsideNetwork, tmp_path: Path) -> None:
    """Contour and Envoy serve external clients by the HTTPRoutes: one host for all brokers, and a host per broker."""
    route = {"kind": "HTTPRoute", "host": HOST, "scheme": "http", "port": PORT, "gateways": [{"name": NAME}]}
    with gateway(stage.kubernetes, stage.namespace, PLAIN):
        found = listening(stage, 0, type="clusterip", route=route)
        hosts = route_hosts(stage, "httproutes", 0, tmp_path)
        shared = exchange(outside, found["bootstrap"], hosts)
        each = f"http://b-{{id}}.{HOST}:{PORT}"
        found = listening(stage, 3, type="clusterip", perBroker=True, advertisedHost=each, route=route)
        hosts = route_hosts(stage, "httproutes", 3, tmp_path)
        told = ("broker", "list", "--output", "json", "--bootstrap")
        far = addresses(outside.run(PROGRAM, *told, found["bootstrap"], hosts=hosts).stdout)
        direct = exchange(outside, found["bootstrap"], hosts)

    assert found["bootstrap"] == f"http://{HOST}:{PORT}"
    assert far == [f"http://b-{broker}.{HOST}:{PORT}" for broker in range(3)]
    assert shared == direct == list(range(RECORDS))


def test_a_gateway_passes_tls_through_to_the_brokers(
    kubernetes_pods: KubernetesPods, outside: OutsideNetwork, tmp_path: Path
) -> None:
    """External clients reach brokers with TLS by TLSRoutes: one host for all brokers, and a host per broker.

    Clients verify the brokers' own certificate, since Contour and Envoy do not decrypt the connections.
    """
    route = {"kind": "TLSRoute", "host": HOST, "port": PORT, "gateways": [{"name": NAME}]}
    security = {"mode": "Open", "tls": {"mode": "Required"}}
    with (
        pods_stage(kubernetes_pods, tmp_path, security=security) as stage,
        gateway(stage.kubernetes, stage.namespace, PASSED_THROUGH),
    ):
        found = listening(stage, 0, type="clusterip", route=route)
        bundle = stage.kubernetes.api.get("configmap/main-ca", stage.namespace)
        assert bundle is not None, "clients get the authority from a ConfigMap"
        ca = tmp_path / "ca.crt"
        ca.write_text(bundle["data"]["ca.crt"])
        settings = (f"FAIRLEAD_CA_FILE={ca}",)
        hosts = route_hosts(stage, "tlsroutes", 0, tmp_path)
        shared = exchange(outside, found["bootstrap"], hosts, settings)
        each = f"https://b-{{id}}.{HOST}:{PORT}"
        found = listening(stage, 3, type="clusterip", perBroker=True, advertisedHost=each, route=route)
        hosts = route_hosts(stage, "tlsroutes", 3, tmp_path)
        told = ("broker", "list", "--output", "json", "--bootstrap", found["bootstrap"])
        far = addresses(outside.run("env", *settings, PROGRAM, *told, hosts=hosts).stdout)
        direct = exchange(outside, found["bootstrap"], hosts, settings)

    assert found["bootstrap"] == f"https://{HOST}:{PORT}"
    assert far == [f"https://b-{broker}.{HOST}:{PORT}" for broker in range(3)]
    assert shared == direct == list(range(RECORDS))
