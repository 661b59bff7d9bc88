"""Real brokers and an operator next to the control plane, for tests of Topics.

Three brokers in three racks are processes on one etcd. The addresses of the brokers differ only by the broker's id, so
that the operator finds them for every Cluster whose pool begins at id 1. All processes end with the process that
started them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from etcd_cluster import etcd_cluster, free_ports
from fairlead import Admin
from fairlead.errors import TopicNotFoundError
from fairlead_api.bodies.metadata import TopicDescription
from kube_client import Manifest
from kubernetes_under_test import Kubernetes
from operator_process import ACCOUNT, Operators, install_definitions
from warm_programs import WarmProcess, start

T = TypeVar("T")
RACKS = ("zone-a", "zone-b", "zone-c")
STOP_SECONDS = 30.0
RESYNC_SECONDS = 5.0
"""Minimum interval between resyncs of the operator, which repair drift."""


@dataclass(slots=True)
class Brokers:
    """A running cluster of brokers with an admin client."""

    runner: asyncio.Runner
    admin: Admin
    port: int
    etcd: tuple[str, ...]
    link_credentials: Path
    """Folder with the credentials of links, which a kubelet would fill from a Secret."""
    processes: list[WarmProcess] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The operator's template of broker addresses."""
        return f"http://127.0.1.{{id}}:{self.port}"

    def ask(self, call: Callable[[Admin], Awaitable[T]]) -> T:
        """Send a request and return the answer."""

        async def asked() -> T:
            return await call(self.admin)

        return self.runner.run(asked())

    def topic(self, name: str) -> TopicDescription | None:
        """Return a topic, or None."""
        try:
            return self.ask(lambda admin: admin.describe_topic(name))
        except TopicNotFoundError:
            return None

    def replicas(self, name: str) -> list[list[int]]:
        """Return the brokers of each partition of a topic."""
        metadata = self.ask(lambda admin: admin.metadata([name]))
        return [partition.replicas for partition in metadata.topics[0].partitions]

    def own_config(self, name: str) -> dict[str, str]:
        """Return the configuration of a topic's own level."""
        topic = self.topic(name)
        assert topic is not None, f"there is no topic {name}"
        return {key: entry.value for key, entry in topic.config.items() if entry.source == "topic"}


