"""Interface of the two state machines of leaders, which `runtime` and the simulator call.

`PartitionLeader` counts in-sync replicas, and `QuorumLeader` counts voters of a write quorum.
"""

from __future__ import annotations

from typing import Protocol

from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.replication.leader_messages import (
    FetchRefusal,
    FollowerReport,
    LeaderEffect,
    LeaderEvent,
)


class LeaderMachine(Protocol):
    """A leader's state machine of one partition in one leader epoch."""

    @property
    def begins_with_batch(self) -> bool:
        """Whether the leader appends a batch that begins its epoch."""
        ...

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Leader epoch of this state machine."""
        ...

    @property
    def record(self) -> PartitionRecord:
        """Newest stored partition record that the leader knows."""
        ...

    @property
    def revision(self) -> Revision:
        """Mod revision of the partition record."""
        ...

    @property
    def counts_synced(self) -> bool:
        """Whether only fsynced records count towards the high watermark."""
        ...

    @property
    def in_sync_count(self) -> int:
        """Number of replicas that count towards the minimum: in-sync replicas, or near voters."""
        ...

    @property
    def min_isr(self) -> int:
        """Number of replicas that acknowledgements require."""
        ...

    @property
    def enough_in_sync(self) -> bool:
        """Whether enough replicas count for acks=all."""
        ...

    @property
    def end_offset(self) -> Offset:
        """End offset of the leader's own log."""
        ...

    @property
    def log_start(self) -> Offset:
        """Start offset of the leader's own log."""
        ...

    @property
    def high_watermark(self) -> Offset | None:
        """Offset below which every record is committed, or None while it is unknown."""
        ...

    @property
    def readable_limit(self) -> Offset:
        """Offset below which records may be served, even while the high watermark is unknown."""
        ...

    @property
    def low_watermark(self) -> Offset | None:
        """Log start that enough replicas have reached, or None while it is unknown."""
        ...

    @property
    def lease_confirmed(self) -> bool:
        """Whether the broker's lease is certainly valid."""
        ...

    @property
    def serves_weak_acks(self) -> bool:
        """Whether requests with acks 0 or 1, and requests for `latest`, may be answered."""
        ...

    @property
    def acknowledges_in_doubt(self) -> bool:
        """Whether acks=all may be served without a confirmed lease."""
        ...

    @property
    def resigned(self) -> bool:
        """Whether the partition record no longer names this incarnation of the broker as the leader."""
        ...

    def removal_limit(self) -> Offset:
        """Return the offset below which the leader may remove expired tombstones."""
        ...

    def counted_of(self, broker: BrokerId) -> Offset | None:
        """Return the offset below which a replica's records count, or None while the replica has not reported."""
        ...

    def refusal_of(self, report: FollowerReport) -> FetchRefusal | None:
        """Return the reason for refusing a fetch, or None if the fetch may be served and its report counted."""
        ...

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Apply one event, and return the resulting effects in the order in which the caller must run them."""
        ...
