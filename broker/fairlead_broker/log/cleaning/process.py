"""The program of the cleaner's child process, which carries out the cleaning rounds that the broker orders.

The broker starts the program with `python -m`. Orders and events are JSON lines: an order on the standard input starts
a round, each event is written to the standard output, and the round continues when the broker answers `go` or `hurry`.
Any other answer ends the round. The program ends when its standard input is closed. It has a memory limit, has no clock
and renames no files.

A round runs in a thread of the lowest priority, which a broker or client that becomes runnable interrupts. On a machine
without an idle processor, the thread makes nearly no progress. The broker then answers `hurry`, and the next step of
the round runs in the main thread, which has a low priority but a larger share of the processor. Another thread with
this share makes all changes of the disk: a thread that is interrupted in the middle of a change holds locks of the file
system, and syncs of producers would wait for it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

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
from fairlead_broker.log.segments.storage import Buffer, Descriptor, PosixFile, PosixStorage

T = TypeVar("T")

GO: Final = b"go"
HURRY: Final = b"hurry"
"""Answer to a progress report: the next step runs in the main thread, instead of the thread of the lowest priority."""
NICENESS: Final = 10
LEAST_NICENESS: Final = 19
"""Niceness of the thread that carries out a round. Linux's policy `SCHED_IDLE` is not used, because the kernel places
threads that wake up on the processor of such a thread, and they then wait for milliseconds.
"""
MEMORY_BYTES_MIN: Final = 256 << 20
"""Memory that the process needs for libraries, windows and output, in addition to twice the size of the map, of which
two copies exist while the map grows. With the default size of the map, the memory limit of the process is 512 MiB.
"""
PART_BYTES: Final = 256 << 10
"""Number of bytes that a round reads or writes at once. A sync of a producer waits for at most one such operation."""
PAGE_BYTES: Final = 4096
_DISK_PRIORITY: Final = 2 << 13 | 7
"""Lowest priority for operations of the disk, but not the idle class. The scheduler `mq-deadline` may hold an operation
of the idle class back as long as other programs use the disk, and a sync of a producer waits for it if both write the
same block of inodes.
"""
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""Number of the system call `ioprio_set` for each architecture."""
_SET_ATTRIBUTES: Final = {"x86_64": 314, "aarch64": 274}
"""Number of the system call `sched_setattr` for each architecture."""
_ATTRIBUTES: Final = struct.Struct("IIQiIQQQ")
"""Size, policy, flags, niceness, priority, slice, deadline and period of `sched_setattr`."""
SLICE_NS: Final = 100_000_000
"""Time slice of all threads in nanoseconds, the longest that Linux allows. A thread that becomes runnable interrupts a
running thread with a longer slice at once. If the slices are equal, it waits for the end of the slice, which the kernel
checks every four milliseconds, whatever the priorities are. Syncs of producers also wait for threads of the kernel.
"""
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
    """A file that is read in small parts, and written to the disk as it grows.

    The disk carries out a sync of a producer after the operations that are already waiting. The kernel would read
    megabytes ahead. If only the last sync wrote a large file to the disk, syncs of producers would wait for the whole
    file, because the file system commits the changes of all files together.
    """

    __slots__ = ()

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read, and leave the page cache as it was: only pages that were not in memory are dropped after the read."""
        done = 0
        while done < len(buffer):
            part, start = buffer[done : done + PART_BYTES], position + done
            count = self.read_into_cached(part, start) or self._read_from_disk(part, start)
            if not count:
                break
            done += count
        return done

    def _read_from_disk(self, part: memoryview, position: int) -> int:
        count = super().read_into(part, position)
        # The first page may belong to two parts.
        start = position - position % PAGE_BYTES
        _advise(self._use().number, start, position + count - start, os.POSIX_FADV_DONTNEED)
        return count

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write in parts. The transfer of a part to the disk starts after the transfers of all earlier parts.

        The last sync reports errors in the transfers.
        """
        self._change(self._write_parts, buffers, position)

    def sync(self) -> None:
        """Return once bytes and size are on the disk."""
        self._change(super().sync)

    def _change(self, change: Callable[..., None], *arguments: object) -> None:
        storage = self._storage
        assert isinstance(storage, CleaningStorage), "the files of a round belong to its storage"
        storage.change(change, *arguments)

    def _write_parts(self, buffers: Sequence[Buffer], position: int) -> None:
        for part in _parts(buffers):
            super().write(part, position)
            self._write_out(0, position, _WAIT_BEFORE)
            nbytes = sum(map(len, part))
            self._write_out(position, nbytes, _START)
            position += nbytes

    def _write_out(self, position: int, nbytes: int, flags: int) -> None:
        # 0 bytes would stand for the whole file.
        if nbytes:
            start, count = ctypes.c_int64(position), ctypes.c_int64(nbytes)
            _LIBRARY.sync_file_range(self._use().number, start, count, ctypes.c_uint(flags))


