"""Return the disk space of removed files in small parts.

On a file system that is mounted with `discard`, the kernel tells the disk which blocks are free when the last
descriptor of a removed file is closed. The disk carries out syncs only afterwards: after the removal of a segment of
256 MiB, a sync of a producer waited for 33 ms (measured). A thread therefore shortens a removed file step by step
before it closes the descriptor, like the delete scheduler of RocksDB.

`storage` hands over descriptors. This module must not know about paths, logs or segments.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Final

PART_BYTES: Final = 2 << 20
"""Number of bytes that a step frees; a sync waits for half a millisecond at most."""
PAUSE_SECONDS: Final = 0.008
"""Time between two steps, in which syncs are carried out. A file of 1 GiB is freed in five seconds."""
WAITING_MAX: Final = 64
"""Maximum number of files that wait. Descriptors of further files are closed at once."""
_BLOCK_BYTES: Final = 512
"""Unit of `st_blocks`."""


class RemovedFiles:
    """Queue of descriptors of removed files, and the thread that frees their space. Started by the first storage."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[int] = SimpleQueue()
        self._start_lock = Lock()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._start_lock:
            if not self._runs:
                # The thread is a daemon: the kernel frees the space of files that are open at the end of the process.
                self._thread = Thread(target=self._run, name="removed-files", daemon=True)
                self._thread.start()

    def close(self, descriptor: int) -> None:
        """Close a descriptor; the space of a large file without a name is freed later, in parts.

        The method may run in any thread, also in a finalizer, and does not wait.
        """
        if self._runs and self._waiting.qsize() < WAITING_MAX and _is_large_and_removed(descriptor):
            self._waiting.put(descriptor)
        else:
            os.close(descriptor)

    @property
    def _runs(self) -> bool:
        """Whether the thread runs; a forked process has no thread of its parent."""
        return self._thread is not None and self._thread.is_alive()

    def _run(self) -> None:
        while True:
            descriptor = _opened_for_writing(self._waiting.get())
            # After a failure, the close frees the space at once.
            with suppress(OSError):
                _shorten(descriptor)
            os.close(descriptor)


def _is_large_and_removed(descriptor: int) -> bool:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return not status.st_nlink and status.st_blocks * _BLOCK_BYTES > PART_BYTES


def _opened_for_writing(descriptor: int) -> int:
    """Return a descriptor that may change the size of the file, and close the given one."""
    try:
        writable = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return descriptor
    os.close(descriptor)
    return writable


def _shorten(descriptor: int) -> None:
    """Shorten a file to nothing, unless another descriptor of the file is open. Raises `OSError`.

    Readers of a removed file read until they close their descriptors; the last descriptor frees the space. Linux grants
    a lease for writing only if no other descriptor is open.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    size, never = os.fstat(descriptor).st_size, Event()
    while size > 0:
        size = max(0, size - PART_BYTES)
        os.ftruncate(descriptor, size)
        never.wait(PAUSE_SECONDS)


REMOVED_FILES: Final = RemovedFiles()
