"""Fetches, their answers and the answers of produces, as values.

Built by `server` from HTTP, and by tests.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId

FETCH_BYTES_DEFAULT = 1 << 20


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """The idempotency key of a request, and what tells it from another request with the same key."""

    key: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Where a batch was stored. With acks=0 nothing is known: offsets and time are -1."""

    base_offset: Offset
    last_offset: Offset
    log_append_time_us: TimestampUs
    leader_epoch: LeaderEpoch
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """What one fetch wants of one partition."""

    topic_id: TopicId
    partition: PartitionIndex
    offset: Offset
    last_epoch: LeaderEpoch | None = None
    """Leader epoch of the last record the caller has; finds a log that was cut behind its back."""
    leader_epoch: LeaderEpoch | None = None
    """Highest leader epoch the caller has seen."""
    bytes_max: int = FETCH_BYTES_DEFAULT


@dataclass(frozen=True, slots=True)
class FetchSpec:
    """A fetch over many partitions and how long it may wait for how much."""

    partitions: list[PartitionFetch]
    min_bytes: int = 1
    max_bytes: int = FETCH_BYTES_DEFAULT
    max_wait_seconds: float = 0.5


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Whole batches of one partition, perhaps none, and where it stands.

    The first batch may begin below the asked offset.
    """

    data: list[memoryview]
    next_offset: Offset
    high_watermark: Offset
    log_start_offset: Offset
    last_stable_offset: Offset
    leader_epoch: LeaderEpoch

    @property
    def nbytes(self) -> int:
        """Bytes of all batches."""
        return sum(len(part) for part in self.data)
