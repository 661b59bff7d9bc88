"""Actions of tests on real pods and nodes: load images, run commands, freeze pods, remove nodes."""

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

# This shell command runs its arguments as a command that resolves names of services and pods as in a pod.
WITH_NAMES = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
PROCESSES = "/sys/fs/cgroup/pids"


class KubernetesPods(Kubernetes):
    """A test Kubernetes with real nodes.

    A test's pod needs `imagePullPolicy: Never` or `IfNotPresent`, because images are loaded and never pulled. Claims
    without a storage class get a volume on the node of their pod; the volume grows and is removed with its claim.
    """

    @property
    def enter(self) -> list[str]:
        """The words to put before a command to reach pods and services, by address and by name."""
        names = str(self.box.state / "resolv.conf")
        return [*self.box.enter(), "unshare", "--mount", "sh", "-c", WITH_NAMES, names]

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes."""
        return [node["metadata"]["name"] for node in self.api.list("node")]

    def load_images(self, archives: Sequence[Path], nodes: Sequence[str] = ()) -> None:
        """Load OCI archives into these nodes, or all nodes; raise `BoxUnusable` with containerd's output."""
        for archive in archives:
            imports = [self._import(node, archive) for node in nodes or self.nodes]
            for done in imports:
                said, _ = done.communicate()
                if done.returncode:
                    message = f"{archive} could not be loaded: {said}"
                    raise BoxUnusable(message)

    def _import(self, node: str, archive: Path) -> subprocess.Popen[str]:
        # The archive is passed through standard input, because its path may mean another file in the box.
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
        """Add another name to an image that all nodes have."""
        for node in self.nodes:
            words = ["--address", f"/run/{node}/containerd.sock", "--namespace", "k8s.io"]
            command = [*self.box.enter(network_only=False), str(BIN / "ctr"), *words]
            tag = [*command, "images", "tag", "--force", image, name]
            subprocess.run(tag, check=True, capture_output=True)

    # ---- pods

    def exec(self, pod: str, namespace: str, *command: str, container: str | None = None) -> str:
        """Run a command in a pod and return its output."""
        chosen = ["--container", container] if container else []
        return self.kubectl("exec", pod, "--namespace", namespace, *chosen, "--", *command)

    def logs(self, pod: str, namespace: str, *, previous: bool = False) -> str:
        """Return the output of all containers of a pod; `previous` selects the run before its last restart."""
        before = ["--previous"] if previous else []
        return self.kubectl("logs", pod, "--namespace", namespace, "--all-containers", *before)

    def freeze(self, pod: str, namespace: str) -> None:
        """Stop every process of a pod's containers, as on a machine that hangs; `thaw` resumes them."""
        self._signal(pod, namespace, signal.SIGSTOP)

    def thaw(self, pod: str, namespace: str) -> None:
        """Resume the processes of a frozen pod."""
        self._signal(pod, namespace, signal.SIGCONT)

    def kill(self, pod: str, namespace: str) -> None:
        """Kill every process of a pod's containers; the kubelet restarts the containers."""
        self._signal(pod, namespace, signal.SIGKILL)

    def _signal(self, pod: str, namespace: str, number: signal.Signals) -> None:
        pids = self.processes_of(pod, namespace)
        assert pids, f"the pod {pod} has no running process"
        for pid in pids:
            os.kill(pid, number)

    def processes_of(self, pod: str, namespace: str) -> list[int]:
        """Return the machine's process ids of a pod's containers."""
        found = self.api.get(f"pod/{pod}", namespace)
        assert found is not None, f"there is no pod {pod}"
        states = found.get("status", {}).get("containerStatuses", [])
        containers = {state["containerID"].rpartition("/")[2] for state in states if state.get("containerID")}
        folders = [path for path in Path(PROCESSES, self.box.cgroup).rglob("*") if path.name in containers]
        return [int(line) for folder in folders for line in (folder / "cgroup.procs").read_text().split()]

    # ---- nodes

    def kill_kubelet(self, node: str) -> None:
        """Kill a node's kubelet; its pods keep running, and the node becomes NotReady within half a minute."""
        self.box.run_inside("stop", f"{node}-kubelet", "--signal", str(int(signal.SIGKILL)))

    def start_kubelet(self, node: str) -> None:
        """Start a killed kubelet again."""
        self.box.run_inside("start", f"{node}-kubelet")

    def drain(self, node: str, *, seconds: int = 120) -> subprocess.Popen[str]:
        """Start draining a node through the eviction API, as kubectl does, and return the process."""
        words = ["--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds}s"]
        return subprocess.Popen(
            [*self.enter, "kubectl", "drain", node, *words],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def load_product_images(kubernetes: Kubernetes) -> None:
    """Load the images of `make image` into all nodes."""
    KubernetesPods(kubernetes.box).load_images(PRODUCT_IMAGES)
