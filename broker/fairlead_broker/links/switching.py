"""Order of the steps that make a mirror writable, as a function of what is stored and what is known.

The controller of the mirror's cluster runs the steps. Only the state in the topic record of the mirror and
`handed_over` in the topic record of the source are stored; after a crash, everything else is learned again with the
same result, because no record moves the ends of a source that was handed over (rule L18).

    mirroring ──▶ handing over ──▶ promoting ──▶ writable
                       └──▶ mirroring (taken back)

A failover takes the same way, but leaves the state "handing over" after a short time even if the source does not answer
(rule L19).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import assert_never

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex
from fairlead_broker.registry.records import MirrorState


class SwitchStep(Enum):
    """Next step of a promotion."""

    HAND_OVER = auto()
    """Make the source refuse records, and learn the end of each of its partitions."""
    WAIT = auto()
    """Wait until the mirror has every record below the ends."""
    COPY_GROUPS = auto()
    """Copy the committed offsets of groups once more."""
    BEGIN_PROMOTION = auto()
    """Write the state `promoting`; after that, the mirror fetches nothing."""
    CHOOSE_ERA = auto()
    """Write the new era's first leader epoch into the topic record; leaders can no longer raise their epochs."""
    BEGIN_ERAS = auto()
    """Write the partition records of partitions without the new era, each with the first epoch of that era."""
    FINISH = auto()
    """Write the topic record without the mirror and with the new era; after that, the topic accepts records."""


@dataclass(frozen=True, slots=True)
class CopiedTo:
    """End of a partition's committed records. Two logs with equal values have the same records."""

    end_offset: Offset
    last_epoch: LeaderEpoch | None
    """Leader epoch of the last record, even of a deleted one; None for a log that never had a record."""

    def reaches(self, end: CopiedTo) -> bool:
        """Return whether this mirror has every record of a source below the source's end.

        The offset alone is not sufficient: after an unclean election, the source may have other records up to the same
        offset. A mirror that has skipped all records of a partition has no record that could differ.
        """
        return self.end_offset == end.end_offset and self.last_epoch in (None, end.last_epoch)


@dataclass(frozen=True, slots=True)
class Known:
    """Facts that a controller has learned since it began to run the promotion of one topic."""

    source_ends: Mapping[PartitionIndex, CopiedTo] | None = None
    """Ends of the partitions of a source that was handed over; None until the source has answered."""
    mirror_ends: Mapping[PartitionIndex, CopiedTo] = field(default_factory=dict)
    """Ends of the committed records of the mirror's partitions that have a leader."""
    groups_copied: bool = False
    """Whether the offsets of groups were copied after the mirror had reached the ends."""
    era: LeaderEpoch | None = None
    """First leader epoch of the new era in the topic record; None before it is chosen."""
    partitions_without_era: int = 0
    """Number of partitions whose record is not in the new era yet."""
    is_overdue: bool = False
    """Whether the promotion is a failover, and the time for the hand-over has passed."""


def next_switch_step(state: MirrorState, known: Known) -> SwitchStep | None:
    """Return the next step of a topic's promotion; None while the topic is only mirrored."""
    match state:
        case MirrorState.MIRRORING:
            return None
        case MirrorState.HANDING_OVER:
            if known.is_overdue:
                return SwitchStep.BEGIN_PROMOTION
            if known.source_ends is None:
                return SwitchStep.HAND_OVER
            if not all(_is_reached(known, partition, end) for partition, end in known.source_ends.items()):
                return SwitchStep.WAIT
            return SwitchStep.BEGIN_PROMOTION if known.groups_copied else SwitchStep.COPY_GROUPS
        case MirrorState.PROMOTING:
            if known.era is None:
                return SwitchStep.CHOOSE_ERA
            return SwitchStep.BEGIN_ERAS if known.partitions_without_era else SwitchStep.FINISH
        case _:
            assert_never(state)


def is_beyond(known: Known) -> bool:
    """Return whether the mirror has more than the source told, so that the source must be asked again.

    A source that refuses records still changes its leaders, and the leader of a partition with a write quorum begins
    its epoch with a batch, which moves the end.
    """
    return any(
        (own := known.mirror_ends.get(partition)) is not None and own.end_offset > end.end_offset
        for partition, end in (known.source_ends or {}).items()
    )


def _is_reached(known: Known, partition: PartitionIndex, end: CopiedTo) -> bool:
    own = known.mirror_ends.get(partition)
    return own is not None and own.reaches(end)
