"""Errors of the log, with the caller's next step for each error.

    LogError
      OffsetOutOfRange    fix the offset
      Shortage            a resource ran out; no batch was kept
        DiskFull          wait for space and append again
        TooManyOpenFiles  wait for a descriptor and try again
      LogDamaged          read past the damaged range
      LogCut              read the current end of the log; no batch was kept
      BadCopy             fetch again from the leader; no batch was kept
      StaleLeaderEpoch    report the highest epoch; the controller must elect above it
      LogClosed           the partition was closed, deleted or is being reopened
      StorageFailed       stop acknowledging; only a restart of the broker ends the failure
      IdentityMismatch    this directory belongs to another broker; an operator decides
      DirectoryLocked     another process uses the directory

Every module of this package raises these errors, and `runtime` turns them into problems of the contract. An `OSError`
is never raised to callers: it is chained as the cause of a `LogError`.
"""

from __future__ import annotations

import errno
from pathlib import Path

from fairlead_api.identifiers import LeaderEpoch, Offset

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that report a lack of disk space."""
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers that report a lack of file descriptors, in the process or on the machine."""
SHORTAGES = NO_SPACE | NO_DESCRIPTORS
"""Error numbers that report an exhausted resource."""


class LogError(Exception):
    """Base class of every error that the log raises."""


class OffsetOutOfRange(LogError):
    """The requested offset is below the log start or above the log end."""

    def __init__(self, folder: Path, offset: int, log_start: Offset, end: Offset) -> None:
        super().__init__(
            f"offset {offset} is outside {folder.parent.name}/{folder.name}: {log_start} to {end}"
        )
        self.offset = offset
        self.log_start = log_start
        self.end = end


class Shortage(LogError):
    """The machine ran out of a resource; the partial write was undone, and a later append may succeed."""


class DiskFull(Shortage):
    """No disk space was left."""


class TooManyOpenFiles(Shortage):
    """No file descriptor was free."""


class LogDamaged(LogError):
    """The records in a range of offsets cannot be read. Records outside the damaged range are readable."""

    def __init__(self, file: Path, first_offset: Offset, next_good_offset: Offset, reason: str) -> None:
        super().__init__(f"{file}: offsets {first_offset} to {next_good_offset - 1} are damaged: {reason}")
        self.file = file
        self.first_offset = first_offset
        self.next_good_offset = next_good_offset


class BadCopy(LogError):
    """A batch from another replica is damaged, is out of order, or has an older leader epoch."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"the batch at offset {offset} cannot be copied: {reason}")
        self.offset = offset


class LogCut(LogError):
    """The log no longer ends at the offset that its writer expects."""

    def __init__(self, folder: Path, end: Offset, expected: Offset) -> None:
        super().__init__(f"{folder}: the log ends at {end}, not at the expected offset {expected}")


class StaleLeaderEpoch(LogError):
    """The leader epoch does not exceed the highest epoch of this log."""

    def __init__(self, file: Path, epoch: int, highest: LeaderEpoch) -> None:
        super().__init__(f"{file}: leader epoch {epoch} does not exceed the highest known epoch {highest}")
        self.epoch = epoch
        self.highest = highest


class SegmentReplaced(LogError):
    """Another segment has taken over the file names of this segment. The other segment is in the log's list."""


class LogClosed(LogError):
    """The log was closed or deleted."""


class StorageFailed(LogError):
    """A write or a sync failed. The content of the disk is unknown, so acknowledgements stop.

    A failed sync is never retried: the kernel may have dropped the pages, and a second sync would wrongly
    succeed.
    """


class IdentityMismatch(LogError):
    """The directory belongs to another cluster or broker."""


class DirectoryLocked(LogError):
    """Another process has locked the directory."""


def wrap_os_error(error: OSError, what: str) -> LogError:
    """Return a `Shortage` for an exhausted resource, or a `StorageFailed` for any other error in a file operation."""
    text = f"{what}: {error.strerror or error}"
    if error.errno in NO_SPACE:
        return DiskFull(text)
    return TooManyOpenFiles(text) if error.errno in NO_DESCRIPTORS else StorageFailed(text)
