"""Find the first damage of a segment by its checksums.

`segments` calls this module when a read fails its checks. A read walks over a few bytes of each batch, and
detects wrong bytes, but finds neither the bad batch nor the start of the next good one. The module also finds
the good batch behind the damage.

Offsets may be missing between two batches, never between the last batch of a segment and the next segment: a
read that continued there would skip records and report no damage.
"""

from __future__ import annotations

from fairlead_api.identifiers import Offset
from fairlead_broker.log.segments.batch_walk import BadBatch, find_good_batch, verify_batches
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
) -> DamagedRange | None:
    """Return the first range from an offset on that cannot be read, or None if every batch can.

    The walk begins at a position with the batch that has the expected offset, at or below the given one. The
    segment ends at `next_offset`: missing offsets before it are damage. A batch that begins at `offset_stop`
    or later belongs to another segment. Raises `OSError`.
    """
    while True:
        try:
            for batch in verify_batches(file, position, size, expected, offset_stop):
                position, expected = batch.end, batch.header.next_offset
            break
        except BadBatch as bad:
            good = find_good_batch(file, bad.search_from, size, expected, offset_stop)
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
    """Return position and base offset of the good batch that holds an offset, or None if damage holds the offset.

    The walk begins like that of `first_damage`. Raises `OSError`.
    """
    while True:
        try:
            for batch in verify_batches(file, position, size, expected, offset_stop):
                if batch.header.next_offset > offset:
                    return batch.position, batch.header.base_offset
                position, expected = batch.end, batch.header.next_offset
        except BadBatch as bad:
            good = find_good_batch(file, bad.search_from, size, expected, offset_stop)
            if good is None or good.header.base_offset > offset:
                return None
            position, expected = good.position, good.header.base_offset
        else:
            return None
