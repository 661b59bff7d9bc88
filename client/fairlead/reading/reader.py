"""Takes batches out of the prefetch buffer, one at a time, and tracks the batch that was handed out last.

The consumer calls this module. The module verifies and opens the fetched batches. The module is synchronous; only the
consumer waits. The module skips paused and revoked partitions, but must not depend on groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from fairlead.errors import FairleadError, error_of
from fairlead.reading.cursors import Cursor, EndOffsets, Fetched, Prefetch
from fairlead.records import ConsumerBatch, Record
from fairlead_api.batch.header import check_checksums, iterate_headers
from fairlead_api.problems import ProblemError

READ_AGAIN: Final = (
    "No record of the batch was handed out. Seek to the same offset and read again: the bytes may have changed "
    "in transit. If the error repeats, the bytes have changed on the broker's disk: to make the broker verify them, "
    "read that offset as JSON; `log_damaged` then names the range, and `fairlead partition digest` names the replica."
)
"""Advice for the reader of a damaged batch, since the catalogue's advice for a wrong checksum addresses the
producer."""


class BatchReader:
    """Reader of the prefetch buffer. `wake` is called when the buffer has room for another fetch."""

    def __init__(self, prefetch: Prefetch, wake: Callable[[], None]) -> None:
        self._prefetch = prefetch
        self._wake = wake
        self._reading: tuple[Fetched, Iterator[ConsumerBatch]] | None = None
        self.hand: Cursor | None = None
        """Cursor of the batch that was handed out last; None once the batch is processed."""
        self.hand_offset = 0
        """Position in the partition of `hand` before the batch was taken."""
        self.hand_epoch: int | None = None
        self.record: Record | None = None
        """Last record taken from the batch, if the program takes records one by one and has not taken all of them."""
        self._hand_life = 0
        self._hand_committed = 0
        """Offset up to which the program itself has committed the batch that was taken last."""

    def next(self, until: EndOffsets | None) -> ConsumerBatch | None:
        """Return the next fetched batch and move the position; None if no batch is buffered.

        Raises the typed error of a damaged batch; its partition continues after a seek.
        """
        self._give_rest_back()
        if until is not self._prefetch.until:
            self._prefetch.until = until
            self._wake()
        while (reading := self._reading or self._open_next()) is not None:
            fetched, batches = reading
            if fetched.is_stale or not self._prefetch.wanted(fetched.cursor):
                self._stop_reading(fetched)
                continue
            try:
                batch = next(batches, None)
            except FairleadError as error:
                self._stop_damaged(fetched, error)
                raise
            if batch is None:
                self._finish_reading(fetched)
                continue
            self._reading = reading
            return self._hand_out(fetched.cursor, batch, until)
        if self._prefetch.make_room():
            self._wake()
        return None

    def finished(self) -> None:
        """Mark the last batch, or the records that were taken from it, as processed."""
        self._give_rest_back()
        self.hand = None

    @property
    def is_at_record(self) -> bool:
        """Whether the next record follows the record taken last; False after a seek or during a pause."""
        return self.record is not None and not (self.hand is not None and self.hand.paused)

    def processed(self, cursor: Cursor) -> tuple[int, int | None]:
        """Return the offset before which all records are processed, and the leader epoch before that offset."""
        if cursor is not self.hand:
            return cursor.position, cursor.position_epoch
        record = self._record_of(cursor)
        offset = max(self._hand_committed, self.hand_offset if record is None else record.offset)
        return offset, self.hand_epoch if offset <= self.hand_offset else cursor.position_epoch

    def committed(self, cursor: Cursor, offset: int) -> None:
        """Record a commit by the program, so that no automatic commit of the current batch decreases that offset."""
        if cursor is self.hand:
            self._hand_committed = offset

    def handed_out(self, cursor: Cursor) -> tuple[int, int | None]:
        """Return the offset after all records handed out, and the leader epoch before that offset."""
        record = self._record_of(cursor) if cursor is self.hand else None
        return cursor.position if record is None else record.offset + 1, cursor.position_epoch

    def unread(self, until: EndOffsets) -> bool:
        """Return whether any assigned partition has not reached its end offset."""
        cursors = self._prefetch.cursors
        return any(place in cursors and cursors[place].position < stop for place, stop in until.items())

    def failure(self) -> FairleadError | None:
        """Return the error of each failed partition once, and again only if no other partition is left to read."""
        failed = [cursor for cursor in self._prefetch.failures() if self._prefetch.wanted(cursor)]
        reported = [cursor for cursor in failed if cursor.error_is_reported]
        new = next((cursor for cursor in failed if not cursor.error_is_reported), None)
        if new is not None and new.error is not None:
            new.error_is_reported = True
            return new.error
        reading = [cursor for cursor in self._prefetch.cursors.values() if self._prefetch.wanted(cursor)]
        if reported and len(reported) == len(reading):
            return reported[0].error
        return None

    def _hand_out(self, cursor: Cursor, batch: ConsumerBatch, until: EndOffsets | None) -> ConsumerBatch:
        self.hand, self.hand_offset, self.hand_epoch = cursor, cursor.position, cursor.position_epoch
        self._hand_committed = 0
        cursor.rest_until = None
        stop = until[cursor.topic_partition] if until is not None else batch.next_offset
        if stop < batch.next_offset:
            batch = batch.before(stop)
            # The rest of the batch is fetched again at the next take.
            self._prefetch.seek(cursor, stop, batch.leader_epoch)
        cursor.position = batch.next_offset
        cursor.position_epoch = batch.leader_epoch
        self._hand_life = cursor.life
        return batch

    def _record_of(self, cursor: Cursor) -> Record | None:
        """Return the last record taken; None if its partition was moved or lost, or another batch was taken."""
        record = self.record
        if record is None or cursor.life != self._hand_life:
            return None
        is_of_hand = (record.topic, record.partition) == (cursor.topic, cursor.partition)
        return record if is_of_hand and self.hand_offset <= record.offset < cursor.position else None

    def _give_rest_back(self) -> None:
        """Move the position back to the first record not taken, if the program stopped inside a batch."""
        cursor = self.hand
        record = None if cursor is None else self._record_of(cursor)
        self.record = None
        if cursor is not None and record is not None and record.offset + 1 < cursor.position:
            end = cursor.position
            self._prefetch.seek(cursor, record.offset + 1, cursor.position_epoch)
            cursor.rest_until = end
            self._wake()

    def _open_next(self) -> tuple[Fetched, Iterator[ConsumerBatch]] | None:
        fetched = self._prefetch.take(self._prefetch.wanted)
        return None if fetched is None else (fetched, batches_in(fetched))

    def _finish_reading(self, fetched: Fetched) -> None:
        """Release an entry that was read completely; the position may move past records that are not handed out."""
        self._reading = None
        fetched.cursor.position = fetched.next_offset
        fetched.cursor.position_epoch = fetched.last_epoch
        self._prefetch.release(fetched)
        self._wake()

    def _stop_reading(self, fetched: Fetched) -> None:
        """Release a partly read entry, after a seek or if its partition is no longer requested."""
        self._reading = None
        self._prefetch.release(fetched)
        if not fetched.is_stale:
            cursor = fetched.cursor
            # The epoch is kept, so that a leader can detect that its log has diverged.
            self._prefetch.seek(cursor, cursor.position, cursor.position_epoch)
        self._wake()

    def _stop_damaged(self, fetched: Fetched, error: FairleadError) -> None:
        """Release a damaged entry; its partition continues only after a seek, so no damage is skipped silently."""
        self._stop_reading(fetched)
        self._prefetch.failed(fetched.cursor, fetched.cursor.life, error)
        fetched.cursor.error_is_reported = True


def batches_in(fetched: Fetched) -> Iterator[ConsumerBatch]:
    """Yield the batches of an entry after verifying their checksums; skip control batches.

    Raises the typed `CrcMismatchError` or `MalformedBatchError`, which names the partition and the offset.
    """
    cursor, data, start = fetched.cursor, fetched.data, fetched.start_offset
    at = 0
    try:
        for at, header in iterate_headers(data):
            # The checksums are verified first, because a flipped bit may make a batch look older than the requested
            # offset, or like a control batch.
            check_checksums(data, at, header)
            if header.next_offset <= start or header.is_control:
                continue
            view = data[at : at + header.total_bytes]
            yield ConsumerBatch(cursor.topic, cursor.partition, view, header, start, header.next_offset)
    except ProblemError as problem:
        raise _damaged(problem, fetched, at) from problem


def _damaged(problem: ProblemError, fetched: Fetched, at: int) -> FairleadError:
    subject = f"read {fetched.cursor} from offset {fetched.start_offset}, byte {at} of {len(fetched.data)}"
    return error_of(problem, subject=subject, advice=READ_AGAIN)
