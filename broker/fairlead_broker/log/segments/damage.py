"""Ranges of offsets whose records cannot be read.

`recovery` finds damaged ranges, and the checkpoint stores them. Reads of a damaged range are refused until an
operator accepts the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

import msgspec

from fairlead_api.identifiers import Offset


class DamagedRange(msgspec.Struct, frozen=True, array_like=True):
    """Offsets from the first damaged offset up to the next readable offset."""

    first_offset: Offset
    next_good_offset: Offset
    accepted: bool = False
    """Whether an operator accepted the loss. Reads skip an accepted range."""

    def lies_in(self, other: DamagedRange) -> bool:
        """Return whether this range lies inside another range."""
        return other.first_offset <= self.first_offset and self.next_good_offset <= other.next_good_offset


def merge_ranges(damaged: Iterable[DamagedRange], log_start: Offset, end: Offset) -> tuple[DamagedRange, ...]:
    """Return damaged ranges in ascending order, with adjacent ranges joined, without ranges outside the log.

    A walk over the log detects the damage inside an accepted range again. Damage inside an accepted range stays
    accepted.
    """
    inside = [each for each in damaged if each.next_good_offset > log_start and each.first_offset < end]
    accepted = _joined(each for each in inside if each.accepted)
    rest: list[DamagedRange] = []
    for damage in _joined(each for each in inside if not each.accepted):
        rest += _without(damage, accepted)
    return tuple(sorted((*accepted, *rest), key=attrgetter("first_offset")))


def _joined(damaged: Iterable[DamagedRange]) -> list[DamagedRange]:
    """Return ranges that are all accepted or all not accepted, in ascending order with adjacent ranges joined."""
    joined: list[DamagedRange] = []
    for damage in sorted(damaged, key=attrgetter("first_offset")):
        last = joined[-1] if joined else None
        if last is None or damage.first_offset > last.next_good_offset:
            joined.append(damage)
        else:
            following = max(last.next_good_offset, damage.next_good_offset)
            joined[-1] = DamagedRange(last.first_offset, following, damage.accepted)
    return joined


def _without(damage: DamagedRange, accepted: Iterable[DamagedRange]) -> Iterator[DamagedRange]:
    """Yield the parts of a range that lie outside the accepted ranges. `accepted` is in ascending order."""
    first = damage.first_offset
    for other in accepted:
        if other.next_good_offset <= first or other.first_offset >= damage.next_good_offset:
            continue
        if first < other.first_offset:
            yield DamagedRange(first, other.first_offset)
        first = other.next_good_offset
    if first < damage.next_good_offset:
        yield DamagedRange(first, damage.next_good_offset)


def ranges_within(
    damaged: Iterable[DamagedRange], first_offset: Offset, next_offset: Offset
) -> tuple[DamagedRange, ...]:
    """Return the parts of damaged ranges that lie between two offsets."""
    return tuple(
        DamagedRange(
            max(each.first_offset, first_offset), min(each.next_good_offset, next_offset), each.accepted
        )
        for each in damaged
        if each.first_offset < next_offset and each.next_good_offset > first_offset
    )


def skip_accepted(damaged: Iterable[DamagedRange], offset: Offset) -> Offset:
    """Return the first offset at or after `offset` whose loss was not accepted. `damaged` is in ascending order."""
    for damage in damaged:
        if damage.accepted and damage.first_offset <= offset < damage.next_good_offset:
            offset = damage.next_good_offset
    return offset


def readable_until(damaged: Iterable[DamagedRange], offset: Offset, limit: Offset) -> Offset | DamagedRange:
    """Return the end of the readable offsets from `offset` to `limit`, or the damaged range that contains `offset`.

    `damaged` is in ascending order.
    """
    for damage in damaged:
        if damage.first_offset <= offset < damage.next_good_offset:
            return damage
        if offset < damage.first_offset:
            return min(limit, damage.first_offset)
    return limit
