"""Mounts and network of the box, before its first daemon. Used inside the box by `inside.py`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from daemons import STATE, run

# Addresses exist only in the box, so every box uses the same addresses.
CONTROL_PLANE_ADDRESS = "10.88.0.1"
# CoreDNS has its own address, so that a network policy can permit the API server without DNS.
NAMES_ADDRESS = "10.88.0.2"
SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE_ADDRESS = "10.96.0.1"
# Machine-wide settings that the kubelet requires. The box has files with these values, and the kubelet is configured
# not to write them, so that the machine's settings stay unchanged.
KUBELET_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# Some paths are fixed in the programs (/var/lib/cni, /var/log/containers, /tmp/hostpath_pv): files written there stay
# in the box.
PRIVATE_FOLDERS = ("/var", "/opt", "/tmp")


def furnish(state: Path) -> None:
    """Mount the private folders of the box, mount its folder as /run/box, and start its network."""
    handle = os.open(state, os.O_PATH)
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for folder in PRIVATE_FOLDERS:
        _write_to_memory(folder)
    STATE.mkdir()
    # The folder is mounted by its open handle, because the path of the folder may be below one of the private folders;
    # `mount` would replace the handle with this path.
    subprocess.run(
        ["mount", "--no-canonicalize", "--bind", f"/proc/self/fd/{handle}", str(STATE)],
        check=True,
        pass_fds=[handle],
    )
    for folder in ("log", "pids"):
        (STATE / folder).mkdir(exist_ok=True)
    for setting, value in KUBELET_SETTINGS.items():
        shown = Path("/run/settings", setting)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.write_text(f"{value}\n")
        run("mount", "--bind", shown, Path("/proc/sys", setting))
    run("ip", "link", "set", "lo", "up")
    for address in (CONTROL_PLANE_ADDRESS, NAMES_ADDRESS):
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    # The box has no default route, and without a route connect() refuses a service's address before the rules of
    # kube-proxy can translate it.
    run("ip", "route", "add", SERVICE_RANGE, "dev", "lo", "src", CONTROL_PLANE_ADDRESS)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _write_to_memory(folder: str) -> None:
    """Mount a folder in the box so that it is readable as before and writes go to memory."""
    layers = Path("/run/overlay" + folder)
    for layer in ("upper", "work"):
        (layers / layer).mkdir(parents=True)
    options = f"lowerdir={folder},upperdir={layers}/upper,workdir={layers}/work"
    run("mount", "-t", "overlay", "overlay", "-o", options, folder)
