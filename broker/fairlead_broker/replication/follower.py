"""The follower's state machine of one partition in one leader epoch (protocol section 4, rule 8).

    fetching ──Diverged──▶ cutting ──Truncated──▶ fetching
             ──Fetched──▶ reconciled; appending ──CopiesAppended──▶ fetching
             ──Fetched, a loss to skip──▶ reconciled; skipping ──CopiesAppended──▶ fetching
             ──FetchOutOfRange──▶ restarting ──Restarted──▶ fetching

`step` is the only method that changes state. Each leader epoch has a new state machine. The state machine must not know
about sessions, other partitions of a fetch, or how bytes are verified and stored.
"""

from __future__ import annotations

from typing import assert_never

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from fairlead_broker.replication.divergence import BEFORE_ALL, EpochStart
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
from fairlead_broker.replication.leader_messages import AdvanceHighWatermark, FollowerReport


class PartitionFollower:
    """State machine that decides what a follower fetches, what it truncates, and what it may report to its leader."""

    __slots__ = (
        "_broker",
        "_broker_epoch",
        "_busy",
        "_end_offset",
        "_generation",
        "_high_watermark",
        "_last_epoch",
        "_leader_epoch",
        "_leader_high_watermark",
        "_leader_log_start",
        "_log_start",
        "_reconciled",
        "_reported",
        "_synced_offset",
    )

    def __init__(
        self,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        generation: int,
        leader_epoch: LeaderEpoch,
        end_offset: Offset,
        synced_offset: Offset,
        log_start: Offset,
        high_watermark: Offset,
        last_epoch: LeaderEpoch | None,
    ) -> None:
        """Start following with the replica's current log. `last_epoch` is the epoch of the log's last record."""
        assert log_start <= end_offset, f"the log starts at {log_start}, beyond its end {end_offset}"
        assert synced_offset <= end_offset, "nothing is synced beyond the end"
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._generation = generation
        self._leader_epoch = leader_epoch
        self._end_offset = end_offset
        self._synced_offset = synced_offset
        self._log_start = log_start
        self._high_watermark = min(high_watermark, end_offset)
        self._last_epoch = last_epoch
        self._leader_high_watermark = Offset(0)
        self._leader_log_start = Offset(0)
        self._reported = Offset(-1)
        self._busy = False
        self._reconciled = False

    # -- state for callers

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Epoch of the leader that the replica follows."""
        return self._leader_epoch

    @property
    def generation(self) -> int:
        """Generation of the replica."""
        return self._generation

    @property
    def reconciled(self) -> bool:
        """Whether this epoch's leader has found no divergence, so that this log is a prefix of the leader's log."""
        return self._reconciled

    @property
    def end_offset(self) -> Offset:
        """End of the replica's log."""
        return self._end_offset

    @property
    def synced_offset(self) -> Offset:
        """Offset below which the replica's log is on stable storage."""
        return self._synced_offset

    @property
    def log_start(self) -> Offset:
        """Start of the replica's log."""
        return self._log_start

    @property
    def high_watermark(self) -> Offset:
        """Offset below which every record is committed, as far as this replica knows."""
        return self._high_watermark

    @property
    def is_ahead(self) -> bool:
        """Whether the log contains an epoch above the leader's epoch (protocol section 3, rule 8).

        A log is ahead if the coordination store was restored from a backup and issued the same epoch twice. The
        replica is quarantined: the follower neither fetches nor truncates the log.
        """
        return self._last_epoch is not None and self._last_epoch > self._leader_epoch

    def next_fetch(self) -> FollowerReport | None:
        """Return the report for the next fetch, or None if an effect is unfinished or the log is ahead."""
        if self._busy or self.is_ahead:
            return None
        return FollowerReport(
            self._broker,
            self._broker_epoch,
            self._generation,
            self._leader_epoch,
            None if self._has_no_record() else self._last_epoch,
            self._end_offset,
            self._synced_offset,
            self._log_start,
            self._last_epoch if self._has_no_record() else None,
        )

    # -- events

    def step(self, event: FollowerEvent) -> list[FollowerEffect]:
        """Apply one event, and return the resulting effects in the order in which the caller must run them."""
        effects: list[FollowerEffect] = []
        match event:
            case Fetched():
                self._fetched(event, effects)
            case CopiesAppended():
                self._appended(event, effects)
            case FollowerLogSynced(offset):
                self._synced(offset, effects)
            case Diverged():
                self._diverged(event, effects)
            case Truncated():
                self._truncated(event)
            case FetchOutOfRange():
                self._out_of_range(event, effects)
            case CopyDue(leader_log_start):
                self._copy_due(leader_log_start, effects)
            case Restarted():
                self._restarted(event)
            case _:
                assert_never(event)
        return effects

    def _fetched(self, event: Fetched, effects: list[FollowerEffect]) -> None:
        if self._busy or event.leader_epoch != self._leader_epoch:
            return  # The answer belongs to an earlier fetch.
        self._reconciled = True
        skips = event.next_offset is not None and event.next_offset > self._end_offset
        self._busy = event.nbytes > 0 or skips
        if event.high_watermark is not None:
            self._leader_high_watermark = event.high_watermark
        self._leader_log_start = event.log_start
        self._follow(effects)
        if event.next_offset is not None and skips:
            effects.append(SkipTo(event.next_offset, event.lost_epochs))

    def _appended(self, event: CopiesAppended, effects: list[FollowerEffect]) -> None:
        assert event.end_offset >= self._end_offset, (
            f"copies moved the end of the log back from {self._end_offset} to {event.end_offset}"
        )
        self._busy = False
        self._end_offset = event.end_offset
        self._last_epoch = event.last_epoch
        self._follow(effects)

    def _follow(self, effects: list[FollowerEffect]) -> None:
        """Adopt the leader's high watermark and log start, up to the end of the replica's log.

        Only committed records are deleted, so the leader's log start is a lower bound of the high watermark, even
        while the leader does not know its high watermark.
        """
        committed = max(self._leader_high_watermark, self._leader_log_start)
        high_watermark = min(committed, self._end_offset)
        if high_watermark > self._high_watermark:
            self._high_watermark = high_watermark
            effects.append(AdvanceHighWatermark(high_watermark))
        log_start = min(self._leader_log_start, self._end_offset)
        if log_start > self._log_start:
            self._log_start = log_start
            effects.append(MoveLogStart(log_start))

    def _synced(self, offset: Offset, effects: list[FollowerEffect]) -> None:
        self._synced_offset = max(self._synced_offset, min(offset, self._end_offset))
        if self._may_report() and self._synced_offset > self._reported:
            self._reported = self._synced_offset
            effects.append(ReportProgress(self._synced_offset))

    def _may_report(self) -> bool:
        """Return whether offsets may be reported, because the leader has compared the logs (rule 4.2)."""
        return self._reconciled

    def _diverged(self, event: Diverged, effects: list[FollowerEffect]) -> None:
        if self._busy or self.is_ahead:
            return
        self._busy = True
        if event.epoch > BEFORE_ALL and event.end_offset < self._log_start:
            # None of the log's records is in the leader's log, which has other records below the start of this log. The
            # emptied log must name an epoch that ends below its start in the leader's log: a log that does not know the
            # epoch of its deleted records would continue at its start, and lack the leader's records below it.
            effects.append(RestartAt(self._log_start, EpochStart(event.epoch, event.end_offset)))
        else:
            effects.append(TruncateTo(self._truncation_offset(event)))

    def _truncation_offset(self, event: Diverged) -> Offset:
        """Return the offset of a truncation (rule 4.8).

        The high watermark is not used, since it arrives one round trip late.
        """
        own = self._end_offset if event.own_end is None else event.own_end.end_offset
        return max(self._log_start, min(event.end_offset, own, self._end_offset))

    def _truncated(self, event: Truncated) -> None:
        self._busy = False
        self._end_offset = event.end_offset
        self._synced_offset = min(self._synced_offset, event.end_offset)
        self._high_watermark = min(self._high_watermark, event.end_offset)
        self._last_epoch = event.last_epoch
        self._reported = Offset(-1)

    def _out_of_range(self, event: FetchOutOfRange, effects: list[FollowerEffect]) -> None:
        """Reset the log, unless the reset would drop a record that the leader still has."""
        if self._busy or self.is_ahead:
            return
        empty_beyond = self._has_no_record() and self._end_offset > event.leader_end
        if self._end_offset < event.leader_log_start or empty_beyond:
            self._busy = True
            effects.append(RestartAt(event.leader_log_start, event.deleted))

    def _copy_due(self, leader_log_start: Offset, effects: list[FollowerEffect]) -> None:
        if not self._busy and not self.is_ahead:
            self._busy = True
            effects.append(RestartAt(leader_log_start))

    def _has_no_record(self) -> bool:
        """Return whether the log is empty.

        An empty log diverges from no leader, so the log must be restarted instead of truncated.
        """
        return self._last_epoch is None or self._end_offset <= self._log_start

    def _restarted(self, event: Restarted) -> None:
        self._busy = False
        self._end_offset = self._synced_offset = self._log_start = event.offset
        self._high_watermark = event.offset
        self._last_epoch = event.deleted_epoch
        self._reported = Offset(-1)
