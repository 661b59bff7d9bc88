"""Rebalances on a real API server and real brokers, while clients write."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead import Admin, Producer
from kube_client import Manifest
from kubernetes_under_test import Kubernetes
from topic_stage import Stage, condition_of, ready_reason, running_stage, status_of

RECORD = b"x" * 1000
RATE = "follower.replication.throttled.rate"


@dataclass(slots=True)
class Writes:
    """Records that a thread writes with `acks=all` until the event `over`."""

    addresses: list[str]
    topic: str
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)
    many: threading.Event = field(default_factory=threading.Event)
    """Event that is set after 2,000 records."""
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Write records until `over` is set."""
        asyncio.run(self._write())

    async def _write(self) -> None:
        async with Producer(self.addresses) as producer:
            while not self.over.is_set():
                try:
                    await asyncio.gather(*(producer.send_and_wait(self.topic, RECORD) for _ in range(20)))
                except Exception as error:  # noqa: BLE001 - every failure is reported at the end
                    self.failures.append(str(error))
                    return
                self.acknowledged += 20
                if self.acknowledged >= 2000:
                    self.many.set()


@pytest.fixture(scope="module")
def stage(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield brokers, an operator and one Cluster for all tests of this file."""
    with running_stage(kubernetes, tmp_path_factory.mktemp("stage"), namespaces=3) as running:
        yield running


@contextmanager
def written(stage: Stage, topic: str) -> Iterator[Writes]:
    """Write to a topic during the block, and check afterwards that every acknowledged record is stored."""
    addresses = [f"http://127.0.1.{number}:{stage.brokers.port}" for number in (1, 2, 3)]
    writes = Writes(addresses, topic)
    thread = threading.Thread(target=writes.run)
    thread.start()
    try:
        yield writes
    finally:
        writes.over.set()
        thread.join()
    assert writes.failures == []
    assert stored(stage, topic) >= writes.acknowledged > 0


def stored(stage: Stage, topic: str) -> int:
    """Return the number of committed records of a topic."""

    async def count(admin: Admin) -> int:
        partitions = (await admin.describe_topic(topic)).partitions
        return sum([(await admin.offsets(topic, each)).high_watermark for each in range(partitions)])

    return stage.brokers.ask(count)


def onto_two(stage: Stage, topic: str, partitions: int) -> None:
    """Create a topic whose replicas are all on the brokers 1 and 2, as if broker 3 were new."""
    stage.brokers.ask(lambda admin: admin.cordon_broker(3))
    stage.brokers.ask(lambda admin: admin.create_topic(topic, partitions=partitions, replication_factor=2))
    stage.brokers.ask(lambda admin: admin.uncordon_broker(3))


def rebalance(stage: Stage, namespace: str, name: str, **spec: Any) -> None:
    """Apply a Rebalance of the Cluster `main`."""
    stage.kubernetes.api.apply(
        {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "Rebalance",
            "metadata": {"name": name},
            "spec": {"clusterRef": {"name": "main"}, **spec},
        },
        namespace,
    )


def answer(stage: Stage, namespace: str, name: str, word: str) -> None:
    """Set the annotation of a Rebalance."""
    stage.kubernetes.api.annotate(
        f"rebalances.fairlead.dev/{name}", namespace, {"fairlead.dev/rebalance": word}
    )


def wait(stage: Stage, namespace: str, name: str, reason: str, *, held: bool = False) -> Manifest:
    """Wait until the Ready condition of a Rebalance has a reason, with or without the operator's finalizer."""

    def holds(found: Manifest | None) -> bool:
        return ready_reason(found) == reason and ("finalizers" in (found or {})["metadata"]) is held

    return stage.kubernetes.api.wait(f"rebalances.fairlead.dev/{name}", namespace, holds)


def test_partitions_move_onto_a_new_broker_after_approval(stage: Stage) -> None:
    """A proposal changes nothing until it is approved, and then moves partitions under load without losing a record."""
    namespace = stage.common
    onto_two(stage, "wide", 6)
    with written(stage, "wide"):
        rebalance(stage, namespace, "wider", mode="AddBrokers", brokers=[3], concurrentMoves=2)
        proposed = wait(stage, namespace, "wider", "ProposalReady")
        before = stage.brokers.replicas("wide")
        answer(stage, namespace, "wider", "approve")
        done = wait(stage, namespace, "wider", "Completed")
    after = stage.brokers.replicas("wide")

    moves = status_of(proposed)["proposal"]["moves"]
    assert all(3 not in replicas for replicas in before)
    assert [each["replicas"] for each in moves] == [after[each["partition"]] for each in moves]
    assert sum(3 in replicas for replicas in after) == len(moves) == 4
    assert status_of(done)["progress"]["summary"] == "4/4"
    assert condition_of(done, "Progressing")["status"] == "False"
    assert not done["metadata"].get("annotations", {}).get("fairlead.dev/rebalance")
    assert stage.events(namespace, "wider") >= {"ProposalReady", "RebalanceStarted", "RebalanceCompleted"}


@pytest.mark.scenario
def test_a_slow_rebalance_is_hastened_stopped_or_deleted(stage: Stage) -> None:
    """A rate limits moves under load and can be raised; `stop` and a deletion cancel moves in progress."""
    namespace = stage.common
    onto_two(stage, "slow", 4)
    with written(stage, "slow") as writes:
        assert writes.many.wait(60)
        rebalance(stage, namespace, "slow", mode="AddBrokers", brokers=[3], bytesPerSecond="1k")
        wait(stage, namespace, "slow", "ProposalReady")
        answer(stage, namespace, "slow", "approve")
        crawling = wait_moving(stage, namespace, "slow")
        rate = stage.brokers.ask(lambda admin: admin.broker_config(3))[RATE]
        answer(stage, namespace, "slow", "stop")
        wait(stage, namespace, "slow", "Stopped")
        stopped = stage.brokers.replicas("slow")
        answer(stage, namespace, "slow", "refresh")
        wait(stage, namespace, "slow", "ProposalReady")
        answer(stage, namespace, "slow", "approve")
        wait_moving(stage, namespace, "slow")
        stage.kubernetes.api.delete("rebalances.fairlead.dev/slow", namespace)
        stage.kubernetes.api.wait("rebalances.fairlead.dev/slow", namespace, lambda found: found is None)
        deleted = stage.brokers.replicas("slow")
        freed = stage.brokers.ask(lambda admin: admin.broker_config(3))[RATE]
        slow = {"mode": "AddBrokers", "brokers": [3], "approval": "Automatic", "bytesPerSecond": "1k"}
        rebalance(stage, namespace, "again", **slow)
        wait_moving(stage, namespace, "again")
        rebalance(stage, namespace, "again", **{**slow, "bytesPerSecond": "100Mi"})
        wait(stage, namespace, "again", "Completed")

    progress = status_of(crawling)["progress"]
    assert progress["partitionsMoved"] == 0
    assert progress["bytesLeft"] > 100_000
    assert (rate.value, rate.source) == ("1000", "broker")
    assert all(sorted(replicas) == [1, 2] for replicas in stopped + deleted)
    assert freed.source == "default"
    assert any(3 in replicas for replicas in stage.brokers.replicas("slow"))


def wait_moving(stage: Stage, namespace: str, name: str) -> Manifest:
    """Wait until a Rebalance has moves in progress whose size is known; return the Rebalance."""
    return stage.kubernetes.api.wait(
        f"rebalances.fairlead.dev/{name}",
        namespace,
        lambda found: ((status_of(found).get("progress") or {}).get("bytesLeft") or 0) > 0,
    )
