"""Decides when the unsynced bytes of a replica are due in a sync round, by its topic's configuration.

Held by a leader replica and by a follower replica alike, on the event loop. `SyncRounds` runs the rounds and calls
`synced` of the replica; what a synced offset means for the high watermark is decided by the machines of `replication`.
"""

from __future__ import annotations

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset
from fairlead_broker.runtime.engine.sync_rounds import AT_ONCE, SyncedPartition
from fairlead_broker.runtime.leading.shared_parts import SharedParts


class ReplicaSync:
    """Counts the unsynced records of one replica and marks the replica for the sync rounds."""

    __slots__ = (
        "_clock",
        "_flush_messages",
        "_flush_seconds",
        "_interval_seconds",
        "_partition",
        "_rounds",
        "_unsynced_records",
    )

    def __init__(self, partition: SyncedPartition, config: TopicConfig, shared: SharedParts) -> None:
        self._partition = partition
        self._rounds = shared.rounds
        self._clock = shared.clock
        self._interval_seconds = shared.sync_interval_seconds
        self._unsynced_records = 0
        self.change_config(config)

    def change_config(self, config: TopicConfig) -> None:
        """Use another configuration of the topic from the next append on."""
        self._flush_messages = config.flush_messages
        self._flush_seconds = min(config.flush_ms / 1000, self._interval_seconds)

    def appended(self, nbytes: int, records: int, *, counts_synced: bool) -> None:
        """Mark appended bytes; they are due at once if only synced bytes count, or if `flush.messages` is reached."""
        self._unsynced_records += records
        if counts_synced or self._unsynced_records >= self._flush_messages:
            due = AT_ONCE
        else:
            due = self._clock.monotonic() + self._flush_seconds
        self._rounds.mark(self._partition, nbytes, due)

    def synced(self, offset: Offset, end_offset: Offset) -> None:
        """Count only the records from `offset` to the end of the log as unsynced."""
        self._unsynced_records = max(0, end_offset - offset)

    def sync_at_once(self, end_offset: Offset) -> None:
        """Make records below `end_offset` that no append marks again due at once, if some of them are unsynced."""
        if end_offset > self._partition.log.synced_offset:
            self._rounds.mark(self._partition, 0, AT_ONCE)
