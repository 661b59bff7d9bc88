"""Components that all partitions of one data directory share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fairlead_api.identifiers import BrokerEpoch, ProducerId
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError
from fairlead_broker.runtime.engine.budget import ByteBudget
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.sync_rounds import SyncRounds

if TYPE_CHECKING:
    from fairlead_broker.replication import WriteRecord
    from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
    from fairlead_broker.runtime.leading.leadership import Leadership


class WatchesTransactions(Protocol):
    """Interface through which leader replicas report open transactions."""

    def hint(self, producers: Iterable[ProducerId]) -> None:
        """Read the records of producers soon, if they have open transactions."""
        ...

    def has_open(self, partition: LeaderReplica) -> None:
        """Watch a partition with an open transaction."""
        ...

    def took_office(self, partition: LeaderReplica) -> None:
        """Watch a partition with an open transaction after this broker became its leader, and read the records soon."""
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
    write_record: Callable[[Leadership, WriteRecord], None]
    """Function that queues the write of a partition's record; the leadership receives the outcome."""
    lease_confirmed: Callable[[BrokerEpoch], bool]
    """Function that returns whether an epoch is the current epoch of this broker and the lease of that epoch cannot
    have expired yet."""
    looks: WatchesTransactions
