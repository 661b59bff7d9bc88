"""The program of the cleaner's child process, which carries out the cleaning rounds that the broker orders.

The broker starts the program with `python -m`. Orders and events are JSON lines: an order on the standard input starts
a round, each event is written to the standard output, and the round continues when the broker answers `go` or `hurry`.
Any other answer ends the round. The program ends when its standard input is closed. It has a memory limit, has no clock
and renames no files.

A round runs in a thread that the kernel schedules only on an idle processor, and whose disk operations wait for those
of other programs. Therefore a broker or client that becomes runnable never waits for the end of a round's time slice.
On a machine without an idle processor, the thread makes no progress. The broker then answers `hurry`, and the next step
of the round runs in the main thread, which has a low priority but a share of the processor.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from fairlead_broker.log.cleaning.rounds import (
    CleaningFailed,
    CleaningOrder,
    GroupCleaned,
    Mapped,
    Progress,
    RoundDone,
    clean,
)
from fairlead_broker.log.segments.storage import Buffer, PosixFile, PosixStorage

GO: Final = b"go"
HURRY: Final = b"hurry"
"""Answer to a progress report: the next step runs in the main thread, instead of the idle background thread."""
NICENESS: Final = 10
MEMORY_BYTES_MIN: Final = 256 << 20
"""Memory that the process needs for libraries, windows and output, in addition to twice the size of the map, of which
two copies exist while the map grows. With the default size of the map, the memory limit of the process is 512 MiB.
"""
_IDLE_CLASS: Final = 3 << 13
_LAST_OF_BEST_EFFORT_CLASS: Final = 2 << 13 | 7
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""Number of the system call `ioprio_set` for each architecture."""
_THIS_THREAD: Final = (1, 0)
_LIBRARY: Final = ctypes.CDLL(None)
_WAIT_BEFORE: Final = 1
_START: Final = 2


class RoundFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A round ended with an error."""

    reason: str
    first_offset: int | None = None
    """Offset below which the damaged segment is intact, or None if a disk operation failed."""
    next_offset: int | None = None
    """End of the damaged segment."""


CleanerEvent = Progress | Mapped | GroupCleaned | RoundDone | RoundFailed


class _CleaningFile(PosixFile):
    """A file that is written to the disk as it grows, and whose pages are dropped from the page cache after a read.

    If only the last sync wrote a large file to the disk, syncs of producers would wait for the whole file, because the
    file system commits the changes of all files together.
    """

    __slots__ = ()

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read, and drop the pages from the page cache."""
        count = super().read_into(buffer, position)
        with suppress(OSError):
            os.posix_fadvise(self._use().number, position, count, os.POSIX_FADV_DONTNEED)
        return count

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write, start the transfer of the written pages to the disk, and wait for the transfer of all earlier pages.

        The last sync reports errors in the transfers.
        """
        super().write(buffers, position)
        self._write_out(position, sum(map(len, buffers)), _START)
        self._write_out(0, position, _WAIT_BEFORE)

    def _write_out(self, position: int, nbytes: int, flags: int) -> None:
        # 0 bytes would stand for the whole file.
        if nbytes:
            start, count = ctypes.c_int64(position), ctypes.c_int64(nbytes)
            _LIBRARY.sync_file_range(self._use().number, start, count, ctypes.c_uint(flags))


class _CleaningStorage(PosixStorage):
    """Disk access for a round."""

    file_type = _CleaningFile


def carry_out(order: CleaningOrder, answers: BinaryIO, events: BinaryIO) -> None:
    """Carry out one round and write its events."""
    steps, answer = clean(order, _CleaningStorage()), GO
    with ThreadPoolExecutor(1, "background", _run_when_idle) as background:
        try:
            while answer in (GO, HURRY):
                event = background.submit(next, steps).result() if answer == GO else next(steps)
                _write(events, event)
                answer = b"" if isinstance(event, RoundDone) else answers.readline().strip()
        except CleaningFailed as failed:
            _write(events, RoundFailed(str(failed), failed.first_offset, failed.next_offset))
        except (OSError, MemoryError) as error:
            _write(events, RoundFailed(f"{type(error).__name__}: {error}"))


def run(answers: BinaryIO, events: BinaryIO) -> None:
    """Carry out every ordered round until the input ends."""
    while line := answers.readline():
        order = msgspec.json.decode(line, type=CleaningOrder)
        _limit_memory(MEMORY_BYTES_MIN + 2 * order.buffer_bytes)
        carry_out(order, answers, events)


def _write(events: BinaryIO, event: CleanerEvent) -> None:
    events.write(msgspec.json.encode(event) + b"\n")
    events.flush()


def _limit_memory(nbytes: int) -> None:
    """Limit the memory of this process, if the system allows it."""
    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (nbytes, hard))


def _step_back() -> None:
    """Lower the priorities of this process, if the system allows it."""
    with suppress(OSError):
        # The priority of a broker that was started as a real-time program would be inherited.
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError):
        os.nice(NICENESS)
    _set_disk_priority(_LAST_OF_BEST_EFFORT_CLASS)
    # The kernel kills this process first if memory runs short.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _run_when_idle() -> None:
    """Give this thread the lowest priorities for processor and disk, if the system allows it."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _set_disk_priority(_IDLE_CLASS)


def _set_disk_priority(priority: int) -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        _LIBRARY.syscall(number, *_THIS_THREAD, priority)


if __name__ == "__main__":
    _step_back()
    run(sys.stdin.buffer, sys.stdout.buffer)
