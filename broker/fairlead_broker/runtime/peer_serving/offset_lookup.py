"""Offsets by name or by time."""

from __future__ import annotations

from typing import Literal, TypeAlias

from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

Position: TypeAlias = Literal["earliest", "latest"] | int
"""The log start, the high watermark, or the first record at or after a time in microseconds."""


async def look_up(
    partition: LeaderReplica, position: Position, pool: DiskPool
) -> tuple[Offset | None, TimestampUs | None]:
    """The offset at a position, with the record's time where a time was asked for.

    (None, None) when no committed record is at or after the time. Raises `offset_not_available` for `latest`
    while the high watermark is unknown.
    """
    if position == "earliest":
        return partition.log_start_offset, None
    if position == "latest":
        return partition.high_watermark, None
    limit = partition.high_watermark
    found = await pool.submit(partition.offset_for_time, TimestampUs(position))
    if found is None or found[0] >= limit:
        return None, None
    return found
