"""Components that all partitions of one data directory share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import (
    BrokerEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Revision,
    TopicId,
    TopicIdPartition,
)
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError
from fairlead_broker.registry.records import InSync, PartitionRecord
from fairlead_broker.replication import LeaderMachine, WriteOutcome, WriteRecord
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.sync_rounds import SyncRounds
from fairlead_broker.runtime.requests import TransactionEnd


class RecordOwner(Protocol):
    """Interface of a leadership for the writer of its partition record."""

    @property
    def key(self) -> TopicIdPartition:
        """Partition whose record is written."""
        ...

    @property
    def incarnation(self) -> InSync:
        """Incarnation of this broker that leads; every write is conditional on this incarnation being current."""
        ...

    @property
    def machine(self) -> LeaderMachine:
        """State machine that decided the write."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the leadership has ended, so that its writes are dropped."""
        ...

    def record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        """Notify the leadership that a version of its partition record with the same leader epoch was stored."""
        ...

    def write_answered(
        self, write: WriteRecord, outcome: WriteOutcome, stored_revision: Revision | None
    ) -> None:
        """Notify the leadership of the outcome of a write."""
        ...


class TransactionalPartition(Protocol):
    """Interface of a leader replica for the checks of its open transactions."""

    topic_id: TopicId
    index: PartitionIndex
    key: TopicIdPartition
    closed: bool

    @property
    def readable_limit(self) -> Offset:
        """Offset below which records may be served, even while the high watermark is unknown."""
        ...

    @property
    def stable_limit(self) -> Offset:
        """Last stable offset below `readable_limit`."""
        ...

    @property
    def has_open_transactions(self) -> bool:
        """Whether a transaction is open in the partition."""
        ...

    def open_transactions(self) -> Iterator[tuple[ProducerId, ProducerEpoch, Offset]]:
        """Return producer id, epoch and first offset of each open transaction, in ascending order of offsets."""
        ...

    async def end_transaction(self, end: TransactionEnd, timeout_seconds: float) -> None:
        """Append the marker of a decided transaction; return once the marker is committed."""
        ...


class WatchesTransactions(Protocol):
    """Interface through which leader replicas report open transactions."""

    def hint(self, producers: Iterable[ProducerId]) -> None:
        """Schedule an early check of the records of producers with open transactions."""
        ...

    def has_open(self, partition: TransactionalPartition) -> None:
        """Watch a partition with an open transaction."""
        ...

    def appended_marker(self, kind: MarkerKind) -> None:
        """Count the marker of a transaction that was appended."""
        ...

    def took_leadership(self, partition: TransactionalPartition) -> None:
        """Watch a partition with an open transaction after this broker became its leader, and read the records soon."""
        ...


def _nothing() -> None:
    """Count nothing."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Components and limits that all partitions share; the limits are copies of settings."""

    clock: Clock
    pool: DiskPool
    rounds: SyncRounds
    queue_batches_max: int
    sync_interval_seconds: float
    decompressed_bytes_max: int
    give_back_bytes: Callable[[int], None]
    """Function called with the number of bytes of batches that no longer wait to be appended."""
    directory_failed: Callable[[LogError], None]
    """Function called with the first error after which the directory refuses writes."""
    write_record: Callable[[RecordOwner, WriteRecord], None]
    """Function that queues the write of a partition's record; the leadership receives the outcome."""
    lease_confirmed: Callable[[BrokerEpoch], bool]
    """Function that returns whether an epoch is the current epoch of this broker and the lease of that epoch cannot
    have expired yet."""
    looks: WatchesTransactions
    copied_again: Callable[[], None] = _nothing
    """Function that is called when a follower drops its log and copies it again."""
