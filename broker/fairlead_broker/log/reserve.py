"""A file that reserves space, so that a broker starts and stops on a full disk.

A start writes to its directory: the coordination store, the identity, the recovery of logs. The file is deleted at
the begin of a start and of a stop, and written again once the broker runs. While no space is left for the file,
appends are refused: they would use the space that the next start needs. `directory` owns the file.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from fairlead_broker.log.errors import NO_SPACE, DiskFull, wrap_os_error
from fairlead_broker.log.segments.storage import Storage

RESERVE_BYTES: Final = 4 << 20


class SpaceReserve:
    """The reserve of one data directory. A new reserve is not in use: it refuses nothing."""

    __slots__ = ("_lock", "_path", "_storage", "_wanted", "held")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._lock = Lock()
        self._wanted = False
        self.held = False
        """Whether the file exists with its full size."""

    def release(self) -> None:
        """Delete the file, and refuse no append any more. Raises `StorageFailed`."""
        with self._lock:
            self._wanted = self.held = False
            try:
                self._storage.unlink(self._path)
            except OSError as error:
                raise wrap_os_error(error, f"{self._path}: cannot remove") from error

    def take(self) -> bool:
        """Reserve the space from now on; return False while the disk is too full. Raises `StorageFailed`."""
        with self._lock:
            self._wanted = True
            if not self.held:
                self.held = self._allocate()
            return self.held

    def check(self) -> None:
        """Raise `DiskFull` if the space is to be reserved and cannot be."""
        if self._wanted and not self.held and not self.take():
            message = f"{self._path}: no space for the reserve of {RESERVE_BYTES} bytes that a start needs"
            raise DiskFull(message)

    def _allocate(self) -> bool:
        try:
            self._storage.allocate(self._path, RESERVE_BYTES)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise wrap_os_error(error, f"{self._path}: cannot reserve space") from error
            self._storage.unlink(self._path)
            return False
        return True
