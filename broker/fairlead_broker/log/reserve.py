"""A file that reserves disk space, so that a broker can start and stop on a full disk.

A starting broker writes to its directory: the coordination store, the identity and the recovered logs. The file
is deleted at the beginning of startup and of shutdown, and created again once the broker runs. If the disk has no
space for the file, appends are refused, since they would use the space that the next start needs. `directory`
owns the file.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from fairlead_broker.log.errors import NO_SPACE, DiskFull, wrap_os_error
from fairlead_broker.log.segments.storage import Storage

RESERVE_BYTES: Final = 4 << 20


class SpaceReserve:
    """The reserve of one data directory. Appends are not refused before the first call of `take`."""

    __slots__ = ("_lock", "_path", "_storage", "held", "missing")

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._lock = Lock()
        self.held = False
        """Whether the file exists at its full size."""
        self.missing = False
        """Whether the disk was too full for a reserve that `take` has requested."""

    def release(self) -> None:
        """Delete the reserve file, and stop refusing appends. Raises `StorageFailed`."""
        with self._lock:
            self.missing = self.held = False
            try:
                self._storage.unlink(self._path)
            except OSError as error:
                raise wrap_os_error(error, f"{self._path}: cannot remove") from error

    def take(self) -> bool:
        """Reserve the space and keep it reserved. Returns False if the disk is too full. Raises `StorageFailed`."""
        with self._lock:
            return self._take()

    def check(self) -> None:
        """Raise `DiskFull` if the space should be reserved but the disk is too full."""
        with self._lock:
            # The lock keeps `release` from running between the check of `missing` and the reservation: otherwise, the
            # reserve file could be created again while the broker stops.
            lacking = self.missing and not self._take()
        if lacking:
            message = (
                f"{self._path}: no space for the reserve of {RESERVE_BYTES} bytes that the next start needs"
            )
            raise DiskFull(message)

    def _take(self) -> bool:
        if not self.held:
            self.held = self._allocate()
            self.missing = not self.held
        return self.held

    def _allocate(self) -> bool:
        try:
            self._storage.allocate(self._path, RESERVE_BYTES)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise wrap_os_error(error, f"{self._path}: cannot reserve space") from error
            self._storage.unlink(self._path)
            return False
        return True
