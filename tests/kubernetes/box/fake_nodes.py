"""Nodes without a kubelet, simulated by kwok: their pods become Ready at once. Used inside the box by `inside.py`.

`kwok_stages.yaml` describes the phases of their pods, and how a test scripts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemons import BIN, STATE, Daemon

ZONES = ("zone-a", "zone-b", "zone-c")
STAGES = Path(__file__).with_name("kwok_stages.yaml")


def start() -> None:
    """Start kwok, which manages every current and future node with the label type=fake."""
    Daemon("kwok").start(
        [
            BIN / "kwok",
            f"--kubeconfig={STATE}/kwok.kubeconfig",
            f"--config={STAGES}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector=type=fake",
            # kwok renews the nodes' leases, the only heartbeat that a node needs.
            "--node-lease-duration-seconds=40",
            "--cidr=10.99.0.0/16",
            "--node-ip=10.99.0.1",
            "--server-address=127.0.0.1:10247",
        ]
    )


def zone(number: int) -> str:
    """Return the zone of the node with this number, counted from 1."""
    return ZONES[(number - 1) % len(ZONES)]


def manifest(number: int) -> dict[str, Any]:
    """Return a node without a kubelet."""
    size = {"cpu": "64", "memory": "256Gi", "pods": "500"}
    name = f"fake-{number}"
    labels = {
        "type": "fake",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": zone(number),
    }
    status = {"capacity": size, "allocatable": size}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": status,
    }


def storage_class(name: str, *, provisioner: str, expandable: bool, default: bool = False) -> dict[str, Any]:
    """Return a storage class whose claims are bound when a pod uses them."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": name,
            "annotations": {"storageclass.kubernetes.io/is-default-class": str(default).lower()},
        },
        "provisioner": provisioner,
        "allowVolumeExpansion": expandable,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def storage_classes(*, real: bool) -> list[dict[str, Any]]:
    """Return the storage classes of a test Kubernetes; the default is for real nodes if there are any.

    `hostpath` and `fixed` are for fake nodes, `local` for real nodes; claims of `fixed` do not grow.
    """
    provisioner = "kubernetes.io/host-path"
    return [
        storage_class("hostpath", provisioner=provisioner, expandable=True, default=not real),
        storage_class("fixed", provisioner=provisioner, expandable=False),
        storage_class("local", provisioner="fairlead.test/local", expandable=True, default=real),
    ]
