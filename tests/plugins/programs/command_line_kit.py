"""Runs `fairlead` as a user does, in a pipe and in a terminal, for tests of the command line.

Signals, the end of a process and open input are tested with processes. Output and exit codes are tested in pytest's own
process, which is faster.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress

from fairlead.cli.main import run_command
from warm_programs import readable


class CommandLine:
    """Runs commands with pipes as input and output, in this process, because a new process costs a second."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        self.errors = ""

    def __call__(self, *arguments: str, typed: bytes = b"", code: int = 0) -> str:
        """Run one command with `typed` on standard input and check that its exit code is `code`."""
        output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with (
            _environment(self._environment),
            _standard_input(typed),
            redirect_stdout(output),
            redirect_stderr(errors),
        ):
            ended_with = run_command(arguments)
        self.errors = _written(errors)
        assert ended_with == code, (arguments, ended_with, self.errors)
        return _written(output)


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Set the environment of this process to the given variables, and restore it afterwards."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(wanted)
    try:
        yield
    finally:
        # A command may set further variables, such as those of the profile.
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _standard_input(typed: bytes) -> Iterator[None]:
    """Make standard input a pipe with the content `typed`, which a command need not read."""
    theirs, ours = os.pipe()
    writer = threading.Thread(target=_write_all, args=(ours, typed))
    before = sys.stdin
    writer.start()
    try:
        with os.fdopen(theirs) as sys.stdin:
            yield
    finally:
        sys.stdin = before
        writer.join()


def _write_all(pipe: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(pipe, "wb") as file:
        file.write(data)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO), "made by the command line"
    return stream.buffer.getvalue().decode()


class TerminalWindow:
    """One command in a pseudo-terminal: its screen and its keys."""

    def __init__(self, terminal: int, process: subprocess.Popen[bytes]) -> None:
        self._terminal = terminal
        self._process = process
        self.shown = ""

    def press(self, keys: str) -> None:
        """Type `keys`, including control characters: byte 3 is Ctrl-C, byte 4 is Ctrl-D."""
        os.write(self._terminal, keys.encode())

    def read_until(self, text: str, timeout_seconds: float = 30) -> None:
        """Wait until the terminal has shown `text`."""
        deadline = time.monotonic() + timeout_seconds
        while text not in self.shown:
            assert self._read(deadline), (text, self.shown)

    def exit_code(self, timeout_seconds: float = 30) -> int:
        """Wait for the end of the command and return its exit code."""
        deadline = time.monotonic() + timeout_seconds
        while self._read(deadline):
            pass
        return self._process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        """Read the next output; return False at the end of the output or after the deadline."""
        if not readable(self._terminal, max(0.0, deadline - time.monotonic())):
            return False
        data = b""
        with suppress(OSError):  # Linux returns EIO once the command has closed the terminal
            data = os.read(self._terminal, 65536)
        self.shown += data.decode(errors="replace")
        return bool(data)


@contextmanager
def terminal_window(environment: dict[str, str], *arguments: str) -> Iterator[TerminalWindow]:
    """Run `fairlead` with a terminal as its standard input, output and error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["fairlead", *arguments],
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=_take_terminal,  # noqa: PLW1509 - one call to the kernel, no lock taken
    )
    os.close(theirs)
    try:
        yield TerminalWindow(ours, process)
    finally:
        os.close(ours)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(10)


def _take_terminal() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C in the terminal is a signal to the command."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
