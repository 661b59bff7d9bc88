"""Losses of a Cluster on real pods under load: disks, nodes and etcd members; no record is lost."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from cluster_words import BROKERS, condition_of
from pods_stage import CLUSTER, SLOW_SECONDS, PodsStage, ReadyPods, keep_counts, pods_stage

if TYPE_CHECKING:
    from pathlib import Path

    from kube_client import Manifest
    from pods import KubernetesPods

pytestmark = [pytest.mark.timeout(900), pytest.mark.scenario]


DELETED_SECONDS_MAX = 45.0
"""Time limit for the deletion of a Cluster: brokers stop one after another if possible, and etcd's pods all
together.
"""


def in_sync(topic: dict[str, Any]) -> bool:
    """Return whether every partition of a topic has all its replicas in sync."""
    return all(sorted(each["isr"]) == [0, 1, 2] for each in topic["partitions"])


def test_a_broker_loses_its_disk(stage: PodsStage) -> None:
    """A broker that loses its disk, by annotation or by deletion, returns empty and copies every record."""
    before = stage.claims()
    with stage.load() as load:
        pods = stage.pods()
        stage.kubernetes.api.annotate(
            "pod/main-a-1", stage.namespace, {"fairlead.dev/delete-pod-and-claim": "true"}
        )
        stage.wait_replaced("main-a-1", pods["main-a-1"])
        stage.wait_done()
        by_annotation, pods = stage.claims(), stage.pods()
        stage.kubernetes.api.delete("persistentvolumeclaim/data-main-a-2", stage.namespace)
        stage.kubernetes.api.delete("pod/main-a-2", stage.namespace)
        stage.wait_replaced("main-a-2", pods["main-a-2"])
        stage.wait_done()
        by_hand = stage.claims()
    after = stage.ask("topic", "describe", load.topic)
    keep_counts("lost disks", **load.counts)

    assert {name for name in before if by_annotation[name] != before[name]} == {"data-main-a-1"}
    assert {name for name in before if by_hand[name] != by_annotation[name]} == {"data-main-a-2"}
    assert in_sync(after)
    assert load.losses == {}


def test_pods_leave_one_after_the_other(stage: PodsStage) -> None:
    """Pods that are deleted, evicted and drained at once leave one after another, and no record is lost."""
    api = stage.kubernetes.api
    with stage.load() as load:
        pods = stage.pods()
        for pod in ("main-a-0", "main-a-1"):
            api.delete(f"pod/{pod}", stage.namespace)
        for pod in ("main-a-0", "main-a-1"):
            stage.wait_replaced(pod, pods[pod])
        stage.wait_done()
        # Ready pods are counted only from here on: the hook of a deleted pod asks only the brokers, which do not know
        # whether the kubelet has already reported the previous pod as ready.
        watched = ReadyPods(stage.kubernetes, stage.namespace)
        pods, refusals = stage.pods(), dict[str, int]()
        evictions = [
            threading.Thread(target=lambda pod=pod: refusals.update({pod: stage.evict_when_allowed(pod)}))
            for pod in ("main-a-1", "main-a-2")
        ]
        for each in evictions:
            each.start()
        for each in evictions:
            each.join()
        for pod in ("main-a-1", "main-a-2"):
            stage.wait_replaced(pod, pods[pod])
        stage.wait_done()
        pods = stage.pods()
        nodes = [stage.node_of(pod) for pod in ("main-a-0", "main-a-2")]
        drains = [stage.kubernetes.drain(node, seconds=240) for node in nodes]
        api.wait_list("pods", stage.namespace, lambda found: any(map(is_homeless, found)), selector=BROKERS)
        for node in nodes:
            stage.kubernetes.kubectl("uncordon", node)
        drained = [(drain.communicate()[0], drain.returncode) for drain in drains]
        for pod in ("main-a-0", "main-a-2"):
            stage.wait_replaced(pod, pods[pod])
        stage.wait_done()
    watched.over.set()
    keep_counts("evictions", **load.counts, fewest_ready=watched.fewest)

    assert sum(refusals.values()) > 0
    assert [code for _, code in drained] == [0, 0], drained
    assert watched.fewest == 2
    assert load.losses == {}


def test_etcd_loses_a_member_and_claims_grow(stage: PodsStage) -> None:
    """A member of etcd is replaced together with its claim, and larger disks restart no broker; writes continue."""
    pods = stage.pods()
    with stage.load() as load:
        old = member_id(stage.wait_done(), "main-etcd-1")
        stage.kubernetes.api.delete("persistentvolumeclaim/data-main-etcd-1", stage.namespace)
        stage.kubernetes.api.delete("pod/main-etcd-1", stage.namespace)
        healed = stage.wait(lambda each: member_id(each, "main-etcd-1") not in ("", old) and has_three(each))
        stage.wait_done()
        seen = SeenConditions(stage)
        stage.change(
            {"op": "replace", "path": "/spec/brokers/0/storage/size", "value": "2Gi"},
            {"op": "replace", "path": "/spec/etcd/managed/storage/size", "value": "2Gi"},
        )
        claims = stage.kubernetes.api.wait_list(
            "persistentvolumeclaims",
            stage.namespace,
            lambda found: all(
                (each["status"].get("capacity") or {}).get("storage") == "2Gi" for each in found
            ),
            selector="fairlead.dev/cluster=main",
        )
        done = stage.wait_done()
        seen.over.set()
    keep_counts("etcd and claims", **load.counts)

    assert len(claims) == 6
    assert has_three(healed)
    assert condition_of(done, "StorageBlocked") == {}
    assert "False" not in seen.values("EtcdHealthy")
    assert seen.values("Progressing") == ["False", "True", "False"]
    assert stage.pods() == pods
    assert load.losses == {}


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_deleted_cluster_is_gone_soon(
    kubernetes_pods: KubernetesPods, tmp_path: Path, brokers: int
) -> None:
    """All pods of a Cluster end within the time limit, even though the etcd of the brokers ends too."""
    with pods_stage(kubernetes_pods, tmp_path, brokers) as stage:
        begun = time.monotonic()
        kubernetes_pods.api.delete(CLUSTER, stage.namespace)
        kubernetes_pods.api.wait_list("pods", stage.namespace, lambda pods: not pods, seconds=SLOW_SECONDS)
        seconds = time.monotonic() - begun
    keep_counts(f"deletion of a Cluster of {brokers}", seconds=round(seconds, 1))

    assert seconds < DELETED_SECONDS_MAX


class SeenConditions:
    """All conditions that a Cluster has during a block, without those of a spec that has changed since."""

    def __init__(self, stage: PodsStage) -> None:
        """Start to watch the Cluster, and wait until its current conditions are seen."""
        self.over = threading.Event()
        self._begun = threading.Event()
        self._seen: list[Manifest] = []
        threading.Thread(target=stage.wait, args=(self._look, 2 * SLOW_SECONDS), daemon=True).start()
        assert self._begun.wait(SLOW_SECONDS), "the Cluster is seen"

    def _look(self, cluster: Manifest | None) -> bool:
        if cluster is not None and is_observed(cluster):
            self._seen.append(cluster)
            self._begun.set()
        return self.over.is_set() or cluster is None

    def values(self, condition: str) -> list[str]:
        """Return the statuses of a condition in order, without consecutive duplicates."""
        statuses = [str(condition_of(each, condition).get("status")) for each in self._seen]
        return [value for value, _ in itertools.groupby(statuses)]


def is_observed(cluster: Manifest) -> bool:
    """Return whether the status describes the current spec."""
    observed = (cluster.get("status") or {}).get("observedGeneration")
    return bool(observed == cluster["metadata"]["generation"])


def is_homeless(pod: Manifest) -> bool:
    """Return whether a pod waits for a node."""
    return not pod["spec"].get("nodeName")


def members_of(cluster: Manifest | None) -> list[Manifest]:
    """Return the etcd members in the status."""
    found = ((cluster or {}).get("status") or {}).get("etcd") or {}
    return [each for each in found.get("members") or [] if each["healthy"]]


def member_id(cluster: Manifest | None, name: str) -> str:
    """Return the id of a healthy member, or an empty text."""
    return next((str(each["id"]) for each in members_of(cluster) if each["name"] == name), "")


def has_three(cluster: Manifest | None) -> bool:
    """Return whether etcd has three healthy voters."""
    healthy = condition_of(cluster, "EtcdHealthy").get("reason") == "Healthy"
    return healthy and sum(each["role"] in {"leader", "follower"} for each in members_of(cluster)) == 3
