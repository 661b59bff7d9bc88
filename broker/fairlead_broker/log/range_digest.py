"""The checksum of a range of a log, and whether the batches in it are good.

Replicas store the same bytes, stamps included, so that the same range has the same digest wherever it is whole. Called
by `runtime` from a disk thread. Both checksums of each batch are looked at on the way: where two replicas differ, that
tells which of them is damaged. Changes nothing. Must not know which replica is asked, nor by whom.
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
"""Read at a time."""


@dataclass(frozen=True, slots=True)
class DigestedRange:
    """Whole batches of a log, taken together."""

    digest: str
    """SHA-256 in hexadecimal digits, of what could be read."""
    next_offset: Offset
    """Where the last batch ends."""
    damaged_offset: Offset | None
    """The first offset whose bytes do not hold their checksum or cannot be found; None if all is good."""


def digest_range(log: ReadableLog, first_offset: Offset, end_offset: Offset, bytes_max: int) -> DigestedRange:
    """Digest the batches from the one that holds an offset on, none of which reaches the end.

    Stops behind the batch with which `bytes_max` is reached. Damage is stepped over, so that the rest is looked at.
    Blocks. Raises `OffsetOutOfRange`, `LogClosed` and `StorageFailed` like a read.
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
    """Return the first offset whose batch does not hold its checksums, at the earliest the one that was asked for."""
    good = offset
    try:
        for at, header in iterate_headers(data):
            check_checksums(data, at, header)
            good = Offset(max(good, header.next_offset))
    except ProblemError:
        return good
    return None
