"""A Rebalance on real pods: partitions move onto a new broker while clients write, after a cancelled attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pods_stage import SLOW_SECONDS, PodsStage, keep_counts
from topic_stage import ready_reason

if TYPE_CHECKING:
    from kube_client import Manifest

pytestmark = [pytest.mark.timeout(900), pytest.mark.scenario]
REBALANCE = "rebalances.fairlead.dev/grown"
SLOW_BYTES = "1k"
"""Rate at which no partition under load can catch up on the new broker."""


def test_partitions_move_onto_a_new_broker(stage: PodsStage) -> None:
    """An approved proposal is executed, cancelled, proposed again and completed under load, and no record is lost."""
    api = stage.kubernetes.api

    def wait(reason: str, moving: int = 0) -> Manifest:
        """Wait until the Ready condition of the Rebalance has a reason, and `moving` partitions move."""
        return api.wait(
            REBALANCE,
            stage.namespace,
            lambda each: ready_reason(each) == reason and moving_in(each) >= moving,
            SLOW_SECONDS,
        )

    def act(action: str) -> None:
        """Annotate the Rebalance."""
        api.annotate(REBALANCE, stage.namespace, {"fairlead.dev/rebalance": action})

    with stage.load(partitions=6) as load:
        stage.set("brokers/0/replicas", 4)
        stage.wait_done(4)
        spec = {"mode": "AddBrokers", "brokers": [3], "bytesPerSecond": SLOW_BYTES}
        api.apply(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "Rebalance",
                "metadata": {"name": "grown"},
                "spec": {"clusterRef": {"name": "main"}, **spec},
            },
            stage.namespace,
        )
        wait("ProposalReady")
        untouched = stage.ask("topic", "describe", load.topic)["partitions"]
        act("approve")
        wait("Rebalancing", moving=1)
        act("stop")
        wait("Stopped")
        cancelled = stage.ask("topic", "describe", load.topic)["partitions"]
        api.patch(REBALANCE, stage.namespace, {"spec": {"bytesPerSecond": None}})
        act("refresh")
        proposed = wait("ProposalReady")["status"]["proposal"]["moves"]
        act("approve")
        done = wait("Completed")
    moved = stage.ask("topic", "describe", load.topic)["partitions"]
    keep_counts("rebalance", **load.counts, moves=len(proposed))

    assert proposed
    assert all(3 not in each["replicas"] for each in untouched)
    assert all(sorted(each["replicas"]) == [0, 1, 2] for each in cancelled)
    assert any(3 in each["isr"] for each in moved)
    assert done["status"]["progress"]["partitionsMoved"] == len(proposed)
    assert load.losses == {}


def moving_in(rebalance: Manifest | None) -> int:
    """Return the number of partitions that move, according to the status."""
    progress = ((rebalance or {}).get("status") or {}).get("progress") or {}
    return int(progress.get("partitionsMoving", 0))
