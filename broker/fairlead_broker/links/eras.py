"""Eras: the upper part of a leader epoch, which a promotion increases, so that two histories never share an epoch.

The source of a mirror and a promoted mirror elect leaders independently. Without eras, the two clusters could give the
same leader epoch to different records, and the comparison of two logs by their epochs would find no difference (rule
L19).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final

from fairlead_api.identifiers import LeaderEpoch, Offset
from fairlead_broker.registry.records import Era

ERA_EPOCHS: Final = 1 << 20
"""Number of leader epochs in one era."""
ERA_MAX: Final = (1 << 31) // ERA_EPOCHS - 1
"""Last era whose leader epochs fit into the 32 bits of a batch header."""


class Kinship(Enum):
    """Relation between the histories of two topics with the same topic id."""

    SAME_OR_OLDER = "same or older"
    """Every era of the first topic is an era of the second topic, so the history of the second topic continues the
    history of the first topic."""
    NEWER = "newer"
    """The first topic has eras that the second topic lacks."""
    PARTED = "parted"
    """Each topic began an era of its own, so no log can continue both histories."""


def first_of_next_era(*epochs: LeaderEpoch) -> LeaderEpoch | None:
    """Return the first leader epoch of the next era; None after the last era.

    `epochs`: leader epochs of the partition record and its log, and of every era in the topic record. An era of another
    cluster may have no record in the log yet.
    """
    era = max(epochs) // ERA_EPOCHS + 1
    return LeaderEpoch(era * ERA_EPOCHS) if era <= ERA_MAX else None


def era_start(epoch: LeaderEpoch, starts: Iterable[tuple[LeaderEpoch, Offset]], end: Offset) -> Offset:
    """Return the offset at which the era of a leader epoch begins in a log, which ends at `end`.

    `starts`: leader epochs of the log in ascending order, each with its first offset. The first era begins at 0.
    """
    first = epoch // ERA_EPOCHS * ERA_EPOCHS
    return next((offset for each, offset in starts if each >= first), end) if first else Offset(0)


def parting(own: Sequence[Era], other: Sequence[Era]) -> tuple[Era, ...]:
    """Return the first era of each topic that the other topic does not have; nothing for equal histories."""
    shared = 0
    for first, second in zip(own, other, strict=False):
        if first != second:
            break
        shared += 1
    return (*own[shared : shared + 1], *other[shared : shared + 1])


def kinship(own: Sequence[object], other: Sequence[object]) -> Kinship:
    """Compare the eras of two topics with the same topic id, beginning with the oldest era."""
    shared = min(len(own), len(other))
    if tuple(own[:shared]) != tuple(other[:shared]):
        return Kinship.PARTED
    return Kinship.SAME_OR_OLDER if len(own) <= len(other) else Kinship.NEWER
