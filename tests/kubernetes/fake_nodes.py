"""Nodes that no kubelet runs, by kwok: their pods become Ready at once. Called inside the box, by `inside.py`.

What happens to their pods, and how a test scripts it, stands in `kwok_stages.yaml`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemons import BIN, STATE, Daemon

ZONES = ("zone-a", "zone-b", "zone-c")
STAGES = Path(__file__).with_name("kwok_stages.yaml")


def start() -> None:
    """Start kwok; it looks after every node with the label type=fake, later nodes too."""
    Daemon("kwok").start(
        [
            BIN / "kwok",
            f"--kubeconfig={STATE}/kwok.kubeconfig",
            f"--config={STAGES}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector=type=fake",
            # It renews the nodes' leases, which is all the heartbeat that a node needs.
            "--node-lease-duration-seconds=40",
            "--cidr=10.99.0.0/16",
            "--node-ip=10.99.0.1",
            "--server-address=127.0.0.1:10247",
        ]
    )


def zone(number: int) -> str:
    """Return the zone of the node of that number, counted from 1."""
    return ZONES[(number - 1) % len(ZONES)]


def manifest(number: int) -> dict[str, Any]:
    """Return a node that no kubelet runs."""
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
    """Return a storage class whose claims bind when a pod wants them."""
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
    """Return the classes of a test Kubernetes; the default is for real nodes where there are any.

    `hostpath` and `fixed` are for fake nodes, `local` for real ones; claims of `fixed` do not grow.
    """
    provisioner = "kubernetes.io/host-path"
    return [
        storage_class("hostpath", provisioner=provisioner, expandable=True, default=not real),
        storage_class("fixed", provisioner=provisioner, expandable=False),
        storage_class("local", provisioner="fairlead.test/local", expandable=True, default=real),
    ]
