"""Append groups of batches to the last segment of a partition, each with one vectored write, and add index entries.

`partition_log` owns the writer and calls it from one thread at a time. Index entries are buffered and written in
groups, but often enough that a broker restarted after a kill walks over few batches. The writer must not know
what an append guarantees or when bytes are synced.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.log.errors import SHORTAGES, StorageFailed, wrap_os_error
from fairlead_broker.log.segments.batch_walk import first_append_time, walk_headers
from fairlead_broker.log.segments.indexes import OFFSET_INDEX, TIME_INDEX, SegmentIndex, encode_final_time
from fairlead_broker.log.segments.segments import INDEX_SUFFIXES, Segment, SegmentBody
from fairlead_broker.log.segments.storage import Buffer, File, Storage

POSITION_MAX: Final = 2**32 - 1
"""Maximum position in a segment file, since an index entry stores the position in four bytes."""
INDEX_FLUSH_BYTES: Final = 1 << 20
INDEX_FLUSH_ENTRIES: Final = 16
"""Minimum bytes of log and minimum number of entries since the last write of the index. The index is written when both
minimums, in bytes and in entries, are reached. A broker restarted after a kill reads only the headers of one MiB of
small batches, or of 16 larger batches. With a minimum in bytes alone, both index files would be opened, truncated and
written for every batch of 1 MiB.
"""
_APPEND_TIME: Final = struct.Struct("<16xq")


class StampedBatch(msgspec.Struct, frozen=True, gc=False):
    """A batch in its stored form: the leader's 36 bytes, and the producer's bytes from byte 36 onwards.

    The buffers for the stamp and for the rest are never joined.
    """

    stamp: bytes
    content: Buffer
    base_offset: Offset
    last_offset: Offset
    max_time_us: int
    """Latest record time that readers see."""
    nbytes: int
    """Size of stamp and content together, in bytes."""

    @property
    def append_time_us(self) -> int:
        """Time at which the leader stamped the batch, µs UTC."""
        return int(_APPEND_TIME.unpack_from(self.stamp)[0])


@dataclass(frozen=True, slots=True)
class WriterMark:
    """Saved state of a writer, which can be restored."""

    size: int
    next_offset: Offset
    index_count: int
    max_time_us: int
    first_append_time_us: int | None


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """End of the batches in a segment that are wholly below an offset."""

    next_offset: Offset
    position: int
    index: SegmentIndex


class SegmentWriter:
    """Writer of a partition's last segment."""

    __slots__ = (
        "_body",
        "_config",
        "_flushed",
        "_flushed_size",
        "_roll_us",
        "_storage",
        "first_append_time_us",
        "segment",
    )

    def __init__(
        self,
        storage: Storage,
        segment: Segment,
        body: SegmentBody,
        config: TopicConfig,
        first_append_time_us: int | None = None,
        flushed: int = 0,
    ) -> None:
        segment.body = body
        segment.growing = True
        self._storage = storage
        self._body = body
        self._config = config
        self._roll_us = config.roll_ms * 1000
        self._flushed = flushed
        self._flushed_size = body.size
        self.segment = segment
        self.first_append_time_us = first_append_time_us
        """Append time of the first batch, from which `segment.ms` is counted, or None for an empty segment."""

    @classmethod
    def reopen(
        cls, storage: Storage, segment: Segment, end: SegmentEnd, config: TopicConfig
    ) -> SegmentWriter:
        """Durably truncate a segment to an end found by `find_end`, and return its writer. Raises `OSError`."""
        file = storage.open(segment.path, write=True)
        shorter = SegmentBody(file, end.index, end.position)
        segment.unseal(shorter)
        segment.next_offset = end.next_offset
        writer = cls(storage, segment, shorter, config, first_append_time(file, end.position))
        # Stale entries after new batches would mislead readers, so the index is truncated first and written
        # again later.
        writer.cut_index_files(0)
        file.truncate(end.position)
        file.sync()
        return writer

    def update_config(self, config: TopicConfig) -> None:
        """Replace the topic configuration, whose limits apply from the next batch onwards."""
        self._config = config
        self._roll_us = config.roll_ms * 1000

    def count_fitting(self, batches: Sequence[StampedBatch], start: int) -> int:
        """Return the number of batches from `start` onwards that fit.

        If no batch fits, the caller rolls the log first. A batch is never split, and a batch larger than a whole
        segment gets its own segment.
        """
        size, config = self._body.size, self._config
        if size and self._is_full(batches[start]):
            return 0
        for index in range(start, len(batches)):
            if size and size + batches[index].nbytes > min(config.segment_bytes, POSITION_MAX):
                return index - start
            size += batches[index].nbytes
        return len(batches) - start

    def is_due(self, now_us: int) -> bool:
        """Return whether the first batch of the segment is older than `segment.ms`.

        If a wrong clock gave the batch an append time in the future, its age is counted from now on.
        """
        first = self.first_append_time_us
        if first is not None and first > now_us:
            first = self.first_append_time_us = now_us
        return first is not None and now_us - first >= self._roll_us

    def append(self, batches: Sequence[StampedBatch]) -> None:
        """Write a group of batches after the last batch.

        Raises `Shortage`, after which no batch is kept, or `StorageFailed`.
        """
        body = self._body
        buffers: list[Buffer] = []
        for batch in batches:
            buffers.append(batch.stamp)
            buffers.append(batch.content)
        try:
            body.file.write(buffers, body.size)
        except OSError as error:
            self._take_back(error, body.size)
        self._note(batches)

    def flush_index(self, *, now: bool = False) -> None:
        """Write buffered index entries to their files if there are enough of them, or if `now` is set.

        A full disk raises no error, since the entries stay buffered and can be rebuilt.
        """
        index, start, size = self._body.index, self._flushed, self._body.size
        count = len(index)
        enough = size - self._flushed_size >= INDEX_FLUSH_BYTES and count - start >= INDEX_FLUSH_ENTRIES
        if count == start or not (now or enough):
            return
        try:
            offset_file, time_file = self._open_index_files()
            offset_file.write([index.encode_offsets(start, count)], OFFSET_INDEX.position_of(start))
            time_file.write([index.encode_times(start, count)], TIME_INDEX.position_of(start))
        except OSError as error:
            self._index_failed(error)
            return
        self._flushed, self._flushed_size = count, size

    def seal(self, others: Iterable[File] = ()) -> None:
        """Close the segment and complete both index files. The next sync of the log makes the files durable.

        `others`: further files of the segment to sync.
        """
        self.flush_index(now=True)
        body, files = self._body, [self._body.file, *others]
        try:
            if self._flushed == len(body.index):
                index_files = self._open_index_files()
                final = encode_final_time(body.index.max_time_us, self.segment.next_offset)
                index_files[1].write([final], TIME_INDEX.position_of(self._flushed))
                files += index_files
        except OSError as error:
            self._index_failed(error)
        self.segment.seal(tuple(files))

    def mark(self) -> WriterMark:
        """Return a mark of the current state for `restore`."""
        index = self._body.index
        return WriterMark(
            self._body.size,
            self.segment.next_offset,
            len(index),
            index.max_time_us,
            self.first_append_time_us,
        )

    def restore(self, mark: WriterMark) -> None:
        """Return to an earlier state and truncate the file, even after `seal`. Raises `StorageFailed`."""
        body, segment = self._body, self.segment
        segment.unseal(body)
        if self._flushed > mark.index_count:
            self.cut_index_files(mark.index_count)
        body.index = body.index.cut(mark.index_count, mark.max_time_us)
        body.size = mark.size
        segment.next_offset = mark.next_offset
        self.first_append_time_us = mark.first_append_time_us
        try:
            body.file.truncate(mark.size)
        except OSError as error:
            message = f"{segment.path}: cannot truncate to {mark.size} bytes: {error.strerror}"
            raise StorageFailed(message) from error

    def cut_index_files(self, count: int) -> None:
        """Durably truncate the index files to a number of entries, since stale entries would mislead readers.

        If the disk is too full to truncate the index files, they are removed, since they can be rebuilt.
        """
        self._flushed = min(self._flushed, count)
        try:
            for file in self._open_index_files():
                file.sync()
        except OSError as error:
            self._index_failed(error)
            self._remove_index_files()

    def _remove_index_files(self) -> None:
        self._flushed = 0
        try:
            for suffix in (".index", ".timeindex"):
                self._storage.unlink(self.segment.path_of(suffix))
            self._storage.sync_folder(self.segment.folder)
        except OSError as error:
            message = f"{self.segment.path_of('.index')}: cannot remove: {error.strerror}"
            raise StorageFailed(message) from error

    def _is_full(self, batch: StampedBatch) -> bool:
        index, config = self._body.index, self._config
        if self.is_due(batch.append_time_us):
            return True
        return index.file_bytes + OFFSET_INDEX.entry_bytes > config.segment_index_bytes and index.is_due(
            self._body.size, config.index_interval_bytes
        )

    def _note(self, batches: Sequence[StampedBatch]) -> None:
        body, position = self._body, self._body.size
        if self.first_append_time_us is None:
            self.first_append_time_us = batches[0].append_time_us
        for batch in batches:
            body.index.note(batch.base_offset, position, batch.max_time_us, self._config.index_interval_bytes)
            position += batch.nbytes
        # The size of the segment is updated last. Readers read the size first, so all bytes and entries below the size
        # are complete.
        body.size = position
        self.segment.next_offset = Offset(batches[-1].last_offset + 1)

    def _take_back(self, error: OSError, size: int) -> None:
        failed = wrap_os_error(error, f"{self.segment.path}: cannot append at {size}")
        if isinstance(failed, StorageFailed):
            raise failed from error
        try:
            self._body.file.truncate(size)
        except OSError as second:
            message = f"{self.segment.path}: cannot undo a partial write at {size}: {second.strerror}"
            raise StorageFailed(message) from second
        raise failed from error

    def _open_index_files(self) -> tuple[File, File]:
        """Return both index files, truncated to the entries that this writer trusts.

        The files are not kept open, since index entries are written rarely and a broker with many partitions has
        few spare descriptors.
        """
        files = []
        for suffix, layout in ((".index", OFFSET_INDEX), (".timeindex", TIME_INDEX)):
            file = self._storage.open(self.segment.path_of(suffix), create=True)
            file.truncate(layout.position_of(self._flushed))
            file.write([layout.encode_header()], 0)
            files.append(file)
        return files[0], files[1]

    def _index_failed(self, error: OSError) -> None:
        if error.errno not in SHORTAGES:
            message = f"{self.segment.path_of('.index')}: cannot write: {error.strerror}"
            raise StorageFailed(message) from error
        # Partially written entries are overwritten later.


