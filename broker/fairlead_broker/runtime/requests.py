"""What callers of the runtime say and hear: produce items, fetches and their answers.

Values only. The server room builds them from HTTP, tests by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TimestampUs, TopicId

FETCH_BYTES_DEFAULT = 1 << 20


class PartitionHandle(Protocol):
    """A partition that this broker leads, as callers see it. Reading it never blocks."""

    @property
    def topic_id(self) -> TopicId:
        """Id of the topic."""
        ...

    @property
    def topic(self) -> str:
        """Name of the topic."""
        ...

    @property
    def index(self) -> PartitionIndex:
        """Number of the partition in its topic."""
        ...

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which this broker leads it."""
        ...

    @property
    def log_start_offset(self) -> Offset:
        """First offset that can be read."""
        ...

    @property
    def high_watermark(self) -> Offset:
        """Raises `offset_not_available` until it has reached the start of the leader epoch."""
        ...

    @property
    def last_stable_offset(self) -> Offset:
        """The high watermark, until there are transactions."""
        ...

    @property
    def log_end_offset(self) -> Offset:
        """Offset of the next record to be appended."""
        ...

    @property
    def config(self) -> TopicConfig:
        """The topic's effective configuration."""
        ...

    def digest_of(self, key: bytes) -> bytes | None:
        """Digest of the request that used an idempotency key here within 24 hours; None if none did."""
        ...


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """The idempotency key of a request, and what tells it from another request with the same key."""

    key: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class ProduceItem:
    """One batch for one partition, as the producer sent it."""

    partition: PartitionHandle
    batch: memoryview
    keyed: KeyedRequest | None = None
    """Of a batch that was made of a request with an idempotency key; its extension says the same."""


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
