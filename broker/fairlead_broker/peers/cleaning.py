"""Message with which a leader requests the state of the cleaning of a replica, or a round of cleaning.

The answer is a `ReplicaCleaning`. The messages are encoded by `messages`.
"""

from __future__ import annotations

from fairlead_broker.peers.messages import PeerPartition


class CleaningRequest(PeerPartition, frozen=True, kw_only=True):
    """Request to a replica for the state of its cleaning."""

    begin: bool = False
    """Whether the replica closes its last segment and begins a round as soon as possible."""
