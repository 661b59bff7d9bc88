"""Messages between brokers about the offsets of a log, and about the record at an offset or a time.

Group coordinators request positions for lag and for resets, and leaders answer. The messages are encoded by `messages`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead_api.identifiers import LeaderEpoch, Offset, TimestampUs
from fairlead_broker.peers.messages import PARTITIONS_MAX, PeerPartition


class PositionAsked(PeerPartition, frozen=True, kw_only=True, omit_defaults=True):
    """Request for the offsets of a partition's log and, optionally, for a record's age or the offset at a time."""

    offset: Offset | None = None
    """Offset of the record whose age is requested; None if no age is requested."""
    from_start: bool = False
    """Whether the age of the first record is requested."""
    timestamp_us: TimestampUs | None = None
    """Timestamp to look up: the first record at or after the timestamp is requested; None if no lookup by time is
    requested."""
    with_end: bool = False
    """Whether the end of the committed records is requested, and the state of a hand-over or the progress of a mirror.
    """


class PositionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to a leader for the positions of partitions."""

    partitions: Annotated[list[PositionAsked], msgspec.Meta(max_length=PARTITIONS_MAX)]


class MirrorProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a mirror's partition, as known to its leader."""

    source_high_watermark: Offset | None = None
    """High watermark of the source; None before the first answer."""
    behind_seconds: float | None = None
    """Seconds since the mirror last had every record of the source; None before the first answer."""
    fault: str | None = None
    """Reason why the partition copies nothing until an operator acts."""
    problem: str | None = None
    """Reason why the last fetch failed."""
    skipped: int = 0
    """Number of records that the source had deleted before they were copied."""
    truncated: int = 0
    """Number of records that were dropped because the source had lost them."""
    answer_age_seconds: float | None = None
    """Seconds since the last answer from the source; None before the first answer."""


class PositionFound(PeerPartition, frozen=True, kw_only=True, omit_defaults=True):
    """Offsets of one partition's log, or the problem document if the positions could not be determined."""

    log_start: Offset = Offset(0)
    high_watermark: Offset = Offset(0)
    last_stable_offset: Offset | None = None
    """Offset at which readers of committed records stop; None if it is the high watermark."""
    append_time_us: TimestampUs | None = None
    """Append time of the batch with the requested offset; None if the log has no batch at or after the offset."""
    found_offset: Offset | None = None
    """Offset of the first record at or after the requested time; None if there is no such record."""
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of the last record below the high watermark; None if there are no records."""
    is_drained: bool = False
    """Whether the partition was handed over and its end is final."""
    mirror: MirrorProgress | None = None
    """Progress of a mirror; None for other partitions."""
    problem: dict[str, object] | None = None


class PositionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer from a leader, with one entry per partition in the order of the request."""

    partitions: list[PositionFound]
