"""The CronJob or the Job of an EtcdBackup, whose pod stores one snapshot on the snapshot volume."""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.etcd_backup import EtcdBackup
from fairlead_operator.naming import (
    APP_NAME,
    BACKUP_COMPONENT,
    BACKUP_LABEL,
    BACKUP_OF_LABEL,
    COMPONENT_LABEL,
    CRON_JOB,
    ETCD_BACKUP,
    FIELD_MANAGER,
    JOB,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    Manifest,
    backup_job_name,
    etcd_client_name,
    etcd_client_url,
    service_account_name,
)
from fairlead_operator.render.pods import (
    container_security,
    pod_security,
    temporary_mount,
    temporary_volume,
)

FOLDER: Final = "/backup"
VOLUME: Final = "backup"
TLS_FOLDER: Final = "/etc/fairlead-etcd"
TLS_VOLUME: Final = "etcd-credentials"
RESULT_PATH: Final = "/dev/termination-log"
"""File whose text becomes the termination message of the container, from which the operator learns the result."""
ATTEMPTS_MAX: Final = 3
DEADLINE_SECONDS: Final = 3600
"""Maximum time of all attempts at one snapshot."""
LATE_SECONDS: Final = 3600
"""Time after a scheduled time within which a missed snapshot is still made."""


def backup_object(backup: EtcdBackup, image: str, *, tls: bool = False) -> Manifest:
    """Return the CronJob of an EtcdBackup with a schedule, or the Job of an EtcdBackup without one.

    `tls`: whether the members of etcd accept calls over TLS.
    """
    kind = JOB if backup.spec.schedule is None else CRON_JOB
    labels = _labels(backup)
    manifest: Manifest = {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {
            "name": backup_job_name(backup.name),
            "namespace": backup.namespace,
            "labels": labels,
            "ownerReferences": [
                {
                    "apiVersion": ETCD_BACKUP.api_version,
                    "kind": ETCD_BACKUP.kind,
                    "name": backup.name,
                    "uid": backup.metadata.uid,
                    "controller": True,
                }
            ],
        },
    }
    job = _job(backup, image, labels, tls=tls)
    if backup.spec.schedule is None:
        return {**manifest, "spec": job}
    spec: Manifest = {
        "schedule": backup.spec.schedule,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": LATE_SECONDS,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {"labels": labels}, "spec": job},
    }
    if backup.spec.time_zone is not None:
        spec["timeZone"] = backup.spec.time_zone
    return {**manifest, "spec": spec}


def _labels(backup: EtcdBackup) -> dict[str, str]:
    return {
        NAME_LABEL: APP_NAME,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        COMPONENT_LABEL: BACKUP_COMPONENT,
        BACKUP_LABEL: backup.name,
        BACKUP_OF_LABEL: backup.spec.cluster_ref.name,
    }


def _job(backup: EtcdBackup, image: str, labels: dict[str, str], *, tls: bool) -> Manifest:
    volumes: list[Manifest] = [
        {"name": VOLUME, "persistentVolumeClaim": {"claimName": backup.spec.claim_name}},
        temporary_volume(),
    ]
    if tls:
        secret = etcd_client_name(backup.spec.cluster_ref.name)
        volumes.append({"name": TLS_VOLUME, "secret": {"secretName": secret}})
    return {
        "backoffLimit": ATTEMPTS_MAX - 1,
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "restartPolicy": "Never",
                "serviceAccountName": service_account_name(backup.spec.cluster_ref.name),
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": pod_security(),
                "containers": [_container(backup, image, tls=tls)],
                "volumes": volumes,
            },
        },
    }


def _container(backup: EtcdBackup, image: str, *, tls: bool) -> Manifest:
    cluster = backup.spec.cluster_ref.name
    url = etcd_client_url(backup.namespace, cluster, scheme="https" if tls else "http")
    mounts: list[Manifest] = [{"name": VOLUME, "mountPath": FOLDER}, temporary_mount()]
    if tls:
        mounts.append({"name": TLS_VOLUME, "mountPath": TLS_FOLDER, "readOnly": True})
    return {
        "name": "snapshot",
        "image": image,
        "command": ["python3", "-m", "fairlead_operator.etcd_snapshots"],
        "args": [
            f"--etcd={url}",
            f"--into={FOLDER}",
            f"--name={backup.name}",
            f"--keep={backup.spec.keep}",
            f"--result={RESULT_PATH}",
            *([f"--tls={TLS_FOLDER}"] if tls else ()),
        ],
        "terminationMessagePath": RESULT_PATH,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }
