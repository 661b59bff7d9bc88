"""The synced offset of every partition, which each sync stores before the synced batches may be acknowledged.

`directory` owns the file, `partition_log` raises and lowers the offset of its partition, and `recovery` never mistakes
a bad batch below the offset for a torn tail. The checkpoint alone is too old: after the process was killed, the batches
that were synced since the last checkpoint look like the rest of an interrupted write.

A raised offset is written but not synced, because a second sync would double the cost of each acknowledgement.
Killing the process loses no written bytes. After a power failure, the file may have older offsets, which are also
correct: everything below them is synced. A lowered or removed offset is synced before the batches are removed.
Layout: docs/reference/files.md. The module must not know about segments, batches or recovery.
"""

from __future__ import annotations

import struct
from pathlib import Path
from threading import Lock
from typing import Final
from uuid import UUID

from google_crc32c import extend

from fairlead_api.identifiers import Offset, PartitionIndex, TopicId, TopicIdPartition
from fairlead_broker.log.errors import SHORTAGES, wrap_os_error
from fairlead_broker.log.segments.storage import File, Storage, read_whole, write_atomically

MAGIC: Final = b"FLSY"
VERSION: Final = 1
ENTRY_BYTES: Final = 32
"""Size of an entry, which is also the size of the file's header. No entry crosses the boundary of a sector, so an
interrupted write leaves no partial entry.
"""
_HEAD: Final = struct.Struct("<4sHH20x")
_PARTITION: Final = struct.Struct("<16sI")
_OFFSET: Final = struct.Struct("<q")
_CHECKSUM: Final = struct.Struct("<I")
_OFFSET_AT: Final = _PARTITION.size
_CHECKSUM_AT: Final = ENTRY_BYTES - _CHECKSUM.size
_FREE: Final = bytes(ENTRY_BYTES)


