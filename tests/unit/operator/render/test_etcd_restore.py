"""The pod of the first member of etcd when it starts from a snapshot."""

from __future__ import annotations

import render_kit
from fairlead_operator.render import EtcdInputs

MANAGED = {"restore": {"claimName": "backups", "file": "nightly-20260501T030000Z.db"}}
FIRST = "main-etcd-0=http://main-etcd-0.main-etcd-peers.shop.svc:2380"


def test_a_snapshot_is_restored_before_etcd_starts() -> None:
    """The containers prepare, restore and finish run in this order on the volume, and snapshots cannot be changed."""
    cluster = render_kit.cluster_of(etcd={"managed": MANAGED})
    inputs = render_kit.inputs_of(etcd=EtcdInputs(1, FIRST, "new", restores=True))
    pod = render_kit.drawn(cluster, inputs)["StatefulSet/main-etcd"]["spec"]["template"]["spec"]
    prepare, restore, finish = pod["initContainers"]

    assert [each["args"][0] for each in (prepare, finish)] == ["prepare", "finish"]
    assert {each["image"] for each in (prepare, finish)} == {render_kit.IMAGES.broker}
    assert (restore["image"], restore["command"]) == (render_kit.IMAGES.etcd, ["etcdutl"])
    assert restore["args"] == [
        "snapshot",
        "restore",
        "/snapshots/nightly-20260501T030000Z.db",
        "--data-dir=/var/lib/etcd/restored",
        "--name=$(POD_NAME)",
        f"--initial-cluster={FIRST}",
        "--initial-cluster-token=cluster-uid",
        "--initial-advertise-peer-urls=http://main-etcd-0.main-etcd-peers.shop.svc:2380",
        "--bump-revision=1000000000",
        "--mark-compacted",
    ]
    assert {"name": "snapshots", "persistentVolumeClaim": {"claimName": "backups", "readOnly": True}} in pod[
        "volumes"
    ]
    assert all(
        {"name": "data", "mountPath": "/var/lib/etcd"} in each["volumeMounts"]
        for each in pod["initContainers"]
    )


def test_members_with_data_know_nothing_of_the_snapshot() -> None:
    """Only the restore step mounts the snapshots, and pods have the same fingerprint in every step."""
    cluster = render_kit.cluster_of(etcd={"managed": MANAGED})
    steps = [EtcdInputs(1, FIRST, "new", restores=True), EtcdInputs(3)]
    templates = [
        render_kit.drawn(cluster, render_kit.inputs_of(etcd=each))["StatefulSet/main-etcd"]["spec"][
            "template"
        ]
        for each in steps
    ]
    without = render_kit.cluster_of(etcd={"managed": {}})

    assert "initContainers" not in templates[1]["spec"]
    assert templates[0]["metadata"]["annotations"] == templates[1]["metadata"]["annotations"]
    assert render_kit.drawn(without)["StatefulSet/main-etcd"]["spec"]["template"] == templates[1]
