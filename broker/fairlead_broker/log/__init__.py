"""Log of a broker on disk: segments, indexes, recovery, leader epochs, the checkpoint, and the data directory.

`runtime` calls this package from its disk threads; only `read_cached` may run on the event loop. Every function
is synchronous, takes the time as an argument, and accesses files only through `storage`. The package must not
know about HTTP, coordination, or what an acknowledgement means.
"""

from __future__ import annotations

from fairlead_broker.log.directory import LogDirectory, kept_tails
from fairlead_broker.log.documents import Identity
from fairlead_broker.log.errors import (
    BadCopy,
    DirectoryLocked,
    DiskFull,
    IdentityMismatch,
    LogClosed,
    LogCut,
    LogDamaged,
    LogError,
    OffsetOutOfRange,
    Shortage,
    StaleLeaderEpoch,
    StorageFailed,
    TooManyOpenFiles,
)
from fairlead_broker.log.leader_epochs import EpochEnd
from fairlead_broker.log.partition_log import PartitionLog
from fairlead_broker.log.range_digest import DigestedRange, digest_range
from fairlead_broker.log.recovery import Cut, RecoveryReport
from fairlead_broker.log.retention import Expiry, Reason, SegmentFacts, expire, retention_facts
from fairlead_broker.log.scrub import SegmentScrub
from fairlead_broker.log.segments.damage import DamagedRange
from fairlead_broker.log.segments.dropped_segments import make_starts_durable
from fairlead_broker.log.segments.reading import LogRead
from fairlead_broker.log.segments.segment_writer import StampedBatch
from fairlead_broker.log.syncing import sync_partitions

__all__ = [
    "BadCopy",
    "Cut",
    "DamagedRange",
    "DigestedRange",
    "DirectoryLocked",
    "DiskFull",
    "EpochEnd",
    "Expiry",
    "Identity",
    "IdentityMismatch",
    "LogClosed",
    "LogCut",
    "LogDamaged",
    "LogDirectory",
    "LogError",
    "LogRead",
    "OffsetOutOfRange",
    "PartitionLog",
    "Reason",
    "RecoveryReport",
    "SegmentFacts",
    "SegmentScrub",
    "Shortage",
    "StaleLeaderEpoch",
    "StampedBatch",
    "StorageFailed",
    "TooManyOpenFiles",
    "digest_range",
    "expire",
    "kept_tails",
    "make_starts_durable",
    "retention_facts",
    "sync_partitions",
]
