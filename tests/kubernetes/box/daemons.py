"""Programs that run in the box until its end, or until a test stops or restarts them.

The module is used inside the box by `inside.py` and its modules. The command of each daemon is stored in `pids/`, so
that a later process can restart the daemon.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# The folder of the box as seen from inside, short because the path of a socket is limited to 107 bytes.
STATE = Path("/run/box")
BIN = STATE / "bin"
PATH = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The Go programs of tests are small, so they would collect their garbage often by default.
GARBAGE = {"GOGC": "400"}
POLL_SECONDS = 0.05
STOP_SECONDS = 60.0


class NotReady(Exception):
    """Raised when a daemon ends or does not become ready in time."""


def run(*command: object) -> None:
    """Run a command to its end; raise `NotReady` with the error output if the command fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{' '.join(map(str, command))}: {done.stderr}"
        raise NotReady(message)


class Daemon:
    """One daemon, identified by its name."""

    def __init__(self, name: str) -> None:
        """Set the name of the daemon, without starting the daemon."""
        self.name = name
        self._file = STATE / "pids" / f"{name}.json"

    def start(self, command: Sequence[object] | None = None, *, pass_fds: tuple[int, ...] = ()) -> None:
        """Start the daemon with `command` or its previous command; its output goes to its log."""
        words = [str(word) for word in command] if command is not None else self._record()["command"]
        with (STATE / "log" / f"{self.name}.log").open("ab") as log:
            started = subprocess.Popen(
                words,
                env={"PATH": PATH, "HOME": "/root", **GARBAGE},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )
        self._file.write_text(json.dumps({"pid": started.pid, "command": words}))

    def send(self, number: int) -> None:
        """Send the daemon a signal unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self._record()["pid"], number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send the daemon a signal and wait until it has ended."""
        try:
            handle = os.pidfd_open(self._record()["pid"])
        except ProcessLookupError:
            return
        self.send(number)
        if not select.select([handle], [], [], STOP_SECONDS)[0]:
            message = f"{self.name} did not end within {STOP_SECONDS} s of signal {number}"
            raise NotReady(message)
        os.close(handle)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready` returns True; raise `NotReady` at once when the daemon ends first."""
        deadline = time.monotonic() + seconds
        try:
            handle = os.pidfd_open(self._record()["pid"])
        except ProcessLookupError:
            handle = None
        while True:
            with suppress(OSError):
                if ready():
                    break
            ended = handle is None or select.select([handle], [], [], POLL_SECONDS)[0]
            if ended or time.monotonic() > deadline:
                reason = "ended" if ended else f"is not ready after {seconds} s"
                message = f"{self.name} {reason}; the end of its log:\n{self._last_lines()}"
                raise NotReady(message)
        if handle is not None:
            os.close(handle)

    def _record(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(self._file.read_text())
        return known

    def _last_lines(self) -> str:
        text = (STATE / "log" / f"{self.name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])
