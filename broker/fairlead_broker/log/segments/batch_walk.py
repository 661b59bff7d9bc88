"""Walk over the batches of a file: check headers only, check all checksums, or search for the next good batch.

`segments` uses these walks to rebuild an index, and `recovery` to determine the intact prefix of a file. The
walks also work for batch formats of later releases, because they need only the fields whose meaning is fixed. The
module must not know about segments, indexes or the consequences of a bad batch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from fairlead_api.batch.header import (
    HEADER_BYTES,
    LENGTH_STOP,
    STAMP_BYTES,
    BatchHeader,
    check_stamp_checksum,
    checksum,
    read_header,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.log.errors import LogError
from fairlead_broker.log.segments.storage import File

HEADER_WINDOW_BYTES: Final = 16 << 10
"""Number of bytes per read when only headers are needed, so that a large batch requires only one small read."""
VERIFY_WINDOW_BYTES: Final = 4 << 20
MAXIMUM: Final = 1 << 63
_ALIGNMENT: Final = 8
_FORMAT_AT: Final = STAMP_BYTES
_ZEROS_AT: Final = 26
_BASE_OFFSET: Final = struct.Struct("<q")
_LENGTH: Final = struct.Struct("<I")
_CONTENT_CHECKSUM: Final = struct.Struct("<I")
NO_EPOCH: Final = -1
"""Lower bound of leader epochs before the first batch."""


class BadBatch(Exception):
    """The bytes at a position are not an intact batch."""

    def __init__(self, position: int, search_from: int, reason: str) -> None:
        super().__init__(f"byte {position}: {reason}")
        self.position = position
        self.search_from = search_from
        """First possible position of the next good batch. If the stamp of the bad batch, and therefore its length, is
        valid, the position is the end of the bad batch: a record in the bad batch may contain a stored batch, which the
        search must not find.
        """


class UnknownFormat(LogError):
    """An intact batch has the format of a later release, which this release cannot read."""


@dataclass(frozen=True, slots=True)
class WalkedBatch:
    """A batch that a walk has found."""

    position: int
    header: BatchHeader

    @property
    def end(self) -> int:
        """Position at which the next batch begins."""
        return self.position + self.header.total_bytes


def walk_headers(
    file: File,
    position: int,
    stop: int,
    expected: int | None,
    next_offset: int | None = None,
    offset_stop: int | None = None,
) -> Iterator[WalkedBatch]:
    """Yield the batches from a position onwards, checking only stamps. Raises `BadBatch` at the first bad batch.

    The first batch must begin at the `expected` offset, unless `expected` is None, and each later batch at the
    end of the previous batch: an intact batch in the wrong place is not part of the log.

    The stamp does not cover the field with a batch's last offset. The field is trusted if it matches the base offset of
    the next batch or, for the last batch, the caller's `next_offset`. If the last offset does not match, the whole
    batch is checked. A batch that begins at `offset_stop` or later counts as bad: the file belongs to another segment.
    """
    window = _Window(file, stop, HEADER_WINDOW_BYTES, offset_stop)
    for batch in _walk(window, position, expected, verify=False):
        if not _ends_as_expected(window, batch, next_offset):
            _verify_content(window, batch.position, batch.header.total_bytes)
        yield batch


def verify_batches(
    file: File,
    position: int,
    stop: int,
    expected: int | None,
    offset_stop: int | None = None,
    epoch_min: int = NO_EPOCH,
) -> Iterator[WalkedBatch]:
    """Yield the batches from a position onwards, checking both checksums. Raises `BadBatch` at the first bad batch.

    Offsets are checked as in `walk_headers`. A batch that begins at `offset_stop` or later is bad: the file belongs to
    another segment. A batch whose leader epoch is below `epoch_min` or below that of the previous batch is also bad.
    The leader epochs of a log never decrease, so a lower epoch means that a lost write left an older batch at this
    position.
    """
    window = _Window(file, stop, VERIFY_WINDOW_BYTES, offset_stop)
    return _walk(window, position, expected, verify=True, epoch=epoch_min)


def find_good_batch(
    file: File,
    position: int,
    stop: int,
    offset_min: int,
    offset_stop: int | None = None,
    epoch_min: int = NO_EPOCH,
) -> WalkedBatch | None:
    """Return the first whole batch with valid checksums at or after a position and below an offset, or None.

    A batch with a leader epoch below `epoch_min` does not count.
    """
    window = _Window(file, stop, VERIFY_WINDOW_BYTES, offset_stop)
    position += -position % _ALIGNMENT
    while position + HEADER_BYTES <= stop:
        view, at = window.at(position, min(VERIFY_WINDOW_BYTES, stop - position))
        if len(view) - at < HEADER_BYTES:
            break
        for candidate in _candidates(view[at:]):
            found = _good_batch(window, position + candidate, offset_min)
            if found is not None and found.header.leader_epoch >= epoch_min:
                return found
        # A candidate batch needs its whole header in the window, so the last bytes of a window are read again with the
        # next window.
        position += max(_ALIGNMENT, (len(view) - at - HEADER_BYTES) // _ALIGNMENT * _ALIGNMENT)
    return None


def first_append_time(file: File, size: int) -> int | None:
    """Return the append time of the first batch of a file, in µs UTC, or None if the file has no batch."""
    try:
        batch = next(walk_headers(file, 0, size, None), None)
    except BadBatch:
        return None
    return batch.header.append_time_us if batch else None


class _Window:
    """A section of a file in memory, which moves forward through the file."""

    __slots__ = ("_file", "_start", "_view", "_window_bytes", "offset_stop", "stop")

    def __init__(self, file: File, stop: int, window_bytes: int, offset_stop: int | None) -> None:
        self._file = file
        self._window_bytes = window_bytes
        self._start = 0
        self._view = memoryview(b"")
        self.stop = stop
        self.offset_stop = MAXIMUM if offset_stop is None else offset_stop

    def at(self, position: int, nbytes: int) -> tuple[memoryview, int]:
        """Return a view that contains this range, up to the file's end, and the position of the range in the view."""
        at = position - self._start
        if at < 0 or at + nbytes > len(self._view):
            wanted = min(max(nbytes, self._window_bytes), self.stop - position)
            self._view = memoryview(bytearray(max(wanted, 0)))
            self._view = self._view[: self._file.read_into(self._view, position)]
            self._start, at = position, 0
        return self._view, at


