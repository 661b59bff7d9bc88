"""Containers that restore a snapshot into the empty volume of the first member of etcd, before etcd starts.

`etcdutl` restores into a separate folder, since it refuses an existing folder. The program `etcd_restores` runs before
and after `etcdutl`, so that the pod can safely start again.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.resources.cluster import Cluster
from fairlead_api.resources.cluster_parts import EtcdRestore
from fairlead_operator.naming import (
    DATA_VOLUME,
    ETCD_DATA_PATH,
    Manifest,
    etcd_peers_service_name,
)
from fairlead_operator.render.inputs import EtcdInputs, Images
from fairlead_operator.render.pods import container_security, temporary_mount

VOLUME: Final = "snapshots"
FOLDER: Final = "/snapshots"
RESTORED: Final = "restored"
REVISIONS: Final = 1_000_000_000
"""Number that is added to the revisions of the restored store, so that no broker sees a revision again."""


def restore_parts(
    cluster: Cluster, snapshot: EtcdRestore, etcd: EtcdInputs, images: Images, volumes: list[Manifest]
) -> dict[str, list[Manifest]]:
    """Return the containers and all volumes of a pod that starts from a snapshot; `volumes` are in every pod."""
    claim = {"claimName": snapshot.claim_name, "readOnly": True}
    return {
        "initContainers": [
            _program("prepare", images),
            _restore(cluster, snapshot, etcd, images),
            _program("finish", images),
        ],
        "volumes": [*volumes, {"name": VOLUME, "persistentVolumeClaim": claim}],
    }


def member_host(cluster: Cluster) -> str:
    """Return the DNS name of a member, with a variable for the name of its pod."""
    return f"$(POD_NAME).{etcd_peers_service_name(cluster.name)}.{cluster.namespace}.svc"


def cluster_token(cluster: Cluster) -> str:
    """Return the token that keeps members from joining the members of an earlier Cluster with the same name."""
    return cluster.metadata.uid or cluster.name


def _program(step: str, images: Images) -> Manifest:
    return {
        "name": f"{step}-restore",
        "image": images.broker,
        "command": ["python3", "-m", "fairlead_operator.etcd_restores"],
        "args": [step, f"--volume={ETCD_DATA_PATH}"],
        "securityContext": container_security(),
        "volumeMounts": [{"name": DATA_VOLUME, "mountPath": ETCD_DATA_PATH}, temporary_mount()],
    }


def _restore(cluster: Cluster, snapshot: EtcdRestore, etcd: EtcdInputs, images: Images) -> Manifest:
    name = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}
    return {
        "name": "restore",
        "image": images.etcd,
        "command": ["etcdutl"],
        "args": [
            "snapshot",
            "restore",
            f"{FOLDER}/{snapshot.file}",
            f"--data-dir={ETCD_DATA_PATH}/{RESTORED}",
            "--name=$(POD_NAME)",
            f"--initial-cluster={etcd.initial_cluster}",
            f"--initial-cluster-token={cluster_token(cluster)}",
            # The initial cluster has the form `name=URL`, with one member.
            f"--initial-advertise-peer-urls={etcd.initial_cluster.partition('=')[2]}",
            f"--bump-revision={REVISIONS}",
            "--mark-compacted",
        ],
        "env": [name],
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": DATA_VOLUME, "mountPath": ETCD_DATA_PATH},
            {"name": VOLUME, "mountPath": FOLDER, "readOnly": True},
            temporary_mount(),
        ],
    }
