"""Status of an EtcdBackup, from its pods and its schedule."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.etcd_backup import EtcdBackup, EtcdBackupStatus
from fairlead_operator.naming import Manifest
from fairlead_operator.plan.etcd_backup import (
    BackupView,
    backup_status,
    due,
    failure_of,
    obstacle,
    refusal_of,
    results_of,
)
from refusals import missing

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def backup(status: EtcdBackupStatus | None = None, **spec: Any) -> EtcdBackup:
    """Return an EtcdBackup."""
    return EtcdBackup.parse(
        {
            "metadata": {"name": "hourly", "namespace": "shop", "generation": 4},
            "spec": {"clusterRef": {"name": "main"}, "claimName": "backups", **spec},
            "status": (status or EtcdBackupStatus()).manifest(),
        }
    )


def pod(finished: str, message: str, code: int = 0, reason: str = "Completed") -> Manifest:
    """Return a pod whose container has ended."""
    ended = {"finishedAt": finished, "message": message, "exitCode": code, "reason": reason}
    return {"status": {"containerStatuses": [{"state": {"terminated": ended}}]}}


def snapshot(time: str) -> str:
    """Return the result of a pod that made a snapshot."""
    made = {"file": f"hourly-{time}.db", "time": time, "bytes": 10, "revision": 7, "sha256": "ab"}
    return json.dumps(made)


def seen(*pods: Manifest, scheduled: str = "") -> BackupView:
    """Return the observed state of an EtcdBackup."""
    return BackupView(results=tuple(results_of(pods)), scheduled=scheduled)


def ready(status: EtcdBackupStatus) -> tuple[str, str, str]:
    """Return status, reason and message of the Ready condition."""
    found = find_condition(status.conditions, ConditionName.READY)
    assert found is not None
    return found.status, found.reason, found.message


ELEVEN, HALF_PAST = "2026-01-01T11:00:00Z", "2026-01-01T11:30:00Z"


def test_the_newest_snapshot_stays_in_the_status() -> None:
    """The newest snapshot of any pod is reported, and remains in the status when its pod is gone."""
    running: Manifest = {"status": {"containerStatuses": [{"state": {"running": {}}}]}}
    view = seen(pod(HALF_PAST, snapshot(HALF_PAST)), pod(ELEVEN, snapshot(ELEVEN)), running, {})
    first = backup_status(backup(schedule="@hourly"), None, view, NOON)
    later = backup_status(backup(first, schedule="@hourly"), None, seen(), NOON)
    once = backup_status(backup(first), None, seen(), NOON)
    none = backup_status(backup(), None, seen(), NOON)

    assert first.last_snapshot is not None
    assert first.last_snapshot.time == HALF_PAST
    assert later == first
    assert (first.observed_generation, ready(first)[:2]) == (4, ("True", "Scheduled"))
    assert ready(once)[:2] == ("True", "Completed")
    assert ready(none)[:2] == ("False", "SnapshotPending")


@pytest.mark.parametrize(
    ("message", "code", "told"),
    [
        ("volume full", 1, "volume full"),
        ("", 137, "OOMKilled"),
        ("{}", 0, "not a result"),
        ("x", 0, "not a result"),
    ],
)
def test_a_failed_attempt_is_reported_until_the_next_success(message: str, code: int, told: str) -> None:
    """A failure of the last attempt is reported with its reason, and the status keeps the last snapshot."""
    failed = pod(HALF_PAST, message, code, "OOMKilled")
    view = seen(pod(ELEVEN, snapshot(ELEVEN)), failed)
    status = backup_status(backup(schedule="@hourly"), None, view, NOON)
    again = seen(failed, pod("2026-01-01T11:40:00Z", snapshot("2026-01-01T11:40:00Z")))

    assert ready(status)[:2] == ("False", "SnapshotFailed")
    assert told in ready(status)[2]
    assert status.last_snapshot is not None
    assert status.last_snapshot.time == ELEVEN
    assert ready(backup_status(backup(schedule="@hourly"), None, again, NOON))[1] == "Scheduled"


def test_a_missing_snapshot_is_overdue_after_a_while() -> None:
    """A scheduled snapshot that is still missing 15 minutes after its start is overdue."""
    wanted = backup(schedule="@hourly")
    missed, young = seen(scheduled=HALF_PAST), seen(scheduled="2026-01-01T11:50:00Z")
    behind = seen(pod(ELEVEN, snapshot(ELEVEN)), scheduled=HALF_PAST)
    made = seen(pod(HALF_PAST, snapshot("2026-01-01T11:30:05Z")), scheduled=HALF_PAST)

    assert [due(wanted, each) for each in (missed, young, behind, made, seen())] == [
        True,
        True,
        True,
        False,
        False,
    ]
    _, reason, message = ready(backup_status(wanted, None, missed, NOON))
    assert (reason, missing(message, HALF_PAST)) == ("SnapshotOverdue", [])
    assert ready(backup_status(wanted, None, behind, NOON))[2].endswith(ELEVEN)
    assert ready(backup_status(wanted, None, young, NOON))[1] == "SnapshotPending"


def attempt(reason: str, note: str, seconds: int) -> Manifest:
    """Return an Event on a Job."""
    return {"reason": reason, "note": note, "metadata": {}, "eventTime": f"2026-01-01T11:00:{seconds:02}Z"}


def test_a_refused_pod_is_reported_in_the_words_of_the_api_server() -> None:
    """The result of a Job is that of its last attempt, and a Job that failed without a pod is a failed snapshot."""
    refused = attempt("FailedCreate", "Error creating: pods forbidden: exceeded quota", 1)
    created = attempt("SuccessfulCreate", "Created pod: hourly-backup-x", 2)
    words = [refusal_of(events) for events in ((), (refused,), (created, refused), (created,))]
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "took too long"}
    failures = [
        failure_of({"status": status})
        for status in (
            None,
            {"conditions": [{"type": "Complete", "status": "True"}]},
            {"conditions": [failed]},
            {"conditions": [{**failed, "message": None}]},
            {"conditions": [{"type": "Failed", "status": "True"}]},
        )
    ]
    waiting = seen(scheduled="2026-01-01T11:59:00Z")
    refusal, failure = replace(waiting, refusal="exceeded quota"), replace(waiting, failure="took too long")

    assert words == ["", "pods forbidden: exceeded quota", "", ""]
    assert failures == ["", "", "took too long", "DeadlineExceeded", "the Job failed"]
    assert [ready(backup_status(backup(), None, each, NOON))[1:] for each in (refusal, failure)] == [
        ("PodsRefused", "exceeded quota"),
        ("SnapshotFailed", "took too long"),
    ]
    assert ready(backup_status(backup(), None, waiting, NOON))[1] == "SnapshotPending"


def test_an_obstacle_is_reported_before_all_else() -> None:
    """No snapshot is made of a missing Cluster or an external etcd."""
    managed: Manifest = {"metadata": {}, "spec": {}}
    external: Manifest = {"metadata": {}, "spec": {"etcd": {"external": {"endpoints": []}}}}
    leaving: Manifest = {"metadata": {"deletionTimestamp": "now"}, "spec": {}}
    found = [obstacle(backup(), each) for each in (None, leaving, external, managed)]

    assert [each and each.reason for each in found] == [
        "ClusterNotFound",
        "ClusterNotFound",
        "EtcdExternal",
        None,
    ]
    assert ready(backup_status(backup(), found[0], seen(), NOON))[:2] == ("Unknown", "ClusterNotFound")