class CleaningStorage(PosixStorage):
    """Disk access for a round."""

    file_type = _CleaningFile

    __slots__ = ("_changes",)

    def __init__(self, changes: Executor) -> None:
        """`changes`: executor whose thread makes all changes of the disk."""
        super().__init__()
        self._changes = changes

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file. `create` opens the file for writing, and creates it if it is missing."""
        if create:
            return self.change(super().open, path, create=True)
        return super().open(path, write=write)

    def unlink(self, path: Path) -> None:
        """Remove a file if it exists."""
        self.change(super().unlink, path)

    def change(self, change: Callable[..., T], *arguments: object, **named: object) -> T:
        """Make a change of the disk, and return its result."""
        return self._changes.submit(change, *arguments, **named).result()

    def _open(self, path: Path, flags: int) -> Descriptor:
        descriptor = super()._open(path, flags)
        # The kernel does not read ahead.
        _advise(descriptor.number, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor


def _parts(buffers: Sequence[Buffer]) -> Iterator[list[Buffer]]:
    """Yield the buffers in groups of at most `PART_BYTES`; a larger buffer is divided."""
    part, room = list[Buffer](), PART_BYTES
    for each in buffers:
        buffer, start = memoryview(each), 0
        while start < len(buffer):
            piece = buffer[start : start + room]
            part.append(piece)
            start, room = start + len(piece), room - len(piece)
            if not room:
                yield part
                part, room = [], PART_BYTES
    if part:
        yield part


def _advise(number: int, position: int, nbytes: int, advice: int) -> None:
    """Announce to the kernel how bytes of a file will be used, if the file system allows it."""
    with suppress(OSError):
        os.posix_fadvise(number, position, nbytes, advice)


def carry_out(order: CleaningOrder, answers: BinaryIO, events: BinaryIO) -> None:
    """Carry out one round and write its events."""
    answer = GO
    with (
        ThreadPoolExecutor(1, "changes") as changes,
        ThreadPoolExecutor(1, "round", _step_back_further) as background,
    ):
        # The first call starts the thread, which has the priority of the calling thread.
        changes.submit(int).result()
        steps = clean(order, CleaningStorage(changes))
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
    set_slice(0)
    # A kernel that schedules sessions as groups applies a niceness only within a session.
    with suppress(OSError):
        os.setsid()
        Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")
    _set_disk_priority()
    # The kernel kills this process first if memory runs short.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _step_back_further() -> None:
    """Give this thread the lowest priority of a processor and of the disk, if the system allows it."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, LEAST_NICENESS)
    _set_disk_priority()


def set_slice(pid: int) -> None:
    """Set the time slice of a thread and of the threads that it starts, and take a real-time priority away.

    `pid`: number of the thread, or 0 for this thread. Linux before 6.12 ignores the length.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is not None:
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, pid)
            fields = (_ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, SLICE_NS, 0, 0)
            _LIBRARY.syscall(number, pid, _ATTRIBUTES.pack(*fields), 0)


def _set_disk_priority() -> None:
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        _LIBRARY.syscall(number, *_THIS_THREAD, _DISK_PRIORITY)


if __name__ == "__main__":
    _step_back()
    run(sys.stdin.buffer, sys.stdout.buffer)
