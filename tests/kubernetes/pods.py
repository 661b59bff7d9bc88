"""What tests do with real pods and real nodes: load images, run commands in pods, freeze them, take nodes away."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from box import BoxUnusable
from daemons import BIN
from images import PRODUCT_IMAGES
from kubernetes_under_test import Kubernetes

if TYPE_CHECKING:
    from collections.abc import Sequence

# What follows the two words is run where names of services and pods are resolved as in a pod.
WITH_NAMES = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
PROCESSES = "/sys/fs/cgroup/pids"


class KubernetesPods(Kubernetes):
    """A test Kubernetes with real nodes.

    A pod that tests reach is made with `imagePullPolicy: Never` or `IfNotPresent`: images are loaded, never pulled.
    Claims without a storage class get a volume on the node of their pod, which grows and goes with its claim.
    """

    @property
    def enter(self) -> list[str]:
        """The words to put before a command so that it reaches pods and services, by address and by name."""
        names = str(self.box.state / "resolv.conf")
        return [*self.box.enter(), "unshare", "--mount", "sh", "-c", WITH_NAMES, names]

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [node["metadata"]["name"] for node in self.api.list("node")]

    def load_images(self, archives: Sequence[Path], nodes: Sequence[str] = ()) -> None:
        """Load OCI archives into these nodes, or all; raises `BoxUnusable` with what containerd said."""
        for archive in archives:
            imports = [self._import(node, archive) for node in nodes or self.nodes]
            for done in imports:
                said, _ = done.communicate()
                if done.returncode:
                    message = f"{archive} could not be loaded: {said}"
                    raise BoxUnusable(message)

    def _import(self, node: str, archive: Path) -> subprocess.Popen[str]:
        # By its input: in the box the same path may be another file.
        words = [
            "--address",
            f"/run/{node}/containerd.sock",
            "--namespace",
            "k8s.io",
            "images",
            "import",
            "--local",
            "-",
        ]
        command = [*self.box.enter(network_only=False), str(BIN / "ctr"), *words]
        with archive.open("rb") as image:
            return subprocess.Popen(
                command, stdin=image, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )

    def tag_image(self, image: str, name: str) -> None:
        """Give an image that all nodes have another name."""
        for node in self.nodes:
            words = ["--address", f"/run/{node}/containerd.sock", "--namespace", "k8s.io"]
            command = [*self.box.enter(network_only=False), str(BIN / "ctr"), *words]
            tag = [*command, "images", "tag", "--force", image, name]
            subprocess.run(tag, check=True, capture_output=True)

    # ---- pods

    def exec(self, pod: str, namespace: str, *command: str, container: str | None = None) -> str:
        """Run a command in a pod and return what it printed."""
        chosen = ["--container", container] if container else []
        return self.kubectl("exec", pod, "--namespace", namespace, *chosen, "--", *command)

    def logs(self, pod: str, namespace: str, *, previous: bool = False) -> str:
        """Return what all containers of a pod have printed; `previous` is the life before its last restart."""
        before = ["--previous"] if previous else []
        return self.kubectl("logs", pod, "--namespace", namespace, "--all-containers", *before)

    def freeze(self, pod: str, namespace: str) -> None:
        """Stop every process of a pod's containers, as a machine that hangs; `thaw` lets them go on."""
        self._signal(pod, namespace, signal.SIGSTOP)

    def thaw(self, pod: str, namespace: str) -> None:
        """Let the processes of a frozen pod go on."""
        self._signal(pod, namespace, signal.SIGCONT)

    def kill(self, pod: str, namespace: str) -> None:
        """Kill every process of a pod's containers; kubelet starts them again."""
        self._signal(pod, namespace, signal.SIGKILL)

    def _signal(self, pod: str, namespace: str, number: signal.Signals) -> None:
        pids = self.processes_of(pod, namespace)
        assert pids, f"the pod {pod} has no running process"
        for pid in pids:
            os.kill(pid, number)

    def processes_of(self, pod: str, namespace: str) -> list[int]:
        """Return the processes of a pod's containers as the machine numbers them."""
        found = self.api.get(f"pod/{pod}", namespace)
        assert found is not None, f"there is no pod {pod}"
        states = found.get("status", {}).get("containerStatuses", [])
        containers = {state["containerID"].rpartition("/")[2] for state in states if state.get("containerID")}
        folders = [path for path in Path(PROCESSES, self.box.cgroup).rglob("*") if path.name in containers]
        return [int(line) for folder in folders for line in (folder / "cgroup.procs").read_text().split()]

    # ---- nodes

    def kill_kubelet(self, node: str) -> None:
        """Kill a node's kubelet; its pods run on, and after half a minute the node counts as not ready."""
        self.box.run_inside("stop", f"{node}-kubelet", "--signal", str(int(signal.SIGKILL)))

    def start_kubelet(self, node: str) -> None:
        """Start a killed kubelet again."""
        self.box.run_inside("start", f"{node}-kubelet")

    def drain(self, node: str, *, seconds: int = 120) -> subprocess.Popen[str]:
        """Begin to drain a node by the eviction API, as kubectl does, and return the process."""
        words = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds}s"]
        return subprocess.Popen(
            [*self.enter, "kubectl", "drain", node, *words],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def load_product_images(kubernetes: Kubernetes) -> None:
    """Load what `make image` made into all nodes."""
    KubernetesPods(kubernetes.box).load_images(PRODUCT_IMAGES)
