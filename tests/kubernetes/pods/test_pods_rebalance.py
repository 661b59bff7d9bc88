"""A Rebalance on real pods: partitions move onto a new broker while clients write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pods_stage import SLOW_SECONDS, PodsStage, keep_counts
from topic_stage import ready_reason

if TYPE_CHECKING:
    from kube_client import Manifest

pytestmark = [pytest.mark.timeout(900), pytest.mark.scenario]
REBALANCE = "rebalances.fairlead.dev/grown"


def test_partitions_move_onto_a_new_broker(stage: PodsStage) -> None:
    """The proposal waits for approval, its moves are executed under load, and no record is lost."""
    api = stage.kubernetes.api

    def wait(reason: str) -> Manifest:
        """Wait until the Ready condition of the Rebalance has a reason."""
        return api.wait(REBALANCE, stage.namespace, lambda each: ready_reason(each) == reason, SLOW_SECONDS)

    with stage.load(partitions=6) as load:
        stage.set("brokers/0/replicas", 4)
        stage.wait_done(4)
        api.apply(
            {
                "apiVersion": "fairlead.dev/v1alpha1",
                "kind": "Rebalance",
                "metadata": {"name": "grown"},
                "spec": {"clusterRef": {"name": "main"}, "mode": "AddBrokers", "brokers": [3]},
            },
            stage.namespace,
        )
        proposed = wait("ProposalReady")["status"]["proposal"]["moves"]
        untouched = stage.ask("topic", "describe", load.topic)["partitions"]
        api.annotate(REBALANCE, stage.namespace, {"fairlead.dev/rebalance": "approve"})
        done = wait("Completed")
    moved = stage.ask("topic", "describe", load.topic)["partitions"]
    keep_counts("rebalance", **load.counts, moves=len(proposed))

    assert proposed
    assert all(3 not in each["replicas"] for each in untouched)
    assert any(3 in each["isr"] for each in moved)
    assert done["status"]["progress"]["partitionsMoved"] == len(proposed)
    assert load.losses == {}
