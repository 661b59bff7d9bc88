"""The CronJob and the Job of an EtcdBackup."""

from __future__ import annotations

from typing import Any

from fairlead_api.resources.etcd_backup import EtcdBackup
from fairlead_operator import etcd_snapshots
from fairlead_operator.naming import Manifest
from fairlead_operator.render.etcd_backup import backup_object


def drawn(*, tls: bool = False, **spec: Any) -> Manifest:
    """Return the object of an EtcdBackup."""
    backup = EtcdBackup.parse(
        {
            "metadata": {"name": "hourly", "namespace": "shop", "uid": "u"},
            "spec": {"clusterRef": {"name": "main"}, "claimName": "backups", **spec},
        }
    )
    return backup_object(backup, "image:1", tls=tls)


def test_a_schedule_is_a_cron_job_and_one_snapshot_a_job() -> None:
    """A schedule becomes a CronJob with the pod of the Job, and both are owned by the EtcdBackup."""
    once, hourly = drawn(), drawn(schedule="@hourly")
    zoned = drawn(schedule="@hourly", timeZone="Europe/Berlin", keep=3)
    [container] = once["spec"]["template"]["spec"]["containers"]

    assert (once["kind"], hourly["kind"]) == ("Job", "CronJob")
    assert hourly["spec"]["jobTemplate"]["spec"] == once["spec"]
    assert "timeZone" not in hourly["spec"]
    assert zoned["spec"]["timeZone"] == "Europe/Berlin"
    assert once["metadata"]["name"] == "hourly-backup"
    assert [each["uid"] for each in once["metadata"]["ownerReferences"]] == ["u"]
    assert "--etcd=http://main-etcd.shop.svc:2379" in container["args"]
    assert "--keep=3" in zoned["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert (container["image"], container["command"][2]) == ("image:1", etcd_snapshots.__name__)


def test_a_snapshot_of_an_etcd_with_tls_has_a_certificate() -> None:
    """The pod of a snapshot mounts the brokers' client certificate for etcd, and calls the port with TLS."""
    pod = drawn(tls=True)["spec"]["template"]["spec"]
    [container] = pod["containers"]
    folder = next(
        each["mountPath"] for each in container["volumeMounts"] if each["name"] == "etcd-credentials"
    )

    assert "--etcd=https://main-etcd.shop.svc:2479" in container["args"]
    assert f"--tls={folder}" in container["args"]
    assert {"name": "etcd-credentials", "secret": {"secretName": "main-etcd-client"}} in pod["volumes"]
