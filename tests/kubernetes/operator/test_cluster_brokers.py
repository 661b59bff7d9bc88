"""Clusters with fake pods and real brokers: restarts by permit, and brokers that join and leave."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker_processes import BrokerProcesses, broker_processes
from cluster_words import BROKERS, a_cluster, condition_of, has, is_done, is_warned, uids
from fairlead.errors import InvalidConfigError, UnreachableError
from fairlead_api.bodies.metadata import PartitionMetadata
from operator_process import ACCOUNT, OperatorProcess
from warm_programs import FAIRLEAD

if TYPE_CHECKING:
    from kube_client import KubeClient, Manifest
    from kubernetes_under_test import Kubernetes
    from operator_process import Operators

CLUSTER = "clusters.fairlead.dev/main"
QUICK = {"replica.lag.time.max.ms": "2000"}
"""Setting that makes a frozen follower leave the in-sync replicas quickly."""
SLOW_SECONDS = 110.0
"""Timeout in seconds for steps that wait for leases of brokers and of the operator, on a loaded machine."""
pytestmark = pytest.mark.timeout(400)


@dataclass(slots=True)
class Stage:
    """One namespace with brokers, and operators that manage it."""

    kubernetes: Kubernetes
    operators: Operators
    namespace: str
    brokers: BrokerProcesses

    @property
    def api(self) -> KubeClient:
        """The API server."""
        return self.kubernetes.api

    def start_operator(self) -> OperatorProcess:
        """Start an operator with the chart's rights outside the box, in the network of the brokers."""
        user = self.operators.grant(self.namespace)
        kubeconfig = self.kubernetes.account_kubeconfig(ACCOUNT, self.namespace)
        settings = {
            "FAIRLEAD_OPERATOR_POD_NAMESPACE": self.namespace,
            "FAIRLEAD_OPERATOR_BROKER_URL": self.brokers.url,
            "FAIRLEAD_OPERATOR_RESYNC_SECONDS": "5",
            "FAIRLEAD_OPERATOR_METRICS_LISTEN": "127.0.0.1:0",
            "FAIRLEAD_OPERATOR_LOG_FORMAT": "json",
        }
        operator = OperatorProcess(
            [FAIRLEAD, "operator", "start"],
            {**self.kubernetes.environment(kubeconfig), **settings},
            self.operators.folder / f"operator-{len(self.operators.started)}.log",
            user,
        )
        self.operators.started.append(operator)
        return operator

    def apply(self, replicas: int = 3, **spec: Any) -> None:
        """Apply the Cluster."""
        etcd = {"external": {"endpoints": list(self.brokers.etcd)}}
        config = {**QUICK, **spec.pop("config", {})}
        self.api.apply(a_cluster(replicas, etcd=etcd, config=config, **spec), self.namespace)

    def wait(self, holds: Any, seconds: float = SLOW_SECONDS) -> Manifest:
        """Wait until the Cluster satisfies a condition."""
        return self.api.wait(CLUSTER, self.namespace, holds, seconds)

    def wait_done(self) -> Manifest:
        """Wait until the Cluster is ready, its brokers answer, and no change is in progress."""
        cluster = self.wait(lambda each: is_done(each) and not is_warned(each))
        self.brokers.wait_until(lambda: self.brokers.serves(3))
        return cluster

    def pods(self) -> dict[str, str]:
        """Return the uid of each broker's pod."""
        return uids(self.api.list("pods", self.namespace, BROKERS))

    def wait_replaced(self, pod: str, uid: str) -> None:
        """Wait until the broker's pod has been replaced by a new pod with the same name."""
        self.api.wait(
            f"pod/{pod}",
            self.namespace,
            lambda each: each and each["metadata"]["uid"] != uid,
            SLOW_SECONDS,
        )

    def events(self, reason: str) -> list[str]:
        """Return the messages of the Cluster's Events with the given reason."""
        return [
            str(event.get("note") or event.get("message"))
            for event in self.api.list("events.events.k8s.io", self.namespace)
            if event["reason"] == reason
        ]

    def partitions(self, topic: str, brokers: int = 3) -> list[PartitionMetadata]:
        """Return the partitions of a topic."""
        return self.brokers.ask(lambda admin: admin.metadata([topic]), brokers).topics[0].partitions

    def make_topic(self, name: str, *, partitions: int = 3, factor: int = 3, brokers: int = 3) -> None:
        """Create a topic once `brokers` brokers accept replicas."""

        def made() -> bool:
            try:
                self.brokers.ask(
                    lambda admin: admin.create_topic(name, partitions=partitions, replication_factor=factor),
                    brokers,
                )
            except (InvalidConfigError, UnreachableError):
                return False
            return True

        self.brokers.wait_until(made)


@pytest.fixture
def stage(kubernetes: Kubernetes, operators: Operators, namespace: str, tmp_path: Path) -> Iterator[Stage]:
    """Yield a managed namespace without a Cluster."""
    with broker_processes(kubernetes.api, namespace, tmp_path) as brokers:
        try:
            yield Stage(kubernetes, operators, namespace, brokers)
        finally:
            operators.stop_all()


def test_a_changed_setting_restarts_each_broker_once(stage: Stage) -> None:
    """Brokers restart once each for a changed setting, the controller last, even when the operator is killed.

    After the restarts, a broker joins the Cluster, and leaves the Cluster after its data has moved.
    """
    operator = stage.start_operator()
    stage.apply()
    ready = stage.wait_done()
    stage.make_topic("orders")
    controller = stage.brokers.ask(lambda admin: admin.cluster()).controller
    before = stage.pods()
    stage.apply(config={"num.io.threads": "6", "retention.ms": "70000"})
    first = min(broker for broker in range(3) if broker != controller)
    stage.wait_replaced(f"main-a-{first}", before[f"main-a-{first}"])
    operator.stop(signal.SIGKILL)
    stage.start_operator()
    done = stage.wait_done()
    config = stage.brokers.ask(lambda admin: admin.cluster_config())

    assert ready["status"]["clusterId"]
    assert sorted(stage.brokers.started[3:]) == [0, 1, 2]
    assert stage.brokers.started[-1] == controller
    assert stage.brokers.most_away == 1
    assert done["status"]["pools"][0]["updated"] == 3
    assert config["retention.ms"].value == "70000"
    # A Cluster may be Ready while a follower that has just returned is not in sync yet.
    stage.brokers.wait_until(
        lambda: all(sorted(each.isr) == [0, 1, 2] for each in stage.partitions("orders"))
    )
    # The killed operator may not have reported a restart.
    assert 2 <= len(set(stage.events("BrokerRestarted"))) <= 3
    one_comes_and_leaves(stage)


def one_comes_and_leaves(stage: Stage) -> None:
    """Check that a fourth broker joins, and leaves only after its replicas have moved to the other brokers."""
    config = {"num.io.threads": "6", "retention.ms": "70000"}
    stage.apply(4, config=config)
    stage.wait(
        lambda each: is_done(each) and each["status"]["brokers"]["ready"] == 4 and stage.brokers.serves(4)
    )

    def is_accepted() -> bool:
        """Ask the controller to move a replica; the controller may learn later than other brokers of broker 3."""
        try:
            stage.brokers.ask(lambda admin: admin.reassign("orders", 0, [0, 1, 3]), 4)
        except InvalidConfigError:
            return False
        return True

    stage.brokers.wait_until(is_accepted)
    stage.brokers.wait_until(lambda: set(stage.partitions("orders", 4)[0].isr) == {0, 1, 3})
    stage.apply(3, config=config)
    stage.wait(lambda each: is_done(each) and each["status"]["brokers"]["ready"] == 3)

    assert [each.id for each in stage.brokers.ask(lambda admin: admin.brokers())] == [0, 1, 2]
    assert sorted(stage.partitions("orders")[0].replicas) == [0, 1, 2]
    assert len(stage.api.list("persistentvolumeclaims", stage.namespace, BROKERS)) == 4


