"""Segments that were dropped from their log and whose files are not yet removed.

`partition_log` owns the list. Readers of a segment may still open its files, so the files are kept for
`file.delete.delay.ms`. The list of dropped segments is not stored: a starting broker removes every segment below the
log start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Final, Protocol

from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.log.errors import Shortage, wrap_os_error
from fairlead_broker.log.segments.segments import Segment

TIME_MIN: Final = TimestampUs(0)
"""Earliest time: a segment due at this time is due immediately."""
TIME_MAX: Final = TimestampUs(2**63 - 1)
"""Latest time: all dropped segments are due at this time."""


class SegmentedLog(Protocol):
    """The part of a log's interface that this module needs."""

    @property
    def segments(self) -> Iterable[Segment]:
        """The log's segments, oldest first."""
        ...

    @property
    def log_start_offset(self) -> Offset:
        """Offset below which records cannot be read."""
        ...


class DroppedSegments:
    """Dropped segments in the order in which the log dropped them. Segments may be added while others are removed."""

    __slots__ = ("_forgotten", "_held", "_lock", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[TimestampUs, Segment]] = deque()
        self._held: deque[tuple[TimestampUs, Segment]] = deque()
        self._forgotten = False
        # The lock is held during a removal, since the segment stays first in the queue until its files are removed.
        self._lock = Lock()

    def add(self, segments: Iterable[Segment], due_us: TimestampUs) -> None:
        """Add segments that were dropped from their log and whose files may be removed at `due_us`."""
        if not self._forgotten:
            self._waiting.extend((due_us, segment) for segment in segments)

    def hold(self, segments: Iterable[Segment], due_us: TimestampUs) -> None:
        """Keep segments that another segment has replaced, for readers that use them until `due_us`."""
        self._held.extend((due_us, segment) for segment in segments)

    def release_due(self, now_us: TimestampUs) -> Offset | None:
        """Release the replaced segments that are due. Returns the end of the last released segment, or None."""
        end = None
        with self._lock:
            while self._held and self._held[0][0] <= now_us:
                end = self._held.popleft()[1].next_offset
        return end

    def remove_due(self, now_us: TimestampUs) -> None:
        """Remove the files of segments that are due. Raises `StorageFailed`.

        Files are removed in log order, so that a crash between two removals leaves no gap.
        """
        with self._lock:
            while self._waiting and self._waiting[0][0] <= now_us:
                segment = self._waiting[0][1]
                try:
                    segment.unlink()
                except OSError as error:
                    raise wrap_os_error(error, f"{segment.path}: cannot remove") from error
                self._waiting.popleft()

    def forget(self) -> None:
        """Leave the removal of all files to the next start, and return when no removal is running.

        After this call, new files may be created with the same names.
        """
        with self._lock:
            self._forgotten = True
            self._waiting.clear()


def make_starts_durable(write_checkpoint: Callable[[], None], logs: Iterable[SegmentedLog]) -> None:
    """Write the checkpoint with the log starts before segments are dropped. Raises the errors of the checkpoint.

    On a full disk, the index files of the dropped segments are removed first, to free the few pages that the
    checkpoint needs.
    """
    try:
        write_checkpoint()
    except Shortage:
        for log in logs:
            _free_indexes(log)
        write_checkpoint()


def _free_indexes(log: SegmentedLog) -> None:
    """Remove the index files of segments wholly below the log start.

    An index can be rebuilt, but a batch cannot. Raises `StorageFailed`.
    """
    for segment in log.segments:
        if segment.growing or segment.next_offset > log.log_start_offset:
            break
        try:
            segment.unlink_indexes()
        except OSError as error:
            raise wrap_os_error(error, f"{segment.path}: cannot remove its indexes") from error
