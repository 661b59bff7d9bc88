"""Determine the state of a partition's log after a stop: the end of the log, and the truncated and damaged ranges.

`opening` calls this module. Every batch below the recovery point was synced and is trusted. Every batch after the
recovery point is read, and both of its checksums are verified. Cases:

  no good batch after damage               a torn tail: cut, and reported
  good batch after damage, `replicated`    unsynced bytes, not guaranteed by one replica: cut there, and reported
  good batch after damage, `synced`        damage: nothing is dropped, the range is reported and not served
  bad or missing below the synced offset   damage of synced bytes; offsets are never assigned again

The recovery point is the synced offset of the last checkpoint. The synced offset that the last sync stored may be above
the recovery point.

After an orderly stop the recovery point is the end of the log, and only the batch headers after the last index entry
are read. The module must not know about other replicas, from which damaged ranges are fetched again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead_api.configuration import Durability, TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.log.aborted_index import AbortedIndex
from fairlead_broker.log.segments.batch_walk import (
    NO_EPOCH,
    BadBatch,
    WalkedBatch,
    find_good_batch,
    first_append_time,
    verify_batches,
    walk_headers,
)
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.indexes import OFFSET_INDEX, SegmentIndex, decode_index
from fairlead_broker.log.segments.segment_writer import SegmentWriter, open_empty_writer
from fairlead_broker.log.segments.segments import Segment, SegmentBody, read_index_file
from fairlead_broker.log.segments.storage import File, Storage

_AT_ONCE: Final = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """Bytes that were removed from the end of a log."""

    file: Path
    position: int
    nbytes: int
    first_offset: Offset
    reason: str


@dataclass(slots=True)
class RecoveryReport:
    """Findings of the recovery of one partition."""

    scanned_bytes: int = 0
    """Bytes whose checksums were verified; 0 after an orderly stop."""
    cuts: list[Cut] = field(default_factory=list)
    damaged: list[DamagedRange] = field(default_factory=list)
    """Newly found damaged ranges. Damaged ranges that were already known are in the checkpoint."""
    rebuilt_indexes: list[Path] = field(default_factory=list)
    dropped_good: bool = False
    """Whether intact records after a bad batch were cut off, although the leader may have counted them for this
    replica.
    """


@dataclass(slots=True)
class _Tail:
    """Progress of the walk through one segment."""

    file: File
    size: int
    position: int
    next_offset: int
    index: SegmentIndex
    flushed: int
    """Number of trusted entries in the index file."""
    stale: bool
    """Whether the index files contain entries that are not trusted."""
    interval_bytes: int
    forced: bool = False
    """Whether the next batch follows damage and therefore always gets an index entry."""
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of the last batch read, or None before the first batch."""
    epoch_min: int = NO_EPOCH
    """Leader epoch of the last batch read in this or an earlier segment. The leader epochs of a log never decrease."""
    may_have_markers: bool = False
    """Whether the segment has a control batch, or batches that were not read."""

    def take(self, batch: WalkedBatch) -> None:
        """Add a batch to the progress of the walk."""
        header = batch.header
        interval_bytes = _AT_ONCE if self.forced else self.interval_bytes
        self.index.note(header.base_offset, batch.position, header.max_time_us, interval_bytes)
        self.forced = False
        self.last_epoch = LeaderEpoch(header.leader_epoch)
        self.epoch_min = header.leader_epoch
        self.position, self.next_offset = batch.end, header.next_offset
        self.may_have_markers |= header.is_control