def _walk(
    window: _Window, position: int, expected: int | None, *, verify: bool, epoch: int = NO_EPOCH
) -> Iterator[WalkedBatch]:
    while position < window.stop:
        batch = _check(window, position, expected or 0, verify=verify)
        if expected is not None and batch.header.base_offset != expected:
            # The batch itself is intact, but in the wrong place. A search from this position finds the batch, which
            # shows how many offsets are missing.
            reason = f"offset {batch.header.base_offset} is stored where offset {expected} belongs"
            raise BadBatch(position, position, reason)
        if batch.header.leader_epoch < epoch:
            reason = f"leader epoch {batch.header.leader_epoch} follows leader epoch {epoch}"
            raise BadBatch(position, batch.end, reason)
        yield batch
        position, expected, epoch = batch.end, batch.header.next_offset, batch.header.leader_epoch


def _check(window: _Window, position: int, offset_min: int, *, verify: bool) -> WalkedBatch:
    view, at = window.at(position, HEADER_BYTES)
    if len(view) - at < HEADER_BYTES:
        raise BadBatch(position, position + _ALIGNMENT, f"{len(view) - at} bytes are not a whole header")
    try:
        check_stamp_checksum(view, at)
    except ProblemError as problem:
        raise BadBatch(position, position + _ALIGNMENT, problem.detail) from problem
    total_bytes = LENGTH_STOP + _LENGTH.unpack_from(view, at + 8)[0]
    base_offset = _BASE_OFFSET.unpack_from(view, at)[0]
    if total_bytes < HEADER_BYTES or total_bytes % _ALIGNMENT or base_offset < offset_min:
        reason = f"{total_bytes} bytes from offset {base_offset} cannot follow offset {offset_min - 1}"
        raise BadBatch(position, position + _ALIGNMENT, reason)
    if base_offset >= window.offset_stop:
        reason = f"offset {base_offset} belongs to a later segment, which starts at {window.offset_stop}"
        raise BadBatch(position, position + total_bytes, reason)
    if position + total_bytes > window.stop:
        reason = f"the batch has {total_bytes} bytes, but only {window.stop - position} are left"
        raise BadBatch(position, position + total_bytes, reason)
    if verify:
        _verify_content(window, position, total_bytes)
    view, at = window.at(position, HEADER_BYTES)
    try:
        return WalkedBatch(position, _read_header(view, at, position, total_bytes))
    except UnknownFormat:
        # The format number may belong to a later release or contain a flipped bit. The checksums distinguish a later
        # format from a flipped bit.
        _verify_content(window, position, total_bytes)
        raise


def _ends_as_expected(window: _Window, batch: WalkedBatch, next_offset: int | None) -> bool:
    if batch.end >= window.stop:
        return next_offset is None or next_offset == batch.header.next_offset
    view, at = window.at(batch.end, HEADER_BYTES)
    return len(view) - at < 8 or _BASE_OFFSET.unpack_from(view, at)[0] == batch.header.next_offset


def _verify_content(window: _Window, position: int, total_bytes: int) -> None:
    view, at = window.at(position, total_bytes)
    if len(view) - at < total_bytes:
        # The file was truncated after its size was read.
        reason = f"the batch has {total_bytes} bytes, but only {len(view) - at} can be read"
        raise BadBatch(position, position + total_bytes, reason)
    _check_content(view, at, position, total_bytes)


def _check_content(view: memoryview, at: int, position: int, total_bytes: int) -> None:
    stored = _CONTENT_CHECKSUM.unpack_from(view, at + STAMP_BYTES - 4)[0]
    computed = checksum(view, at + STAMP_BYTES, at + total_bytes)
    if stored != computed:
        reason = f"the checksum of the content is {computed:#010x}, but the batch states {stored:#010x}"
        raise BadBatch(position, position + total_bytes, reason)


def _read_header(view: memoryview, at: int, position: int, total_bytes: int) -> BatchHeader:
    try:
        return read_header(view, at)
    except ProblemError as problem:
        if problem.code == "unsupported_version" and view[at + _FORMAT_AT] != 0:
            message = f"byte {position}: {problem.detail}; start a release that supports it"
            raise UnknownFormat(message) from problem
        raise BadBatch(position, position + total_bytes, problem.detail) from problem


def _candidates(view: memoryview) -> list[int]:
    """Return aligned positions that may be the start of a header.

    A header has two zero bytes before the stamp checksum, and a format number other than zero.
    """
    count = (len(view) - HEADER_BYTES) // _ALIGNMENT + 1
    if count <= 0:
        return []
    data = np.frombuffer(view, np.uint8)
    start = np.arange(count) * _ALIGNMENT
    likely = (
        (data[start + _FORMAT_AT] != 0) & (data[start + _ZEROS_AT] == 0) & (data[start + _ZEROS_AT + 1] == 0)
    )
    return [int(position) for position in start[likely]]


def _good_batch(window: _Window, position: int, offset_min: int) -> WalkedBatch | None:
    try:
        return _check(window, position, offset_min, verify=True)
    except BadBatch:
        return None
