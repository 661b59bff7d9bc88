"""Value types for fetch requests, fetch results and append results.

`server` builds these values from HTTP requests; tests build them directly.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import (
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    TimestampUs,
    TopicId,
)

FETCH_BYTES_DEFAULT = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """Idempotency key of a request, and the digest that distinguishes requests with the same key."""

    key: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class TransactionEnd:
    """Decision about a transaction, whose marker must be appended in a partition."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    kind: MarkerKind
    decided_us: TimestampUs


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Position and time of a stored batch.

    With acks=0, position and time are unknown: the offsets and the time are -1.
    """

    base_offset: Offset
    last_offset: Offset
    log_append_time_us: TimestampUs
    leader_epoch: LeaderEpoch
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """Request for one partition within a fetch."""

    topic_id: TopicId
    partition: PartitionIndex
    offset: Offset
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of the caller's last record. The epoch reveals whether the log was truncated since the caller's last
    fetch."""
    leader_epoch: LeaderEpoch | None = None
    """Highest leader epoch that the caller has seen."""
    bytes_max: int = FETCH_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class FetchSpec:
    """Fetch of many partitions, with limits on bytes and waiting time."""

    partitions: list[PartitionFetch]
    min_bytes: int = 1
    max_bytes: int = FETCH_BYTES_DEFAULT
    max_wait_seconds: float = 0.5
    committed: bool = False
    """Whether the caller reads only records of committed transactions, up to the last stable offset."""
    raw: bool = False
    """Whether the caller copies the log, and needs the comparison of leader epochs that followers use."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Whole batches of one partition, possibly none, and the offsets of its log.

    The first batch may begin below the requested offset.
    """

    data: list[memoryview]
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    last_stable_offset: Offset
    leader_epoch: LeaderEpoch
    deleted_to: Offset
    """Offset below which records were deleted on request; 0 if none were."""
    removed_to: Offset
    """Offset below which tombstones and markers may be missing; 0 if compaction has removed none."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of all batches."""
        return sum(len(part) for part in self.data)
