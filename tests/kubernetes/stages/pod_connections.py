"""Connections from the networks of pods, which show what network policies permit.

A pod has its network, whatever programs its image contains: the module is also the program that connects, and runs in
the network of a pod with the files of the machine. It reads the targets from standard input and prints the opened ones.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pods import KubernetesPods

CONNECT_SECONDS: Final = 3.0
"""Timeout of a connection: an enforcer of policies may refuse a connection at once, or drop its packets."""
SETTLE_SECONDS: Final = 60
"""Number of seconds in which an enforcer must apply the policies of changed pods."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod from which connections are opened."""

    name: str
    namespace: str


Targets = Mapping[str, tuple[str, int]]
"""Address and port of each target by its name."""


def opened(kubernetes: KubernetesPods, pod: Pod, targets: Targets) -> frozenset[str]:
    """Return the names of the targets to which a running pod can open a connection."""
    process, *_ = kubernetes.processes_of(pod.name, pod.namespace)
    done = subprocess.run(
        ["nsenter", f"--target={process}", "--net", sys.executable, __file__],
        input=json.dumps(targets),
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(json.loads(done.stdout))


def settled(
    kubernetes: KubernetesPods,
    pods: Mapping[str, Pod],
    targets: Targets,
    expected: Mapping[str, frozenset[str]],
) -> dict[str, frozenset[str]]:
    """Return the targets that each pod can reach, once they are the expected ones, or at the end of the timeout.

    Only the pods in `expected` connect.
    """
    over, found = threading.Event(), dict[str, frozenset[str]]()
    for _ in range(SETTLE_SECONDS):
        found = {name: opened(kubernetes, pods[name], targets) for name in expected}
        if found == expected:
            break
        over.wait(1.0)
    return found


def connects(target: tuple[str, int]) -> bool:
    """Return whether a target accepts a connection."""
    try:
        socket.create_connection(target, CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Connect to all targets at the same time, and print the names of the targets that accept."""
    targets: dict[str, tuple[str, int]] = {
        name: (host, port) for name, (host, port) in json.load(sys.stdin).items()
    }
    with ThreadPoolExecutor(len(targets)) as pool:
        accepted = pool.map(connects, targets.values())
        names = [name for name, accepts in zip(targets, accepted, strict=True) if accepts]
    sys.stdout.write(json.dumps(names))


if __name__ == "__main__":
    main()
