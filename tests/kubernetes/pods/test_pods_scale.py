"""A Cluster on real pods grows and shrinks under load, while its data moves between pods."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pods_stage import PodsStage, keep_counts

if TYPE_CHECKING:
    from kube_client import Manifest

pytestmark = [pytest.mark.timeout(900), pytest.mark.scenario]
SPREAD = ("0,1,3", "1,2,4", "2,3,4", "3,4,0")


def is_leaving(cluster: Manifest | None) -> bool:
    """Return whether brokers 3 and 4 are being drained."""
    meant = (cluster or {}).get("status", {}).get("scaleDown") or {}
    return meant.get("brokerIds") == [3, 4]


def test_brokers_come_and_leave_with_data(stage: PodsStage) -> None:
    """Scaling, even after a cancelled scale-down, loses no record, and claims follow `claimPolicy`."""
    with stage.load(len(SPREAD)) as load:
        stage.set("brokers/0/replicas", 5)
        stage.wait_done(5)
        for partition, brokers in enumerate(SPREAD):
            stage.ask("partition", "reassign", load.topic, str(partition), "--to", brokers)
        stage.set("brokers/0/replicas", 3)
        stage.wait(is_leaving)
        stage.set("brokers/0/replicas", 5)
        called_off = stage.wait_done(5)
        kept = stage.ask("broker", "list")
        for partition, brokers in enumerate(SPREAD):
            stage.ask("partition", "reassign", load.topic, str(partition), "--to", brokers)
        stage.set("brokers/0/replicas", 3)
        stage.wait_done()
        left, claims, pods = stage.ask("broker", "list"), stage.claims(), stage.pods()
        partitions = stage.ask("topic", "describe", load.topic)["partitions"]
        stage.set("claimPolicy", {"whenScaled": "Delete"})
        stage.set("brokers/0/replicas", 5)
        stage.wait_done(5)
        stage.set("brokers/0/replicas", 3)
        stage.wait_done()
    stage.kubernetes.api.wait_list(
        "persistentvolumeclaims",
        stage.namespace,
        lambda found: (
            {each["metadata"]["name"] for each in found if "etcd" not in each["metadata"]["name"]}
            == {f"data-main-a-{broker}" for broker in range(3)}
        ),
    )
    keep_counts("scale", **load.counts)

    assert "scaleDown" not in called_off["status"]
    assert [(each["id"], each["cordoned"]) for each in kept] == [(broker, False) for broker in range(5)]
    assert [each["id"] for each in left] == [0, 1, 2]
    assert sorted(pods) == [f"main-a-{broker}" for broker in range(3)]
    assert sorted(claims) == [f"data-main-a-{broker}" for broker in range(5)]
    assert all(sorted(each["replicas"]) == [0, 1, 2] for each in partitions)
    assert load.losses == {}
