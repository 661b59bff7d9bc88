"""Damage that a follower reports to its leader: bytes that the follower received fail their checksum.

The leader serves bytes without checking them, so a follower may be the first to notice damage. The leader verifies its
own bytes before it trusts the report, because the network or the follower's memory may be faulty instead. Damage that
the leader finds is recorded in the log, and `hosting.damage` repairs it.
"""

from __future__ import annotations

import structlog

from fairlead_api.identifiers import LeaderEpoch, Offset, TopicIdPartition
from fairlead_broker.log import DamagedRange, LogError, PartitionLog
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

_log = structlog.get_logger("fairlead.runtime")


class ReportedDamage:
    """Verifies logs of partitions that this broker leads, at offsets where followers report damage."""

    __slots__ = ("_looked_at", "_pool")

    def __init__(self, pool: DiskPool) -> None:
        self._pool = pool
        self._looked_at: dict[TopicIdPartition, tuple[LeaderEpoch, Offset]] = {}

    def verify(self, partition: LeaderReplica, offset: Offset) -> None:
        """Verify the segment from an offset on, in the background. Repeated reports are verified only once."""
        place = (partition.leader_epoch, offset)
        if self._looked_at.get(partition.key) == place:
            return
        self._looked_at[partition.key] = place
        self._pool.submit(_look, partition.log, partition.key, offset)


def _look(log: PartitionLog, key: TopicIdPartition, offset: Offset) -> None:
    """Record the first damage at or after an offset. The call blocks and runs in the disk pool."""
    found: DamagedRange | None = None
    try:
        for segment in log.segments:
            if segment.base_offset <= offset < segment.next_offset:
                found = segment.first_damage(offset)
                break
        if found is not None:
            log.note_damage([found])
    except LogError as error:
        _log.warning("damage that a follower reported not verified", partition=str(key), reason=str(error))
        return
    if found is None:
        _log.warning(
            "a follower reports damage in records that are intact here", partition=str(key), offset=offset
        )
    else:
        _log.error(
            "records damaged",
            partition=str(key),
            first_offset=found.first_offset,
            next_good_offset=found.next_good_offset,
            found="follower",
        )
