"""The leader's state machine of one partition with a write quorum, in one leader epoch (quorum Q2 to Q5, Q9).

    high watermark:  unknown ──W voters have the batch that begins the epoch──▶ known ──▶ only upwards
    write:           none ──WriteRecord──▶ in flight ──stored or refused──▶ none
                                               └──unknown──▶ in doubt until a record with a higher revision

`QuorumLeader` has the same events and effects as `PartitionLeader`, but different rules for which replicas count: no
replica is removed for being slow, and acknowledgements follow the W-th fastest voter. The caller appends the batch that
begins the epoch before any other batch. `step` is the only method that changes state. The state machine is called by
the leader replica of `runtime` and by the simulator. The code is in one file because commits, near voters and the next
record share all state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.generations import generation_in
from fairlead_broker.registry.quorum import members, vacated, without_voter
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Quorum, Replica
from fairlead_broker.replication.follower_progress import EndOffsets, KnownFollower, removal_limit
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
from fairlead_broker.replication.registered_broker import RegisteredBroker
from fairlead_broker.replication.voters import Returning, held, is_settled, next_voters


class QuorumLeader:
    """State machine that determines the high watermark of a partition with a write quorum, and its voters."""

    __slots__ = (
        "_began_at",
        "_broker",
        "_broker_epoch",
        "_directory_failed",
        "_end_offset",
        "_ends",
        "_epoch_start",
        "_followers",
        "_generations",
        "_held_back",
        "_high_watermark",
        "_in_doubt",
        "_in_flight",
        "_is_settled",
        "_lag_seconds",
        "_lease_confirmed",
        "_log_start",
        "_log_start_known",
        "_log_start_raised",
        "_low_due",
        "_low_watermark",
        "_near",
        "_now",
        "_quorum",
        "_record",
        "_registered",
        "_replicas",
        "_resigned",
        "_revision",
        "_synced_offset",
        "_write_wanted",
    )

    begins_with_batch = True
    """Whether the leader appends a batch that begins its epoch (quorum Q3)."""

    def __init__(
        self,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        record: PartitionRecord,
        revision: Revision,
        registered: Mapping[BrokerId, RegisteredBroker],
        progress: ReplicaProgress,
        high_watermark: Offset,
        log_start: Offset,
        now: float,
        lag_seconds: float,
        write_wanted: int | None = None,
    ) -> None:
        """Start the leader epoch with the leader's current log. The arguments are the same as for `PartitionLeader`.

        `write_wanted` is the configured `quorum.write`, or None for the default, a majority of the members.
        """
        quorum = record.quorum
        assert quorum is not None, "a partition with a quorum has voters"
        assert 0 <= high_watermark <= progress.end_offset, "the high watermark is within the log"
        assert progress.synced_offset <= progress.end_offset, "nothing is synced beyond the end"
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._record = record
        self._quorum = quorum
        self._revision = revision
        self._registered = registered
        self._end_offset = progress.end_offset
        self._synced_offset = progress.synced_offset
        self._epoch_start = progress.end_offset
        """Offset of the batch that begins the epoch."""
        self._high_watermark = high_watermark
        self._log_start = log_start
        self._log_start_known = Offset(quorum.log_start)
        """Highest log start of any voter; the leader raises its own log start to this offset (quorum Q16)."""
        self._log_start_raised = log_start
        self._low_watermark = Offset(0)
        self._low_due = True
        self._now = self._began_at = now
        self._lag_seconds = lag_seconds
        self._ends = EndOffsets(progress.end_offset, now, lag_seconds)
        self._followers: dict[BrokerId, KnownFollower] = {}
        self._in_flight: WriteRecord | None = None
        self._in_doubt: tuple[Quorum, ...] = ()
        """Quorums in the writes that have an unknown outcome."""
        self._held_back = False
        """Whether the last write was not stored; the next write waits for `TimePassed` or a change in the store."""
        self._lease_confirmed = True
        self._directory_failed = False
        self._resigned = False
        self._is_settled = False
        """Whether no change to voters, members or write quorum is due; most reports then cause no write."""
        self._near: frozenset[BrokerId] = frozenset()
        self._write_wanted = write_wanted
        self._read_record()

    # -- state for callers

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Leader epoch of this state machine."""
        return self._record.leader_epoch

    @property
    def record(self) -> PartitionRecord:
        """Newest stored partition record that the leader knows."""
        return self._record

    @property
    def revision(self) -> Revision:
        """Mod revision of the partition record."""
        return self._revision

    @property
    def counts_synced(self) -> bool:
        """Whether only fsynced records count towards the high watermark."""
        return self._record.durability is not DurabilityState.REPLICATED

    @property
    def near(self) -> frozenset[BrokerId]:
        """Voters that had every record within the lag time (quorum Q5)."""
        return self._near

    @property
    def caught_up(self) -> frozenset[BrokerId]:
        """Near voters with every committed record; empty while the high watermark is unknown.

        Only these voters can take over soon. Right after the start of the epoch, every registered voter counts as near,
        but no voter has the batch that begins the epoch.
        """
        committed = self.high_watermark
        if committed is None:
            return frozenset()
        return frozenset(
            voter.broker
            for voter in self._quorum.voters
            if voter.broker in self._near and (self._counted(voter) or 0) >= committed
        )

    @property
    def in_sync_count(self) -> int:
        """Number of voters that are near."""
        return len(self._near)

    @property
    def min_isr(self) -> int:
        """Number of voters that acknowledgements require."""
        return self._quorum.write

    @property
    def enough_in_sync(self) -> bool:
        """Whether enough voters are near to acknowledge records without delay (quorum Q5)."""
        return len(self._near) >= self._quorum.write

    @property
    def end_offset(self) -> Offset:
        """End offset of the leader's own log."""
        return self._end_offset

    @property
    def log_start(self) -> Offset:
        """Start offset of the leader's own log."""
        return self._log_start

    @property
    def high_watermark(self) -> Offset | None:
        """Offset below which every record is committed; None until the epoch's first batch is also committed (Q17)."""
        return self._high_watermark if self._high_watermark > self._epoch_start else None

    @property
    def readable_limit(self) -> Offset:
        """Offset below which records may be served, even while the high watermark is unknown."""
        return self._high_watermark

    @property
    def low_watermark(self) -> Offset | None:
        """Log start that W voters have reached, or None while fewer have reported (quorum Q16)."""
        return held(self._quorum, self._log_start_of)

    def removal_limit(self) -> Offset:
        """Return the offset below which the leader may remove expired tombstones: all present followers have them."""
        return removal_limit(self.high_watermark, self._followers.values(), self._now)

    @property
    def lease_confirmed(self) -> bool:
        """Whether the broker's lease is certainly valid."""
        return self._lease_confirmed

    @property
    def serves_weak_acks(self) -> bool:
        """Whether requests with acks 0 or 1, and requests for `latest`, may be answered (protocol section 3, rule 7).

        Without a confirmed lease, another leader may have been appointed already, unless this broker is the only
        replica.
        """
        return self._lease_confirmed or len(self._record.replicas) == 1

    @property
    def acknowledges_in_doubt(self) -> bool:
        """Whether acks=all may be served without a confirmed lease: W voters never report to two leaders."""
        return True

    @property
    def resigned(self) -> bool:
        """Whether the partition record no longer names this incarnation of the broker as the leader."""
        return self._resigned

    def is_current(self, broker: BrokerId) -> bool:
        """Return whether the record names the incarnation of a replica that reports to this leader."""
        follower = self._followers.get(broker)
        reporting = self._broker_epoch if broker == self._broker else follower and follower.broker_epoch
        return reporting is not None and self._entries.get(broker) == reporting

    def counted_of(self, broker: BrokerId) -> Offset | None:
        """Return the offset below which a replica's records count, or None while the replica has not reported."""
        if broker == self._broker:
            return self._own_counted()
        follower = self._followers.get(broker)
        return None if follower is None else follower.counted(self._record.durability)

    def refusal_of(self, report: FollowerReport) -> FetchRefusal | None:
        """Return the reason for refusing a fetch, or None if the fetch may be served and its report counted."""
        leader_epoch = self._record.leader_epoch
        if report.leader_epoch != leader_epoch:
            stale = report.leader_epoch < leader_epoch
            return FetchRefusal.STALE_LEADER_EPOCH if stale else FetchRefusal.UNKNOWN_LEADER_EPOCH
        if not self._is_generation(report.broker, report.generation):
            return FetchRefusal.NOT_A_REPLICA
        if report.broker_epoch < self._newest_epoch(report.broker):
            return FetchRefusal.STALE_BROKER_EPOCH
        return None

    # -- events

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Apply one event, and return the resulting effects in the order in which the caller must run them."""
        plan = True
        match event:
            case Appended(end, now):
                assert end >= self._end_offset, (
                    f"the end of the log moved back from {self._end_offset} to {end}"
                )
                self._now = now
                self._ends.appended(end, now)
                self._end_offset = end
                plan = False
            case Synced(offset, now):
                assert offset <= self._end_offset, f"synced to {offset}, beyond the end {self._end_offset}"
                self._now = now
                self._synced_offset = max(self._synced_offset, offset)
                plan = not self._is_settled
            case FollowerFetched():
                self._fetched(event)
                plan = not self._is_settled
            case FollowerSynced():
                self._follower_synced(event)
                plan = not self._is_settled
            case TimePassed(now):
                self._now = now
                self._ends.note(now)
                self._held_back = False
                self._find_near()
            case RecordChanged(record, revision):
                self._adopt(record, revision)
            case BrokersChanged(registered):
                self._registered = registered
                self._held_back = False
                self._read_record()
            case WriteAnswered():
                self._write_answered(event)
            case LeaseChanged(confirmed):
                self._lease_confirmed = confirmed
            case LogStartMoved(offset):
                self._log_start = max(self._log_start, offset)
                self._low_due = True
            case WriteQuorumSet(write):
                self._write_wanted = write
                self._read_record()
            case DirectoryFailed():
                self._directory_failed = True
            case _:
                assert_never(event)
        effects: list[LeaderEffect] = []
        if plan:
            # The next write is planned before the high watermark moves: until the outcome of the write is known, the
            # high watermark also needs W of the proposed voters (quorum Q4).
            self._plan(effects)
        self._commit(effects)
        if self._low_due:
            self._advance_low(effects)
        return effects

    def _fetched(self, event: FollowerFetched) -> None:
        self._now = event.now
        report = event.report
        if self.refusal_of(report) is not None:
            return
        follower = self._followers.get(report.broker)
        if (
            follower is not None
            and follower.broker_epoch == report.broker_epoch
            and follower.generation == report.generation
        ):
            if follower.log_start != report.log_start:
                self._low_due = True
            follower.fetched(report)
        else:
            follower = self._followers[report.broker] = KnownFollower(report)
            self._low_due = True
            self._recount()
        follower.fetched_at = self._now
        if report.log_start > self._log_start_known and report.broker in self._entries:
            self._log_start_known = report.log_start
            self._low_due = True
        if report.broker not in self._near:
            self._find_near()

    def _follower_synced(self, event: FollowerSynced) -> None:
        self._now = event.now
        follower = self._followers.get(event.broker)
        if follower is not None and self._progress_counts(event, follower):
            follower.synced(event.synced_offset)

    def _progress_counts(self, event: FollowerSynced, follower: KnownFollower) -> bool:
        """Return whether a report has the incarnation, generation and leader epoch of the last fetch."""
        return (
            event.leader_epoch == self._record.leader_epoch
            and event.broker_epoch == follower.broker_epoch
            and event.generation == follower.generation
        )

    def _adopt(self, record: PartitionRecord, revision: Revision) -> None:
        """Use a newer stored partition record, which settles the outcome of every earlier proposal."""
        if revision <= self._revision:
            return
        self._revision = revision
        self._in_flight = None
        self._in_doubt = ()
        self._held_back = False
        leader = InSync(broker=self._broker, broker_epoch=self._broker_epoch)
        if (
            record.leader_epoch != self._record.leader_epoch
            or record.leader is None
            or ((record.leader.broker, record.leader.broker_epoch) != (leader.broker, leader.broker_epoch))
        ):
            # This leader's own vacancy was stored, so it no longer commits or writes.
            self._resigned = True
            return
        assert record.quorum is not None, "a partition keeps its replication mode"
        self._record = record
        self._quorum = record.quorum
        self._low_due = True
        self._read_record()

    def _write_answered(self, event: WriteAnswered) -> None:
        write = self._in_flight
        if write is None or write.revision != event.revision:
            return  # A newer partition record has already decided the outcome.
        self._in_flight = None
        match event.outcome:
            case WriteOutcome.STORED:
                assert event.stored_revision is not None, "a stored record has a revision"
                self._adopt(write.record, event.stored_revision)
                return
            case WriteOutcome.UNKNOWN:
                assert write.record.quorum is not None, "a partition keeps its replication mode"
                # The write may be stored later: an unchanged partition record proves nothing.
                self._in_doubt = (*self._in_doubt, write.record.quorum)
            case WriteOutcome.REFUSED:
                pass
            case _:
                assert_never(event.outcome)
        self._held_back = True

    # -- maps derived from the partition record

    def _read_record(self) -> None:
        record = self._record
        self._replicas: dict[BrokerId, Replica] = {replica.broker: replica for replica in record.replicas}
        self._generations = {
            replica.broker: generation_in(replica, self._directory_of(replica)) for replica in record.replicas
        }
        for broker, follower in list(self._followers.items()):
            if not self._is_generation(broker, follower.generation):
                del self._followers[broker]
        self._recount()
        self._find_near()

    def _is_generation(self, broker: BrokerId, generation: int) -> bool:
        """Return whether a report contains the replica's current generation."""
        return self._generations.get(broker) == generation

    def _recount(self) -> None:
        live = {broker: each.broker_epoch for broker, each in self._returning().items()}
        self._is_settled = is_settled(self._record, live, self._write_wanted)

    @property
    def _entries(self) -> dict[BrokerId, BrokerEpoch]:
        return {voter.broker: voter.broker_epoch for voter in self._quorum.voters}

    def _directory_of(self, replica: Replica) -> str:
        """Return the registered directory of a replica, preferably the directory that the partition record names."""
        registered = self._registered.get(replica.broker)
        if registered is None or not registered.directories or replica.directory in registered.directories:
            return replica.directory
        return registered.directories[0]

    def _newest_epoch(self, broker: BrokerId) -> BrokerEpoch:
        registered = self._registered.get(broker)
        follower = self._followers.get(broker)
        return max(
            BrokerEpoch(0) if registered is None else registered.epoch,
            BrokerEpoch(0) if follower is None else follower.broker_epoch,
            self._entries.get(broker, BrokerEpoch(0)),
        )

    # -- high and low watermark

    def _commit(self, effects: list[LeaderEffect]) -> None:
        """Advance the high watermark to the offset that W voters have (quorum Q4).

        While a proposal is undecided, W voters of the stored record and of each proposal must have the offset. The high
        watermark first moves only past the batch that begins the epoch: a record of an older epoch is committed by
        later records, never by counting its copies alone.
        """
        if self._resigned or self._directory_failed:
            return
        offset = held(self._quorum, self._counted) if self._stored_counts() else self._end_offset
        for quorum in self._proposed():
            proposed = held(quorum, self._counted)
            offset = None if offset is None or proposed is None else min(offset, proposed)
        if offset is not None and self._is_of_own_epoch(offset) and offset > self._high_watermark:
            self._high_watermark = offset
            effects.append(AdvanceHighWatermark(offset))
            if self._log_start_known > self._log_start_raised:
                self._low_due = True

    def _stored_counts(self) -> bool:
        """Return whether the voters of the stored record count, as they do until a proposal is stored."""
        return True

    def _is_of_own_epoch(self, offset: Offset) -> bool:
        """Return whether the record before an offset belongs to the leader's own epoch."""
        return offset > self._epoch_start

    def _promised(self) -> Offset:
        """Return the offset below which records may have been committed, by this leader or by an earlier leader."""
        return max(self._high_watermark, self._epoch_start)

    def _proposed(self) -> tuple[Quorum, ...]:
        """Return the quorums of all proposals whose outcome is unknown."""
        if self._in_flight is None or self._in_flight.record.quorum is None:
            return self._in_doubt
        return (*self._in_doubt, self._in_flight.record.quorum)

    def _counted(self, voter: InSync) -> Offset | None:
        """Return the offset of a voter, reported in the incarnation that the voter's entry names (quorum Q2)."""
        if voter.broker == self._broker:
            return self._own_counted()
        follower = self._followers.get(voter.broker)
        if follower is None or not self._is_entry(follower, voter):
            return None
        return follower.counted(self._record.durability)

    def _is_entry(self, follower: KnownFollower, voter: InSync) -> bool:
        """Return whether a follower reports in the incarnation that its entry names."""
        return follower.broker_epoch == voter.broker_epoch

    def _own_counted(self) -> Offset:
        if self._record.durability is DurabilityState.REPLICATED:
            return self._end_offset
        return self._synced_offset

    def _log_start_of(self, voter: InSync) -> Offset | None:
        if voter.broker == self._broker:
            return self._log_start
        follower = self._followers.get(voter.broker)
        return None if follower is None or follower.broker_epoch != voter.broker_epoch else follower.log_start

    def _advance_low(self, effects: list[LeaderEffect]) -> None:
        self._low_due = False
        raised = min(self._log_start_known, self._high_watermark)
        if raised > max(self._log_start, self._log_start_raised):
            self._log_start_raised = raised
            effects.append(RaiseLogStart(raised))
        low = self.low_watermark or Offset(0)
        if low > self._low_watermark:
            effects.append(AdvanceLowWatermark(low))
        self._low_watermark = low

    # -- near voters

    def _find_near(self) -> None:
        self._near = frozenset(voter.broker for voter in self._quorum.voters if self._is_near(voter))

    def _is_near(self, voter: InSync) -> bool:
        """Return whether a voter had every record within the lag time.

        For the lag time after the start of the epoch, a registered voter counts as near, because it first has to find
        its leader.
        """
        registered = self._registered.get(voter.broker)
        if registered is None or registered.epoch != voter.broker_epoch:
            return False
        counted = self._counted(voter)
        if self._now - self._began_at <= self._lag_seconds:
            return True
        at = None if counted is None else self._ends.caught_up_at(counted, self._now)
        return at is not None and self._now - at <= self._lag_seconds

    # -- the next write

    def _plan(self, effects: list[LeaderEffect]) -> None:
        """Request the next write of the partition record if a write is due and no other write is in flight."""
        if self._in_flight is not None or self._held_back or self._resigned or not self._lease_confirmed:
            return
        write = self._resignation() or self._voter_change()
        if write is not None:
            self._in_flight = write
            effects.append(write)

    def _resignation(self) -> WriteRecord | None:
        """Return a vacancy if this broker's disk failed or lags, and enough other voters are near to elect a leader.

        After a failed fsync, unsynced pages may be lost even though reads still return them, so the broker also gives
        up its vote.
        """
        if not self._directory_failed and self._broker in self._near:
            return None
        others = len(self._near - {self._broker})
        if others < max(self._quorum.write, len(members(self._record)) - self._quorum.write + 1):
            return None
        record = None
        if self._directory_failed and self._record.durability is not DurabilityState.SYNCED:
            record = without_voter(self._record, self._broker)
        return WriteRecord(self._revision, vacated(self._record) if record is None else record)

    def _voter_change(self) -> WriteRecord | None:
        if self._directory_failed or self._is_settled:
            return None
        change = next_voters(
            self._record,
            self._broker,
            self._returning(),
            self._counted,
            self._promised(),
            self._write_wanted,
            may_change_members=self.high_watermark is not None,
        )
        return None if change is None else WriteRecord(self._revision, change.record, change.added)

    def _returning(self) -> dict[BrokerId, Returning]:
        """Return the followers that can become voters: they fetch, and are registered in the reported incarnation."""
        found = {}
        for broker, follower in self._followers.items():
            registered, replica = self._registered.get(broker), self._replicas.get(broker)
            if (
                registered is None
                or replica is None
                or not registered.joins
                or not registered.directories
                or registered.epoch != follower.broker_epoch
                or not self._is_generation(broker, follower.generation)
            ):
                continue
            found[broker] = Returning(
                follower.broker_epoch,
                follower.counted(self._record.durability),
                registered.revision,
                msgspec.structs.replace(
                    replica, directory=self._directory_of(replica), generation=follower.generation
                ),
            )
        return found
