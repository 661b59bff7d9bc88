"""How far the leader's own log has come."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.identifiers import Offset


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """Ends of a log, as its leader becomes leader."""

    end_offset: Offset
    """Next offset the replica would append."""
    synced_offset: Offset
    """Everything below is on stable storage; never above the end offset."""
