"""One segment of a partition: a file of batches with its index, readable from any thread.

The last segment of a partition is open from the start and grows (`segment_writer`). All segments but the last are
opened at their first use, so that the startup time does not depend on their number, and closed again when too many are
open. `partition_log` uses segments. The module must not know about partitions, epochs, or the limits of readers. This
code is in one file because a segment's readers, its cache and its replacement share the lock of its open files.
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
from fairlead_broker.log.errors import (
    LogDamaged,
    LogError,
    SegmentReplaced,
    Shortage,
    StorageFailed,
    wrap_os_error,
)
from fairlead_broker.log.segments.batch_walk import NO_EPOCH, BadBatch, find_good_batch, walk_headers
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.damage_search import first_damage, place_behind_damage, position_after_loss
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
ABORTED_SUFFIX: Final = ".aborted"
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".producers", ".producers-begin", ABORTED_SUFFIX)
"""Suffixes of a segment's other files, which are removed together with the segment."""


@dataclass(slots=True)
class SegmentBody:
    """State of an open segment in memory."""

    file: File
    index: SegmentIndex
    size: int
    """Size of the complete batches in bytes. The file is never shorter than its complete batches, but may be longer
    during an append."""


class Segment:
    """Batches in one file, starting at a base offset."""

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
        "replaced",
        "unsynced_files",
    )

    def __init__(self, storage: Storage, folder: Path, base_offset: Offset, cache: SegmentCache) -> None:
        self._storage = storage
        self._cache = cache
        # Lock that guards `growing` and the files of the next sync. Without the lock, a sync that runs between two
        # changes to this state would miss files, or release files that it has not written, and would still report the
        # files as durable.
        self._end_lock = Lock()
        self._size: int | None = None
        self._max_time_us: int | None = None
        self.folder = folder
        self.base_offset = base_offset
        self.next_offset = base_offset
        """Base offset of the next segment or, for the last segment, of the next batch."""
        self.growing = False
        """Whether this segment is the last segment, which grows and whose index is complete only in memory."""
        self.replaced = False
        """Whether another segment has replaced this one. The files then have no name, and stay open for readers."""
        self.body: SegmentBody | None = None
        """State in memory, or None while a closed segment is not in use. The last segment always has a body."""
        self.unsynced_files: tuple[File, ...] = ()
        """Files of a closed segment that the next sync must write out. The files stay open, because the kernel reports
        a write-back error only to open files.
        """

    @property
    def path(self) -> Path:
        """Path of the file that contains the batches."""
        return self.path_of(LOG_SUFFIX)

    @property
    def offset_stop(self) -> Offset | None:
        """Base offset of the next segment, where this segment's batches end, or None for the growing segment."""
        return None if self.growing else self.next_offset

    def path_of(self, suffix: str) -> Path:
        """Return the path of one of the segment's files."""
        return self.folder / self.name_of(suffix)

    def name_of(self, suffix: str) -> str:
        """Return the name of one of the segment's files."""
        return f"{self.base_offset:020d}{suffix}"

    @property
    def size(self) -> int:
        """Size of the batches in bytes. For a segment that is not in use, the first call queries the file system."""
        body = self.body
        if body is not None:
            return body.size
        if self._size is None:
            self._size = self._storage.file_size(self.path)
        return self._size

    def read(self, offset: Offset, bytes_max: int, offset_limit: Offset) -> LogRead | None:
        """Read whole batches from the disk. Returns None if this segment has no batch in the range.

        Raises `LogDamaged` if bytes at or after the offset are not valid batches, and `StorageFailed` if the disk
        cannot be read.
        """
        try:
            return self._read(self.load(), offset, bytes_max, offset_limit)
        except WrongBytes as wrong:
            met = wrong
        if not self.growing:
            # The index file is probably damaged. The index is rebuilt from the batches.
            self._rebuild_index(self.load())
        place = self._place_behind_damage(offset)
        if place is None:
            raise self._damaged(met, offset) from met
        try:
            return self._read(self.load(), offset, bytes_max, offset_limit, place)
        except WrongBytes as wrong:
            raise self._damaged(wrong, offset) from wrong

    def first_damage(self, offset: Offset, epoch_min: int = NO_EPOCH) -> DamagedRange | None:
        """Return the first unreadable range at or after an offset, or None if every batch can be read.

        `epoch_min`: lowest leader epoch of batches with records at or after the offset. The call reads to the end of
        the segment. Raises `StorageFailed` if the disk cannot be read.
        """
        # The offset is read before the size: an append publishes the size first, so the size includes every batch
        # below the offset.
        stop, next_offset, body = self.offset_stop, self.next_offset, self.load()
        position, expected = body.index.place_at_or_below(offset)
        expected = max(expected, self.base_offset)
        try:
            return first_damage(
                body.file, body.size, position, expected, offset, next_offset, stop, epoch_min
            )
        except OSError as error:
            raise self._unreadable(position, error) from error

    def position_after_loss(self, lost: DamagedRange) -> int:
        """Return the position at which the bytes of an accepted loss end.

        Raises `LogDamaged` if no batch ends where the loss begins, and `StorageFailed` if the disk cannot be read.
        """
        body = self.load()
        position, expected = body.index.place_at_or_below(lost.first_offset)
        expected = max(expected, self.base_offset)
        try:
            found = position_after_loss(body.file, body.size, position, expected, lost, self.next_offset)
        except OSError as error:
            raise self._unreadable(position, error) from error
        if found is None:
            reason = "the batches do not match the accepted loss"
            raise LogDamaged(self.path, lost.first_offset, lost.next_good_offset, reason)
        return found

    def _place_behind_damage(self, offset: Offset) -> tuple[int, int] | None:
        stop, body = self.offset_stop, self.load()
        position, expected = body.index.place_at_or_below(offset)
        expected = max(expected, self.base_offset)
        try:
            return place_behind_damage(body.file, body.size, position, expected, offset, stop)
        except OSError as error:
            raise self._unreadable(position, error) from error

    def _unreadable(self, position: int, error: OSError) -> LogError:
        return wrap_os_error(error, f"{self.path}: cannot read from position {position}")

    def read_cached(self, offset: Offset, bytes_max: int, offset_limit: Offset) -> LogRead | None:
        """Read at most 1 MiB from memory, without waiting for the disk. Returns None if not all bytes are in memory."""
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
            # `read`, which may wait for the disk, determines and reports the error.
            return None
        # A batch is expected at the offset, but none was found. `read`, which may wait for the disk, determines the
        # reason.
        return found if found is not None and found.data and not found.ends_at_stale else None

    def load(self) -> SegmentBody:
        """Return the body of the segment, opening the segment if necessary, and record the use.

        Raises `SegmentReplaced` if the segment was not open when another segment replaced it, and `StorageFailed` if
        the disk cannot be read.
        """
        body = self.body
        if body is None:
            try:
                body = self._open()
            except OSError as error:
                if self.replaced:
                    raise self._gone() from error
                raise self._unreadable(0, error) from error
            body = self._take(body)
        if not (self.growing or self.replaced):
            self._cache.use(self, body)
        return body

    def keep_open(self) -> None:
        """Keep an open file open for readers before another segment takes its name.

        A replaced segment that is not open can no longer be opened.
        """
        self._cache.forget(self)
        with self._end_lock:
            self.replaced = True
            body = self.body
        # The cache may have been closing the segment: in that case readers still have its body, and new reads find the
        # new segment.
        if body is not None:
            body.file.keep_open()

    def seal(self, unsynced_files: tuple[File, ...]) -> None:
        """Close this segment. The next sync writes out the segment's files."""
        with self._end_lock:
            self.unsynced_files = unsynced_files
            self.growing = False
        self._size = self.load().size

    def files_to_sync(self) -> tuple[File, ...]:
        """Return the files that the next sync writes out.

        A growing segment's index is not synced, since it can be rebuilt.
        """
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
        """Make this segment the growing segment again."""
        with self._end_lock:
            self.growing = True
            # The segment is removed from the cache first, since the cache may close any of its segments and must
            # never close a growing segment.
            self._cache.forget(self)
            self.body = body
            self.unsynced_files = ()
        self._size = self._max_time_us = None

    def successor(self, base_offset: Offset) -> Segment:
        """Return the next segment, which begins at `base_offset`."""
        return Segment(self._storage, self.folder, base_offset, self._cache)

    def find_time(self, timestamp_us: int) -> Offset | None:
        """Return the start offset of a walk to the first record at or after a time; None if all records are older."""
        index = self.load().index
        if index.max_time_us < timestamp_us:
            return None
        before = min(index.first_with_time(timestamp_us), len(index)) - 1
        return Offset(index.offsets[before]) if before >= 0 else self.base_offset

    def max_time_us(self) -> int:
        """Return the latest record time. For a segment that is not in use, only the end of its time index is read."""
        body = self.body
        if body is not None:
            return body.index.max_time_us
        if self._max_time_us is None:
            found = self._final_time()
            self._max_time_us = self.load().index.max_time_us if found is None else found
        return self._max_time_us

    def write_index(self, body: SegmentBody) -> tuple[File, ...]:
        """Write both index files of a closed segment again.

        On a full disk no file is written, since an index can be rebuilt.
        """
        index, count = body.index, len(body.index)
        offsets = OFFSET_INDEX.encode_header() + index.encode_offsets(0, count)
        times = TIME_INDEX.encode_header() + index.encode_times(0, count)
        times += encode_final_time(index.max_time_us, self.next_offset)
        try:
            return self._replace(".index", offsets), self._replace(".timeindex", times)
        except Shortage:
            return ()

    def unlink(self) -> None:
        """Remove the files, batches first, since the next start removes index files without batches.

        Active readers keep the file open. The disk space is freed when the last reader of the removed files has
        finished.
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
        """Return the offset limit within this segment, since bytes after its end may belong to another segment."""
        stop = self.offset_stop
        return offset_limit if stop is None else min(offset_limit, stop)

    def _take(self, opened: SegmentBody) -> SegmentBody:
        """Keep the files that a reader has opened, unless the segment already has a body."""
        with self._end_lock:
            body = self.body
            if body is None:
                if self.replaced:
                    # The opened file may belong to the other segment.
                    raise self._gone()
                body = self.body = opened
            return body

    def _gone(self) -> SegmentReplaced:
        return SegmentReplaced(f"{self.path} is the file of another segment now")

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
        # The index is in memory, so a failure to write the files is ignored.
        with suppress(StorageFailed):
            self.write_index(body)

    def _index_from_batches(self, body: SegmentBody) -> SegmentIndex:
        index, position, expected, interval_bytes, epoch = (
            SegmentIndex(),
            0,
            int(self.base_offset),
            INDEX_INTERVAL_BYTES,
            NO_EPOCH,
        )
        while True:
            try:
                for batch in walk_headers(
                    body.file, position, body.size, expected, self.next_offset, self.offset_stop
                ):
                    header = batch.header
                    index.note(header.base_offset, batch.position, header.max_time_us, interval_bytes)
                    epoch = header.leader_epoch
                    position, expected, interval_bytes = batch.end, header.next_offset, INDEX_INTERVAL_BYTES
                break
            except BadBatch as bad:
                good = find_good_batch(
                    body.file, bad.search_from, body.size, expected, self.offset_stop, epoch
                )
                if good is None:
                    break
                # The batch after the damage always gets an entry, since a walk from an earlier entry cannot reach it.
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
"""Distance in bytes between entries when a closed segment's index is rebuilt, regardless of the topic's setting."""


def _grow(plan: ReadPlan, nbytes: int, count: int) -> ReadPlan:
    """Return a plan for `nbytes` or more. Raises `WrongBytes` if the segment or its file ends before the range."""
    if plan.position + nbytes > plan.stop or count < plan.nbytes:
        reason = f"the batch with offset {plan.offset} does not end within the segment"
        raise WrongBytes(plan.position, plan.offset, reason)
    wanted = min(max(nbytes, 2 * plan.nbytes), plan.stop - plan.position)
    return replace(plan, nbytes=wanted)


@dataclass(slots=True)
class SegmentCache:
    """Cache that keeps the most recently used closed segments of a data directory open.

    The cache limits open files and memory: the index of a full segment of small batches uses 6 MB, and a reader
    of a whole old topic opens every segment once.
    """

    segments_max: int = 512
    index_bytes_max: int = 64 << 20
    _lock: Lock = field(default_factory=Lock)
    _used: OrderedDict[Segment, int] = field(default_factory=OrderedDict)
    _index_bytes: int = 0

    def use(self, segment: Segment, body: SegmentBody) -> None:
        """Record a use of a segment, and close the least recently used segments if too many are open."""
        with self._lock:
            if segment.growing or segment.replaced:
                # The segment has become the last segment, or has lost its name, and stays open.
                return
            self._index_bytes += body.index.nbytes - self._used.get(segment, 0)
            self._used[segment] = body.index.nbytes
            self._used.move_to_end(segment)
            while len(self._used) > self.segments_max or self._index_bytes > self.index_bytes_max:
                if len(self._used) == 1:
                    break
                oldest, nbytes = self._used.popitem(last=False)
                self._index_bytes -= nbytes
                # Active readers still use the segment's open file. The file is closed when the last reader has
                # finished.
                oldest.body = None

    def forget(self, segment: Segment) -> None:
        """Remove a segment from the cache."""
        with self._lock:
            self._index_bytes -= self._used.pop(segment, 0)
