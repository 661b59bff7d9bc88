"""Health of a data directory: whether its content can still be trusted.

All partitions of a directory share one health state: after the first failed write or sync, no partition of the
directory accepts writes, because the content of the disk is unknown. Only a restart of the broker, which reads
the files again, resets the health state.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_broker.log.errors import StorageFailed
from fairlead_broker.log.reserve import SpaceReserve


@dataclass(slots=True)
class DirectoryHealth:
    """First failure of a data directory. As a context manager, it records a `StorageFailed` raised in its block."""

    reserve: SpaceReserve
    """Reserved disk space that a broker needs to start on a full disk."""
    failure: StorageFailed | None = None

    def fail(self, error: StorageFailed) -> StorageFailed:
        """Record a failure and return the first recorded failure."""
        if self.failure is None:
            self.failure = error
        return self.failure

    def check(self) -> None:
        """Raise the first failure as a new error."""
        if self.failure is not None:
            raise StorageFailed(str(self.failure)) from self.failure

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, StorageFailed):
            self.fail(error)