def open_empty_writer(storage: Storage, segment: Segment, config: TopicConfig) -> SegmentWriter:
    """Create the file of a new segment. The caller syncs the folder before it counts the segment. Raises `OSError`.

    Index files that an earlier truncation left under the same name are removed first.
    """
    assert not storage.exists(segment.path), f"{segment.path} already exists"
    for suffix in INDEX_SUFFIXES:
        storage.unlink(segment.path_of(suffix))
    file = storage.open(segment.path, create=True)
    return SegmentWriter(storage, segment, SegmentBody(file, SegmentIndex(), 0), config)


def unlink_added(segments: Iterable[Segment]) -> None:
    """Remove the files of segments created by a failed append. Raises `StorageFailed`."""
    for segment in segments:
        try:
            segment.unlink()
        except OSError as error:
            message = f"{segment.path}: cannot remove the segment of a refused append: {error.strerror}"
            raise StorageFailed(message) from error


def find_end(segment: Segment, offset: Offset, interval_bytes: int) -> SegmentEnd:
    """Return the end of the last batch that ends at or below an offset. The function does not change the file.

    Raises `OSError`, and `BadBatch` if there is damage before the returned end.
    """
    body = segment.load()
    index, point = body.index.cut_at_or_below(offset - 1)
    position, end = (point.position, point.offset) if point else (0, segment.base_offset)
    # The walk reads as few batches as possible, since the bytes after the new end may be damaged.
    batches = walk_headers(body.file, position, body.size, end, segment.next_offset)
    while end < offset and (batch := next(batches, None)) is not None:
        if batch.header.next_offset > offset:
            break
        index.note(batch.header.base_offset, batch.position, batch.header.max_time_us, interval_bytes)
        position, end = batch.end, Offset(batch.header.next_offset)
    return SegmentEnd(end, position, index)
