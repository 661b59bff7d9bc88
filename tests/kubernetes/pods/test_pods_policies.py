"""Network policies of a Cluster and of the operator's chart on real pods, enforced by kube-router.

A Cluster becomes ready and serves a permitted client while kube-router enforces its policies, and every other
connection is refused. Without the policies, the same connections succeed, which shows that only the policies refuse
them. The operator is a pod in a namespace of its own, because an enforcer never refuses connections from a node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from chart_tools import OPERATOR_CHART
from cluster_words import a_cluster, uids
from furnishing import CONTROL_PLANE_ADDRESS, NAMES_ADDRESS
from made_files import make_chart_files
from operator_process import Operators, install_definitions
from pod_connections import Pod, Targets, settled
from pods_stage import DEV_IMAGE, SLOW_SECONDS, THREE_MEMBERS, PodsStage, is_ready, keep_counts
from secured_clients import CLOSED as CLOSED_SECURITY

if TYPE_CHECKING:
    from kube_client import Manifest
    from pods import KubernetesPods

pytestmark = [pytest.mark.timeout(1400), pytest.mark.scenario]

OPERATOR: Final = "fairlead-operator"
PERMITTED: Final = {"access": "permitted"}
LIMITED: Final = {"enabled": True, "clients": [{"podSelector": {"matchLabels": PERMITTED}}]}
CLOSED_EGRESS: Final = {**LIMITED, "egress": [{"ipBlock": {"cidr": f"{CONTROL_PLANE_ADDRESS}/32"}}]}
"""Brokers call the API server for the keys of service accounts."""
CREDENTIALS: Final = "/var/run/secrets/fairlead"
SERVER_PORT: Final = 8000
SERVER: Final = ["python3", "-m", "http.server", str(SERVER_PORT)]
RESTRICTED: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
FETCH: Final = """
import pathlib, ssl, sys, urllib.request
folder, *urls = sys.argv[1:]
token, authorities = pathlib.Path(folder, "token"), pathlib.Path(folder, "ca.crt")
trust = ssl.create_default_context(cafile=authorities) if authorities.exists() else None
headers = {"Authorization": f"Bearer {token.read_text().strip()}"} if token.exists() else {}
for url in urls:
    request = urllib.request.Request(url, headers=headers)
    print(urllib.request.urlopen(request, timeout=30, context=trust).status)
"""
RECORDS: Final = 30
SERVERS: Final = ("broker", "etcd")
FLOW: Final = re.compile(r"src=(?P<caller>\S+) .* src=(?P<server>\S+) \S+ sport=(?P<port>\d+)")
"""Caller of a connection as the caller began it, and the pod that answers, behind a Service too."""

DATA: Final = frozenset({"data", "bootstrap"})
ETCD: Final = frozenset({"etcd client", "etcd peer"})
OUTSIDE: Final = frozenset({"stranger", "operator", "api server", "names"})
"""Targets that no policy of the Cluster protects."""
INGRESS: Final = {
    "client": DATA | {"console"},
    "stranger": frozenset[str](),
    "namesake": frozenset[str](),
    "prometheus": frozenset({"ops", "etcd metrics"}),
    "operator": DATA | {"ops", "etcd client", "etcd metrics"},
    "broker": DATA | {"peer", "etcd client"},
    "etcd": ETCD,
    "console": DATA | {"console"},
}
"""Protected targets that each pod may reach. The namesake has the client's labels, but in another namespace. A pod
always reaches itself.
"""
EGRESS: Final = {
    "broker": DATA | {"peer", "etcd client", "api server", "names"},
    "etcd": ETCD | {"names"},
    "console": DATA | {"console", "api server", "names"},
}
"""Targets that the pods of the Cluster reach when egress is limited to the API server.

