"""State of a follower, derived from the follower's reports to the leader in the current leader epoch."""

from __future__ import annotations

from fairlead_api.identifiers import BrokerEpoch, Offset
from fairlead_broker.registry.records import DurabilityState
from fairlead_broker.replication.leader_messages import FollowerReport


class KnownFollower:
    """State that one incarnation and generation of a follower's replica has reported.

    Only the leader's state machine changes this state. Within one incarnation, generation and leader epoch a
    reconciled follower only appends, so a late or repeated report never lowers an offset.
    """

    __slots__ = (
        "broker_epoch",
        "end_offset",
        "fetched_at",
        "generation",
        "left",
        "log_start",
        "synced_offset",
    )

    def __init__(self, report: FollowerReport) -> None:
        self.broker_epoch: BrokerEpoch = report.broker_epoch
        """Incarnation of the reporting broker."""
        self.generation: int = report.generation
        self.end_offset: Offset = report.fetch_offset
        self.synced_offset: Offset = min(report.synced_offset, report.fetch_offset)
        self.log_start: Offset = report.log_start
        self.fetched_at: float = 0.0
        """Monotonic time of the last fetch, in seconds."""
        self.left: bool = False
        """Whether the follower was removed from the isr and has not reported since. Reports from before the removal do
        not prove that the follower is alive.
        """

    def fetched(self, report: FollowerReport) -> None:
        """Apply a later fetch of the same incarnation and generation."""
        self.left = False
        self.end_offset = max(self.end_offset, report.fetch_offset)
        self.log_start = max(self.log_start, report.log_start)
        self.synced(min(report.synced_offset, report.fetch_offset))

    def synced(self, offset: Offset) -> None:
        """Apply a report of the synced offset, which may be above the offset of the last fetch."""
        self.left = False
        if offset > self.synced_offset:
            self.synced_offset = offset
            self.end_offset = max(self.end_offset, offset)

    def counted(self, durability: DurabilityState) -> Offset:
        """Return the offset below which the follower's records are counted (rule 4.2)."""
        return self.end_offset if durability is DurabilityState.REPLICATED else self.synced_offset
