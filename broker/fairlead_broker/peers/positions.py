"""Messages between brokers about the offsets of a log, and about the records at an offset or a time.

Asked by the coordinators of groups, for lag and for resets; answered by leaders. Like `messages`, whose encoding is
used.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead_api.identifiers import Offset, TimestampUs
from fairlead_broker.peers.messages import PARTITIONS_MAX, PeerPartition


class PositionAsked(PeerPartition, frozen=True, kw_only=True, omit_defaults=True):
    """One partition, and what is asked about it beside where its log stands."""

    offset: Offset | None = None
    """How old the record at this offset is; None: nothing of that."""
    from_start: bool = False
    """How old the first record is."""
    timestamp_us: TimestampUs | None = None
    """Request for the first record at or after this time."""


class PositionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Request to a leader for the positions of partitions."""

    partitions: Annotated[list[PositionAsked], msgspec.Meta(max_length=PARTITIONS_MAX)]


class PositionTold(PeerPartition, frozen=True, kw_only=True, omit_defaults=True):
    """One partition: where it stands, or the document of the problem why that is not known."""

    log_start: Offset = Offset(0)
    high_watermark: Offset = Offset(0)
    append_time_us: TimestampUs | None = None
    """When the batch with the asked offset was appended; None where there is none at or behind it."""
    found_offset: Offset | None = None
    """The first record at or after the asked time; None where there is none."""
    problem: dict[str, object] | None = None


class PositionsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One entry a partition, in the order of the request."""

    partitions: list[PositionTold]