The policy of the brokers has no egress to their data ports. kube-router permits this egress because of the ingress of
the same policy, so the test also shows that no broker calls another broker's data port.
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of Cluster: its security, and the ports of its etcd for clients and members."""

    name: str
    scheme: str
    etcd_ports: tuple[int, int]
    spec: dict[str, Any]


OPEN: Final = Kind("open", "http", (2379, 2380), {})
CLOSED: Final = Kind("closed", "https", (2479, 2480), {"security": CLOSED_SECURITY})


@pytest.fixture(scope="module")
def operator(kubernetes_policies: KubernetesPods) -> Iterator[Pod]:
    """Yield the pod of an operator that the chart installs in a namespace of its own, for all namespaces."""
    kubernetes = kubernetes_policies
    install_definitions(kubernetes)
    make_chart_files()
    namespace = kubernetes.namespace("operator")
    where = ("--namespace", namespace)
    settings = ("--set", "watch.scope=all,crds.enabled=false")
    kubernetes.run("helm4", "install", OPERATOR, str(OPERATOR_CHART), *where, *settings, "--wait")
    [pod] = kubernetes.api.list("pods", namespace, f"app.kubernetes.io/name={OPERATOR}")
    yield Pod(pod["metadata"]["name"], namespace)
    kubernetes.run("helm4", "uninstall", OPERATOR, *where)


def start_pod(kubernetes: KubernetesPods, pod: Pod, labels: dict[str, str], **environment: str) -> Pod:
    """Start a pod with a server, and with the credentials of the User `load` if they exist; wait until it is ready."""
    container = {
        "name": "main",
        "image": DEV_IMAGE,
        "imagePullPolicy": "Never",
        "command": SERVER,
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        "readinessProbe": {"tcpSocket": {"port": SERVER_PORT}, "periodSeconds": 1},
        "securityContext": RESTRICTED,
        "volumeMounts": [{"name": "credentials", "mountPath": CREDENTIALS, "readOnly": True}],
    }
    secret = {"secretName": "load", "optional": True, "defaultMode": 0o440}
    spec = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "securityContext": {"fsGroup": 10001},
        "containers": [container],
        "volumes": [{"name": "credentials", "secret": secret}],
    }
    metadata = {"name": pod.name, "labels": labels}
    kubernetes.api.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, pod.namespace
    )
    kubernetes.api.wait(f"pod/{pod.name}", pod.namespace, lambda each: each and is_ready(each), SLOW_SECONDS)
    return pod


@dataclass(frozen=True, slots=True)
class Scene:
    """A Cluster with policies, a pod of each kind of caller, and the targets of connections."""

    stage: PodsStage
    kind: Kind
    pods: dict[str, Pod]

    def component(self, name: str) -> list[Manifest]:
        """Return the pods of a component of the Cluster."""
        selector = f"fairlead.dev/cluster=main,app.kubernetes.io/component={name}"
        return self.stage.kubernetes.api.list("pods", self.stage.namespace, selector)

    def address(self, pod: Pod) -> str:
        """Return the address of a pod."""
        found = self.stage.kubernetes.api.get(f"pod/{pod.name}", pod.namespace)
        assert found is not None, f"there is no pod {pod.name}"
        return str(found["status"]["podIP"])

    def targets(self) -> Targets:
        """Return the current addresses of all targets; neither the broker nor the member is a caller of the test."""
        namespace = self.stage.namespace
        broker, member = (self.address(Pod(f"main-{name}-1", namespace)) for name in ("a", "etcd"))
        service = self.stage.kubernetes.api.get("service/main-bootstrap", namespace)
        assert service is not None, "a Cluster has a Service"
        clients, members = self.kind.etcd_ports
        return {
            "data": (broker, 9520),
            "bootstrap": (service["spec"]["clusterIP"], 9520),
            "peer": (broker, 9521),
            "ops": (broker, 9522),
            "etcd client": (member, clients),
            "etcd peer": (member, members),
            "etcd metrics": (member, 2381),
            "console": (self.address(self.pods["console"]), 9580),
            "stranger": (self.address(self.pods["stranger"]), SERVER_PORT),
            "operator": (self.address(self.pods["operator"]), 8080),
            "api server": (CONTROL_PLANE_ADDRESS, 6443),
            "names": (NAMES_ADDRESS, 53),
        }

    def settled(self, expected: dict[str, frozenset[str]]) -> dict[str, frozenset[str]]:
        """Return the targets that pods reach; see `pod_connections.settled`."""
        return settled(self.stage.kubernetes, self.pods, self.targets(), expected)

    def write_and_read(self) -> int:
        """Write records as the client and read them from each broker, which also answers for other leaders.

        Return the number of fetches that brokers answered.
        """
        kubernetes, namespace = self.stage.kubernetes, self.stage.namespace
        lines = "".join(f"record {number}\n" for number in range(RECORDS))
        words = ("exec", "--stdin", "client", "--namespace", namespace, "--", "fairlead", "produce", "load")
        kubernetes.kubectl(*words, stdin=lines)
        hosts = [f"main-a-{broker}.main-brokers.{namespace}.svc" for broker in range(3)]
        urls = [
            f"{self.kind.scheme}://{host}:9520/v1/topics/load/partitions/{number}/records?offset=earliest"
            for host in hosts
            for number in range(3)
        ]
        statuses = kubernetes.exec("client", namespace, "python3", "-c", FETCH, CREDENTIALS, *urls).split()
        return sum(status in ("200", "204") for status in statuses)

    def calls(self) -> set[tuple[str, str, int]]:
        """Return the recent connections between brokers and members of etcd: both components and the port."""
        owners = {each["status"]["podIP"]: name for name in SERVERS for each in self.component(name)}
        listed = self.stage.kubernetes.run("conntrack", "-L", "-p", "tcp").stdout
        found = (FLOW.search(line) for line in listed.splitlines())
        flows = [(flow["caller"], flow["server"], int(flow["port"])) for flow in found if flow]
        return {
            (owners[caller], owners[server], port)
            for caller, server, port in flows
            if {caller, server} <= owners.keys()
        }

    def restart_all(self) -> None:
        """Delete all brokers and all members of etcd at the same time, and wait until their successors serve."""
        old = uids([each for name in SERVERS for each in self.component(name)])
        for name in old:
            self.stage.kubernetes.api.delete(f"pod/{name}", self.stage.namespace)
        for name, uid in old.items():
            self.stage.wait_replaced(name, uid)
        self.stage.wait_done()


@contextmanager
def a_scene(kubernetes: KubernetesPods, operator: Pod, kind: Kind, folder: Path) -> Iterator[Scene]:
    """Yield a Cluster that has policies from the beginning, and remove its namespace with all pods at the end."""
    stage = PodsStage(kubernetes, Operators(kubernetes, folder), kubernetes.namespace())
    try:
        yield Scene(stage, kind, prepared_pods(stage, operator, kind))
    finally:
        kubernetes.api.delete(f"namespace/{stage.namespace}")


def prepared_pods(stage: PodsStage, operator: Pod, kind: Kind) -> dict[str, Pod]:
    """Create the Cluster, its client, and pods that are no clients; return the pods from which connections begin."""
    kubernetes, here, elsewhere = stage.kubernetes, stage.namespace, stage.kubernetes.namespace()
    cluster = a_cluster(etcd=THREE_MEMBERS, networkPolicy=LIMITED, console={}, **kind.spec)
    kubernetes.api.apply(cluster, here)
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    pods = {
        "operator": operator,
        "stranger": start_pod(kubernetes, Pod("stranger", here), {}),
        "namesake": start_pod(kubernetes, Pod("namesake", elsewhere), PERMITTED),
        "prometheus": start_pod(kubernetes, Pod("prometheus", elsewhere), prometheus),
        "broker": Pod("main-a-0", here),
        "etcd": Pod("main-etcd-0", here),
    }
    stage.wait_done()
    config = {"min.insync.replicas": "2"}
    stage.apply_ready("Topic", "load", {"partitions": 3, "replicas": 3, "config": config})
    if kind is CLOSED:
        stage.apply_ready("User", "load", {"acls": [{"operations": ["read", "write"], "topics": ["load"]}]})
    bootstrap = f"{kind.scheme}://main-bootstrap.{here}.svc:9520"
    client = Pod("client", here)
    pods["client"] = start_pod(kubernetes, client, PERMITTED, FAIRLEAD_BOOTSTRAP=bootstrap)
    selector = "fairlead.dev/cluster=main,app.kubernetes.io/component=console"
    [console] = kubernetes.api.wait_list(
        "pods",
        here,
        lambda found: len(found) == 1 and is_ready(found[0]),
        selector=selector,
        seconds=SLOW_SECONDS,
    )
    pods["console"] = Pod(console["metadata"]["name"], here)
    return pods


@pytest.mark.parametrize("kind", [CLOSED, OPEN], ids=lambda kind: kind.name)
def test_policies_permit_exactly_the_needed_connections(
    kubernetes_policies: KubernetesPods, operator: Pod, kind: Kind, tmp_path: Path
) -> None:
    """A Cluster becomes ready under its policies, and restarts with closed egress; every other connection is refused.

    Callers are a client, pods that are no clients, Prometheus, the operator, a broker, a member of etcd and the
    console. Without policies, all of them reach every target.
    """
    ingress = {name: permitted | OUTSIDE for name, permitted in INGRESS.items()}
    both = ingress | EGRESS
    with a_scene(kubernetes_policies, operator, kind, tmp_path) as scene:
        without = dict.fromkeys(INGRESS, frozenset(scene.targets()))
        limited, answered = scene.settled(ingress), scene.write_and_read()
        scene.stage.set("networkPolicy", {"enabled": False})
        unlimited = scene.settled(without)
        scene.stage.set("networkPolicy", CLOSED_EGRESS)
        closed_first = scene.settled(both)
        scene.restart_all()
        answered_again, calls = scene.write_and_read(), scene.calls()
        closed = scene.settled(both)
    keep_counts(
        f"network policies of a Cluster that is {kind.name}",
        opened_without_policies=sum(map(len, unlimited.values())),
        opened_with_policies=sum(map(len, limited.values())),
        opened_with_closed_egress=sum(map(len, closed.values())),
    )

    assert limited == ingress
    assert unlimited == without
    assert closed_first == closed == both
    assert answered == answered_again == 9
    assert calls == {
        ("broker", "broker", 9521),
        ("broker", "etcd", kind.etcd_ports[0]),
        ("etcd", "etcd", kind.etcd_ports[1]),
    }
