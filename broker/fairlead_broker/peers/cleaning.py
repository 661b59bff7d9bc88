"""Message with which a leader requests the cleaning state of a replica, or a cleaning round.

The answer is a `ReplicaCleaning`. The messages are encoded by `messages`.
"""

from __future__ import annotations

from fairlead_broker.peers.messages import PeerPartition


class CleaningRequest(PeerPartition, frozen=True, kw_only=True):
    """Request to a replica for its cleaning state."""

    begin: bool = False
    """Whether the replica must close its last segment and begin a round as soon as possible."""
