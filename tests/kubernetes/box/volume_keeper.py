"""Creates, enlarges and removes the volumes of the storage class `local`, like a provisioner of a real cluster.

The keeper is a daemon inside the box. The kubelet makes `local` volumes writable for the group of a non-root pod, but
not the host paths that the controllers could create. A volume is a folder on the node that the scheduler chose; the
folder grows and is removed with its claim.
"""

from __future__ import annotations

import shutil
import sys
from threading import Event, Thread
from typing import TYPE_CHECKING

from urllib3.exceptions import HTTPError

from daemons import STATE
from kube_client import KubeClient, Manifest, Manifests, Refused, WaitedInVain

if TYPE_CHECKING:
    from collections.abc import Callable

PROVISIONER = "fairlead.test/local"
CLASS = "local"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
VOLUMES = STATE / "volumes"
WATCH_SECONDS = 3600.0
PAUSE_SECONDS = 1.0


class VolumeKeeper:
    """Manager of claims and volumes, which checks all claims and volumes after each change."""

    def __init__(self, client: KubeClient) -> None:
        """Use a client with the rights of an administrator."""
        self._client = client

    def watch(self, kind: str, look: Callable[[Manifests], bool]) -> None:
        """Handle changes until the process ends; retry a failed pass, for example while the API server is down."""
        while True:
            try:
                self._client.wait_list(kind, None, look, seconds=WATCH_SECONDS)
            except WaitedInVain:
                continue
            except (HTTPError, Refused, OSError) as error:
                print(f"{kind}: {error}", file=sys.stderr, flush=True)
                Event().wait(PAUSE_SECONDS)

    def look_at_claims(self, claims: Manifests) -> bool:
        """Create missing volumes and enlarge small ones; return False, so that the watch continues."""
        for claim in claims:
            if claim["spec"].get("storageClassName") != CLASS:
                continue
            wanted = claim["spec"]["resources"]["requests"]["storage"]
            node = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
            if claim["status"]["phase"] == "Pending" and node:
                self._make(claim, node)
            elif claim["status"]["phase"] == "Bound" and claim["status"]["capacity"]["storage"] != wanted:
                self._grow(claim, wanted)
        return False

    def look_at_volumes(self, volumes: Manifests) -> bool:
        """Remove volumes whose claim is deleted, with their content."""
        for volume in volumes:
            ours = volume["spec"].get("storageClassName") == CLASS
            if ours and volume["status"].get("phase") == "Released" and not _is_going(volume):
                # The folder is removed first, so that no folder of a removed volume remains.
                shutil.rmtree(volume["spec"]["local"]["path"], ignore_errors=True)
                self._client.delete(f"pv/{volume['metadata']['name']}")
        return False

    def _make(self, claim: Manifest, node: str) -> None:
        metadata = claim["metadata"]
        name = f"local-{metadata['uid']}"
        folder = VOLUMES / name
        folder.mkdir(parents=True, exist_ok=True)
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        self._client.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {
                    "name": name,
                    "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
                },
                "spec": {
                    "storageClassName": CLASS,
                    "local": {"path": str(folder)},
                    "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
                    "accessModes": claim["spec"]["accessModes"],
                    # The keeper removes these volumes, because the controllers cannot empty a volume.
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {
                        "apiVersion": "v1",
                        "kind": "PersistentVolumeClaim",
                        "namespace": metadata["namespace"],
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                    },
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                },
            }
        )

    def _grow(self, claim: Manifest, wanted: str) -> None:
        capacity = {"capacity": {"storage": wanted}}
        self._client.patch(f"pv/{claim['spec']['volumeName']}", None, {"spec": capacity})
        metadata = claim["metadata"]
        reference = f"pvc/{metadata['name']}"
        self._client.patch(reference, metadata["namespace"], {"status": capacity}, subresource="status")


def _is_going(volume: Manifest) -> bool:
    return "deletionTimestamp" in volume["metadata"]


def main() -> None:
    """Manage volumes until the box ends."""
    keeper = VolumeKeeper(KubeClient(STATE / "admin.kubeconfig"))
    Thread(target=keeper.watch, args=("pv", keeper.look_at_volumes), daemon=True).start()
    keeper.watch("pvc", keeper.look_at_claims)


if __name__ == "__main__":
    main()
