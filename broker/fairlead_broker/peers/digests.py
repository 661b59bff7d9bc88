"""Messages between brokers about the checksum of a range of a partition.

Encoded as in `messages`. This module does not compare checksums.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from fairlead_api.identifiers import Offset
from fairlead_broker.peers.messages import Count, PeerPartition

DigestState: TypeAlias = Literal["digested", "not_held", "damaged", "unreadable"]


class DigestRequest(PeerPartition, frozen=True, kw_only=True):
    """Request to a replica for the checksum of its batches from an offset up to another one."""

    first_offset: Offset
    end_offset: Offset
    max_bytes: Count
    """Limit of the range, applied at the end of a batch; the first batch is always included."""


class RangeDigest(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica answers; `digest` stands only where it has read the whole range and all of it was good."""

    state: DigestState
    digest: str | None = None
    """SHA-256 of the batches as they are stored, in hexadecimal digits."""
    next_offset: Offset
    """End of the read batches: the requested end, or an earlier one if `max_bytes` was reached."""
    log_start_offset: Offset | None = None
    """None where the broker holds no such replica."""
    log_end_offset: Offset | None = None
    damaged_offset: Offset | None = None
    """The first offset that is damaged."""
    detail: str | None = None
