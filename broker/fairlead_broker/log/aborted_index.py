"""Aborted transactions of one log: the index in memory, the files of closed segments, and reads that omit them.

`producer_snapshots` adds the transactions of the last segment while it replays batches, and saves them in its
snapshots. A closed segment has a file `<base offset>.aborted`, which is written before the segment is closed and is
synced with the segment. A closed segment without such a file has no aborted transactions. The files are read only when
committed records are first read, since most partitions have no reader of committed records. If an entry of a file is
invalid, the file is written again from the markers in the segment. Layout: docs/reference/files.md.

Readers of committed records receive whole batches; the batches of aborted transactions are left out (rule 7.4.1). The
bytes of the remaining batches are not copied. If no transaction was aborted, a read costs only one search in the index.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np

from fairlead_api.batch.control_batches import Marker, read_marker
from fairlead_api.batch.header import HEADER_BYTES, LENGTH_STOP, Attribute
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId
from fairlead_api.problems import ProblemError
from fairlead_broker.log.errors import Shortage, wrap_os_error
from fairlead_broker.log.segments.batch_walk import BadBatch, WalkedBatch, find_good_batch, walk_headers
from fairlead_broker.log.segments.entry_file import EntryKind, EntryLayout
from fairlead_broker.log.segments.segments import ABORTED_SUFFIX, Segment
from fairlead_broker.log.segments.storage import File, Storage, read_whole
from fairlead_broker.producers import AbortedTransaction, aborted_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

ABORTED_LAYOUT: Final = EntryLayout(EntryKind.ABORTED, "qqqI")
"""Producer id, first offset, marker offset and epoch."""
_COLUMNS: Final = 4
_FIRST, _MARKER = 1, 2
_CAPACITY_MIN: Final = 16
_FIELDS: Final = struct.Struct("<qI26xH24xq")
"""Base offset, length, attributes and producer id of a header."""
_TRANSACTIONAL: Final = int(Attribute.TRANSACTIONAL)
_KINDS: Final = int(Attribute.TRANSACTIONAL | Attribute.CONTROL)


class AbortedIndex:
    """Aborted transactions by marker offset. One thread changes the index, and any number of threads read it."""

    __slots__ = ("_last_base", "_loaded", "_loading", "_storage", "_view")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._loading = Lock()
        self._view: tuple[NDArray[np.int64], int] = (np.empty((0, _COLUMNS), np.int64), 0)
        """Rows in ascending order of markers, and the number of valid rows. Readers fetch the rows and their number in
        one step.
        """
        self._last_base = Offset(0)
        self._loaded = True
        """Whether the transactions of closed segments are in memory."""

    def __len__(self) -> int:
        """Return the number of transactions in memory."""
        return self._view[1]

    # -- reading

    def all(self) -> list[AbortedTransaction]:
        """Return all transactions, which must be loaded."""
        assert self._loaded, "the files of closed segments are not loaded"
        rows, count = self._view
        return _transactions(rows[:count])

    def between(self, start: Offset, stop: Offset) -> list[AbortedTransaction] | None:
        """Return the transactions that may have batches at or after `start` and below `stop`.

        Returns None if the files of closed segments must be loaded first.
        """
        if not self._loaded:
            return None
        rows, count = self._view
        if not count:
            return []
        at = int(np.searchsorted(rows[:count, _MARKER], start, "right"))
        later = rows[at:count]
        return _transactions(later[later[:, _FIRST] < stop]) if at < count else []

    def load(self, segments: Callable[[], Sequence[Segment]]) -> None:
        """Read the files of the closed segments, unless they are loaded. The call may wait for the disk.

        `segments` returns the current segments of the log. Raises `StorageFailed`.
        """
        with self._loading:
            if self._loaded:
                return
            found: list[AbortedTransaction] = []
            for segment in segments():
                if segment.base_offset < self._last_base:
                    found += self._of_closed(segment)
            self._view = _joined(_rows(found), self.of_last())
            self._loaded = True

    def of_last(self) -> list[AbortedTransaction]:
        """Return the transactions whose markers are in the last segment."""
        rows, count = self._view
        return _transactions(rows[int(np.searchsorted(rows[:count, _MARKER], self._last_base)) : count])

    # -- changing

    def restart(self, last_base: Offset, aborted: Iterable[AbortedTransaction], *, has_closed: bool) -> None:
        """Drop all transactions, and restart with transactions of the last segment, which begins at `last_base`."""
        with self._loading:
            self._last_base = last_base
            self._view = _joined(_rows(()), [each for each in aborted if each.marker_offset >= last_base])
            self._loaded = not has_closed

    def add(self, aborted: AbortedTransaction) -> None:
        """Add a transaction whose marker is the last marker of the log."""
        with self._loading:
            rows, count = self._view
            if count == len(rows):
                rows = np.concatenate((rows, np.empty((max(count, _CAPACITY_MIN), _COLUMNS), np.int64)))
            rows[count] = (aborted.producer_id, aborted.first_offset, aborted.marker_offset, aborted.epoch)
            self._view = rows, count + 1

    def rolled(self, last_base: Offset, log_start: Offset) -> None:
        """Apply the start of a new last segment, and drop transactions below the log start."""
        with self._loading:
            self._last_base = last_base
            rows, count = self._view
            at = int(np.searchsorted(rows[:count, _MARKER], log_start)) if self._loaded else 0
            self._view = (rows[at:].copy(), count - at) if at else (rows, count)
            if not self._loaded:
                # The transactions of the closed segment are read together with the transactions of earlier segments.
                kept = [each for each in self.of_last() if each.marker_offset >= last_base]
                self._view = _joined(_rows(()), kept)

    def drop_below(self, offset: Offset) -> None:
        """Drop the transactions whose markers are below an offset, since their batches have been deleted."""
        with self._loading:
            rows, count = self._view
            at = int(np.searchsorted(rows[:count, _MARKER], offset)) if self._loaded else 0
            if at:
                self._view = rows[at:].copy(), count - at

    # -- files

    def write(self, segment: Segment, aborted: Sequence[AbortedTransaction]) -> tuple[File, ...]:
        """Write the file of a segment that is being closed, and return the files to sync.

        A segment without transactions gets no file, and a file from an earlier closing of the segment is removed.
        Raises `Shortage` or `StorageFailed`.
        """
        path = segment.path_of(ABORTED_SUFFIX)
        try:
            if not aborted:
                if self._storage.exists(path):
                    self._storage.unlink(path)
                return ()
            data = ABORTED_LAYOUT.encode_header() + ABORTED_LAYOUT.encode(
                (each.producer_id, each.first_offset, each.marker_offset, each.epoch) for each in aborted
            )
            file = self._storage.open(path, create=True)
            file.truncate(len(data))
            file.write([data], 0)
        except OSError as error:
            raise wrap_os_error(error, f"{path}: cannot write {len(aborted)} entries") from error
        return (file,)

    def rewrite(self, segment: Segment, file: File, size: int) -> tuple[File, ...]:
        """Write the file of a closed segment from its markers. Raises `OSError`, and the errors of `write`."""
        return self.write(segment, list(_aborted_in(segment, file, size)))

    def _of_closed(self, segment: Segment) -> list[AbortedTransaction]:
        path = segment.path_of(ABORTED_SUFFIX)
        try:
            if not self._storage.exists(path):
                return []
            data = read_whole(self._storage, path)
            found = ABORTED_LAYOUT.decode(data)
            if found is not None and data is not None and len(data) == ABORTED_LAYOUT.position_of(len(found)):
                return [
                    AbortedTransaction(
                        ProducerId(int(row["f0"])),
                        Offset(int(row["f1"])),
                        Offset(int(row["f2"])),
                        ProducerEpoch(int(row["f3"])),
                    )
                    for row in found
                ]
            body = segment.load()
            aborted = list(_aborted_in(segment, body.file, body.size))
        except OSError as error:
            raise wrap_os_error(error, f"{path}: cannot read") from error
        # Without a file of aborted transactions, the next start reads the markers again.
        with suppress(Shortage):
            self.write(segment, aborted)
        return aborted


def first_offset(data: memoryview) -> int:
    """Return the base offset of the first batch."""
    base: int = _FIELDS.unpack_from(data)[0]
    return base


def without_aborted(data: memoryview, aborted: Sequence[AbortedTransaction]) -> list[memoryview]:
    """Return the batches that do not belong to aborted transactions. Adjacent batches share one view."""
    by_producer: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        by_producer.setdefault(each.producer_id, []).append((each.first_offset, each.marker_offset))
    kept: list[memoryview] = []
    start = at = 0
    while at < len(data):
        base, length, attributes, producer_id = _FIELDS.unpack_from(data, at)
        stop = at + LENGTH_STOP + length
        if attributes & _KINDS == _TRANSACTIONAL and any(
            first <= base < marker for first, marker in by_producer.get(producer_id, ())
        ):
            if start < at:
                kept.append(data[start:at])
            start = stop
        at = stop
    if start < at:
        kept.append(data[start:at])
    return kept


def marker_in(file: File, batch: WalkedBatch) -> Marker | None:
    """Return the marker in a control batch of a file, or None if the batch has no marker. Raises `OSError`."""
    header = batch.header
    extension = bytearray(header.extension_bytes)
    file.read_into(memoryview(extension), batch.position + HEADER_BYTES)
    # The walk over the headers verified only the stamp. A damaged extension is ignored here, and reported when the
    # batch is read.
    with suppress(ProblemError):
        return read_marker(bytes(extension), header.producer_id, header.producer_epoch)
    return None


def _aborted_in(segment: Segment, file: File, size: int) -> Iterator[AbortedTransaction]:
    """Yield the transactions that the markers of a segment abort, including markers after damaged bytes."""
    position, offset = 0, int(segment.base_offset)
    while position < size:
        try:
            for batch in walk_headers(file, position, size, offset, segment.next_offset):
                position, offset = batch.end, batch.header.next_offset
                marker = marker_in(file, batch) if batch.header.is_control else None
                aborted = None if marker is None else aborted_by(marker, Offset(batch.header.base_offset))
                if aborted is not None:
                    yield aborted
        except BadBatch as bad:
            good = find_good_batch(file, bad.search_from, size, offset)
            if good is None:
                return
            position, offset = good.position, good.header.base_offset


def _rows(aborted: Iterable[AbortedTransaction]) -> NDArray[np.int64]:
    return np.array(list(aborted), np.int64).reshape(-1, _COLUMNS)


def _joined(rows: NDArray[np.int64], later: Sequence[AbortedTransaction]) -> tuple[NDArray[np.int64], int]:
    joined = np.concatenate((rows, _rows(later)))
    return joined, len(joined)


def _transactions(rows: NDArray[np.int64]) -> list[AbortedTransaction]:
    return [
        AbortedTransaction(ProducerId(producer), Offset(first), Offset(marker), ProducerEpoch(epoch))
        for producer, first, marker, epoch in rows.tolist()
    ]
