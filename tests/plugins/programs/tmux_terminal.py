"""A user's terminal: a shell in tmux, whose screen is read after each command."""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

COLUMNS, LINES = 120, 50
LOOK_SECONDS = 0.05
# This shell function runs a command on an empty screen, prints its exit code, and signals its end.
ASK = """ask() {{ clear; eval "$1"; echo "ended with $?"; tmux -S {socket} wait-for -S "$2"; }}"""
ENDED = re.compile(r"ended with \d+\n\$$")
"""The line with the exit code that ends a command's output, followed by the prompt."""


class TmuxTerminal:
    """One window of a tmux server."""

    def __init__(self, socket: Path, window: str) -> None:
        """Use an existing window."""
        self._socket, self._window, self._numbers = socket, window, count(1)
        self._waited_for = ""
        self.press(ASK.format(socket=shlex.quote(str(socket))), "Enter")

    def run(self, command: str, timeout_seconds: float = 60) -> str:
        """Run a command to its end and return the screen, which ends with `ended with` and the exit code."""
        self.begin(command)
        return self.end(timeout_seconds)

    def begin(self, command: str) -> None:
        """Type a command and Enter."""
        self._waited_for = f"{self._window}-{next(self._numbers)}"
        self.press(f"ask {shlex.quote(command)} {self._waited_for}", "Enter")

    def end(self, timeout_seconds: float = 60) -> str:
        """Wait for the end of the command and return the screen."""
        try:
            self._tmux("wait-for", self._waited_for, timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            message = f"it did not end within {timeout_seconds} s; the screen:\n{self.screen()}"
            raise AssertionError(message) from error
        # The signal for the end and the text on the screen arrive independently.
        return self._shown(ENDED.search, "the end of the command", timeout_seconds)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names, such as `Enter` and `C-c`."""
        self._tmux("send-keys", "-t", self._window, *keys)

    def screen(self) -> str:
        """Return the visible screen, without scrolled lines."""
        return self._tmux("capture-pane", "-p", "-t", self._window).rstrip()

    def wait_for(self, text: str, timeout_seconds: float = 60) -> str:
        """Wait until the given text is on the screen, and return the screen."""
        return self._shown(lambda shown: text in shown, repr(text), timeout_seconds)

    def _shown(self, is_there: Callable[[str], object], wanted: str, timeout_seconds: float) -> str:
        deadline = time.monotonic() + timeout_seconds
        while not is_there(shown := self.screen()):
            assert time.monotonic() < deadline, f"{wanted} did not appear; the screen:\n{shown}"
            threading.Event().wait(LOOK_SECONDS)
        return shown

    def _tmux(self, *words: str, timeout: float = 20) -> str:
        command = ["tmux", "-S", str(self._socket), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout)
        return done.stdout


@contextmanager
def tmux_terminals(
    folder: Path, environment: Mapping[str, str], *windows: str
) -> Iterator[list[TmuxTerminal]]:
    """Open a terminal for each name, with a bare shell; at the end of the block, all programs in the terminals end."""
    socket = folder / "tmux"
    shell = ["env", "-i", *(f"{name}={text}" for name, text in environment.items()), "PS1=$ ", "TERM=screen"]
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    first, *others = windows
    server = ["tmux", "-f", "/dev/null", "-S", str(socket)]
    plain = [*shell, "bash", "--norc", "--noprofile"]
    subprocess.run([*server, "new-session", "-d", "-s", "tests", "-n", first, *size, *plain], check=True)
    try:
        for name in others:
            subprocess.run([*server, "new-window", "-d", "-n", name, *plain], check=True)
        yield [TmuxTerminal(socket, name) for name in windows]
    finally:
        subprocess.run([*server, "kill-server"], check=True)
