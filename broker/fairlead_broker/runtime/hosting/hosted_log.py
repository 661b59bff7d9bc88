"""An open log, and the current role of this broker for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fairlead_api.identifiers import LeaderEpoch, TopicIdPartition
from fairlead_broker.log import LogDamaged, PartitionLog
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica


@dataclass(slots=True)
class HostedLog:
    """Open log with a leader replica, a follower replica, or no replica while the partition has no leader."""

    key: TopicIdPartition
    log: PartitionLog
    record: Versioned[PartitionRecord]
    """Version of the partition record that determined the current role."""
    led: LeaderReplica | None = None
    task: asyncio.Task[None] | None = None
    """Task of the leader replica."""
    followed: FollowerReplica | None = None
    left: Callable[[], Awaitable[None]] | None = None
    """Function that waits until the disk work of the last role has ended; may be called several times."""
    failed_epoch: LeaderEpoch | None = None
    """Leader epoch in which the task of the leader replica failed, and in which this broker will lead again; None if no
    task has failed."""
    distrusted: bool = False
    """Whether recovery removed more than a torn last batch, and no partition record reflects the removal yet."""

    @property
    def role(self) -> LeaderReplica | FollowerReplica | None:
        """Current role of this broker for the log; None if the broker has no role."""
        return self.led or self.followed

    @property
    def damaged(self) -> bool:
        """Whether some of the log is unreadable or missing, and no operator has accepted the loss."""
        return self.distrusted or any(not each.accepted for each in self.log.damaged)

    @property
    def serves(self) -> bool:
        """Whether the replica leads, is caught up, or has no leader from which it could fetch."""
        if self.followed is not None:
            return self.followed.caught_up
        # Without a leader, a replica has nothing to fetch. If the partition record names an earlier incarnation of this
        # broker as leader, the controller will elect a leader soon.
        return self.led is not None or self.record.value.leader is None


async def no_role(hosted: HostedLog) -> None:
    """Wait until no disk work of the last role uses the log, even if another call has ended the role."""
    if hosted.left is not None:
        await hosted.left()


def drop_damaged(log: PartitionLog) -> None:
    """Truncate a log at the start of its damage, or drop all records if the log cannot be truncated there.

    Blocks. Raises LogError.
    """
    first = min((each.first_offset for each in log.damaged if not each.accepted), default=log.end_offset)
    start = log.log_start_offset
    try:
        if first > start:
            log.truncate_to(first)
            return
    except LogDamaged:
        pass
    # Deleted records are not damage, because the other replicas have also deleted these records. The epoch before the
    # log start still identifies a replica that never had the records.
    log.restart_at(start, log.epoch_before(start))
