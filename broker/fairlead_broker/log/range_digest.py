"""Computes the digest over a range of a log, and checks the batches in the range.

Replicas store the same bytes, stamps included, so a range has the same digest on every replica. `runtime` calls
this module from a disk thread. The module also verifies both checksums of each batch. If two replicas differ, the
checksums identify the damaged replica. The module changes no file. The module must not know about replicas or
callers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from fairlead_api.batch.header import check_checksums, iterate_headers
from fairlead_api.identifiers import Offset
from fairlead_api.problems import ProblemError
from fairlead_broker.log.errors import LogDamaged
from fairlead_broker.log.readable_log import ReadableLog

READ_BYTES: Final = 1 << 20
"""Number of bytes that one read requests."""


@dataclass(frozen=True, slots=True)
class DigestedRange:
    """Digest of the batches in a range of a log."""

    digest: str
    """SHA-256 of the readable bytes, in hexadecimal digits."""
    next_offset: Offset
    """End offset of the last batch."""
    damaged_offset: Offset | None
    """First offset whose batch is missing or fails a checksum, or None if every batch is intact."""


def digest_range(log: ReadableLog, first_offset: Offset, end_offset: Offset, bytes_max: int) -> DigestedRange:
    """Return the digest of the batches below `end_offset`, starting with the batch that contains `first_offset`.

    The digest ends with the batch that reaches `bytes_max`. Damaged batches are skipped, so that the remaining
    batches are verified. The call blocks. Raises `OffsetOutOfRange`, `LogClosed` and `StorageFailed`, like a
    read.
    """
    taken, nbytes = hashlib.sha256(), 0
    offset, damaged = first_offset, None
    while offset < end_offset and nbytes < bytes_max:
        try:
            read = log.read(offset, min(READ_BYTES, bytes_max - nbytes), end_offset)
        except LogDamaged as error:
            damaged = error.first_offset if damaged is None else damaged
            offset = min(error.next_good_offset, end_offset)
            continue
        if not read.data:
            break
        if damaged is None:
            damaged = _first_damaged(read.data, offset)
        taken.update(read.data)
        nbytes += len(read.data)
        offset = read.next_offset
    return DigestedRange(taken.hexdigest(), offset, damaged)


def _first_damaged(data: memoryview, offset: Offset) -> Offset | None:
    """Return the first offset at or after `offset` whose batch fails its checksums."""
    good = offset
    try:
        for at, header in iterate_headers(data):
            check_checksums(data, at, header)
            good = Offset(max(good, header.next_offset))
    except ProblemError:
        return good
    return None
