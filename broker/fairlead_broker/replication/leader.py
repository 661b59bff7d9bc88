"""The leader's state machine of one partition in one leader epoch (protocol section 4).

    high watermark:  unknown ──reaches the epoch's start──▶ known ──▶ only upwards
    durability:      replicated ──controller──▶ syncing ──this module──▶ synced
    write:           none ──WriteRecord──▶ in flight ──stored or refused──▶ none
                                               └──unknown──▶ in doubt until a record with a higher revision

`PartitionLeader.step` is the only method that changes state; all other public methods only read the state. Each leader
epoch has a new state machine. The state machine computes the high watermark of the partition, and decides which change
to the partition record is written next: a replica joins or leaves the isr, `syncing` becomes `synced`, or the leader
resigns. One write is in flight at a time, and a proposed broker belongs to the maximal isr as soon as the write is
requested.

The state machine is called by the leader replica of `runtime` and by the simulator. This code is in one file
because offsets and isr membership share all state, and a rule for offsets is correct only together with the rules
for membership.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, assert_never

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.generations import generation_in
from fairlead_broker.registry.isr import with_isr
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica
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

WAITED_FOR_SHARE: Final = 0.1
"""Fraction of the lag time (`replica.lag.time.max.ms`). The high watermark waits for a replica outside the isr that had
every record of the leader at some time within this fraction of the lag time. A larger fraction would block all
acknowledgements while a distant replica catches up. A smaller fraction could be shorter than the time for a fetch and
its fsync, and a replica could never join the isr under load.
"""


class PartitionLeader:
    """State machine that determines the high watermark of a partition and the set of in-sync replicas."""

    __slots__ = (
        "_broker",
        "_broker_epoch",
        "_complete",
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
        "_in_sync_count",
        "_isr_epochs",
        "_lag_seconds",
        "_lease_confirmed",
        "_log_start",
        "_low_due",
        "_low_watermark",
        "_maximal",
        "_member_since",
        "_now",
        "_record",
        "_registered",
        "_replicas",
        "_resigned",
        "_revision",
        "_stored",
        "_synced_offset",
    )

    begins_with_batch = False
    """Whether the leader appends a batch that begins its epoch."""

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
    ) -> None:
        """Start the leader epoch with the leader's current log.

        `record` names this broker with `broker_epoch` as the leader; `revision` is the mod revision of the record.
        `progress`: end offset of the leader's own log, at which the epoch starts, and the synced offset.
        `high_watermark` is the high watermark known from earlier epochs (the checkpoint, clamped to the log). `now` and
        `lag_seconds` are in seconds.
        """
        assert broker in {entry.broker for entry in record.isr}, (
            f"broker {broker} leads but is not in the isr"
        )
        assert 0 <= high_watermark <= progress.end_offset, "the high watermark is within the log"
        assert progress.synced_offset <= progress.end_offset, "nothing is synced beyond the end"
        self._broker = broker
        self._broker_epoch = broker_epoch
        self._record = record
        self._revision = revision
        self._registered = registered
        self._end_offset = progress.end_offset
        self._synced_offset = progress.synced_offset
        self._epoch_start = progress.end_offset
        self._high_watermark = high_watermark
        self._log_start = log_start
        self._low_watermark = Offset(0)
        self._low_due = True
        self._now = now
        self._lag_seconds = lag_seconds
        self._ends = EndOffsets(progress.end_offset, now, lag_seconds)
        self._followers: dict[BrokerId, KnownFollower] = {}
        self._in_flight: WriteRecord | None = None
        self._in_doubt: frozenset[BrokerId] = frozenset()
        """Isr members in the writes that have an unknown outcome."""
        self._held_back = False
        """Whether the last write was not stored. After a write that was not stored, the next write waits for
        `TimePassed` or another event.
        """
        self._lease_confirmed = True
        self._directory_failed = False
        self._resigned = False
        self._complete = False
        """Whether no replica outside the isr could join and no change to `synced` is due. While `_complete` is set,
        most reports of followers cause no write. A replica that falls behind is detected at `TimePassed`.
        """
        self._member_since: dict[BrokerId, float] = {}
        self._read_record()
        self._recount()

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
    def in_sync_count(self) -> int:
        """Number of in-sync replicas that count towards min_isr."""
        return self._in_sync_count

    @property
    def min_isr(self) -> int:
        """Number of in-sync replicas that acknowledgements require."""
        return self._record.min_isr

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """Brokers of the stored isr, and every broker that a write with unknown outcome may have added (rule 4.4)."""
        return self._maximal

    @property
    def enough_in_sync(self) -> bool:
        """Whether enough replicas are in sync for the high watermark to move (rule 4.4), at every acks level.

        Only members of the stored isr count, because a proposed isr may never be stored. Replicas that a reassignment
        adds do not count, since the reassignment may be cancelled.
        """
        return self._in_sync_count >= self._record.min_isr

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
        """Offset below which every record is committed, or None while it is below the start of the epoch (rule 4.9).

        A client that saw an offset below the epoch's start would conclude that committed records are lost.
        """
        return self._high_watermark if self._high_watermark >= self._epoch_start else None

    @property
    def readable_limit(self) -> Offset:
        """Offset below which records may be served, even while the high watermark is unknown."""
        return self._high_watermark

    @property
    def low_watermark(self) -> Offset | None:
        """Lowest log start of the stored isr's members, or None while a member has not reported (rule 4.12)."""
        least = self._log_start
        for broker in self._stored:
            if broker != self._broker:
                follower = self._followers.get(broker)
                if follower is None:
                    return None
                least = min(least, follower.log_start)
        return least

    def removal_limit(self) -> Offset:
        """Return the offset below which the leader may remove expired tombstones: all present followers have them.

        A follower that has been away for too long copies its log again, so the limit only avoids such copies.
        """
        return removal_limit(self.high_watermark, self._followers.values(), self._now)

    @property
    def lease_confirmed(self) -> bool:
        """Whether the broker's lease is certainly valid."""
        return self._lease_confirmed

    @property
    def serves_weak_acks(self) -> bool:
        """Whether requests with acks 0 or 1, and requests for `latest`, may be answered (protocol section 3, rule 7).

        Without a confirmed lease, requests are answered only if no other broker could have been elected.
        """
        return self._lease_confirmed or (
            len(self._maximal) == 1 and not self._record.elr and not self._record.unclean
        )

    @property
    def acknowledges_in_doubt(self) -> bool:
        """Whether acks=all may be served without a confirmed lease.

        The high watermark cannot advance without the other members of the isr. A leader that is alone in the isr and
        could be replaced by an unclean election must not advance the high watermark.
        """
        return not self._record.unclean or len(self._record.isr) > 1

    @property
    def resigned(self) -> bool:
        """Whether the partition record no longer names this incarnation of the broker as the leader."""
        return self._resigned

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
            case Appended():
                self._appended(event)
                plan = False
            case FollowerFetched():
                self._fetched(event)
                plan = not self._complete
            case Synced():
                plan = not self._complete
                self._synced(event)
            case FollowerSynced():
                plan = not self._complete
                self._follower_synced(event)
            case TimePassed(now):
                self._time_passed(now)
            case RecordChanged(record, revision):
                self._record_changed(record, revision)
            case BrokersChanged(registered):
                self._brokers_changed(registered)
            case WriteAnswered():
                self._write_answered(event)
            case LeaseChanged(confirmed):
                self._lease_confirmed = confirmed
            case LogStartMoved(offset):
                self._log_start = max(self._log_start, offset)
                self._low_due = True
            case DirectoryFailed():
                self._directory_failed = True
            case WriteQuorumSet():
                plan = False  # Only a partition with a quorum has a write quorum.
            case _:
                assert_never(event)
        effects: list[LeaderEffect] = []
        if plan:
            # The next write is planned before the high watermark moves, because the high watermark has to wait for
            # the replicas that this write proposes.
            self._plan(effects)
        self._advance(effects)
        if self._low_due:
            self._advance_low(effects)
        return effects

    def _appended(self, event: Appended) -> None:
        end = event.end_offset
        assert end >= self._end_offset, f"the end of the log moved back from {self._end_offset} to {end}"
        self._now = event.now
        self._ends.appended(end, event.now)
        self._end_offset = end

    def _synced(self, event: Synced) -> None:
        assert event.offset <= self._end_offset, (
            f"synced to {event.offset}, beyond the end {self._end_offset}"
        )
        self._now = event.now
        self._synced_offset = max(self._synced_offset, event.offset)

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
            # The state of a new incarnation or generation starts with its own report, since records of the previous
            # incarnation may have been lost.
            self._followers[report.broker] = KnownFollower(report)
            self._low_due = True
            self._recount()
        self._followers[report.broker].fetched_at = self._now

    def _follower_synced(self, event: FollowerSynced) -> None:
        self._now = event.now
        follower = self._followers.get(event.broker)
        if follower is not None and self._progress_counts(event, follower):
            follower.synced(event.synced_offset)

    def _progress_counts(self, event: FollowerSynced, follower: KnownFollower) -> bool:
        """Return whether a report has the incarnation, generation and leader epoch of the last fetch (rule 4.2)."""
        return (
            event.leader_epoch == self._record.leader_epoch
            and event.broker_epoch == follower.broker_epoch
            and event.generation == follower.generation
            and self._is_generation(event.broker, event.generation)
        )

    def _time_passed(self, now: float) -> None:
        self._now = now
        self._ends.note(now)
        self._held_back = False

    def _record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        assert record.leader_epoch == self._record.leader_epoch, "a state machine serves one leader epoch"
        if revision > self._revision:
            self._adopt(record, revision)

    def _adopt(self, record: PartitionRecord, revision: Revision) -> None:
        """Use a newer stored partition record.

        Every earlier proposal is either contained in this record, or fails because it compares an older revision.
        """
        self._record = record
        self._revision = revision
        self._in_flight = None
        self._in_doubt = frozenset()
        self._held_back = False
        self._resigned = self._resigned or not self._names_this_incarnation(record)
        self._low_due = True
        before = self._stored
        self._read_record()
        for broker in before.difference(self._isr_epochs):
            if broker in self._followers:
                self._followers[broker].left = True
        for broker, follower in list(self._followers.items()):
            if not self._is_generation(broker, follower.generation):
                del self._followers[broker]
        self._recount()

    def _names_this_incarnation(self, record: PartitionRecord) -> bool:
        """Return whether the partition record names this broker's incarnation as the leader (rule 4.1)."""
        leader = record.leader
        return leader is not None and (leader.broker, leader.broker_epoch) == (
            self._broker,
            self._broker_epoch,
        )

    def _brokers_changed(self, registered: Mapping[BrokerId, RegisteredBroker]) -> None:
        self._registered = registered
        self._held_back = False
        self._read_record()
        self._recount()

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
                self._keep_in_doubt(write)
            case WriteOutcome.REFUSED:
                pass  # The conflicting revision may be that of an earlier write whose answer was lost.
            case _:
                assert_never(event.outcome)
        self._held_back = True
        self._recount()

    def _keep_in_doubt(self, write: WriteRecord) -> None:
        """Keep proposed members in the maximal isr until a newer partition record arrives (rule 3.4)."""
        self._in_doubt |= {entry.broker for entry in write.record.isr}

    # -- maps derived from the partition record

    def _read_record(self) -> None:
        """Derive the maps for checking reports from the partition record and the registrations."""
        record = self._record
        self._replicas: dict[BrokerId, Replica] = {replica.broker: replica for replica in record.replicas}
        self._isr_epochs = {entry.broker: entry.broker_epoch for entry in record.isr}
        self._member_since = {
            broker: self._member_since.get(broker, self._now) for broker in self._isr_epochs
        }
        self._generations = {replica.broker: self._generation_of(replica) for replica in record.replicas}

    def _generation_of(self, replica: Replica) -> int:
        """Return a replica's generation: 0 in a directory that the partition record does not name (rule 4.5)."""
        directory = self._directory_of(replica)
        return replica.generation if directory is None else generation_in(replica, directory)

    def _directory_of(self, replica: Replica) -> str | None:
        """Return the registered directory of a replica, preferably the directory that the partition record names."""
        registered = self._registered.get(replica.broker)
        if registered is None or not registered.directories:
            return None
        if replica.directory in registered.directories:
            return replica.directory
        return registered.directories[0]

    def _recount(self) -> None:
        """Derive the stored isr, the maximal isr, and whether any replica could still join the isr."""
        self._stored = frozenset(self._isr_epochs)
        self._maximal = self._stored_members() | self._proposed_members()
        self._in_sync_count = len(self._stored.difference(self._counts_not_yet()))
        self._complete = self._record.durability is not DurabilityState.SYNCING and not any(
            self._isr_epochs.get(broker) != follower.broker_epoch and self._is_eligible(broker, follower)
            for broker, follower in self._followers.items()
        )

    def _stored_members(self) -> frozenset[BrokerId]:
        """Return the stored isr, which includes a member proposed for removal until the removal is stored."""
        return self._stored

    def _proposed_members(self) -> frozenset[BrokerId]:
        """Return the isr members in all writes that may already be stored."""
        if self._in_flight is None:
            return self._in_doubt
        return self._in_doubt.union(entry.broker for entry in self._in_flight.record.isr)

    def _counts_not_yet(self) -> tuple[BrokerId, ...]:
        """Return the replicas that an unfinished reassignment adds; they do not count towards min_isr (rule 4.4)."""
        return self._record.adding

    def _is_generation(self, broker: BrokerId, generation: int) -> bool:
        """Return whether a report contains the replica's current generation (rule 4.5)."""
        return self._generations.get(broker) == generation

    def _newest_epoch(self, broker: BrokerId) -> BrokerEpoch:
        """Return the highest broker epoch of a broker that this leader has seen."""
        registered = self._registered.get(broker)
        follower = self._followers.get(broker)
        return max(
            BrokerEpoch(0) if registered is None else registered.epoch,
            BrokerEpoch(0) if follower is None else follower.broker_epoch,
            self._isr_epochs.get(broker, BrokerEpoch(0)),
        )

    # -- high and low watermark

    def _advance(self, effects: list[LeaderEffect]) -> None:
        if not self._may_advance():
            return
        committed = self._least_counted()
        if committed is None or committed <= self._high_watermark:
            return
        self._high_watermark = committed
        effects.append(AdvanceHighWatermark(committed))

    def _may_advance(self) -> bool:
        """Return whether this broker may still acknowledge records."""
        return (
            self.enough_in_sync
            and not self._resigned
            and not self._directory_failed
            and not self._may_be_succeeded_uncleanly()
        )

    def _may_be_succeeded_uncleanly(self) -> bool:
        """Return whether another leader may already have been elected uncleanly (rule 3.7).

        An unclean election is possible if this leader is the only member of the isr and its lease is not
        confirmed.
        """
        return not self._lease_confirmed and self._record.unclean and len(self._stored) == 1

    def _least_counted(self) -> Offset | None:
        """Return the lowest counted offset of the maximal isr and the awaited replicas.

        Returns None while a member of the maximal isr has not reported.
        """
        durability = self._record.durability
        least = self._own_counted()
        for broker in self._maximal:
            if broker != self._broker:
                follower = self._followers.get(broker)
                if follower is None:
                    return None
                least = min(least, follower.counted(durability))
        if not self._complete:
            for follower in self._awaited():
                least = min(least, follower.counted(durability))
        return least

    def _awaited(self) -> Iterator[KnownFollower]:
        """Yield the caught-up replicas outside the isr for which the high watermark waits (rule 4.4).

        Without waiting for these replicas, the high watermark of a small isr would follow the end of the leader's log,
        which no follower reaches under load. The wait always ends: a replica that stays within the fraction of the lag
        time soon has all records that the leader had when the wait began, and therefore reaches the high watermark.
        """
        for broker, follower in self._followers.items():
            if broker not in self._maximal and self._is_worth_waiting(broker, follower):
                yield follower

    def _is_worth_waiting(self, broker: BrokerId, follower: KnownFollower) -> bool:
        return (
            self._may_write()
            and self._is_eligible(broker, follower)
            and self._had_everything(
                follower.counted(self._record.durability), self._lag_seconds * WAITED_FOR_SHARE
            )
        )

    def _advance_low(self, effects: list[LeaderEffect]) -> None:
        self._low_due = False
        low = self.low_watermark or Offset(0)
        if low > self._low_watermark:
            effects.append(AdvanceLowWatermark(low))
        # The low watermark may also decrease, since the log of a joining replica may start at a lower offset. Waiting
        # deletions are answered once the joining replica has caught up.
        self._low_watermark = low

    # -- lag

    def _own_counted(self) -> Offset:
        if self._record.durability is DurabilityState.REPLICATED:
            return self._end_offset
        return self._synced_offset

    def _is_in_sync(self, broker: BrokerId) -> bool:
        """Return whether a replica had every record within the lag time (rule 4.2).

        A member counts as in sync for the lag time after the epoch's start, in which the member has to find its leader,
        and for the lag time after joining. A replica joins with all committed records, possibly long before it has the
        uncommitted records; without this rule, it would leave and join the isr repeatedly.
        """
        since = self._member_since.get(broker)
        if since is not None and self._now - since <= self._lag_seconds:
            return True
        counted = self._own_counted() if broker == self._broker else None
        if counted is None:
            follower = self._followers.get(broker)
            if follower is None:
                return False
            counted = follower.counted(self._record.durability)
        return self._had_everything(counted, self._lag_seconds)

    def _had_everything(self, counted: Offset, within_seconds: float) -> bool:
        at = self._ends.caught_up_at(counted, self._now)
        return at is not None and self._now - at <= within_seconds

    # -- the next write

    def _plan(self, effects: list[LeaderEffect]) -> None:
        """Request the next write of the partition record if a write is due and no other write is in flight."""
        if self._in_flight is not None or self._held_back or not self._may_write():
            return
        write = self._resignation() or self._isr_change() or self._end_of_syncing()
        if write is not None:
            self._in_flight = write
            self._recount()
            effects.append(write)

    def _may_write(self) -> bool:
        """Return whether a write may be requested.

        Without a confirmed lease, the outcome of every write would be unknown.
        """
        return self._lease_confirmed and not self._resigned

    def _resignation(self) -> WriteRecord | None:
        """Return a resignation if this broker's disk failed or lags and another isr member can lead (rule 4.3)."""
        if not (self._directory_failed or self._own_disk_lags()) or not self._has_successor():
            return None
        isr = tuple(entry for entry in self._record.isr if entry.broker != self._broker)
        # After a failed fsync, pages may be lost although reads return them: only bytes below `synced` are certain to
        # be on the disk.
        distrusted = self._directory_failed and self._record.durability is not DurabilityState.SYNCED
        record = self._with_isr(isr, (self._broker,) if distrusted else ())
        return WriteRecord(self._revision, msgspec.structs.replace(record, leader=None))

    def _own_disk_lags(self) -> bool:
        return not self._is_in_sync(self._broker)

    def _has_successor(self) -> bool:
        """Return whether another live isr member has a working disk and, if this broker's disk lags, does not lag."""
        return any(
            entry.broker != self._broker
            and self._is_live(entry)
            and not self._lost_disk(entry)
            and (self._directory_failed or self._is_in_sync(entry.broker))
            for entry in self._record.isr
        )

    def _is_live(self, entry: InSync) -> bool:
        registered = self._registered.get(entry.broker)
        return registered is not None and registered.joins and registered.epoch == entry.broker_epoch

    def _isr_change(self) -> WriteRecord | None:
        """Return one write that removes lagging members from the isr and adds caught-up replicas."""
        if self._directory_failed:
            return None
        joining = {
            broker: follower
            for broker, follower in self._followers.items()
            if self._may_join(broker, follower)
        }
        staying = tuple(
            entry for entry in self._record.isr if entry.broker not in joining and self._stays(entry)
        )
        if not joining and len(staying) == len(self._record.isr):
            return None
        joined = tuple(
            InSync(broker=broker, broker_epoch=follower.broker_epoch) for broker, follower in joining.items()
        )
        record = msgspec.structs.replace(
            self._with_isr((*staying, *joined)),
            replicas=tuple(
                self._with_directory(replica) if replica.broker in joining else replica
                for replica in self._record.replicas
            ),
        )
        added = tuple((broker, self._registered[broker].revision) for broker in joining)
        return WriteRecord(self._revision, record, added)

    def _with_isr(self, isr: tuple[InSync, ...], quarantined: tuple[BrokerId, ...] = ()) -> PartitionRecord:
        record = self._record
        leaving = {entry.broker for entry in (*record.isr, *record.elr) if entry.broker not in self._replicas}
        return with_isr(record, isr=isr, min_isr=record.min_isr, leaving=leaving, quarantined=quarantined)

    def _stays(self, entry: InSync) -> bool:
        """Return whether a member stays in the isr: the leader, or a member that is in sync and has a working disk."""
        return entry.broker == self._broker or (self._is_in_sync(entry.broker) and not self._lost_disk(entry))

    def _lost_disk(self, entry: InSync) -> bool:
        """Return whether a member's disk has failed, in which case its registration lists no directory."""
        registered = self._registered.get(entry.broker)
        return (
            registered is not None and registered.epoch == entry.broker_epoch and not registered.directories
        )

    def _with_directory(self, replica: Replica) -> Replica:
        """Return a joining replica with its registered directory.

        Only the write that adds the replica to the isr sets the directory (rule 4.5).
        """
        directory = self._directory_of(replica)
        assert directory is not None, "a joining replica has a registered directory"
        return msgspec.structs.replace(
            replica, directory=directory, generation=generation_in(replica, directory)
        )

    def _may_join(self, broker: BrokerId, follower: KnownFollower) -> bool:
        """Return whether a replica may join the isr (rule 4.5). A known follower has fetched in this epoch."""
        return (
            self._isr_epochs.get(broker) != follower.broker_epoch
            and self._has_reported_since_removal(follower)
            and self._reaches_high_watermark(follower)
            and self._reaches_epoch_start(follower)
            and self._is_eligible(broker, follower)
        )

    def _has_reported_since_removal(self, follower: KnownFollower) -> bool:
        """Return whether a removed follower has reported since its removal.

        An old report must not let a dead follower rejoin. While the log does not grow, followers send no reports,
        and a caught-up follower remains caught up.
        """
        return not follower.left or follower.counted(self._record.durability) >= self._end_offset

    def _reaches_high_watermark(self, follower: KnownFollower) -> bool:
        return follower.counted(self._record.durability) >= self._high_watermark

    def _reaches_epoch_start(self, follower: KnownFollower) -> bool:
        """Return whether a follower has all records below the epoch's start: any of them may already be committed."""
        return follower.counted(self._record.durability) >= self._epoch_start

    def _is_eligible(self, broker: BrokerId, follower: KnownFollower) -> bool:
        """Return whether partition record and registration allow the replica's incarnation into the isr."""
        replica = self._replicas.get(broker)
        return (
            replica is not None
            and self._is_registered(broker, follower)
            and self._generations.get(broker) == follower.generation
            and self._directory_of(replica) is not None
        )

    def _is_registered(self, broker: BrokerId, follower: KnownFollower) -> bool:
        registered = self._registered.get(broker)
        return registered is not None and registered.joins and registered.epoch == follower.broker_epoch

    def _end_of_syncing(self) -> WriteRecord | None:
        """Return the write that ends `syncing` once all acknowledged records are on every member's disk (rule 4.6)."""
        if (
            self._record.durability is not DurabilityState.SYNCING
            or self._record.elr
            or self._directory_failed
        ):
            return None
        promised = max(self._high_watermark, self._epoch_start)
        for broker in self._maximal:
            if broker == self._broker:
                synced = self._synced_offset
            elif (follower := self._followers.get(broker)) is not None:
                synced = follower.synced_offset
            else:
                return None
            if synced < promised:
                return None
        return WriteRecord(
            self._revision, msgspec.structs.replace(self._record, durability=DurabilityState.SYNCED)
        )
