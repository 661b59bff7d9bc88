"""Runs a program in a process that ends at a random point: killed at a line, killed a moment later, or by a failure.

The program is unchanged: instead of crash points in its code, a trace function counts the lines of its functions before
they run.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import FrameType
from typing import Any, Final

PRELOADED: Final = ["fairlead.consumer", "fairlead.producer", "fairlead.admin", "psycopg", "structlog"]
"""Modules that are loaded in every process, because all processes are forks of a process that imported them."""
NOTE: Final = "crash.txt"
"""File in which a process records the line of its crash, because it cannot report the line afterwards."""
STDERR: Final = "stderr.txt"


class CrashKind(StrEnum):
    """The way in which a process ends."""

    KILL = "kill"
    KILL_SOON = "kill soon"
    """A kill a moment after the line began, while the line waits."""
    FAILURE = "failure"
    """An error raised at the line; resources of the program are closed."""
    PAUSE = "pause"
    """A pause until SIGCONT: other processes consider the process dead, and the paused process notices nothing."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash before the `lines`-th line, or before the `lines`-th run of line number `only`; a kill may be delayed."""

    kind: CrashKind
    lines: int
    delay_seconds: float = 0.0
    only: int | None = None


class DrawnFailure(Exception):
    """The error raised at the chosen line."""


def start(program: Path, environment: dict[str, str], crash: Crash | None) -> ForkServerProcess:
    """Start the program in its own folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(program, environment, crash), daemon=True)
    process.start()
    return process


def _run(program: Path, environment: dict[str, str], crash: Crash | None) -> None:
    os.chdir(program.parent)
    os.environ.update(environment)
    with Path(STDERR).open("wb") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    if crash is not None:
        sys.settrace(_Tracer(str(program), crash).called)
    runpy.run_path(str(program), run_name="__main__")


class _Tracer:
    """Counts the lines of the program's functions, and crashes at the chosen line."""

    def __init__(self, program: str, crash: Crash) -> None:
        self._program = program
        self._crash = crash
        self._left = crash.lines

    def called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Trace the functions of the program; the interpreter calls this method at every call."""
        code = frame.f_code
        return self.line if code.co_filename == self._program and code.co_name != "<module>" else None

    def line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Count a line before it runs."""
        if event == "line" and self._crash.only in (None, frame.f_lineno):
            self._left -= 1
            if self._left == 0:
                self._end(frame.f_lineno)
        return self.line

    def _end(self, line: int) -> None:
        Path(NOTE).write_text(str(line), encoding="utf-8")
        match self._crash.kind:
            case CrashKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case CrashKind.KILL_SOON:
                # The program has no handler for this signal, so the kernel ends the process at any point.
                signal.setitimer(signal.ITIMER_REAL, self._crash.delay_seconds)
            case CrashKind.FAILURE:
                raise DrawnFailure
            case CrashKind.PAUSE:
                os.kill(os.getpid(), signal.SIGSTOP)
