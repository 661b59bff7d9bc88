"""Rules that determine which records of a partition are committed and readable, and which replicas are in sync.

A leader replica feeds events (appends, syncs, reports from followers, changes to the partition record) into one
`PartitionLeader`, or into one `QuorumLeader` if the partition has a write quorum, and runs the returned effects. A
follower replica feeds its events into a `PartitionFollower` and runs the returned effects. `divergence` finds where two
logs diverge. `runtime`, the simulator and the model checker call this package. The package must not know about files,
loops, time or transport.
"""

from __future__ import annotations

from fairlead_broker.replication.divergence import (
    EpochEnd,
    EpochStart,
    divergence,
    end_before,
    epoch_before,
    epoch_end,
    epochs_between,
    truncation_point,
)
from fairlead_broker.replication.follower import PartitionFollower
from fairlead_broker.replication.follower_messages import (
    CopiesAppended,
    CopyDue,
    Diverged,
    Fetched,
    FetchOutOfRange,
    FollowerEffect,
    FollowerEvent,
    FollowerLogSynced,
    MoveLogStart,
    ReportProgress,
    RestartAt,
    Restarted,
    SkipTo,
    Truncated,
    TruncateTo,
)
from fairlead_broker.replication.leader import PartitionLeader
from fairlead_broker.replication.leader_machine import LeaderMachine
from fairlead_broker.replication.leader_messages import (
    AdvanceHighWatermark,
    AdvanceLowWatermark,
    Appended,
    BrokersChanged,
    DirectoryFailed,
    FetchRefusal,
    FollowerFetched,
    FollowerReport,
    FollowerSynced,
    LeaderEffect,
    LeaderEvent,
    LeaseChanged,
    LogStartMoved,
    RaiseLogStart,
    RecordChanged,
    ReplicaProgress,
    Synced,
    TimePassed,
    WriteAnswered,
    WriteOutcome,
    WriteQuorumSet,
    WriteRecord,
)
from fairlead_broker.replication.quorum_leader import QuorumLeader
from fairlead_broker.replication.registered_broker import RegisteredBroker, registered_brokers

__all__ = [
    "AdvanceHighWatermark",
    "AdvanceLowWatermark",
    "Appended",
    "BrokersChanged",
    "CopiesAppended",
    "CopyDue",
    "DirectoryFailed",
    "Diverged",
    "EpochEnd",
    "EpochStart",
    "FetchOutOfRange",
    "FetchRefusal",
    "Fetched",
    "FollowerEffect",
    "FollowerEvent",
    "FollowerFetched",
    "FollowerLogSynced",
    "FollowerReport",
    "FollowerSynced",
    "LeaderEffect",
    "LeaderEvent",
    "LeaderMachine",
    "LeaseChanged",
    "LogStartMoved",
    "MoveLogStart",
    "PartitionFollower",
    "PartitionLeader",
    "QuorumLeader",
    "RaiseLogStart",
    "RecordChanged",
    "RegisteredBroker",
    "ReplicaProgress",
    "ReportProgress",
    "RestartAt",
    "Restarted",
    "SkipTo",
    "Synced",
    "TimePassed",
    "TruncateTo",
    "Truncated",
    "WriteAnswered",
    "WriteOutcome",
    "WriteQuorumSet",
    "WriteRecord",
    "divergence",
    "end_before",
    "epoch_before",
    "epoch_end",
    "epochs_between",
    "registered_brokers",
    "truncation_point",
]
