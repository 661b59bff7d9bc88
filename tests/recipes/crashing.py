"""Runs a program in a process that ends at a drawn point: killed at a line, killed a moment later, or by a failure.

The program needs no part in it: a trace function counts the lines of its functions as they are about to run.
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
"""What is there at once in every process, because all are forked from one that has imported it."""
NOTE: Final = "crash.txt"
"""Where a process notes the line at which it crashes; it cannot tell afterwards."""
STDERR: Final = "stderr.txt"


class CrashKind(StrEnum):
    """How a process ends."""

    KILL = "kill"
    KILL_SOON = "kill soon"
    """A moment after the line began: in the middle of what it waits for."""
    FAILURE = "failure"
    """The line raises; what the program has opened is closed."""
    PAUSE = "pause"
    """It does not end, but stands still until it gets SIGCONT: others take it for dead, and it knows nothing of it."""


@dataclass(frozen=True, slots=True)
class Crash:
    """A point: the line after so many others, and for a kill soon the moment. `only`: no other line counts."""

    kind: CrashKind
    lines: int
    delay_seconds: float = 0.0
    only: int | None = None


class DrawnFailure(Exception):
    """What a line raises that is to fail."""


def start(program: Path, environment: dict[str, str], crash: Crash | None) -> ForkServerProcess:
    """Begin the program in its own folder."""
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
    """Counts the lines of the program's functions, and crashes at the drawn one."""

    def __init__(self, program: str, crash: Crash) -> None:
        self._program = program
        self._crash = crash
        self._left = crash.lines

    def called(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        """Follow the functions of the program; the interpreter asks at every call."""
        code = frame.f_code
        return self.line if code.co_filename == self._program and code.co_name != "<module>" else None

    def line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Count a line that is about to run."""
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
                # Nobody handles this signal, so the kernel ends the process, wherever it is then.
                signal.setitimer(signal.ITIMER_REAL, self._crash.delay_seconds)
            case CrashKind.FAILURE:
                raise DrawnFailure
            case CrashKind.PAUSE:
                os.kill(os.getpid(), signal.SIGSTOP)
