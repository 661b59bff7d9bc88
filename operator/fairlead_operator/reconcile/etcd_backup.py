"""One pass over an EtcdBackup: applies its CronJob or Job, and reports the results of its pods.

The EtcdBackup owns the objects, so Kubernetes deletes them together with the EtcdBackup; the snapshots stay on their
volume.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

from fairlead_api.resources.condition_definitions import ConditionName
from fairlead_api.resources.conditions import find_condition
from fairlead_api.resources.etcd_backup import EtcdBackup, EtcdBackupStatus
from fairlead_api.resources.resource import InvalidResource
from fairlead_operator.clock import Clock
from fairlead_operator.naming import (
    BACKUP_LABEL,
    CLUSTER,
    CRON_JOB,
    ETCD_BACKUP,
    ETCD_TRANSPORT_ANNOTATION,
    EVENT,
    JOB,
    POD,
    STATEFUL_SET,
    Kind,
    Manifest,
    ObjectRef,
    backup_job_name,
    etcd_name,
)
from fairlead_operator.plan.etcd_backup import (
    BackupView,
    backup_status,
    due,
    failure_of,
    newest,
    obstacle,
    refusal_of,
    results_of,
)
from fairlead_operator.plan.findings import Finding, with_interruption, with_unreadable_spec
from fairlead_operator.plan.observed import is_paused
from fairlead_operator.ports import (
    Conflict,
    EventType,
    Forbidden,
    Invalid,
    Key,
    KubernetesApi,
    NotFound,
    ObjectCache,
)
from fairlead_operator.render.etcd_backup import backup_object

DUE_SECONDS: Final = 60.0
"""Interval between passes while a started snapshot has no result."""
REFUSED_SECONDS: Final = 60.0


class EtcdBackupReconciler:
    """Implements `ports.Reconciler` for EtcdBackups."""

    def __init__(self, api: KubernetesApi, cache: ObjectCache, clock: Clock, *, image: str) -> None:
        """`image`: image with the command line, which is the default image of brokers."""
        self._api = api
        self._cache = cache
        self._clock = clock
        self._image = image

    async def reconcile(self, key: Key) -> float | None:
        """See `ports.Reconciler`."""
        manifest = self._cache.get(ObjectRef(ETCD_BACKUP, key.namespace, key.name))
        if manifest is None or manifest["metadata"].get("deletionTimestamp") is not None:
            return None
        try:
            backup = EtcdBackup.parse(manifest)
        except InvalidResource as error:
            await self._report_unreadable(manifest, error)
            return None
        if is_paused(manifest):
            paused = Finding("Annotation", "the annotation fairlead.dev/paused is set on this EtcdBackup")
            conditions = with_interruption(
                backup.status.conditions, ConditionName.RECONCILIATION_PAUSED, paused, self._clock.now()
            )
            await self._write(manifest, backup.status.model_copy(update={"conditions": conditions}))
            return None
        return await self._advance(backup, manifest)

    async def _advance(self, backup: EtcdBackup, manifest: Manifest) -> float | None:
        cluster = self._cache.get(ObjectRef(CLUSTER, backup.namespace, backup.spec.cluster_ref.name))
        finding = obstacle(backup, cluster)
        ref = ObjectRef(
            JOB if backup.spec.schedule is None else CRON_JOB,
            backup.namespace,
            backup_job_name(backup.name),
        )
        live = self._cache.get(ref)
        view = await self._look(backup, live)
        # The template of a Job is immutable, and a completed snapshot is not repeated.
        wanted = backup.spec.schedule is not None or (live is None and newest(backup, view) is None)
        if finding is None and wanted:
            try:
                wished = backup_object(backup, self._image, tls=self._uses_tls(backup))
                await self._api.apply_if_changed(wished, live)
            except (Invalid, Forbidden, Conflict) as error:
                finding = Finding("ObjectsRefused", error.message)
        await self._report(backup, manifest, finding, view)
        if finding is not None:
            return REFUSED_SECONDS
        return DUE_SECONDS if due(backup, view) else None

    def _uses_tls(self, backup: EtcdBackup) -> bool:
        """Return whether the members of etcd have no listener without TLS."""
        name = etcd_name(backup.spec.cluster_ref.name)
        members = self._cache.get(ObjectRef(STATEFUL_SET, backup.namespace, name))
        template = {} if members is None else members["spec"]["template"]["metadata"]
        return (template.get("annotations") or {}).get(ETCD_TRANSPORT_ANNOTATION) == "tls"

    async def _look(self, backup: EtcdBackup, live: Manifest | None) -> BackupView:
        """Return the observed state, with the Events on the newest Job while a snapshot is due."""
        jobs = self._labelled(JOB, backup)
        newest_job = max(jobs, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
        started: object = None
        if live is not None:
            by_schedule = backup.spec.schedule is not None
            facts = (live.get("status") or {}) if by_schedule else live["metadata"]
            started = facts.get("lastScheduleTime" if by_schedule else "creationTimestamp")
        view = BackupView(
            results=tuple(results_of(self._labelled(POD, backup))),
            scheduled=str(started or ""),
            failure="" if newest_job is None else failure_of(newest_job),
        )
        if newest_job is None or not due(backup, view):
            return view
        about = f"regarding.kind={JOB.kind},regarding.name={newest_job['metadata']['name']}"
        events = await self._api.list(EVENT, backup.namespace, fields=about)
        return replace(view, refusal=refusal_of(events))

    def _labelled(self, kind: Kind, backup: EtcdBackup) -> list[Manifest]:
        return [
            each
            for each in self._cache.all(kind, backup.namespace)
            if (each["metadata"].get("labels") or {}).get(BACKUP_LABEL) == backup.name
        ]

    async def _report(
        self, backup: EtcdBackup, manifest: Manifest, finding: Finding | None, view: BackupView
    ) -> None:
        before = find_condition(backup.status.conditions, ConditionName.READY)
        status = backup_status(backup, finding, view, self._clock.now())
        await self._write(manifest, status)
        ready = find_condition(status.conditions, ConditionName.READY)
        if ready is None or ready.reason == "ClusterNotFound":
            return
        last, known = status.last_snapshot, backup.status.last_snapshot
        if last is not None and last != known:
            await self._api.event(manifest, "Normal", "SnapshotMade", ready.message)
        elif ready.status == "False" and (before is None or before.reason != ready.reason):
            type_: EventType = "Normal" if ready.reason == "SnapshotPending" else "Warning"
            await self._api.event(manifest, type_, ready.reason, ready.message)

    async def _write(self, manifest: Manifest, status: EtcdBackupStatus) -> None:
        metadata = manifest["metadata"]
        wanted: Manifest = {
            "apiVersion": ETCD_BACKUP.api_version,
            "kind": ETCD_BACKUP.kind,
            "metadata": {"namespace": metadata["namespace"], "name": metadata["name"]},
            "status": status.manifest(),
        }
        with contextlib.suppress(NotFound):
            await self._api.apply_status_if_changed(wanted, manifest)

    async def _report_unreadable(self, manifest: Manifest, error: InvalidResource) -> None:
        try:
            before = EtcdBackupStatus.model_validate(manifest.get("status") or {})
        except ValueError:
            before = EtcdBackupStatus()
        generation = manifest["metadata"].get("generation", 0)
        conditions = with_unreadable_spec(
            before.conditions, str(error), now=self._clock.now(), generation=generation
        )
        status = before.model_copy(update={"conditions": conditions, "observed_generation": generation})
        await self._write(manifest, status)
