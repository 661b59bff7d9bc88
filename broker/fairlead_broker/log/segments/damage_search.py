"""Search for the first damaged range in a segment by verifying checksums.

`segments` calls this module when a read fails its checks. A read examines only a few bytes of some batches. A failed
read detects invalid bytes, but determines neither which batch is bad nor where the next good batch begins. The module
also finds the first good batch after the damage.

Offsets may be missing between two batches of a segment, but never between the last batch of a segment and the
next segment: otherwise a read that continues in the next segment would skip records without reporting damage.
"""

from __future__ import annotations

from contextlib import suppress

from fairlead_api.identifiers import Offset
from fairlead_broker.log.segments.batch_walk import (
    NO_EPOCH,
    BadBatch,
    find_good_batch,
    verify_batches,
    walk_headers,
)
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.storage import File


def first_damage(
    file: File,
    size: int,
    position: int,
    expected: int,
    offset: int,
    next_offset: int,
    offset_stop: int | None = None,
    epoch_min: int = NO_EPOCH,
) -> DamagedRange | None:
    """Return the first unreadable range at or after an offset, or None if every batch is readable.

    A batch with records at or after the offset is bad if its leader epoch is below `epoch_min`. The walk begins at
    `position` with the batch whose base offset is `expected`, which is at or below `offset`. The segment ends at
    `next_offset`, so missing offsets before `next_offset` are damage. A batch that begins at `offset_stop` or later
    belongs to another segment. Raises `OSError`.
    """
    epoch = NO_EPOCH
    while True:
        try:
            for batch in verify_batches(file, position, size, expected, offset_stop, epoch):
                if batch.header.next_offset > offset and batch.header.leader_epoch < epoch_min:
                    epoch = epoch_min
                    raise BadBatch(batch.position, batch.end, "the batch has an earlier leader epoch")
                position, expected = batch.end, batch.header.next_offset
                epoch = batch.header.leader_epoch
            break
        except BadBatch as bad:
            good = find_good_batch(file, bad.search_from, size, expected, offset_stop, epoch)
            if good is None:
                break
            following = good.header.base_offset
            if following > max(offset, expected):
                return DamagedRange(Offset(expected), Offset(following))
            position, expected = good.position, following
    return DamagedRange(Offset(expected), Offset(next_offset)) if expected < next_offset else None


def place_behind_damage(
    file: File, size: int, position: int, expected: int, offset: int, offset_stop: int | None = None
) -> tuple[int, int] | None:
    """Return the position and base offset of the intact batch that contains an offset, or None for a damaged offset.

    The parameters of the walk are the same as for `first_damage`. Raises `OSError`.
    """
    epoch = NO_EPOCH
    while True:
        try:
            for batch in verify_batches(file, position, size, expected, offset_stop, epoch):
                if batch.header.next_offset > offset:
                    return batch.position, batch.header.base_offset
                position, expected = batch.end, batch.header.next_offset
                epoch = batch.header.leader_epoch
        except BadBatch as bad:
            good = find_good_batch(file, bad.search_from, size, expected, offset_stop, epoch)
            if good is None or good.header.base_offset > offset:
                return None
            position, expected = good.position, good.header.base_offset
        else:
            return None


def position_after_loss(
    file: File, size: int, position: int, expected: int, lost: DamagedRange, offset_stop: int
) -> int | None:
    """Return the position at which the bytes of a lost range end, or None if no batch ends or begins at its offsets.

    The walk begins at `position` with the batch whose base offset is `expected`, at or below the range. The segment
    ends at `offset_stop`. Raises `OSError`.
    """
    start, at = position, expected
    with suppress(BadBatch):
        for batch in walk_headers(file, position, size, expected, offset_stop=offset_stop):
            if at >= lost.first_offset:
                break
            start, at = batch.end, batch.header.next_offset
    if at != lost.first_offset:
        return None
    if lost.next_good_offset >= offset_stop:
        return size
    place = place_behind_damage(file, size, start, at, lost.next_good_offset, offset_stop)
    return None if place is None or place[1] != lost.next_good_offset else place[0]