@pytest.mark.scenario
def test_restarts_are_asked_for_and_wait_for_replicas(stage: Stage) -> None:
    """Brokers restart on request for a new disk, a larger disk and a roll, which waits while a broker is frozen."""
    stage.start_operator()
    stage.apply()
    stage.wait_done()
    stage.make_topic("orders")
    disks = uids(stage.api.list("persistentvolumeclaims", stage.namespace, BROKERS))
    stage.api.annotate("pod/main-a-1", stage.namespace, {"fairlead.dev/delete-pod-and-claim": "true"})
    stage.brokers.wait_until(lambda: len(stage.brokers.started) > 3)
    stage.wait_done()
    new_disks = uids(stage.api.list("persistentvolumeclaims", stage.namespace, BROKERS))
    pods = stage.pods()
    grown = {
        "type": "FileSystemResizePending",
        "status": "True",
        "lastTransitionTime": "2099-01-01T00:00:00Z",
    }
    stage.api.patch(
        "persistentvolumeclaim/data-main-a-2",
        stage.namespace,
        {"status": {"conditions": [grown]}},
        subresource="status",
    )
    stage.wait_replaced("main-a-2", pods["main-a-2"])
    stage.api.patch(
        "persistentvolumeclaim/data-main-a-2",
        stage.namespace,
        {"status": {"conditions": []}},
        subresource="status",
    )
    stage.wait_done()
    asked = list(stage.brokers.started[3:])
    _, frozen = stage.brokers.running[0]
    frozen.send_signal(signal.SIGSTOP)
    stage.brokers.wait_until(lambda: {0, 1, 2} > set(stage.partitions("orders")[0].isr))
    stage.api.annotate(CLUSTER, stage.namespace, {"fairlead.dev/restart": "weekly"})
    blocked = stage.wait(lambda each: condition_of(each, "RollBlocked"))
    before = len(stage.brokers.started)
    frozen.send_signal(signal.SIGCONT)
    done = stage.wait_done()

    assert {name for name, uid in new_disks.items() if disks.get(name) != uid} == {"data-main-a-1"}
    assert asked[0] == 1
    assert set(asked[1:]) == {2}
    assert before == 3 + len(asked)
    assert condition_of(blocked, "Ready")["status"] == "True"
    assert sorted(stage.brokers.started[before:]) == [0, 1, 2]
    assert "fairlead.dev/restart" not in done["metadata"].get("annotations", {})


@pytest.mark.scenario
def test_brokers_come_and_leave_with_their_data(stage: Stage) -> None:
    """Brokers join and leave with their data, even if a change is cancelled; no topic is left with too few brokers."""
    stage.start_operator()
    stage.apply()
    stage.wait_done()
    stage.make_topic("orders", partitions=1)
    stage.apply(5)
    stage.wait(
        lambda each: is_done(each) and each["status"]["brokers"]["ready"] == 5 and stage.brokers.serves(5)
    )
    stage.brokers.ask(lambda admin: admin.reassign("orders", 0, [0, 3, 4]), 5)
    stage.brokers.wait_until(lambda: set(stage.partitions("orders", 5)[0].isr) == {0, 3, 4})
    stage.apply(3)
    stage.wait(lambda each: each and each["status"].get("scaleDown", {}).get("brokerIds") == [3, 4])
    stage.apply(5)
    stage.wait(lambda each: is_done(each) and "scaleDown" not in each["status"])
    kept = {each.id: each.cordoned for each in stage.brokers.ask(lambda admin: admin.brokers(), 5)}
    stage.apply(3)
    stage.wait(lambda each: is_done(each) and "scaleDown" not in each["status"])
    left = [each.id for each in stage.brokers.ask(lambda admin: admin.brokers())]
    partition = stage.partitions("orders")[0]
    stage.apply(2)
    refused = stage.wait(has("ScaleDownBlocked", "ReplicationFactor"))

    assert kept == dict.fromkeys(range(5), False)
    assert left == [0, 1, 2]
    assert sorted(partition.replicas) == [0, 1, 2]
    assert "orders" in condition_of(refused, "ScaleDownBlocked")["message"]
    assert len(stage.pods()) == 3
    assert len(stage.api.list("persistentvolumeclaims", stage.namespace, BROKERS)) == 5