class Recovery:
    """One pass over the segments of a partition, starting at the recovery point."""

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        config: TopicConfig,
        segments: Sequence[Segment],
        recovery_point: Offset,
        synced: Offset,
        names: Container[str],
    ) -> None:
        """`synced`: offset below which every record was synced, at or above the recovery point.

        `names`: names of the files in the folder. A listing costs less than an attempt to open each missing file.
        """
        self._storage = storage
        self._folder = folder
        self._config = config
        self._point = recovery_point
        self._synced = synced
        self._names = names
        self.segments = list(segments)
        """Segments in ascending order, without the segments after a cut."""
        self.report = RecoveryReport()
        self.last_epoch: LeaderEpoch | None = None
        """Leader epoch of the last batch, or None if the last segment is empty."""

    def run(self) -> SegmentWriter:
        """Walk through the log and return the writer of its last segment. Raises `OSError` or `UnknownFormat`."""
        first = max(self._index_of(self._point), 0)
        tail = self._open_tail(first)
        number = first
        while True:
            if not self._walk(number, tail):
                return self._writer(tail)
            if number + 1 == len(self.segments):
                break
            following = self.segments[number + 1]
            if following.base_offset > tail.next_offset and not self._gap(
                number, tail, following.base_offset
            ):
                return self._writer(tail)
            self._close_tail(self.segments[number], tail)
            number += 1
            epoch_min = tail.epoch_min
            tail = self._open_tail(number, offset_min=max(tail.next_offset, following.base_offset))
            tail.epoch_min = epoch_min
        if tail.next_offset < self._synced:
            return self._begin_behind(tail)
        return self._writer(tail)

    def _index_of(self, offset: int) -> int:
        below = [index for index, segment in enumerate(self.segments) if segment.base_offset <= offset]
        return below[-1] if below else -1

    def _open_tail(self, number: int, offset_min: int | None = None) -> _Tail:
        segment = self.segments[number]
        file = self._storage.open(segment.path, write=True)
        size = file.size()
        interval_bytes = self._config.index_interval_bytes
        start = int(segment.base_offset) if offset_min is None else offset_min
        if offset_min is not None:
            # If a segment lies wholly past the recovery point, none of its index entries is trusted.
            return _Tail(file, size, 0, start, SegmentIndex(), 0, self._has_index(segment), interval_bytes)
        offset_file = self._read(segment, ".index")
        time_file = self._read(segment, ".timeindex")
        found = decode_index(offset_file, time_file, size)
        if found is None:
            if offset_file is not None:
                self.report.rebuilt_indexes.append(segment.path_of(".index"))
            return _Tail(file, size, 0, start, SegmentIndex(), 0, self._has_index(segment), interval_bytes)
        index, point = found.cut_at_or_below(self._point)
        stale = len(offset_file or b"") != OFFSET_INDEX.position_of(len(index))
        if point is None or not _begins_batch(file, point.position, size, point.offset):
            if point is not None:
                self.report.rebuilt_indexes.append(segment.path_of(".index"))
            return _Tail(file, size, 0, start, SegmentIndex(), 0, stale or point is not None, interval_bytes)
        return _Tail(
            file,
            size,
            point.position,
            point.offset,
            index,
            len(index),
            stale,
            interval_bytes,
            may_have_markers=point.position > 0,
        )

    def _has_index(self, segment: Segment) -> bool:
        return segment.name_of(".index") in self._names or segment.name_of(".timeindex") in self._names

    def _read(self, segment: Segment, suffix: str) -> bytes | None:
        """Return the bytes of an index file, or None if it is missing or unreadable."""
        return (
            read_index_file(self._storage, segment.path_of(suffix))
            if segment.name_of(suffix) in self._names
            else None
        )

    def _walk(self, number: int, tail: _Tail) -> bool:
        """Walk to the end of a segment. Returns False if the log was cut and ends in this segment."""
        while tail.position < tail.size:
            try:
                self._walk_good(number, tail)
            except BadBatch as bad:
                good = find_good_batch(
                    tail.file,
                    bad.search_from,
                    tail.size,
                    tail.next_offset,
                    self._offset_stop(number),
                    tail.epoch_min,
                )
                if good is None:
                    return self._bad_to_the_end(number, tail, str(bad))
                if not self._may_keep(tail):
                    self.report.dropped_good = True
                    self._cut(number, tail, str(bad))
                    return False
                self._damage(tail.next_offset, good.header.base_offset)
                tail.position, tail.next_offset, tail.forced = good.position, good.header.base_offset, True
        return True

    def _walk_good(self, number: int, tail: _Tail) -> None:
        stop = self._offset_stop(number)
        if tail.next_offset < self._point:
            end = self._point if stop is None else stop
            for batch in walk_headers(tail.file, tail.position, tail.size, tail.next_offset, end, stop):
                tail.take(batch)
                if tail.next_offset >= self._point:
                    break
        if tail.next_offset >= self._point:
            for batch in verify_batches(
                tail.file, tail.position, tail.size, tail.next_offset, stop, tail.epoch_min
            ):
                tail.take(batch)
                self.report.scanned_bytes += batch.header.total_bytes

    def _offset_stop(self, number: int) -> Offset | None:
        """Return the base offset of the next segment, or None for the last segment."""
        following = self.segments[number + 1 : number + 2]
        return following[0].base_offset if following else None

    def _may_keep(self, tail: _Tail) -> bool:
        """Return whether batches after a bad batch are kept: below the synced offset, or with `durability=synced`."""
        return tail.next_offset < self._synced or self._config.durability is Durability.SYNCED

    def _bad_to_the_end(self, number: int, tail: _Tail, reason: str) -> bool:
        """Handle a segment whose remaining bytes are bad: cut the log or record damage.

        Returns True if later segments are kept.
        """
        if tail.next_offset < self._synced:
            # No batch below the synced offset is cut: the log continues after the bad bytes in the next segment, or
            # in a new empty segment.
            return True
        if self._may_keep(tail) and self._good_behind(number, tail.next_offset):
            return True
        self._cut(number, tail, reason)
        return False

    def _gap(self, number: int, tail: _Tail, following: Offset) -> bool:
        """Handle missing offsets between two segments: cut the log or record damage.

        Returns False if the log was cut.
        """
        keep = self._may_keep(tail)
        if keep and tail.next_offset >= self._synced:
            keep = self._good_behind(number, tail.next_offset)
        if not keep:
            self.report.dropped_good = self._good_behind(number, tail.next_offset)
            self._cut(number, tail, f"offsets {tail.next_offset} to {following - 1} are missing")
            return False
        self._damage(tail.next_offset, following)
        return True

    def _good_behind(self, number: int, offset_min: int) -> bool:
        for segment in self.segments[number + 1 :]:
            file = self._storage.open(segment.path)
            if find_good_batch(file, 0, file.size(), offset_min) is not None:
                return True
        return False

    def _damage(self, first_offset: int, next_good_offset: int) -> None:
        if first_offset < next_good_offset:
            self.report.damaged.append(DamagedRange(Offset(first_offset), Offset(next_good_offset)))

    def _cut(self, number: int, tail: _Tail, reason: str) -> None:
        """Cut the log in this segment and drop later segments, last segment first, so that a crash leaves no gap."""
        first_offset = Offset(tail.next_offset)
        for segment in reversed(self.segments[number + 1 :]):
            if segment.size:
                self.report.cuts.append(Cut(segment.path, 0, segment.size, segment.base_offset, reason))
            segment.unlink()
        if number + 1 < len(self.segments):
            self._storage.sync_folder(self._folder)
        del self.segments[number + 1 :]
        if tail.size > tail.position:
            path = self.segments[number].path
            self.report.cuts.append(Cut(path, tail.position, tail.size - tail.position, first_offset, reason))
            tail.file.truncate(tail.position)
            tail.file.sync()
            tail.size = tail.position

    def _close_tail(self, segment: Segment, tail: _Tail) -> None:
        """Close a segment that is not the last: complete its index, and sync the segment and its index."""
        assert segment.next_offset >= tail.next_offset, f"{segment.path} reaches into the next segment"
        segment.body = body = SegmentBody(tail.file, tail.index, tail.size)
        # The files are synced immediately, since the number of segments to close is unbounded and each unsynced
        # segment would keep its files open.
        files = (tail.file, *segment.write_index(body))
        aborted = AbortedIndex(self._storage)
        if tail.may_have_markers:
            files += aborted.rewrite(segment, tail.file, tail.size)
        else:
            files += aborted.write(segment, ())
        for file in files:
            file.sync()
        segment.seal(())

    def _writer(self, tail: _Tail) -> SegmentWriter:
        self.last_epoch = tail.last_epoch
        segment = self.segments[-1]
        segment.next_offset = Offset(tail.next_offset)
        body = SegmentBody(tail.file, tail.index, tail.size)
        first_time = first_append_time(tail.file, tail.size)
        writer = SegmentWriter(self._storage, segment, body, self._config, first_time, tail.flushed)
        if tail.stale:
            writer.cut_index_files(tail.flushed)
        return writer

    def _begin_behind(self, tail: _Tail) -> SegmentWriter:
        """Continue the log in a new segment at the synced offset, since synced records below it are missing."""
        segment = self.segments[-1]
        self._damage(tail.next_offset, self._synced)
        if tail.size == 0 and segment.base_offset < self._synced and len(self.segments) > 1:
            segment.unlink()
            self.segments.pop()
        else:
            segment.next_offset = self._synced
            self._close_tail(segment, tail)
        fresh = segment.successor(self._synced)
        self.segments.append(fresh)
        writer = open_empty_writer(self._storage, fresh, self._config)
        self._storage.sync_folder(self._folder)
        return writer


def _begins_batch(file: File, position: int, size: int, offset: int) -> bool:
    """Return whether a batch with this base offset begins at this position in the file."""
    try:
        batch = next(walk_headers(file, position, size, offset), None)
    except BadBatch:
        return False
    return batch is not None and batch.header.base_offset == offset
