"""Plan and status of an EtcdBackup: whether its object is applied, and what its Jobs and pods have reported.

The pod of a snapshot writes the result as the termination message of its container: the snapshot as JSON, or the reason
for a failure. Kubernetes follows the schedule, so that snapshots do not depend on the operator. The status keeps the
newest snapshot after its pod is gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import Condition, Truth, condition, set_condition
from fairlead_api.resources.etcd_backup import EtcdBackup, EtcdBackupStatus, EtcdSnapshot
from fairlead_operator.naming import Manifest
from fairlead_operator.plan.findings import Finding, unready, with_warnings
from fairlead_operator.plan.observed import CREATE_FAILED, last_time
from fairlead_operator.plan.topic_admission import is_leaving

OVERDUE: Final = timedelta(minutes=15)
"""Time after a scheduled time at which a missing snapshot is reported."""
MESSAGE_LENGTH_MAX: Final = 1000
REFUSED_BEGIN: Final = "Error creating: "
"""Prefix of the note in the Event with which the Job controller reports a refused pod."""


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one finished pod: a snapshot, or the reason for a failure."""

    finished: str
    """End time of the pod in Kubernetes' format, which sorts as text."""
    snapshot: EtcdSnapshot | None
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupView:
    """Observed state of an EtcdBackup."""

    results: tuple[Result, ...] = ()
    scheduled: str = ""
    """Last time at which the schedule started a snapshot, or the creation time of the only Job, in Kubernetes' format;
    empty before the first snapshot."""
    failure: str = ""
    """Reason why the newest Job has failed; empty if the Job has not failed."""
    refusal: str = ""
    """Reason why the API server refused the pod of the newest Job; empty if no pod was refused."""


def obstacle(backup: EtcdBackup, cluster: Manifest | None) -> Finding | None:
    """Return why no snapshot can be made; None if the etcd of the Cluster can be backed up."""
    name = f"{backup.namespace}/{backup.spec.cluster_ref.name}"
    if cluster is None or is_leaving(cluster):
        return Finding("ClusterNotFound", f"Cluster {name} does not exist or is being deleted")
    if (cluster.get("spec", {}).get("etcd") or {}).get("external") is not None:
        return Finding(
            "EtcdExternal", f"Cluster {name} uses an external etcd: back it up with the tools of that etcd"
        )
    return None


def results_of(pods: Iterable[Manifest]) -> Iterator[Result]:
    """Yield the results of the finished pods of an EtcdBackup."""
    for pod in pods:
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (status.get("state") or {}).get("terminated")
            if ended is not None:
                yield _result(ended)


def failure_of(job: Manifest) -> str:
    """Return the reason why a Job has failed permanently; empty if the Job has not failed."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    failed = next(
        (each for each in conditions if each["type"] == "Failed" and each["status"] == "True"), None
    )
    return "" if failed is None else str(failed.get("message") or failed.get("reason") or "the Job failed")


def refusal_of(events: Iterable[Manifest]) -> str:
    """Return the reason why the last attempt of a Job to create a pod was refused, from the Events on the Job."""
    last = max(events, key=lambda event: (last_time(event), event.get("reason") != CREATE_FAILED), default={})
    if last.get("reason") != CREATE_FAILED:
        return ""
    return str(last.get("note") or "").removeprefix(REFUSED_BEGIN)[:MESSAGE_LENGTH_MAX]


def due(backup: EtcdBackup, view: BackupView) -> bool:
    """Return whether the result of the last scheduled snapshot is not known yet."""
    last = newest(backup, view)
    return bool(view.scheduled) and (last is None or last.time < view.scheduled)


def newest(backup: EtcdBackup, view: BackupView) -> EtcdSnapshot | None:
    """Return the newest known snapshot."""
    known = [each.snapshot for each in view.results if each.snapshot is not None]
    known += [backup.status.last_snapshot] if backup.status.last_snapshot is not None else []
    return max(known, key=lambda each: each.time, default=None)


def backup_status(
    backup: EtcdBackup, finding: Finding | None, view: BackupView, now: datetime
) -> EtcdBackupStatus:
    """Return the status of an EtcdBackup after a pass. `finding` is a reason why no snapshot is possible."""
    last, generation = newest(backup, view), backup.metadata.generation
    found = finding or _finding(backup, view, last, now)
    ready = (
        unready((found,), now=now, generation=generation)
        if found is not None
        else _ready(backup, last, now=now, generation=generation)
    )
    conditions = set_condition(backup.status.conditions, ready)
    return EtcdBackupStatus(
        observed_generation=generation,
        conditions=with_warnings(conditions, (), now=now, generation=generation),
        last_snapshot=last,
    )


def _finding(
    backup: EtcdBackup, view: BackupView, last: EtcdSnapshot | None, now: datetime
) -> Finding | None:
    latest = max(view.results, key=lambda each: each.finished, default=None)
    if latest is not None and latest.snapshot is None:
        return Finding("SnapshotFailed", latest.failure)
    if not due(backup, view):
        return None
    if view.refusal:
        return Finding("PodsRefused", view.refusal)
    if view.failure:
        return Finding("SnapshotFailed", view.failure)
    if datetime.fromisoformat(view.scheduled) + OVERDUE < now:
        since = last.time if last is not None else "never"
        return Finding(
            "SnapshotOverdue", f"a snapshot was due at {view.scheduled}; the last one is from: {since}"
        )
    return None


def _ready(backup: EtcdBackup, last: EtcdSnapshot | None, *, now: datetime, generation: int) -> Condition:
    if last is None:
        truth: Truth = "False"
        reason, message = "SnapshotPending", "no snapshot was made yet"
    else:
        truth = "True"
        reason = "Completed" if backup.spec.schedule is None else "Scheduled"
        message = f"{last.file} has {last.bytes} bytes and revision {last.revision}"
    return condition(ConditionName.READY, truth, reason, message, now=now, generation=generation)


def _result(ended: dict[str, Any]) -> Result:
    finished, message = str(ended.get("finishedAt") or ""), str(ended.get("message") or "")
    if ended.get("exitCode") != 0:
        why = message or f"the pod ended with {ended.get('reason')}"
        return Result(finished, None, why[:MESSAGE_LENGTH_MAX])
    try:
        return Result(finished, EtcdSnapshot.model_validate(json.loads(message)))
    except ValueError:
        return Result(finished, None, f"not a result: {message[:MESSAGE_LENGTH_MAX]}")
