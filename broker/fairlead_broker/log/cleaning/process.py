"""The program of the cleaner's child process, which carries out the cleaning rounds that the broker orders.

The broker starts the program with `python -m`. Orders and events are JSON lines: an order on the standard input starts
a round, each event is written to the standard output, and the round continues when the broker answers `go`. Any other
answer ends the round. The program ends when its standard input is closed. It runs with the lowest processor and disk
priority, and with a memory limit. It has no clock and renames no files.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
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
from fairlead_broker.log.segments.storage import PosixFile, PosixStorage

GO: Final = b"go"
NICENESS: Final = 10
MEMORY_BYTES_MIN: Final = 256 << 20
"""Memory of the process in addition to twice the map, which exists in two copies while it grows: libraries, windows and
output. With the default size of the map, the memory limit of the process is 512 MiB.
"""
_IDLE_CLASS: Final = 3 << 13
_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}


class RoundFailed(msgspec.Struct, frozen=True, tag="failed"):
    """A round ended with an error."""

    reason: str
    first_offset: int | None = None
    """Offset below which the damaged segment is intact, or None if a disk operation failed."""
    next_offset: int | None = None
    """End of the damaged segment."""


CleanerEvent = Progress | Mapped | GroupCleaned | RoundDone | RoundFailed


class _CleaningFile(PosixFile):
    """A file whose pages are dropped from the page cache, so that readers can use the memory."""

    __slots__ = ()

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Read, and drop the pages from the page cache."""
        count = super().read_into(buffer, position)
        with suppress(OSError):
            os.posix_fadvise(self._use().number, position, count, os.POSIX_FADV_DONTNEED)
        return count


class _CleaningStorage(PosixStorage):
    """Disk access for a round."""

    file_type = _CleaningFile


def carry_out(order: CleaningOrder, answers: BinaryIO, events: BinaryIO) -> None:
    """Carry out one round and write its events."""
    try:
        for event in clean(order, _CleaningStorage()):
            _write(events, event)
            if isinstance(event, RoundDone) or answers.readline().strip() != GO:
                return
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
        os.nice(NICENESS)
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        ctypes.CDLL(None).syscall(number, 1, 0, _IDLE_CLASS)
    # The kernel kills this process first if memory runs short.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    _step_back()
    run(sys.stdin.buffer, sys.stdout.buffer)
