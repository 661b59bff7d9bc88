"""What a leader knows of a follower from its reports in this leader epoch."""

from __future__ import annotations

from fairlead_api.identifiers import BrokerEpoch, Offset
from fairlead_broker.registry.records import DurabilityState
from fairlead_broker.replication.leader_messages import FollowerReport


class KnownFollower:
    """One life and generation of a follower's replica, as far as it has reported.

    Changed by the leader's machine only. Within one life, generation and leader epoch a follower that has
    reconciled only appends, so a report that comes late or twice cannot take anything back.
    """

    __slots__ = (
        "broker_epoch",
        "end_offset",
        "generation",
        "left",
        "log_start",
        "synced_offset",
    )

    def __init__(self, report: FollowerReport) -> None:
        self.broker_epoch: BrokerEpoch = report.broker_epoch
        """Time of its last fetch."""
        self.generation: int = report.generation
        self.end_offset: Offset = report.fetch_offset
        self.synced_offset: Offset = min(report.synced_offset, report.fetch_offset)
        self.log_start: Offset = report.log_start
        self.left: bool = False
        """Whether it has gone out of the isr and said nothing since: what it said before is no sign of life."""

    def fetched(self, report: FollowerReport) -> None:
        """Take in another fetch of the same life and generation."""
        self.left = False
        self.end_offset = max(self.end_offset, report.fetch_offset)
        self.log_start = max(self.log_start, report.log_start)
        self.synced(min(report.synced_offset, report.fetch_offset))

    def synced(self, offset: Offset) -> None:
        """Take in how far it has synced; it may have appended more than its last fetch could say."""
        self.left = False
        if offset > self.synced_offset:
            self.synced_offset = offset
            self.end_offset = max(self.end_offset, offset)

    def counted(self, durability: DurabilityState) -> Offset:
        """Offset below which its log counts (rule 4.2)."""
        return self.end_offset if durability is DurabilityState.REPLICATED else self.synced_offset
