"""Messages with which brokers exchange the checksum of a range of a partition.

The messages are encoded by `messages`. This module does not compare checksums.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from fairlead_api.identifiers import Offset
from fairlead_broker.peers.messages import Count, PeerPartition

DigestState: TypeAlias = Literal["digested", "not_held", "damaged", "unreadable"]


class DigestRequest(PeerPartition, frozen=True, kw_only=True):
    """Request to a replica for the checksum of its batches between two offsets."""

    first_offset: Offset
    end_offset: Offset
    max_bytes: Count
    """Maximum number of bytes to read. The range ends at the end of a batch, and the first batch is always included."""
    newest: bool = False
    """Whether only the newest record of each key counts. In that case, the whole range is read."""


class RangeDigest(msgspec.Struct, frozen=True, kw_only=True):
    """Answer from a replica. `digest` is set only if the range was read without damage."""

    state: DigestState
    digest: str | None = None
    """SHA-256 of the stored batches, or the sum over the newest records, in hexadecimal digits."""
    next_offset: Offset
    """End of the batches that were read: the requested end, or an earlier offset if `max_bytes` was reached."""
    log_start_offset: Offset | None = None
    """First offset of the replica's log; None if the broker has no open replica of the partition."""
    log_end_offset: Offset | None = None
    damaged_offset: Offset | None = None
    """First damaged offset; None if no damage was found."""
    detail: str | None = None
    cleaned_offset: Offset = Offset(0)
    """Offset below which the replica was cleaned, even by a round that has not ended, and may differ from others."""