class SyncedOffsets:
    """File with the synced offsets of a data directory, and its entries. Threads may use different entries at once."""

    __slots__ = (
        "_content",
        "_file",
        "_free",
        "_lock",
        "_path",
        "_places",
        "_removed",
        "_storage",
        "_unwritten_start",
        "_unwritten_stop",
    )

    def __init__(self, storage: Storage, path: Path) -> None:
        self._storage = storage
        self._path = path
        self._file: File | None = None
        self._content = bytearray(_header())
        # Range of the content that is not yet written to the file, empty while `stop` is 0.
        self._unwritten_start = self._unwritten_stop = 0
        self._removed = False
        """Whether an entry was removed since the last sync of the file."""
        self._places: dict[TopicIdPartition, int] = {}
        """Position of each partition's entry in the file."""
        self._free: list[int] = []
        """Positions of the entries that no partition uses."""
        self._lock = Lock()

    def open(self) -> bool:
        """Read the file, or create a missing file. Returns False if the header of the file was damaged.

        Entries with a wrong checksum are skipped. Raises `OSError`.
        """
        data = read_whole(self._storage, self._path)
        intact = data is not None and data[:ENTRY_BYTES] == _header()
        if data is not None and intact:
            self._content[:] = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
            self._read_entries()
        else:
            write_atomically(self._storage, self._path, _header())
        self._file = self._storage.open(self._path, write=True)
        return intact or data is None

    def entry(self, key: TopicIdPartition) -> SyncedOffset:
        """Return the entry of a partition, which is added to the file when its offset is raised."""
        head = _PARTITION.pack(UUID(key.topic_id).bytes, key.partition)
        return SyncedOffset(self, key, self._places.get(key), head, extend(0, head))

    def remove(self, key: TopicIdPartition) -> bool:
        """Remove the entry of a partition. `sync_removals` makes the removal durable.

        Returns whether the partition had an entry.
        """
        with self._lock:
            place = self._places.pop(key, None)
            if place is None:
                return False
            self._put(place, _FREE)
            self._free.append(place)
            self._removed = True
        return True

    def sync_removals(self) -> None:
        """Make the removal of entries durable. Raises `Shortage` or `StorageFailed`."""
        if self._removed:
            self.write(durably=True)

    def place_of(self, key: TopicIdPartition) -> int:
        """Return the position of a partition's entry; add the entry if it is missing."""
        with self._lock:
            place = self._places.get(key)
            if place is None:
                if not self._free:
                    self._free.append(len(self._content))
                    self._content += _FREE
                place = self._places[key] = self._free.pop()
            return place

    def put(self, place: int, entry: bytes) -> None:
        """Set an entry. The caller must call `write` before it relies on the entry."""
        with self._lock:
            self._put(place, entry)

    def read(self, place: int) -> Offset:
        """Return the synced offset in an entry."""
        return Offset(_OFFSET.unpack_from(self._content, place + _OFFSET_AT)[0])

    def write(self, *, durably: bool = False) -> None:
        """Write the changed entries, with one call if there are many. Raises `StorageFailed`.

        A full disk raises `Shortage` only if `durably` is set, because a raised offset that is not stored only
        makes the next recovery less precise. After an error, the next call writes the entries again.
        """
        file = self._file
        assert file is not None, f"{self._path} is not open"
        with self._lock:
            try:
                if self._unwritten_stop:
                    start = self._unwritten_start
                    file.write([self._content[start : self._unwritten_stop]], start)
                    self._unwritten_stop = 0
                if durably:
                    file.sync()
                    self._removed = False
            except OSError as error:
                if durably or error.errno not in SHORTAGES:
                    raise wrap_os_error(error, f"{self._path}: cannot write") from error

    def _put(self, place: int, entry: bytes) -> None:
        stop = place + ENTRY_BYTES
        self._content[place:stop] = entry
        if not self._unwritten_stop or place < self._unwritten_start:
            self._unwritten_start = place
        self._unwritten_stop = max(self._unwritten_stop, stop)

    def _read_entries(self) -> None:
        content = self._content
        for place in range(ENTRY_BYTES, len(content), ENTRY_BYTES):
            entry = bytes(content[place : place + ENTRY_BYTES])
            topic, partition = _PARTITION.unpack_from(entry)
            key = TopicIdPartition(TopicId(str(UUID(bytes=topic))), PartitionIndex(partition))
            valid = _CHECKSUM.unpack_from(entry, _CHECKSUM_AT)[0] == extend(0, entry[:_CHECKSUM_AT])
            if entry == _FREE or not valid or key in self._places:
                self._free.append(place)
            else:
                self._places[key] = place


class SyncedOffset:
    """Synced offset of one partition, owned by its log, which never changes the offset from two threads at once.

    The offset must not be changed after the entry of the partition was removed.
    """

    __slots__ = ("_file", "_head", "_head_checksum", "_key", "_place")

    def __init__(
        self, file: SyncedOffsets, key: TopicIdPartition, place: int | None, head: bytes, head_checksum: int
    ) -> None:
        self._file = file
        self._key = key
        self._place = place
        self._head = head
        self._head_checksum = head_checksum

    @property
    def file(self) -> SyncedOffsets:
        """File with the offsets of all partitions."""
        return self._file

    @property
    def offset(self) -> Offset | None:
        """Offset below which every record was synced, or None if no sync has stored an offset."""
        return None if self._place is None else self._file.read(self._place)

    def note(self, offset: Offset) -> None:
        """Raise the offset. The caller writes the file before it publishes the offset."""
        number = _OFFSET.pack(offset)
        checksum = extend(self._head_checksum, number)
        if self._place is None:
            self._place = self._file.place_of(self._key)
        self._file.put(self._place, self._head + number + _CHECKSUM.pack(checksum))

    def lower(self, offset: Offset) -> None:
        """Durably lower the offset, before records at or above it are removed. Raises `Shortage` or `StorageFailed`."""
        stored = self.offset
        if stored is not None and stored > offset:
            self.note(offset)
            self._file.write(durably=True)


def _header() -> bytes:
    head = _HEAD.pack(MAGIC, VERSION, 0)
    return head + _CHECKSUM.pack(extend(0, head))
