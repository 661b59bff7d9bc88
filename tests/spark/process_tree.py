"""Functions that find the Python workers of a Spark driver among the processes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROLES: Final = {
    b"pyspark.worker": "task",
    b"python_streaming_source_runner": "reader of the source on the driver",
    b"write_into_data_source": "planner of a write",
    b"python_streaming_sink_runner": "commit of a write",
}
"""Roles of the workers by the module in their command; workers that only resolved a source are idle and have no role.
"""
DAEMON: Final = b"pyspark.daemon"
JAVA: Final = b"org.apache.spark.deploy.SparkSubmit"
PROC: Final = Path("/proc")


def python_workers(driver: int) -> dict[int, str]:
    """Return the workers below a process with their roles: children of the daemons, and the readers of the sources."""
    parents = _parents()
    return {
        pid: role
        for pid, parent in sorted(parents.items())
        if (role := _role(_command(pid), _command(parent))) and _is_below(pid, driver, parents)
    }


def java_machine(driver: int) -> int | None:
    """Return the JVM below a process, or None without a JVM."""
    parents = _parents()
    below = (pid for pid in sorted(parents) if _is_below(pid, driver, parents))
    return next((pid for pid in below if JAVA in _command(pid)), None)


def _role(command: bytes, parent: bytes) -> str | None:
    if DAEMON in command and DAEMON not in parent:
        # The daemon itself only forks workers.
        return None
    return next((role for module, role in ROLES.items() if module in command), None)


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _parents() -> dict[int, int]:
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                # The program name is in parentheses and may contain spaces.
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    return parents


def _command(pid: int) -> bytes:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""
