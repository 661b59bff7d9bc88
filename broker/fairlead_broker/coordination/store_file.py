"""Lock on an embedded store's file, and the errors raised if the file cannot be opened.

`embedded_history` uses this module. Only one process at a time can open a store. The process locks a file next to
the store. The lock file names the process.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from fairlead_broker.coordination.protocol import CoordinationError


class StoreRefused(CoordinationError):
    """An embedded store cannot be opened. The error message states the reason and what to do next."""


class StoreHeld(StoreRefused):
    """The store is open in another process, or in another client of this process."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(
            f"{path} is in use by {holder}; stop that broker first, or give this broker its own data directory"
        )
        self.holder = holder


class StoreDamaged(StoreRefused):
    """The content of the file is damaged."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}. Nothing was changed. Put back a copy of {path.name} (and of "
            f"{path.name}-wal, if there is one) made while the broker was stopped; without a "
            "copy, move the file away: the records of this data directory then stay on disk, but no broker serves "
            "them, because its identity names a cluster that is lost with the file"
        )


class StoreTooNew(StoreRefused):
    """The file was written by a later release."""

    def __init__(self, path: Path, version: int, readable: int) -> None:
        super().__init__(
            f"{path} has format {version}, this release reads up to {readable}; start the newer release again"
        )


class StoreInaccessible(StoreRefused):
    """The operating system refuses to open the file."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be opened: {error.strerror}; check the data directory and its owner")


class StoreLock:
    """Exclusive lock on a store, which is held until `release` or the end of the process."""

    def __init__(self, store: Path) -> None:
        """Acquire the lock. Raises `StoreHeld`, which names the holder, or `StoreInaccessible`."""
        try:
            self._file = os.open(
                store.with_name(f"{store.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise StoreInaccessible(store, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._file, 256, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise StoreHeld(store, holder or "a process that has not written its name yet") from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Release the lock of the store.

        The lock file is not removed, since another process could otherwise lock the removed file.
        """
        os.ftruncate(self._file, 0)
        os.close(self._file)
