"""Health of the data directory: the first failed write or sync ends all writes until a restart.

Every component that writes to the directory reports its failures to this module. The broker's readiness depends on the
directory's health.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlead_broker.log import LogError
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.lifecycle.cluster_entry import Entry
from fairlead_broker.telemetry import Log


class DirectoryHealth:
    """Health of a data directory. A failure of the directory lasts until a restart."""

    def __init__(self, entry: Entry, opening: DiskPool, log: Log) -> None:
        self._entry = entry
        self._opening = opening
        self._log = log
        self._error: LogError | None = None
        self._subscribers: list[Callable[[], None]] = []

    @property
    def failure(self) -> LogError | None:
        """Error after which the directory refuses writes; None while the directory accepts writes."""
        return self._error or self._entry.directory.failure

    def subscribe(self, failed: Callable[[], None]) -> None:
        """Call `failed` once, after the first failure."""
        self._subscribers.append(failed)

    def fail(self, error: LogError) -> None:
        """Refuse all further writes to the directory. Errors after the first are ignored."""
        if self._error is not None:
            return
        self._error = error
        # Unsynced records may be lost, so no later incarnation may be elected as if it still had these records.
        self._opening.submit(self._entry.directory.forget_residence)
        self._entry.registration.directory_failed()
        self._log.error("data directory failed; writes are refused until a restart", reason=str(error))
        for failed in self._subscribers:
            failed()
