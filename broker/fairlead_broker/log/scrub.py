"""A walk over one segment that verifies every checksum, about 1 MiB at a time.

In rare cases, bytes on a disk change without having been written. Without a scrub, the damage would be detected only
when a reader reads the damaged batch. The scrub of `runtime` calls this module from a disk thread. The log records the
damage and no longer serves the damaged range. The module must not know when or how fast the walk runs.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.identifiers import Offset
from fairlead_broker.log.errors import LogClosed, StorageFailed
from fairlead_broker.log.readable_log import ReadableLog
from fairlead_broker.log.segments.batch_walk import NO_EPOCH, BadBatch, find_good_batch, verify_batches
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.segments import Segment

STEP_BYTES: Final = 1 << 20
"""Number of bytes checked by one call of `step`, in less than a millisecond unless the disk is slow."""


class SegmentScrub:
    """One pass over the batches that a segment contains at the start of the pass."""

    def __init__(self, log: ReadableLog, segment: Segment) -> None:
        """Start a pass over a segment of the log. Batches that are appended later are checked by the next pass."""
        self._log = log
        self._segment = segment
        self._generation = log.generation
        # The end offset is read before the size: an append publishes the size first, so the size includes every batch
        # below the end offset.
        self._offset_stop = segment.offset_stop
        self._stop = Offset(segment.next_offset)
        body = segment.load()
        self._file, self._size = body.file, body.size
        self._position = 0
        self._expected = int(segment.base_offset)
        self._epoch = NO_EPOCH
        self._found: list[DamagedRange] = []

    def step(self) -> int:
        """Check the next batches and return their size in bytes, or 0 at the end of the segment.

        Raises `StorageFailed` if the disk cannot be read, and `LogClosed` if the log was truncated or closed
        during the pass.
        """
        if self._log.closed or self._log.generation != self._generation:
            message = f"{self._segment.path} was truncated or closed"
            raise LogClosed(message)
        before = self._position
        try:
            self._walk(min(self._size, before + STEP_BYTES))
        except OSError as error:
            message = f"{self._segment.path}: cannot read at {self._position}: {error.strerror}"
            raise StorageFailed(message) from error
        return self._position - before

    def finish(self) -> tuple[DamagedRange, ...]:
        """Record the detected damage in the log and return the new ranges. Nothing is recorded after a truncation."""
        if self._log.generation != self._generation or self._segment not in self._log.segments:
            return ()
        if self._expected < self._stop:
            self._damage(self._stop)
        known = self._log.damaged
        new = tuple(each for each in self._found if not any(each.lies_in(other) for other in known))
        if new:
            self._log.note_damage(new)
        return new

    def _walk(self, stop: int) -> None:
        while self._position < stop:
            try:
                for batch in verify_batches(
                    self._file, self._position, self._size, self._expected, self._offset_stop, self._epoch
                ):
                    belongs = self._log.epoch_before(Offset(batch.header.base_offset + 1))
                    if belongs is not None and batch.header.leader_epoch < belongs.epoch:
                        self._epoch = belongs.epoch
                        raise BadBatch(batch.position, batch.end, "the batch has an earlier leader epoch")
                    self._position, self._expected = batch.end, batch.header.next_offset
                    self._epoch = batch.header.leader_epoch
                    if self._position >= stop:
                        return
            except BadBatch as bad:
                good = find_good_batch(
                    self._file, bad.search_from, self._size, self._expected, self._offset_stop, self._epoch
                )
                if good is None:
                    self._position = self._size
                    return
                self._damage(good.header.base_offset)
                self._position, self._expected = good.position, good.header.base_offset

    def _damage(self, next_good_offset: int) -> None:
        self._found.append(DamagedRange(Offset(self._expected), Offset(next_good_offset)))
