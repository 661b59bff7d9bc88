"""One segment of a partition: a file of batches with its index, readable from any thread.

The last segment of a partition is open from the start and grows (`segment_writer`). The other segments are
opened at their first use, so that the time of a start does not grow with their number, and closed again when
many are in use. `partition_log` uses segments. The module must not know partitions, epochs, or limits of
readers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Final

from fairlead_api.identifiers import Offset
from fairlead_broker.log.errors import LogDamaged, LogError, Shortage, StorageFailed, wrap_os_error
from fairlead_broker.log.segments.batch_walk import BadBatch, find_good_batch, walk_headers
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.damage_search import first_damage, place_behind_damage
from fairlead_broker.log.segments.indexes import (
    OFFSET_INDEX,
    TIME_INDEX,
    SegmentIndex,
    decode_closed_index,
    decode_final_time,
    encode_final_time,
)
from fairlead_broker.log.segments.reading import (
    CACHED_READ_BYTES_MAX,
    LogRead,
    NotWhole,
    ReadPlan,
    WrongBytes,
    new_buffer,
    plan_read,
    whole_batches,
)
from fairlead_broker.log.segments.storage import File, Storage, read_whole

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".producers", ".producers-begin")
"""Suffixes of the index files of a segment, which are removed with it."""


@dataclass(slots=True)
class SegmentBody:
    """State of an open segment in memory."""

    file: File
    index: SegmentIndex
    size: int
    """Bytes of whole batches; the file may be longer for a moment, never shorter."""


class Segment:
    """Batches from a base offset on, in one file."""

    __slots__ = (
        "_cache",
        "_end_lock",
        "_max_time_us",
        "_size",
        "_storage",
        "base_offset",
        "body",
        "folder",
        "growing",
        "next_offset",
        "unsynced_files",
    )

    def __init__(self, storage: Storage, folder: Path, base_offset: Offset, cache: SegmentCache) -> None:
        self._storage = storage
        self._cache = cache
        # Lock that guards `growing` and the files of the next sync. A sync between their changes would find no file to
        # write, or release files that it has not written, and report all of these files as durable.
        self._end_lock = Lock()
        self._size: int | None = None
        self._max_time_us: int | None = None
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = base_offset
        """Base offset of the next segment or, for the last segment, of the next batch."""
        self.growing = False
        """Whether this segment is the last one, which grows and whose index is complete in memory only."""
        self.body: SegmentBody | None = None
        """State in memory, or None while a closed segment is not in use, never None for the last segment."""
        self.unsynced_files: tuple[File, ...] = ()
        """Files of a closed segment that the next sync must write out. The files stay open, because the
        kernel reports an error of their write-back only to open files.
        """

    @property
    def path(self) -> Path:
        """Path of the file of batches."""
        return self.path_of(LOG_SUFFIX)

    @property
    def offset_stop(self) -> Offset | None:
        """Base offset of the next segment, which bounds every batch of this one, or None for the growing segment."""
        return None if self.growing else self.next_offset

    def path_of(self, suffix: str) -> Path:
        """Return the path of one of the segment's files."""
        return self.folder / f"{self.base_offset:020d}{suffix}"

    @property
    def size(self) -> int:
        """Bytes of batches; the first call asks the file system for a segment that is not in use."""
        body = self.body
        if body is not None:
            return body.size
        if self._size is None:
            self._size = self._storage.file_size(self.path)
        return self._size

    def read(self, offset: Offset, bytes_max: int, offset_limit: Offset) -> LogRead | None:
        """Read whole batches from the disk, or None if this segment has no batch in the range.

        Raises `LogDamaged` when bytes at or after the offset are no batches, `StorageFailed` when the disk
        fails to read.
        """
        try:
            return self._read(self.load(), offset, bytes_max, offset_limit)
        except WrongBytes as wrong:
            met = wrong
        if not self.growing:
            # Most likely the index file is wrong; rebuilding the index from the log corrects it.
            self._rebuild_index(self.load())
        place = self._place_behind_damage(offset)
        if place is None:
            raise self._damaged(met, offset) from met
        try:
            return self._read(self.load(), offset, bytes_max, offset_limit, place)
        except WrongBytes as wrong:
            raise self._damaged(wrong, offset) from wrong

    def first_damage(self, offset: Offset) -> DamagedRange | None:
        """Return the first range from an offset on that cannot be read, or None if every batch can.

        The call reads to the end of the segment. Raises `StorageFailed` when the disk fails to read.
        """
        # The offset is read before the size: an append publishes the size first, which then covers the
        # offset.
        stop, next_offset, body = self.offset_stop, self.next_offset, self.load()
        position, expected = body.index.place_at_or_below(offset)
        expected = max(expected, self.base_offset)
        try:
            return first_damage(body.file, body.size, position, expected, offset, next_offset, stop)
        except OSError as error:
            raise self._unreadable(position, error) from error

    def _place_behind_damage(self, offset: Offset) -> tuple[int, int] | None:
        stop, body = self.offset_stop, self.load()
        position, expected = body.index.place_at_or_below(offset)
        expected = max(expected, self.base_offset)
        try:
            return place_behind_damage(body.file, body.size, position, expected, offset, stop)
        except OSError as error:
            raise self._unreadable(position, error) from error

    def _unreadable(self, position: int, error: OSError) -> LogError:
        return wrap_os_error(error, f"{self.path}: cannot read from {position} on")

    def read_cached(self, offset: Offset, bytes_max: int, offset_limit: Offset) -> LogRead | None:
        """Read from memory, at most 1 MiB, without waiting for the disk, or None if memory does not suffice."""
        body = self.body
        if body is None:
            return None
        cap = CACHED_READ_BYTES_MAX
        limit = self._limit(offset_limit)
        plan = plan_read(body.index, body.size, offset, min(bytes_max, cap), limit, self.base_offset, cap)
        if plan is None:
            return None
        buffer = new_buffer(plan.nbytes)
        try:
            count = body.file.read_into_cached(buffer, plan.position)
            found = whole_batches(plan, buffer[:count], body.index) if count else None
        except (NotWhole, WrongBytes, OSError):
            # The read that may wait for the disk finds the fault and reports it.
            return None
        # No batch was found where one is expected: the read that may wait finds the reason.
        return found if found is not None and found.data else None

    def load(self) -> SegmentBody:
        """Return the open segment, after opening it if necessary, and record that it is in use.

        Raises `StorageFailed` when the disk fails to read.
        """
        body = self.body
        if body is None:
            try:
                body = self._open()
            except OSError as error:
                raise self._unreadable(0, error) from error
            body = self._take(body)
        if not self.growing:
            self._cache.use(self, body)
        return body

    def seal(self, unsynced_files: tuple[File, ...]) -> None:
        """Close this segment, which the next sync writes out."""
        with self._end_lock:
            self.unsynced_files = unsynced_files
            self.growing = False
        self._size = self.load().size

    def files_to_sync(self) -> tuple[File, ...]:
        """Return the files that a sync writes out, without a growing segment's index, which can be rebuilt."""
        with self._end_lock:
            body = self.body
            return (body.file,) if self.growing and body is not None else self.unsynced_files

    def forget_files(self, written: Collection[File]) -> None:
        """Release the files of a closed segment, if all of them are written out."""
        with self._end_lock:
            if all(file in written for file in self.unsynced_files):
                self.unsynced_files = ()

    def sync_closed(self) -> None:
        """Write out the unsynced files of a closed segment. Raises `OSError`."""
        for file in self.unsynced_files:
            file.sync()

    def unseal(self, body: SegmentBody) -> None:
        """Make this segment the growing one again."""
        with self._end_lock:
            self.growing = True
            # The cache forgets the segment first: it closes the body of any segment in it, and must never
            # close a growing one.
            self._cache.forget(self)
            self.body = body
            self.unsynced_files = ()
        self._size = self._max_time_us = None

    def successor(self, base_offset: Offset) -> Segment:
        """Return the segment that begins after this one."""
        return Segment(self._storage, self.folder, base_offset, self._cache)

    def find_time(self, timestamp_us: int) -> Offset | None:
        """Return an offset from which a walk reaches the first record of this time or newer, or None."""
        index = self.load().index
        if index.max_time_us < timestamp_us:
            return None
        before = min(index.first_with_time(timestamp_us), len(index)) - 1
        return Offset(index.offsets[before]) if before >= 0 else self.base_offset

    def max_time_us(self) -> int:
        """Return the newest time of a record, for a segment not in use from the end of its time index alone."""
        body = self.body
        if body is not None:
            return body.index.max_time_us
        if self._max_time_us is None:
            found = self._final_time()
            self._max_time_us = self.load().index.max_time_us if found is None else found
        return self._max_time_us

    def write_index(self, body: SegmentBody) -> tuple[File, ...]:
        """Write both index files of a closed segment again, or none on a full disk, since they can be rebuilt."""
        index, count = body.index, len(body.index)
        offsets = OFFSET_INDEX.encode_header() + index.encode_offsets(0, count)
        times = TIME_INDEX.encode_header() + index.encode_times(0, count)
        times += encode_final_time(index.max_time_us, self.next_offset)
        try:
            return self._replace(".index", offsets), self._replace(".timeindex", times)
        except Shortage:
            return ()

    def unlink(self) -> None:
        """Remove the files, batches first: the next start removes an index without batches.

        Running readers keep the file open. No other holder of this object does, so its space is free after them.
        """
        self._cache.forget(self)
        self.body = None
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self._storage.unlink(self.path_of(suffix))

    def unlink_indexes(self) -> None:
        """Remove the index files, which can be rebuilt. Raises `OSError`."""
        for suffix in (".index", ".timeindex"):
            self._storage.unlink(self.path_of(suffix))

    def _read(
        self,
        body: SegmentBody,
        offset: Offset,
        bytes_max: int,
        offset_limit: Offset,
        place: tuple[int, int] | None = None,
    ) -> LogRead | None:
        plan = plan_read(
            body.index, body.size, offset, bytes_max, self._limit(offset_limit), self.base_offset, place=place
        )
        while plan is not None:
            buffer, count = new_buffer(plan.nbytes), 0
            try:
                count = body.file.read_into(buffer, plan.position)
                return whole_batches(plan, buffer[:count], body.index)
            except NotWhole as answer:
                plan = _grow(plan, answer.nbytes, count)
            except OSError as error:
                message = f"{self.path}: cannot read {plan.nbytes} bytes at {plan.position}"
                raise wrap_os_error(error, message) from error
        return None

    def _limit(self, offset_limit: Offset) -> Offset:
        """Return the end of the segment's batches; bytes after this end may belong to another segment."""
        stop = self.offset_stop
        return offset_limit if stop is None else min(offset_limit, stop)

    def _take(self, opened: SegmentBody) -> SegmentBody:
        """Keep the files that a reader opened, unless the segment has another body now, as a growing segment has."""
        with self._end_lock:
            body = self.body
            if body is None:
                body = self.body = opened
            return body

    def _open(self) -> SegmentBody:
        file = self._storage.open(self.path)
        self._size = size = file.size()
        time_file = read_index_file(self._storage, self.path_of(".timeindex"))
        offset_file = read_index_file(self._storage, self.path_of(".index"))
        index = decode_closed_index(offset_file, time_file, size, self.next_offset)
        if index is not None:
            return SegmentBody(file, index, size)
        body = SegmentBody(file, SegmentIndex(), size)
        self._rebuild_index(body)
        return body

    def _rebuild_index(self, body: SegmentBody) -> None:
        try:
            body.index = self._index_from_batches(body)
        except OSError as error:
            raise self._unreadable(0, error) from error
        # The index is in memory, and can be rebuilt.
        with suppress(StorageFailed):
            self.write_index(body)

    def _index_from_batches(self, body: SegmentBody) -> SegmentIndex:
        index, position, expected, interval_bytes = (
            SegmentIndex(),
            0,
            int(self.base_offset),
            INDEX_INTERVAL_BYTES,
        )
        while True:
            try:
                for batch in walk_headers(
                    body.file, position, body.size, expected, self.next_offset, self.offset_stop
                ):
                    header = batch.header
                    index.note(header.base_offset, batch.position, header.max_time_us, interval_bytes)
                    position, expected, interval_bytes = batch.end, header.next_offset, INDEX_INTERVAL_BYTES
                break
            except BadBatch as bad:
                good = find_good_batch(body.file, bad.search_from, body.size, expected, self.offset_stop)
                if good is None:
                    break
                # The batch after damage always gets an entry, since no walk reaches it.
                position, expected, interval_bytes = good.position, good.header.base_offset, 0
        return index

    def _final_time(self) -> int | None:
        entry = memoryview(bytearray(TIME_INDEX.entry_bytes))
        try:
            file = self._storage.open(self.path_of(".timeindex"))
            count = file.read_into(entry, max(file.size() - len(entry), 0))
        except OSError:
            return None
        if count < len(entry):
            return None
        return decode_final_time(TIME_INDEX.encode_header() + entry, self.next_offset)

    def _replace(self, suffix: str, data: bytes) -> File:
        path = self.path_of(suffix)
        try:
            file = self._storage.open(path, create=True)
            file.truncate(len(data))
            file.write([data], 0)
        except OSError as error:
            raise wrap_os_error(error, f"{path}: cannot write {len(data)} bytes") from error
        return file

    def _damaged(self, wrong: WrongBytes, offset: Offset) -> LogDamaged:
        found = self.first_damage(offset)
        first, following = (
            (found.first_offset, found.next_good_offset) if found else (offset, self.next_offset)
        )
        return LogDamaged(self.path, first, following, str(wrong))


