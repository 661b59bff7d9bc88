"""A Cluster of three brokers on real pods that an operator manages, under writes and observation.

`PodsStage` is the operator with its Cluster `main`, `Load` the writes that must all be stored afterwards, `ReadyPods`
the number of brokers that served at the same time. `make prove` stores the counts of the writes and of serving brokers.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster_words import BROKERS, a_cluster, condition_of, is_done, is_warned, uids
from figures import record
from kube_client import Refused
from operator_process import ACCOUNT, OperatorProcess, Operators, install_definitions

if TYPE_CHECKING:
    from kube_client import Manifest
    from pods import KubernetesPods

CLUSTER = "clusters.fairlead.dev/main"
BUDGET = "poddisruptionbudget/main-brokers"
LOAD = Path(__file__).with_name("load_program.py")
SLOW_SECONDS = 280.0
TOO_MANY_REQUESTS = 429
RECORD_BYTES = 500
QUICK = {"replica.lag.time.max.ms": "4000"}
"""Setting that makes a frozen follower leave the in-sync replicas quickly."""
DEFAULT_URLS = {
    "FAIRLEAD_OPERATOR_BROKER_URL": "http://{pod}.{cluster}-brokers.{namespace}.svc:9520",
    "FAIRLEAD_OPERATOR_ETCD_URL": "http://{pod}.{cluster}-etcd-peers.{namespace}.svc:2379",
    "FAIRLEAD_OPERATOR_SERVICE_ACCOUNT": ACCOUNT,
}
DEV_IMAGE = "localhost/fairlead:dev"
SECOND_IMAGE = "localhost/fairlead:second"
THREE_MEMBERS = {"managed": {"replicas": 3, "storage": {"size": "1Gi"}}}
"""Value of `spec.etcd` for an etcd of three members."""
NO_IMAGE = "localhost/fairlead:missing"
_TOPICS = itertools.count(1)


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod is ready."""
    conditions = pod["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def serves(cluster: Manifest | None) -> bool:
    """Return whether a Cluster has no change in progress and its brokers answer."""
    return is_done(cluster) and not is_warned(cluster)


class ReadyPods:
    """Observes how many brokers are ready at the same time."""

    def __init__(self, kubernetes: KubernetesPods, namespace: str, brokers: int = 3) -> None:
        """Start observing."""
        self.fewest = brokers
        self.over = threading.Event()
        self._thread = threading.Thread(
            target=kubernetes.api.wait_list,
            args=("pods", namespace, self._look),
            kwargs={"selector": BROKERS, "seconds": 2 * SLOW_SECONDS},
            daemon=True,
        )
        self._thread.start()

    def _look(self, pods: list[Manifest]) -> bool:
        self.fewest = min(self.fewest, sum(map(is_ready, pods)))
        return self.over.is_set()


class Load:
    """A producer with acks=all that retries, and the outcome of its records; see `load_program.py`."""

    def __init__(
        self,
        kubernetes: KubernetesPods,
        bootstrap: str,
        topic: str,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        """Start the producer and wait for the first acknowledgement; `credentials` are settings of its clients."""
        self.topic = topic
        self.counts: dict[str, Any] = {}
        self.process = subprocess.Popen(
            [*kubernetes.enter, sys.executable, str(LOAD), bootstrap, topic, str(RECORD_BYTES)],
            env={**kubernetes.environment(), **(credentials or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None, "its output is a pipe"
        assert self.process.stdout.readline() == "producing\n", "the load has ended before its first record"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the stored records after the block, and end the process in any case."""
        try:
            yield
            self.finish()
        finally:
            self.process.kill()
            self.process.wait()

    def finish(self) -> None:
        """Stop producing, read all records, and store the counts."""
        if not self.counts:
            printed, _ = self.process.communicate("", timeout=SLOW_SECONDS)
            self.counts = json.loads(printed)

    @property
    def losses(self) -> dict[str, int]:
        """Nonzero counts of failures."""
        bad = ("failed", "missing", "twice", "misplaced", "disordered")
        return {name: self.counts[name] for name in bad if self.counts[name]}


@dataclass
class PodsStage:
    """The operator, its Cluster `main` in a namespace, and actions on both."""

    kubernetes: KubernetesPods
    operators: Operators
    namespace: str
    loads: list[Load] = field(default_factory=list)

    @property
    def bootstrap(self) -> str:
        """The bootstrap address for clients."""
        return f"http://main-bootstrap.{self.namespace}.svc:9520"

    @property
    def operator(self) -> OperatorProcess:
        """The last started operator."""
        return self.operators.started[-1]

    def start_operator(self) -> OperatorProcess:
        """Start an operator that resolves names of pods and services."""
        return self.operators.start(self.namespace, environment=DEFAULT_URLS)

    # ---- the Cluster

    def change(self, *operations: Manifest) -> None:
        """Change the Cluster by a JSON patch."""
        self.kubernetes.api.patch(CLUSTER, self.namespace, list(operations))

    def set(self, path: str, value: Any) -> None:
        """Set one field of the Cluster's spec, such as `brokers/0/replicas`."""
        self.change({"op": "add", "path": f"/spec/{path}", "value": value})

    def wait(self, holds: Any, seconds: float = SLOW_SECONDS) -> Manifest:
        """Wait until the Cluster satisfies a condition."""
        return self.kubernetes.api.wait(CLUSTER, self.namespace, holds, seconds)

    def wait_done(self, brokers: int = 3) -> Manifest:
        """Wait until `brokers` brokers are ready and answer, and no change is in progress."""
        return self.wait(lambda each: serves(each) and each["status"]["brokers"]["ready"] == brokers)

    def apply_ready(self, kind: str, name: str, spec: Manifest, seconds: float = SLOW_SECONDS) -> None:
        """Apply a Topic or a User of the Cluster, and wait until it is ready."""
        manifest = {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": {"clusterRef": {"name": "main"}, **spec},
        }
        self.kubernetes.api.apply(manifest, self.namespace)
        self.kubernetes.api.wait(
            f"{kind.lower()}s.fairlead.dev/{name}",
            self.namespace,
            lambda each: each and condition_of(each, "Ready").get("status") == "True",
            seconds,
        )

    # ---- brokers

    def pods(self) -> dict[str, str]:
        """Return the uid of each broker's pod."""
        return uids(self.kubernetes.api.list("pods", self.namespace, BROKERS))

    def claims(self) -> dict[str, str]:
        """Return the uid of each broker's claim."""
        return uids(self.kubernetes.api.list("persistentvolumeclaims", self.namespace, BROKERS))

    def node_of(self, pod: str) -> str:
        """Return the node of a pod."""
        found = self.kubernetes.api.get(f"pod/{pod}", self.namespace)
        assert found is not None, f"there is no pod {pod}"
        return str(found["spec"]["nodeName"])

    def wait_replaced(self, pod: str, uid: str) -> None:
        """Wait until the pod has been replaced by a ready pod with the same name."""
        self.kubernetes.api.wait(
            f"pod/{pod}",
            self.namespace,
            lambda each: each and each["metadata"]["uid"] != uid and is_ready(each),
            SLOW_SECONDS,
        )

    def evict_when_allowed(self, pod: str) -> int:
        """Retry the eviction of a pod until the disruption budget allows it; return the number of refusals."""
        for refused in itertools.count():
            try:
                self.kubernetes.api.evict(pod, self.namespace)
            except Refused as refusal:
                if refusal.status != TOO_MANY_REQUESTS:
                    raise
            else:
                return refused
            self.kubernetes.api.wait(
                BUDGET,
                self.namespace,
                lambda each: each and each["status"]["disruptionsAllowed"] > 0,
                SLOW_SECONDS,
            )
        raise AssertionError(pod)

    def ask(self, *words: str) -> Any:
        """Run the command line against the cluster and return its JSON answer."""
        program = str(Path(sys.executable).with_name("fairlead"))
        said = self.kubernetes.run(program, *words, "--bootstrap", self.bootstrap, "--output", "json").stdout
        return json.loads(said)

    def controller(self) -> str:
        """Return the pod of the controller."""
        return f"main-a-{self.ask('cluster', 'info')['controller']}"

    def deleted_pods(self, since: int) -> list[str]:
        """Return the names of the pods that operators deleted since a mark in the audit log, in order."""
        events = self.kubernetes.audit(since=since, user=self.operator.user, writes=True)
        done = [
            each for each in events if (each.resource, each.verb) == ("pods", "delete") and each.code < 300
        ]
        return [each.name for each in done if "etcd" not in each.name]

    # ---- writes

    def make_topic(self, partitions: int = 3) -> str:
        """Create a topic with three replicas, of which two must acknowledge; return its name."""
        name = f"load-{next(_TOPICS)}"
        self.ask(
            "topic", "create", name, "-p", str(partitions), "-r", "3", "-c", "min.insync.replicas=2"
        )  # fmt: skip
        return name

    @contextmanager
    def load(self, partitions: int = 3) -> Iterator[Load]:
        """Write to a new topic during the block, and count the stored records afterwards."""
        load = Load(self.kubernetes, self.bootstrap, self.make_topic(partitions))
        self.loads.append(load)
        with load.running():
            yield load


@contextmanager
def pods_stage(
    kubernetes: KubernetesPods,
    folder: Path,
    brokers: int = 3,
    chart_values: tuple[str, ...] = (),
    **spec: Any,
) -> Iterator[PodsStage]:
    """Yield an operator, with the rights of its chart, and a Cluster; remove both with their pods afterwards."""
    install_definitions(kubernetes)
    stage = PodsStage(kubernetes, Operators(kubernetes, folder, chart_values), kubernetes.namespace())
    try:
        stage.start_operator()
        kubernetes.api.apply(a_cluster(brokers, config=QUICK, **spec), stage.namespace)
        stage.wait_done(brokers)
        yield stage
    finally:
        stage.operators.stop_all()
        kubernetes.api.delete(f"namespace/{stage.namespace}")


def keep_counts(name: str, **figures: Any) -> None:
    """Write the counts of a test to the record of `make prove`."""
    record(name, figures)
