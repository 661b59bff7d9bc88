"""`fairlead` commands that start without importing their modules again.

Starting the interpreter with a broker's modules takes more than a second of processor time, and the tests start
hundreds of brokers and commands. A launcher therefore imports all modules once and forks a child for each command. The
child is an ordinary process: it runs the main function of the program with its own arguments, environment, folder and
files, and is stopped and killed like any other process. Tests start the program with `start`; shells find the program
in `search_path()`.
"""

from __future__ import annotations

import atexit
import marshal
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

import warm_launcher

FAIRLEAD: Final = str(Path(sys.executable).with_name("fairlead"))
NAMESPACES: Final = ("user", "net", "mnt", "pid")
OF_INTERPRETER: Final = ("PYTHON", "LD_", "MALLOC_")
"""Prefixes of environment variables that take effect when an interpreter starts."""
WITHOUT_EFFECT: Final = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
_STARTING: Final = threading.Lock()
LIMITS: Final = 16
"""Number of resource limits of Linux."""
# The script starts the interpreter itself where the child of the launcher would differ: in other namespaces, with other
# limits, with variables that act at a start, or with a closed stream, a terminal or another device as a stream.
SHIM: Final = r"""#!{python} -IS
import _socket, marshal, os, resource, signal, sys
def start_the_interpreter():
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
place = [os.stat("/proc/self/ns/" + name).st_ino for name in {namespaces!r}]
place += [resource.getrlimit(number) for number in range({limits})]
place += sorted(each for each in os.environ.items() if each[0].startswith({of!r}) and each[0] not in {without!r})
try:
    streams = [os.fstat(number) for number in (0, 1, 2)]
except OSError:
    start_the_interpreter()
if place != {place!r} or any(each.st_rdev != os.makedev(1, 3) for each in streams if each.st_mode >> 12 == 2):
    start_the_interpreter()
launcher = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
try:
    launcher.connect({address!r})
except OSError:
    start_the_interpreter()
signals = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
ignored = [int(number) for number in signals if signal.getsignal(number) is signal.SIG_IGN]
mask = os.umask(0)
order = (sys.argv[1:], dict(os.environ), os.getcwd(), os.getpid(), ignored, mask)
files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
launcher.sendmsg([marshal.dumps(order)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
child = int(launcher.recv(64))
for number in signals:
    signal.signal(number, signal.SIG_IGN if number in ignored else lambda number, _: os.kill(child, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
code = int(launcher.recv(64))
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def readable(descriptor: int, seconds: float | None) -> bool:
    """Wait until a descriptor has data or has ended; return False after `seconds` (None: without a limit).

    `select.select` refuses descriptors above 1,023, which a process that runs many tests reaches.
    """
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1_000))


class WarmProcess:
    """A command that the launcher started: the part of `subprocess.Popen` that tests use."""

    def __init__(self, launcher: socket.socket, pid: int, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        # A descriptor that stays open: several threads may wait for the end of a process.
        self._launcher = launcher.detach()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self._launcher)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return its exit code; raise `subprocess.TimeoutExpired` on timeout."""
        if self.returncode is None:
            if not readable(self._launcher, timeout):
                raise subprocess.TimeoutExpired(FAIRLEAD, timeout or 0)
            with self._lock:
                if self.returncode is None:
                    self.returncode = int(os.read(self._launcher, 64))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            # The process may end, or be killed by another thread, after the check.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Stop the process."""
        self.send_signal(signal.SIGTERM)


def start(
    *words: str,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    errors: IO[bytes] | None = None,
) -> WarmProcess:
    """Start `fairlead` with arguments; without a file for standard output, the command writes to a pipe."""
    launcher = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher.connect(_address(warm_folder()))
    printed = None
    if output is None:
        reading, writing = os.pipe()
        printed, output = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
    mask = os.umask(0)
    os.umask(mask)
    variables = dict(os.environ if environment is None else environment)
    order: tuple[Any, ...] = (words, variables, str(Path.cwd()), os.getpid(), [], mask)
    with Path(os.devnull).open("r+b") as nothing:
        files = [nothing.fileno(), output.fileno(), (errors or nothing).fileno()]
        socket.send_fds(launcher, [marshal.dumps(order)], files)
    if printed is not None:
        output.close()
    return WarmProcess(launcher, int(launcher.recv(64)), printed)


def warm_program() -> str:
    """Return the path of a program `fairlead` that asks the launcher to run its command, for shells and scripts."""
    return str(Path(warm_folder()) / "fairlead")


def search_path() -> str:
    """Return the PATH of a user with an active virtual environment, in which `fairlead` is `warm_program()`."""
    return os.pathsep.join((warm_folder(), str(Path(FAIRLEAD).parent), os.environ["PATH"]))


def _address(folder: str) -> str:
    return str(Path(folder) / "launcher")


def warm_folder() -> str:
    """Return the folder that contains the launcher's socket and `fairlead`; the first call starts the launcher."""
    # Threads that start the first brokers of a cluster would each start a launcher.
    with _STARTING:
        return _start_launcher()


@cache
def _start_launcher() -> str:
    """Start the launcher, which ends with this process; return its folder."""
    folder = tempfile.TemporaryDirectory(prefix="warm-")
    atexit.register(folder.cleanup)
    variables = {name: text for name, text in os.environ.items() if not name.startswith("FAIRLEAD_")}
    launcher = subprocess.Popen(
        [sys.executable, warm_launcher.__file__, _address(folder.name)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**variables, "OPENBLAS_NUM_THREADS": "1"},
    )
    # The launcher ends when this process ends and closes the pipe.
    atexit.register(lambda: launcher.stdin and launcher.stdin.close())
    assert launcher.stdout is not None, "a pipe was asked for"
    assert launcher.stdout.readline() == warm_launcher.IMPORTED
    place: list[Any] = [Path("/proc/self/ns", name).stat().st_ino for name in NAMESPACES]
    place += [resource.getrlimit(number) for number in range(LIMITS)]
    place += sorted(
        each
        for each in variables.items()
        if each[0].startswith(OF_INTERPRETER) and each[0] not in WITHOUT_EFFECT
    )
    shim = Path(folder.name) / "fairlead"
    shim.write_text(
        SHIM.format(
            python=sys.executable,
            program=FAIRLEAD,
            namespaces=NAMESPACES,
            limits=LIMITS,
            of=OF_INTERPRETER,
            without=WITHOUT_EFFECT,
            place=place,
            address=_address(folder.name),
        )
    )
    shim.chmod(0o755)
    return folder.name