def read_index_file(storage: Storage, path: Path) -> bytes | None:
    """Return the bytes of an index file, or None if it is missing or unreadable, so that the index is rebuilt."""
    try:
        return read_whole(storage, path)
    except OSError:
        return None


INDEX_INTERVAL_BYTES: Final = 4096
"""Distance in bytes between entries in a rebuilt index of a closed segment, for any setting of the topic."""


def _grow(plan: ReadPlan, nbytes: int, count: int) -> ReadPlan:
    """Return a plan that reads further. Raises `WrongBytes` if the segment or its file ends before that."""
    if plan.position + nbytes > plan.stop or count < plan.nbytes:
        reason = f"the batch with offset {plan.offset} does not end within the segment"
        raise WrongBytes(plan.position, plan.offset, reason)
    wanted = min(max(nbytes, 2 * plan.nbytes), plan.stop - plan.position)
    return replace(plan, nbytes=wanted)


@dataclass(slots=True)
class SegmentCache:
    """Keeps the most recently used closed segments of a data directory open.

    The cache bounds open files and memory: the index of a full segment of small batches takes 6 MB, and a
    reader that goes through an old topic opens every segment once.
    """

    segments_max: int = 512
    index_bytes_max: int = 64 << 20
    _lock: Lock = field(default_factory=Lock)
    _used: OrderedDict[Segment, int] = field(default_factory=OrderedDict)
    _index_bytes: int = 0

    def use(self, segment: Segment, body: SegmentBody) -> None:
        """Record a use; the least recently used segments are closed if too many are open."""
        with self._lock:
            if segment.growing:
                # The segment has become the last one, which always stays open.
                return
            self._index_bytes += body.index.nbytes - self._used.get(segment, 0)
            self._used[segment] = body.index.nbytes
            self._used.move_to_end(segment)
            while len(self._used) > self.segments_max or self._index_bytes > self.index_bytes_max:
                if len(self._used) == 1:
                    break
                oldest, nbytes = self._used.popitem(last=False)
                self._index_bytes -= nbytes
                # Active readers keep the body; the file is closed when the last of them has finished.
                oldest.body = None

    def forget(self, segment: Segment) -> None:
        """Remove a segment from the cache."""
        with self._lock:
            self._index_bytes -= self._used.pop(segment, 0)
