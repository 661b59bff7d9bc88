"""A box leaves nothing on the machine, no matter how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from box import Box, identity, wait_for_end
from furnishing import KUBELET_SETTINGS
from kubernetes_under_test import remove_forgotten

USER = """
import sys
from kubernetes_under_test import Size, shared
with shared(sys.argv[1], Size(fake_nodes=0, real_nodes=1)):
    print("up", flush=True)
    sys.stdin.read()
"""


def settings() -> list[str]:
    """Return the machine's settings that the kubelet would write."""
    return [Path("/proc/sys", name).read_text() for name in KUBELET_SETTINGS]


@pytest.mark.scenario
def test_nothing_outlives_the_last_user() -> None:
    """A box whose only user is killed ends with its processes, cgroups, mounts, bridges and folder."""
    box = Box(f"crash-{os.getpid()}")
    before = settings()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", USER, box.name]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as user:
        assert user.stdout is not None, "its output is a pipe"
        assert user.stdout.readline() == "up\n", "what went wrong is on its standard error"
        first = box.pid()
        inside = {pid: identity(pid) for pid, _, _ in box.processes()}
        during = settings()
        user.kill()
    assert first is not None, "the box was up"
    wait_for_end(first, 60)
    remove_forgotten()

    assert len(inside) > 8
    assert [pid for pid, known in inside.items() if identity(pid) == known] == []
    assert [folder for folder in box.cgroups() if folder.exists()] == []
    assert box.name not in Path("/proc/mounts").read_text()
    assert [path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith("br-node")] == []
    assert [path.name for path in box.state.iterdir()] == ["log"]
    assert before == during == settings()
