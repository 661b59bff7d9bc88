"""Components that all partitions of one data directory share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fairlead_api.identifiers import BrokerEpoch, Revision, TopicIdPartition
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError
from fairlead_broker.registry.records import InSync, PartitionRecord
from fairlead_broker.replication import PartitionLeader, WriteOutcome, WriteRecord
from fairlead_broker.runtime.engine.budget import ByteBudget
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.sync_rounds import SyncRounds


class RecordOwner(Protocol):
    """Leadership as the writes of its partition record see it."""

    @property
    def key(self) -> TopicIdPartition:
        """Partition of the record."""
        ...

    @property
    def incarnation(self) -> InSync:
        """Incarnation of this broker that leads; every write is conditional on this incarnation being current."""
        ...

    @property
    def machine(self) -> PartitionLeader:
        """State machine that decided the write."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the leadership has ended, so that its writes are dropped."""
        ...

    def record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        """Pass on a stored version of the record with the same leader epoch."""
        ...

    def write_answered(
        self, write: WriteRecord, outcome: WriteOutcome, stored_revision: Revision | None
    ) -> None:
        """Pass on the outcome of a write."""
        ...


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Components and limits that all partitions share; the limits are copies of settings."""

    clock: Clock
    pool: DiskPool
    rounds: SyncRounds
    budget: ByteBudget
    queue_batches_max: int
    sync_interval_seconds: float
    decompressed_bytes_max: int
    directory_failed: Callable[[LogError], None]
    """Function called with the first error after which the directory refuses writes."""
    write_record: Callable[[RecordOwner, WriteRecord], None]
    """Function that queues the write of a partition's record; the leadership receives the outcome."""
    lease_confirmed: Callable[[BrokerEpoch], bool]
    """Function that returns whether an epoch is the current epoch of this broker and the lease of that epoch cannot
    have expired yet."""
