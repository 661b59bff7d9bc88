"""Test of pods in a Kubernetes cluster with an IPv6-only network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOST = "fd00::1"
# The process namespace ends all remaining processes together with the program.
NAMESPACES = (
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
NETWORK = f'ip link set lo up && ip address add {HOST}/128 dev lo nodad && exec "$@"'
PROGRAM = Path(__file__).with_name("ipv6_program.py")
FOLDERS = ("etcd", "plugins", "plugins/programs", "faults")


@pytest.mark.scenario
def test_pods_of_ipv6_alone_reach_each_other(tmp_path: Path) -> None:
    """The addresses of etcd and brokers, as the operator sets them, and the stop hook work over IPv6."""
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join(str(tests / each) for each in FOLDERS)
    done = subprocess.run(
        [*NAMESPACES, "sh", "-c", NETWORK, "sh", sys.executable, str(PROGRAM), str(tmp_path), HOST],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if "unshare" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("this machine allows no network namespaces")
    assert done.returncode == 0, done.stderr

    assert done.stdout.splitlines()[0] == "over IPv6"
    assert "broker 0 may stop" in done.stdout
