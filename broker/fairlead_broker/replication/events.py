"""Facts that the leader of a partition learns.

`now` is monotonic time in seconds, the same clock in every event of one machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.replication.registered_broker import RegisteredBroker


class WriteOutcome(Enum):
    """What became of a write on the partition record."""

    STORED = "stored"
    REFUSED = "refused"
    """A compare did not hold: this attempt is not stored and never will be."""
    UNKNOWN = "unknown"
    """It may be stored, may still be on its way, or neither. An unchanged record proves nothing."""


class FetchRefusal(Enum):
    """Why the leader does not serve a follower's fetch; reports of such a fetch are never counted."""

    STALE_LEADER_EPOCH = "stale_leader_epoch"
    """The follower has to see a newer record first."""
    UNKNOWN_LEADER_EPOCH = "unknown_leader_epoch"
    """The leader has: somebody else may lead by now."""
    NOT_A_REPLICA = "not_a_replica"
    """Not in `replicas`, or in another generation than the record's."""
    STALE_BROKER_EPOCH = "stale_broker_epoch"
    """A later life of the follower's broker is known."""


@dataclass(slots=True)
class FollowerReport:
    """What a follower says of its log with every fetch (rule 4.8)."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    generation: int
    """The generation of its replica that the sender holds."""
    leader_epoch: LeaderEpoch
    """The epoch in which it believes to follow."""
    last_epoch: LeaderEpoch | None
    """Epoch of the last record it has; None for an empty log."""
    fetch_offset: Offset
    """Its log's end."""
    synced_offset: Offset
    log_start: Offset
    deleted_epoch: LeaderEpoch | None = None
    """Epoch of the last record that it has deleted, of a log without records; None where it knows of none."""


@dataclass(slots=True)
class Appended:
    """The leader's own log grew; its bytes are readable but perhaps not yet on stable storage."""

    end_offset: Offset
    now: float


@dataclass(slots=True)
class Synced:
    """Everything below the offset of the leader's own log is on stable storage."""

    offset: Offset
    now: float


@dataclass(slots=True)
class FollowerFetched:
    """A follower's fetch that was not refused and did not diverge."""

    report: FollowerReport
    now: float


@dataclass(slots=True)
class FollowerSynced:
    """A follower's peer call `progress`: everything below the offset is on its stable storage."""

    broker: BrokerId
    broker_epoch: BrokerEpoch
    generation: int
    leader_epoch: LeaderEpoch
    synced_offset: Offset
    now: float


@dataclass(frozen=True, slots=True)
class RecordChanged:
    """The leader's mirror shows another version of the partition record, of the same leader epoch."""

    record: PartitionRecord
    revision: Revision


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """The leader's mirror shows other registrations; all of them, so that who is gone is seen."""

    registered: Mapping[BrokerId, RegisteredBroker]


@dataclass(frozen=True, slots=True)
class WriteAnswered:
    """What became of the `WriteRecord` that named this revision."""

    revision: Revision
    outcome: WriteOutcome
    stored_revision: Revision | None = None
    """Mod revision of the record that was written; only of a stored one."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Half the lag time is over, or a second: at least that often."""

    now: float


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """Whether this broker's lease cannot have ended yet (protocol section 3, rule 7)."""

    confirmed: bool


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """The leader's own log begins later."""

    offset: Offset


@dataclass(frozen=True, slots=True)
class DirectoryFailed:
    """The leader's data directory has failed; nothing that it appends or syncs counts any more."""


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
)
