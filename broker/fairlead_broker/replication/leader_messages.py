"""Events and effects of the leader's state machine.

`now` is monotonic time in seconds; all events of one state machine use the same clock. The messages are used by
`leader` and by its callers in `runtime` and the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.replication.registered_broker import RegisteredBroker


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """End offset and synced offset of a log when its broker becomes the leader."""

    end_offset: Offset
    """Offset of the next record that the replica would append."""
    synced_offset: Offset
    """Offset below which every record is on stable storage, at most the end offset."""


class WriteOutcome(Enum):
    """Outcome of writing the partition record."""

    STORED = "stored"
    REFUSED = "refused"
    """A compare failed: the write was not stored and never will be."""
    UNKNOWN = "unknown"
    """The write may already be stored, or may be stored later. An unchanged partition record is no evidence that the
    write failed.
    """


class FetchRefusal(Enum):
    """Reason for refusing a follower's fetch. The leader ignores the offsets in a refused fetch."""

    STALE_LEADER_EPOCH = "stale_leader_epoch"
    """The follower must read a newer version of the partition record before the leader serves the follower."""
    UNKNOWN_LEADER_EPOCH = "unknown_leader_epoch"
    """The leader must read a newer version of the partition record, since another broker may already be the leader."""
    NOT_A_REPLICA = "not_a_replica"
    """The broker is not in `replicas`, or the broker's generation differs from the generation in the partition
    record."""
    STALE_BROKER_EPOCH = "stale_broker_epoch"
    """A later incarnation of the follower's broker is known."""


@dataclass(slots=True)
class FollowerReport:
    """A follower's report about its log, sent with every fetch (rule 4.8)."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    generation: int
    """Generation of the sender's replica."""
    leader_epoch: LeaderEpoch
    """Leader epoch in which the sender follows its leader."""
    last_epoch: LeaderEpoch | None
    """Epoch of the last record in the sender's log, or None for an empty log."""
    fetch_offset: Offset
    """End offset of the sender's log."""
    synced_offset: Offset
    log_start: Offset
    deleted_epoch: LeaderEpoch | None = None
    """Epoch of the last deleted record of a log without records, or None if the follower does not know that epoch."""


# -- events


@dataclass(slots=True)
class Appended:
    """The leader's own log grew. The appended bytes are readable but might not be on stable storage yet."""

    end_offset: Offset
    now: float


@dataclass(slots=True)
class Synced:
    """Every record of the leader's own log below the offset is on stable storage."""

    offset: Offset
    now: float


@dataclass(slots=True)
class FollowerFetched:
    """A follower's fetch was not refused, and the follower's log does not diverge."""

    report: FollowerReport
    now: float


@dataclass(slots=True)
class FollowerSynced:
    """A follower reported with the peer call `progress` that every record below the offset is on stable storage."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    generation: int
    leader_epoch: LeaderEpoch
    synced_offset: Offset
    now: float


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """The leader's mirror shows a new version of the partition record with the same leader epoch."""

    record: PartitionRecord
    revision: Revision


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The leader's mirror shows changed registrations.

    `registered` contains all registrations, so that removals can be detected.
    """

    registered: Mapping[BrokerId, RegisteredBroker]


@dataclass(frozen=True, slots=True)
class WriteAnswered:
    """The `WriteRecord` with this revision was stored or refused, or has an unknown outcome."""

    revision: Revision
    outcome: WriteOutcome
    stored_revision: Revision | None = None
    """Mod revision of the written partition record, or None if it was not stored."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time has passed. The caller sends `TimePassed` at least once a second and twice per `replica.lag.time.max.ms`."""

    now: float


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """The broker's lease was confirmed or became doubtful.

    A lease that is `confirmed` cannot have ended (section 3, rule 7).
    """

    confirmed: bool


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """The start of the leader's own log moved to a later offset."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """The leader's data directory has failed; later appends and syncs of the directory do not count."""


@dataclass(frozen=True, slots=True)
class WriteQuorumSet:
    """The configured write quorum of a partition with a quorum changed; None means a majority of the members."""

    write: int | None


LeaderEvent: TypeAlias = (
    Appended
    | Synced
    | FollowerFetched
    | FollowerSynced
    | RecordChanged
    | BrokersChanged
    | WriteAnswered
    | TimePassed
    | LeaseChanged
    | LogStartMoved
    | DirectoryFailed
    | WriteQuorumSet
)


# -- effects


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Acknowledge and serve every record below the offset.

    Every member of the maximal isr has already reported the records below the offset, so the caller may answer
    immediately. The offsets of successive effects increase.
    """

    offset: Offset


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write a successor of the partition record by compare-and-set.

    The write compares the partition's mod revision with `revision`, the create revision of this broker's key with the
    broker epoch of the state machine, and the mod revision of each added broker's key with `added`. The caller sends
    `WriteAnswered`, exactly once. The state machine requests no other write until `WriteAnswered` or a newer partition
    record arrives.
    """

    revision: Revision
    record: PartitionRecord
    added: tuple[tuple[BrokerId, Revision], ...] = ()
    """Brokers that join the isr, with the mod revisions of their registrations."""


@dataclass(frozen=True, slots=True)
class AdvanceLowWatermark:
    """Answer deletions up to the offset, since the log of every in-sync replica starts at or after the offset."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """Raise the log start to an offset, because a voter deleted the records below it (quorum Q16)."""

    offset: Offset


LeaderEffect: TypeAlias = AdvanceHighWatermark | WriteRecord | AdvanceLowWatermark | RaiseLogStart
