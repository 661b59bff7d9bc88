"""What may be acknowledged and read, and who is in sync: the rules of one partition, without a clock or a disk.

A leader feeds events (what was appended, synced, reported by followers, written in the record) into one
`PartitionLeader` and runs the effects that it answers; a follower does the same with a `PartitionFollower`. Where
two logs part is told by `divergence`. Called by `runtime`, by the simulator and by the model checker alike. Must not
know files, loops, time or how bytes travel.
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
from fairlead_broker.replication.effects import (
    AdvanceHighWatermark,
    AdvanceLowWatermark,
    LeaderEffect,
    WriteRecord,
)
from fairlead_broker.replication.events import (
    Appended,
    BrokersChanged,
    DirectoryFailed,
    FetchRefusal,
    FollowerFetched,
    FollowerReport,
    FollowerSynced,
    LeaderEvent,
    LeaseChanged,
    LogStartMoved,
    RecordChanged,
    Synced,
    TimePassed,
    WriteAnswered,
    WriteOutcome,
)
from fairlead_broker.replication.follower import PartitionFollower
from fairlead_broker.replication.follower_messages import (
    CopiesAppended,
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
from fairlead_broker.replication.progress import ReplicaProgress
from fairlead_broker.replication.registered_broker import RegisteredBroker, registered_brokers

__all__ = [
    "AdvanceHighWatermark",
    "AdvanceLowWatermark",
    "Appended",
    "BrokersChanged",
    "CopiesAppended",
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
    "LeaseChanged",
    "LogStartMoved",
    "MoveLogStart",
    "PartitionFollower",
    "PartitionLeader",
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
    "WriteRecord",
    "divergence",
    "end_before",
    "epoch_before",
    "epoch_end",
    "epochs_between",
    "registered_brokers",
    "truncation_point",
]
