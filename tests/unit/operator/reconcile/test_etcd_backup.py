"""Passes over EtcdBackups: the applied object, and the reported conditions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead_operator.naming import (
    BACKUP_LABEL,
    CLUSTER,
    CRON_JOB,
    ETCD_BACKUP,
    EVENT,
    JOB,
    POD,
    Kind,
    Manifest,
    ObjectRef,
)
from fairlead_operator.ports import Invalid, Key
from fairlead_operator.reconcile.etcd_backup import DUE_SECONDS, REFUSED_SECONDS, EtcdBackupReconciler
from memory_api import MemoryApi, MemoryCache, StandingClock

CREATED = "2026-01-01T11:57:00Z"
KEY = Key("EtcdBackup", "shop", "hourly")


class Server(MemoryApi):
    """An API server that stores applied objects, or refuses them."""

    refusal: str = ""

    async def apply_if_changed(self, manifest: Manifest, live: Manifest | None) -> bool:
        """Store the object, or refuse it."""
        if self.refusal:
            raise Invalid(422, "Invalid", self.refusal)
        kind = CRON_JOB if manifest["kind"] == "CronJob" else JOB
        metadata = manifest["metadata"]
        status = {"status": live["status"]} if live is not None and "status" in live else {}
        made = {**metadata, "creationTimestamp": CREATED}
        ref = ObjectRef(kind, metadata["namespace"], metadata["name"])
        self.objects[ref] = {**manifest, "metadata": made, **status}
        self.writes.append(manifest["kind"])
        return True

    async def list(
        self, kind: Kind, namespace: str | None, selector: str = "", *, fields: str = ""
    ) -> list[Manifest]:
        """Return the Events on a Job."""
        assert fields.startswith("regarding.kind=Job,regarding.name=hourly-backup")
        return [each for ref, each in self.objects.items() if ref.kind == kind and ref.namespace == namespace]


@pytest.fixture
def api() -> Server:
    """Return an API server with the Cluster `main`."""
    made = Server()
    made.put(CLUSTER, "main", spec={"brokers": []})
    return made


@pytest.fixture
def reconciler(api: Server) -> EtcdBackupReconciler:
    """Return a reconciler."""
    return EtcdBackupReconciler(api, MemoryCache(api), StandingClock(), image="image:1")


def put_backup(api: Server, **parts: Any) -> ObjectRef:
    """Create the EtcdBackup `hourly`."""
    spec = {"clusterRef": {"name": "main"}, "claimName": "backups", **parts.pop("spec", {})}
    return api.put(ETCD_BACKUP, "hourly", spec=spec, **parts)


def put_pod(api: Server, message: str, code: int = 0) -> None:
    """Create the ended pod of a snapshot, and a pod of another backup."""
    ended = {"finishedAt": "2026-01-01T11:59:00Z", "message": message, "exitCode": code}
    status = {"containerStatuses": [{"state": {"terminated": ended}}]}
    for name, of in (("one", "hourly"), ("two", "other")):
        api.put(POD, name, metadata={"labels": {BACKUP_LABEL: of}}, status=status)


def ready(api: Server, ref: ObjectRef) -> str:
    """Return the reason of the Ready condition."""
    conditions = api.objects[ref]["status"]["conditions"]
    return str(next(each["reason"] for each in conditions if each["type"] == "Ready"))


SNAPSHOT = json.dumps(
    {"file": "f.db", "time": "2026-01-01T11:58:00Z", "bytes": 10, "revision": 7, "sha256": "ab"}
)


async def test_one_snapshot_is_made_once(api: Server, reconciler: EtcdBackupReconciler) -> None:
    """A Job is applied once, its snapshot is reported with one Event, and no other Job follows."""
    ref = put_backup(api)
    assert await reconciler.reconcile(KEY) is None
    assert await reconciler.reconcile(KEY) == DUE_SECONDS
    pending = ready(api, ref)
    put_pod(api, SNAPSHOT)
    assert await reconciler.reconcile(KEY) is None
    del api.objects[ObjectRef(JOB, "shop", "hourly-backup")]
    assert await reconciler.reconcile(KEY) is None

    assert (pending, ready(api, ref)) == ("SnapshotPending", "Completed")
    assert api.objects[ref]["status"]["lastSnapshot"]["revision"] == 7
    assert api.writes == ["Job", "status", "status"]
    assert api.events == [("Normal", "SnapshotPending"), ("Normal", "SnapshotMade")]


@pytest.mark.parametrize("schedule", [None, "@hourly"])
async def test_a_refused_pod_is_reported(
    api: Server, reconciler: EtcdBackupReconciler, schedule: str | None
) -> None:
    """A refusal of the newest Job's pod is reported with the API server's message, and the pass is repeated."""
    ref = put_backup(api, spec={} if schedule is None else {"schedule": schedule})
    await reconciler.reconcile(KEY)
    if schedule is not None:
        labels = {BACKUP_LABEL: "hourly"}
        api.put(JOB, "hourly-backup-1", metadata={"labels": labels, "creationTimestamp": CREATED})
        api.objects[ObjectRef(CRON_JOB, "shop", "hourly-backup")]["status"] = {"lastScheduleTime": CREATED}
    note = "Error creating: pods are forbidden: exceeded quota"
    api.put(EVENT, "refused", reason="FailedCreate", note=note, eventTime=CREATED)
    waits = await reconciler.reconcile(KEY)

    assert (waits, ready(api, ref)) == (DUE_SECONDS, "PodsRefused")
    assert api.events[-1] == ("Warning", "PodsRefused")


async def test_a_started_snapshot_is_waited_for(api: Server, reconciler: EtcdBackupReconciler) -> None:
    """Passes are repeated while a scheduled snapshot has no result, and a failed snapshot causes one Event."""
    ref = put_backup(api, spec={"schedule": "@hourly"})
    assert await reconciler.reconcile(KEY) is None
    job = api.objects[ObjectRef(CRON_JOB, "shop", "hourly-backup")]
    job["status"] = {"lastScheduleTime": "2026-01-01T11:58:00Z"}
    assert await reconciler.reconcile(KEY) == DUE_SECONDS
    put_pod(api, "no space", code=1)
    for _ in range(2):
        assert await reconciler.reconcile(KEY) == DUE_SECONDS

    assert ready(api, ref) == "SnapshotFailed"
    assert api.events == [("Normal", "SnapshotPending"), ("Warning", "SnapshotFailed")]


async def test_obstacles_of_a_snapshot_are_reported(api: Server, reconciler: EtcdBackupReconciler) -> None:
    """A refused object, a missing Cluster, a pause and an unreadable spec are reported."""
    ref = put_backup(api, spec={"schedule": "often"}, status={"conditions": "broken"})
    api.refusal = "spec.schedule: Invalid value"
    assert await reconciler.reconcile(KEY) == REFUSED_SECONDS
    assert ready(api, ref) == "ObjectsRefused"
    del api.objects[ObjectRef(CLUSTER, "shop", "main")]
    assert await reconciler.reconcile(KEY) == REFUSED_SECONDS
    assert ready(api, ref) == "ClusterNotFound"
    api.objects[ref]["metadata"]["annotations"] = {"fairlead.dev/paused": "true"}
    assert await reconciler.reconcile(KEY) is None
    assert api.objects[ref]["status"]["conditions"][-1]["type"] == "ReconciliationPaused"
    api.objects[ref]["spec"]["keep"] = "all"
    api.objects[ref]["status"] = {"conditions": "broken"}
    assert await reconciler.reconcile(KEY) is None
    assert ready(api, ref) == "InvalidSpec"
    api.objects[ref]["metadata"]["deletionTimestamp"] = "2026-01-01T11:59:00Z"
    assert await reconciler.reconcile(KEY) is None
