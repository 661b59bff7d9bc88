"""The box: separate process, mount and network namespaces, in which one test Kubernetes runs.

This module is used outside the box by the fixtures and by `make kubernetes`; `inside.py` has the commands inside the
box. Process 1 of a box is the program pause. When pause ends, the kernel ends every other process of the box, and
mounts, addresses, bridges and packet rules disappear with the last process. A crash leaves only a folder and empty
cgroups, which the next start removes. No setting of the machine is changed, and no packet leaves the machine.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from go_programs import cache_folder, link_programs, program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INSIDE = Path(__file__).with_name("inside.py")
START_SECONDS = 30.0
END_SECONDS = 30.0
NEEDED_COMMANDS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "ip": "iproute2"}
NEEDED_BY_NODES = {"runc": "runc", "nft": "nftables", "conntrack": "conntrack", "iptables": "iptables"}
NEEDED_BY_POLICIES = {"ipset": "ipset"}


class BoxUnusable(Exception):
    """Raised when the box cannot be created or a part of the box does not start; the message names the part."""


class Box:
    """One box, by its name; its state is checked at each use and not stored."""

    def __init__(self, name: str) -> None:
        """Set the name of the box, without starting the box."""
        self.name = name
        self.state = cache_folder() / "boxes" / name
        self.cgroup = f"fairlead-{name}"

    @property
    def logs(self) -> Path:
        """The folder of all daemon logs and the audit log."""
        return self.state / "log"

    def pid(self) -> int | None:
        """Return the host's process id of the box's process 1, or None when the box is not running."""
        known = self._record()
        if known is None or known["identity"] != identity(known["pid"]):
            return None
        return int(known["pid"])

    def enter(self, *, network_only: bool = True) -> list[str]:
        """Return the words to put before a command to run it in the box.

        With `network_only`, the command uses the files, users and processes of the machine and can be
        signalled as usual. Raise `BoxUnusable` when the box is not running.
        """
        pid = self.pid()
        if pid is None:
            message = f"the box {self.name!r} is down; its logs are in {self.logs}"
            raise BoxUnusable(message)
        namespaces = ["--net"] if network_only else ["--net", "--mount", "--pid"]
        return ["nsenter", f"--target={pid}", *namespaces]

    def run_inside(self, *arguments: str, pass_fds: tuple[int, ...] = ()) -> str:
        """Run a command of `inside.py` in the box; raise `BoxUnusable` with its output."""
        command = [*self.enter(network_only=False), sys.executable, str(INSIDE), *arguments]
        done = subprocess.run(command, pass_fds=pass_fds, capture_output=True, text=True, check=False)
        if done.returncode:
            message = (
                f"{' '.join(arguments)} failed in the box {self.name!r} (logs: {self.logs}):\n{done.stderr}"
            )
            raise BoxUnusable(message)
        return done.stdout

    def create(self, programs: Sequence[str]) -> None:
        """Start process 1 in new namespaces, after removing the remains of a crash.

        Missing programs are built first. Raise `BoxUnusable` or `ProgramsMissing`.
        """
        check_machine()
        self.destroy()
        shutil.rmtree(self.state, ignore_errors=True)
        self.logs.mkdir(parents=True)
        self.state.chmod(0o700)
        for name in programs:
            program(name)
        link_programs(self.state / "bin")
        (self.state / "bin" / "etcd").symlink_to(program("etcd"))
        pid = self._start_pause()
        record = {"pid": pid, "identity": identity(pid)}
        (self.state / "box.json").write_text(json.dumps(record))

    def destroy(self) -> None:
        """End the box if it runs, and remove all its remains except logs; a second call is harmless."""
        pid = self.pid()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_end(pid, END_SECONDS)
        for top in self.cgroups():
            # Cgroups outlive their processes; the innermost are removed first.
            for folder, _, _ in os.walk(top, topdown=False):
                _remove_cgroup(Path(folder))
        if self.state.exists():
            for path in self.state.iterdir():
                if path != self.logs:
                    _remove(path)

    def processes(self) -> Iterator[tuple[int, str, float]]:
        """Yield id, name and megabytes of memory of every process in the running box."""
        namespace = Path(f"/proc/{self.pid()}/ns/pid").readlink()
        for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
            with suppress(OSError):
                if (entry / "ns/pid").readlink() != namespace:
                    continue
                name = (entry / "cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
                sizes = (entry / "smaps_rollup").read_text().splitlines()
                kilobytes = next(int(line.split()[1]) for line in sizes if line.startswith("Pss:"))
                yield int(entry.name), name, kilobytes / 1024

    def cgroups(self) -> list[Path]:
        """Return the cgroup of the box in every hierarchy of the machine, without duplicates from links."""
        hierarchies = {path.parent.resolve() for path in Path("/sys/fs/cgroup").glob("*/cgroup.procs")}
        return [hierarchy / self.cgroup for hierarchy in sorted(hierarchies)]

    def _start_pause(self) -> int:
        """Start unshare and, in its namespaces, pause; return the machine's process id of pause."""
        namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # The pipe gets a line when /proc is mounted, right before the shell becomes pause.
        shell = ["sh", "-c", 'echo >&3; exec 3>&-; exec "$0"', str(program("pause"))]
        command = ["unshare", *namespaces, *shell]
        log = str(self.logs / "box.log")
        reader, writer = os.pipe()
        # subprocess would warn when its object is dropped, because unshare outlives the starter of the box.
        unshare = os.posix_spawnp(
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, writer, 3),
            ],
            setsid=True,
        )
        os.close(writer)
        began = select.select([reader], [], [], START_SECONDS)[0] and os.read(reader, 1)
        os.close(reader)
        if not began:
            message = f"the namespaces could not be created: {Path(log).read_text()}"
            raise BoxUnusable(message)
        return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])

    def _record(self) -> dict[str, Any] | None:
        try:
            known: dict[str, Any] = json.loads((self.state / "box.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return known


def boxes() -> list[Box]:
    """Return every box that has a folder, running or not."""
    folder = cache_folder() / "boxes"
    return [Box(path.name) for path in sorted(folder.iterdir()) if path.is_dir()] if folder.exists() else []


def check_machine(*, real_nodes: bool = False, policies: bool = False) -> None:
    """Raise `BoxUnusable` when namespaces cannot be created, or a requirement of real nodes or policies is missing."""
    if os.geteuid() != 0:
        message = "a test Kubernetes makes namespaces and mounts, so it needs root"
        raise BoxUnusable(message)
    needed = NEEDED_COMMANDS | (NEEDED_BY_NODES if real_nodes else {})
    needed |= NEEDED_BY_POLICIES if policies else {}
    absent = sorted({package for name, package in needed.items() if shutil.which(name) is None})
    if absent:
        message = f"missing on this machine: {' '.join(absent)}; run `make setup`"
        raise BoxUnusable(message)
    if real_nodes and not Path("/sys/fs/cgroup/memory/cgroup.procs").exists():
        message = "real nodes need cgroup v1 (or hybrid), which this machine does not mount"
        raise BoxUnusable(message)


def identity(pid: int) -> str | None:
    """Return an identity that no later process with the same id shares; None when the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if stat[0] in "ZX":
        return None
    return f"{stat[19]} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


def wait_for_end(pid: int, seconds: float) -> None:
    """Wait until a process has ended; raise `BoxUnusable` after `seconds`."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([handle], [], [], seconds)[0]:
            message = f"process {pid} did not end within {seconds} s"
            raise BoxUnusable(message)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Remove a file or a folder whose content an ending process may remove at the same time."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    # A second pass removes files that the first pass skipped after a missing file.
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        shutil.rmtree(path)


def _remove_cgroup(folder: Path) -> None:
    """Remove one empty cgroup, after a short wait while a dying process is in it."""
    for pid in _processes_of(folder):
        wait_for_end(pid, END_SECONDS)
    with suppress(FileNotFoundError):
        folder.rmdir()


def _processes_of(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]
    except (FileNotFoundError, OSError):
        return []
