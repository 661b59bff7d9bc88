"""Snapshots of a managed etcd on real pods, while clients write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cluster_words import uids
from pods_stage import SLOW_SECONDS, PodsStage, keep_counts
from topic_stage import ready_reason

if TYPE_CHECKING:
    from kube_client import Manifest

pytestmark = [pytest.mark.timeout(900), pytest.mark.scenario]
PROGRAM = str(Path(sys.executable).with_name("fairlead"))
ETCD = "fairlead.dev/cluster=main,app.kubernetes.io/component=etcd"
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "backups"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def back_up(stage: PodsStage, name: str, **spec: Any) -> None:
    """Apply an EtcdBackup of the Cluster `main`."""
    stage.kubernetes.api.apply(
        {
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "EtcdBackup",
            "metadata": {"name": name},
            "spec": {"clusterRef": {"name": "main"}, "claimName": "backups", **spec},
        },
        stage.namespace,
    )


def snapshot_of(backup: Manifest | None) -> Manifest:
    """Return the newest snapshot in the status of an EtcdBackup, empty if there is none."""
    last: Manifest = ((backup or {}).get("status") or {}).get("lastSnapshot") or {}
    return last


def test_snapshots_are_made_once_and_by_schedule(stage: PodsStage) -> None:
    """A Job and a CronJob store snapshots under load, and a snapshot is pending while its claim is missing."""
    api = stage.kubernetes.api
    api.apply(CLAIM, stage.namespace)
    with stage.load() as load:
        back_up(stage, "once")
        once = api.wait(
            "etcdbackups.fairlead.dev/once",
            stage.namespace,
            lambda each: ready_reason(each) == "Completed",
            SLOW_SECONDS,
        )
        back_up(stage, "often", schedule="* * * * *", keep=1)
        first = api.wait("etcdbackups.fairlead.dev/often", stage.namespace, snapshot_of, SLOW_SECONDS)
        second = api.wait(
            "etcdbackups.fairlead.dev/often",
            stage.namespace,
            lambda each: snapshot_of(each).get("time", "") > snapshot_of(first)["time"],
            SLOW_SECONDS,
        )
        api.delete("etcdbackups.fairlead.dev/often", stage.namespace)
        api.wait("cronjobs.batch/often-backup", stage.namespace, lambda each: each is None)
    keep_counts("backup", **load.counts)

    assert snapshot_of(once)["file"].startswith("once-")
    assert 0 < snapshot_of(once)["revision"] <= snapshot_of(second)["revision"]
    assert len(snapshot_of(second)["sha256"]) == 64
    assert ready_reason(second) == "Scheduled"
    assert load.losses == {}


def test_a_lost_etcd_starts_from_a_snapshot(stage: PodsStage) -> None:
    """An etcd without its volume is restored, and the brokers continue with their topics and records."""
    api = stage.kubernetes.api
    api.apply(CLAIM, stage.namespace)
    with stage.load() as before:
        pass
    back_up(stage, "saved")
    saved = api.wait(
        "etcdbackups.fairlead.dev/saved",
        stage.namespace,
        lambda each: ready_reason(each) == "Completed",
        SLOW_SECONDS,
    )
    pods = api.list("pods", stage.namespace, ETCD)
    stage.set("etcd/managed/restore", {"claimName": "backups", "file": snapshot_of(saved)["file"]})
    stage.wait_done()
    kept = api.list("pods", stage.namespace, ETCD)
    api.delete("persistentvolumeclaim/data-main-etcd-0", stage.namespace)
    api.delete("pod/main-etcd-0", stage.namespace)
    stage.wait_replaced("main-etcd-0", pods[0]["metadata"]["uid"])
    stage.wait_done()
    count = str(before.counts["acknowledged"])
    words = ("--from-beginning", "-n", count, "--bootstrap", stage.bootstrap)
    read = stage.kubernetes.run(PROGRAM, "consume", before.topic, *words).stdout.splitlines()
    with stage.load() as after:
        pass
    keep_counts("restored etcd", **after.counts, records=len(read))

    assert uids(kept) == uids(pods), "an etcd with data ignores the snapshot"
    assert len(read) == before.counts["acknowledged"] > 0
    assert before.losses == after.losses == {}
