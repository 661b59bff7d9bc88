"""End of a replica's log, by which elections compare replicas."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.identifiers import LeaderEpoch, Offset


@dataclass(frozen=True, slots=True, order=True)
class LogEnd:
    """End of a replica's log. Log ends are compared by epoch, then by offset."""

    epoch: LeaderEpoch
    """Epoch of the last batch, or -1 for an empty log."""
    end_offset: Offset