@dataclass(slots=True)
class Stage:
    """A control plane with brokers and an operator that manages some namespaces."""

    kubernetes: Kubernetes
    brokers: Brokers
    namespaces: Iterator[str]
    start_operator: Callable[[], WarmProcess]
    operator: WarmProcess
    common: str
    """Namespace of the Cluster that tests share unless they need their own."""

    def namespace(self) -> str:
        """Return a namespace that the operator watches, for one test alone."""
        return next(self.namespaces)

    def cluster(self, namespace: str, name: str = "main", **spec: object) -> Manifest:
        """Create a Cluster whose brokers are the running brokers."""
        pool = {"name": "a", "firstBrokerId": 1, "replicas": 3, "storage": {"size": "1Gi"}}
        return self.kubernetes.api.apply(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "Cluster",
                "metadata": {"name": name},
                "spec": {
                    "brokers": [pool],
                    "etcd": {"external": {"endpoints": list(self.brokers.etcd)}},
                    **spec,
                },
            },
            namespace,
        )[0]

    def topic(
        self, namespace: str, name: str, /, *, cluster: Manifest | None = None, **spec: object
    ) -> Manifest:
        """Apply a Topic of the Cluster `main` in its namespace, or of another Cluster."""
        reference = {"name": "main"}
        if cluster is not None:
            reference = {key: cluster["metadata"][key] for key in ("name", "namespace")}
        return self.kubernetes.api.apply(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "Topic",
                "metadata": {"name": name},
                "spec": {"clusterRef": reference, **spec},
            },
            namespace,
        )[0]

    def wait(self, namespace: str, name: str, reason: str = "Available") -> Manifest:
        """Wait until a Topic's Ready condition has a reason for its current spec; return the Topic."""
        return self.kubernetes.api.wait(
            f"topics.fairlead.dev/{name}", namespace, lambda topic: ready_reason(topic) == reason
        )

    def wait_gone(self, namespace: str, name: str) -> None:
        """Wait until a Topic's resource is removed."""
        self.kubernetes.api.wait(f"topics.fairlead.dev/{name}", namespace, lambda topic: topic is None)

    def events(self, namespace: str, name: str) -> set[str]:
        """Return the reasons of the Events about a Topic."""
        return {
            event["reason"]
            for event in self.kubernetes.api.list("events", namespace)
            if (event.get("regarding") or event["involvedObject"])["name"] == name
        }

    def wait_event(self, namespace: str, name: str, reason: str, about: str = "") -> Manifest:
        """Wait for an Event about a Topic whose message contains the given text; return the Event."""

        def matching(events: list[Manifest]) -> list[Manifest]:
            return [
                event
                for event in events
                if (event.get("regarding") or event["involvedObject"])["name"] == name
                and event["reason"] == reason
                and about in (event.get("note") or event.get("message", ""))
            ]

        return matching(self.kubernetes.api.wait_list("events", namespace, matching))[0]

    def wait_moved(self, namespace: str, name: str, replicas: int) -> Manifest:
        """Wait until a Topic has `replicas` replicas and no move is in progress; return the Topic."""

        def moved(topic: Manifest | None) -> bool:
            return (
                topic is not None
                and ready_reason(topic) == "Available"
                and condition_of(topic, "Progressing").get("status") == "False"
                and topic["status"].get("replicas") == replicas
            )

        return self.kubernetes.api.wait(f"topics.fairlead.dev/{name}", namespace, moved)

    def operator_memory_bytes(self) -> int:
        """Return the operator's peak memory use."""
        status = Path(f"/proc/{self.operator.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) * 1024

    def stop_operator(self) -> None:
        """Stop the operator, which releases its Lease. The next operator knows only the objects in the API server."""
        _stop([self.operator])

    def restart_operator(self) -> None:
        """Stop the operator, if it runs, and start another operator."""
        self.stop_operator()
        self.operator = self.start_operator()


def ready_reason(topic: Manifest | None) -> str | None:
    """Return the reason of a Topic's Ready condition; None while its status is about an older spec."""
    condition = condition_of(topic, "Ready")
    if topic is None or not condition:
        return None
    if condition.get("observedGeneration") != topic["metadata"]["generation"]:
        return None
    return str(condition["reason"])


def condition_of(topic: Manifest | None, type_: str) -> Manifest:
    """Return a condition of a Topic, empty when missing."""
    conditions: list[Manifest] = status_of(topic).get("conditions") or []
    return next((each for each in conditions if each["type"] == type_), {})


def status_of(topic: Manifest | None) -> Manifest:
    """Return the status of a Topic, empty when missing."""
    status: Manifest = (topic or {}).get("status") or {}
    return status


@contextmanager
def running_stage(kubernetes: Kubernetes, folder: Path, namespaces: int) -> Iterator[Stage]:
    """Start brokers, and an operator that watches `namespaces` new namespaces, the first of which has a Cluster."""
    install_definitions(kubernetes)
    names = [kubernetes.namespace("topics") for _ in range(namespaces)]
    operators = Operators(kubernetes, folder)
    user = operators.grant(names[0], scope="list", watch=names)
    kubeconfig = kubernetes.account_kubeconfig(ACCOUNT, names[0])
    mark = kubernetes.audit_mark()
    with ExitStack() as stack:
        brokers = stack.enter_context(running_brokers(folder))

        def start_operator() -> WarmProcess:
            return _start(
                ("operator", "start", "--kubeconfig", str(kubeconfig)),
                folder / "operator.log",
                FAIRLEAD_OPERATOR_NAMESPACES=",".join(names),
                FAIRLEAD_OPERATOR_POD_NAMESPACE=names[0],
                FAIRLEAD_OPERATOR_BROKER_URL=brokers.url,
                FAIRLEAD_OPERATOR_RESYNC_SECONDS=str(RESYNC_SECONDS),
                FAIRLEAD_OPERATOR_METRICS_LISTEN="127.0.0.1:0",
                FAIRLEAD_OPERATOR_LOG_FORMAT="json",
            )

        stage = Stage(kubernetes, brokers, iter(names[1:]), start_operator, start_operator(), names[0])
        stack.callback(lambda: _stop([stage.operator]))
        stage.cluster(stage.common)
        yield stage
        refused = operators.forbidden(user, mark)
        # The operator's rights in a namespace are deleted with it.
        mine = [event for event in refused if kubernetes.api.get(f"namespace/{event.namespace}")]
        assert not mine, f"the API server forbade the operator: {mine}"


@contextmanager
def running_brokers(folder: Path) -> Iterator[Brokers]:
    """Start the brokers 1, 2 and 3 in separate racks, and wait until they serve."""
    data_port, peer_port, ops_port = _ports_everywhere(3)
    link_credentials = folder / "link-credentials"
    link_credentials.mkdir()
    with asyncio.Runner() as runner, ExitStack() as stack:
        etcd_context = etcd_cluster(folder / "etcd")
        etcd = runner.run(etcd_context.__aenter__())
        stack.callback(lambda: runner.run(etcd_context.__aexit__(None, None, None)))
        processes = [
            _start(
                ("broker", "start", "--output", "json"),
                folder / f"broker-{number}.log",
                FAIRLEAD_ID=str(number),
                FAIRLEAD_RACK=rack,
                FAIRLEAD_DATA=str(folder / f"broker-{number}"),
                FAIRLEAD_ETCD=",".join(etcd.urls),
                FAIRLEAD_LINK_CREDENTIALS=str(link_credentials),
                FAIRLEAD_LISTEN=f"127.0.1.{number}:{data_port}",
                FAIRLEAD_PEER_LISTEN=f"127.0.1.{number}:{peer_port}",
                FAIRLEAD_OPS_LISTEN=f"127.0.1.{number}:{ops_port}",
            )
            for number, rack in enumerate(RACKS, 1)
        ]
        stack.callback(lambda: _stop(processes))
        for process in processes:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["brokers"]
        admin = Admin([f"http://127.0.1.{number}:{data_port}" for number in (1, 2, 3)])
        runner.run(admin.__aenter__())
        stack.callback(lambda: runner.run(admin.__aexit__(None, None, None)))
        yield Brokers(runner, admin, data_port, tuple(etcd.urls), link_credentials, processes)


def _ports_everywhere(count: int) -> list[int]:
    ports = free_ports()
    return [next(ports) for _ in range(count)]


def _start(words: Sequence[str], log: Path, **settings: str) -> WarmProcess:
    """Start a program that ends with this process."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("FAIRLEAD_")}
    with log.open("ab") as errors:
        return start(*words, environment={**inherited, **settings}, errors=errors)


def _stop(processes: Sequence[WarmProcess]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
