"""A program of `warm_programs` that forks a child with all modules of `fairlead` for each ordered command.

An order is a message from a starter with three file descriptors. The launcher answers with the process id of the child
and, when the child has ended, with its exit code, which is negative for a signal.
"""

from __future__ import annotations

import gc
import importlib
import io
import marshal
import os
import pkgutil
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

PACKAGES: Final = ("fairlead.cli", "fairlead_broker")
FURTHER: Final = ("granian", "uvicorn", "uvloop")
"""Modules that a broker imports when it starts."""
MESSAGE_BYTES_MAX: Final = 1 << 17
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that are blocked during a fork and delivered when the child begins its command."""
IMPORTED: Final = b"imported\n"
"""Line of the launcher when it accepts orders."""


def launch(address: str) -> list[str]:
    """Fork a child for each order until stdin ends; return in each child, with the words of its command."""
    import_all()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(64)
    os.write(1, IMPORTED)
    events = select.poll()
    events.register(listener, select.POLLIN)
    events.register(0, select.POLLHUP)
    children: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for number, _ in events.poll():
            if number == 0:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                os._exit(0)
            if number in children:
                pid, starter = children.pop(number)
                events.unregister(number)
                os.close(number)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with starter, suppress(OSError):
                    starter.send(b"%d" % code)
                continue
            starter, _ = listener.accept()
            message, files, _, _ = socket.recv_fds(starter, MESSAGE_BYTES_MAX, 3)
            if not message:
                starter.close()
                continue
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            pid = os.fork()
            if pid == 0:
                for inherited in (listener, starter, *(each for _, each in children.values())):
                    inherited.close()
                for watched in children:
                    os.close(watched)
                return become(files, *marshal.loads(message))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            for file in files:
                os.close(file)
            watched = os.pidfd_open(pid)
            events.register(watched, select.POLLIN)
            children[watched] = pid, starter
            with suppress(OSError):
                starter.send(b"%d" % pid)


def import_all() -> None:
    """Import each module of the command line and of the broker."""
    for package in PACKAGES:
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in FURTHER:
        importlib.import_module(name)
    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    # A fork copies one thread only. Arrow's allocator starts its thread again in the child.
    assert len([name for name in threads if name != "jemalloc_bg_thd"]) == 1, threads
    gc.collect()
    gc.freeze()


def become(
    files: list[int],
    words: list[str],
    environment: dict[str, str],
    folder: str,
    starter: int,
    ignored: list[int],
    mask: int,
) -> list[str]:
    """Take over the files, variables, folder, ignored signals and file mask of a command; return its words."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    os.umask(mask)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), "utf-8")
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), "utf-8")
    errors = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(errors, "utf-8", "backslashreplace", line_buffering=True)
    threading.Thread(target=end_with, args=(starter,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    return ["fairlead", *words]


def end_with(starter: int) -> None:
    """Kill this process when its starter has ended, so that a killed shell or test leaves no process."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(starter)], [], [])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.argv = launch(sys.argv[1])
    from fairlead.cli.main import main

    sys.exit(main())
