"""Orders that the leader's machine gives to its shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from fairlead_api.identifiers import BrokerId, Offset, Revision
from fairlead_broker.registry.records import PartitionRecord


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Acknowledge and serve everything below the offset.

    Given only after the bytes below it count on every member of the maximal isr, so the shell may answer
    at once. Offsets of successive orders grow.
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write a successor of the partition record by compare-and-set.

    Compare the partition's mod revision with `revision`, the create revision of the own broker key with the broker
    epoch under which the machine was made, and the mod revision of each added broker's key. Answer with
    `WriteAnswered`, exactly once; until then, or until another record comes, no further order is given.
    """

    revision: Revision
    record: PartitionRecord
    added: tuple[tuple[BrokerId, Revision], ...] = ()
    """Brokers that come into the isr, with the mod revisions of their registrations."""


@dataclass(frozen=True, slots=True)
class AdvanceLowWatermark:
    """Every in-sync replica's log begins at the offset or later: deletions up to it may be answered."""

    offset: Offset


LeaderEffect: TypeAlias = AdvanceHighWatermark | WriteRecord | AdvanceLowWatermark
