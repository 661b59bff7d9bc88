"""Gaps of a mirror: records that it lacks, because the source had deleted or lost them (rules L13, L14).

The leader of the mirror's partition writes the gap to the partition record before it skips or drops the records, so
that no failure hides the loss. A gap is shown until the next acknowledgement of the link.
"""

from __future__ import annotations

import msgspec

from fairlead_api.identifiers import Offset
from fairlead_broker.registry.records import MirrorGap


def is_open(gap: MirrorGap | None, acknowledgements: int) -> bool:
    """Return whether a gap is not acknowledged. `acknowledgements`: number of acknowledgements of the link."""
    return gap is not None and gap.acknowledgements >= acknowledgements


def widened(gap: MirrorGap | None, first: Offset, end: Offset, *, skipped: bool, after: int) -> MirrorGap:
    """Return the gap after the loss of the records from `first` up to `end`.

    `skipped`: whether the source had deleted the records before they were copied, instead of losing them later.
    `after`: number of acknowledgements of the link. A loss inside an open gap is the repetition of an interrupted loss.
    """
    count = end - first
    if gap is None or not is_open(gap, after):
        return MirrorGap(
            first_offset=first,
            end_offset=end,
            skipped=count if skipped else 0,
            truncated=0 if skipped else count,
            acknowledgements=after,
        )
    if gap.first_offset <= first and end <= gap.end_offset:
        return gap
    return msgspec.structs.replace(
        gap,
        first_offset=min(gap.first_offset, first),
        end_offset=max(gap.end_offset, end),
        skipped=gap.skipped + (count if skipped else 0),
        truncated=gap.truncated + (0 if skipped else count),
    )
