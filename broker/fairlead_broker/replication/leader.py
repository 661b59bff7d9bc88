"""The leader's machine of one partition in one leader epoch (protocol section 4).

    high watermark:  unknown ──reaches the epoch's start──▶ known ──▶ only upwards
    durability:      replicated ──controller──▶ syncing ──this machine──▶ synced
    write:           none ──WriteRecord──▶ in flight ──stored or refused──▶ none
                                               └──unknown──▶ in doubt until a record with a higher revision

`step` is the only door that changes anything; everything else reads. A new leader epoch is a new machine. Every
rule is one small method. Which successor of the record is wanted is said in `successors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, assert_never

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import DurabilityState, PartitionRecord
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
from fairlead_broker.replication.known_follower import KnownFollower
from fairlead_broker.replication.progress import ReplicaProgress
from fairlead_broker.replication.registered_broker import RegisteredBroker
from fairlead_broker.replication.successors import Successors

_RareEvent: TypeAlias = (
    TimePassed
    | RecordChanged
    | BrokersChanged
    | WriteAnswered
    | LeaseChanged
    | LogStartMoved
    | DirectoryFailed
)


class PartitionLeader(Successors):
    """Decides how far a partition is committed, and who is in sync."""

    __slots__ = ("_low_due", "_low_watermark")

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
        """Take leadership with the own log as it is at the start of the epoch.

        `record` names this broker in this life as the leader. `progress`: the own log's; its end is where the epoch
        starts. `high_watermark`: what is known to be committed from before (checkpoint, clamped to the log).
        """
        assert broker in {entry.broker for entry in record.isr}, f"broker {broker} leads, not in the isr"
        assert 0 <= high_watermark <= progress.end_offset, "a high watermark lies within the log"
        assert progress.synced_offset <= progress.end_offset, "nothing is synced beyond the end"
        super().__init__(
            broker, broker_epoch, record, revision, registered, progress, high_watermark, now, lag_seconds
        )
        self._log_start = log_start
        self._low_watermark = Offset(0)
        self._low_due = True

    # -- what callers see

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch in which this machine leads."""
        return self._record.leader_epoch

    @property
    def record(self) -> PartitionRecord:
        """The stored record by which the machine decides."""
        return self._record

    @property
    def revision(self) -> Revision:
        """Mod revision of the record."""
        return self._revision

    @property
    def counts_synced(self) -> bool:
        """Whether only fsynced bytes count."""
        return self._record.durability is not DurabilityState.REPLICATED

    @property
    def in_sync_count(self) -> int:
        """In-sync replicas that count towards min_isr."""
        return self._in_sync_count

    @property
    def min_isr(self) -> int:
        """How many there have to be."""
        return self._record.min_isr

    @property
    def enough_in_sync(self) -> bool:
        """Whether the high watermark may move at all (rule 4.4), for every acks level.

        The stored isr decides, since a proposed one may never come to be; replicas that a reassignment adds do
        not count, since they may be taken away again.
        """
        return self._in_sync_count >= self._record.min_isr

    @property
    def end_offset(self) -> Offset:
        """The own log's end."""
        return self._end_offset

    @property
    def log_start(self) -> Offset:
        """The own log's start."""
        return self._log_start

    @property
    def high_watermark(self) -> Offset | None:
        """Below it everything is committed; None until it reaches the start of the epoch (rule 4.9).

        A smaller number would make a client believe that committed records are gone.
        """
        return self._high_watermark if self._high_watermark >= self._epoch_start else None

    @property
    def readable_limit(self) -> Offset:
        """Records below it may be served, also while the high watermark is unknown."""
        return self._high_watermark

    @property
    def low_watermark(self) -> Offset | None:
        """Least log start over the stored isr; None while a member has not reported (rule 4.12)."""
        least = self._log_start
        for broker in self._stored:
            if broker != self._broker:
                follower = self._followers.get(broker)
                if follower is None:
                    return None
                least = min(least, follower.log_start)
        return least

    @property
    def lease_confirmed(self) -> bool:
        """Whether the broker's lease cannot have ended yet."""
        return self._lease_confirmed

    @property
    def serves_weak_acks(self) -> bool:
        """Whether acks 0 and 1, and `latest`, may be answered (protocol section 3, rule 7).

        Without a confirmed lease somebody else may lead by now, unless nobody else could be elected.
        """
        return self._lease_confirmed or (
            len(self._maximal) == 1 and not self._record.elr and not self._record.unclean
        )

    @property
    def resigned(self) -> bool:
        """Whether the record names this broker's life as the leader no more."""
        return self._resigned

    def counted_of(self, broker: BrokerId) -> Offset | None:
        """Offset below which the replica of a broker counts; None while it has not reported."""
        if broker == self._broker:
            return self._own_counted()
        follower = self._followers.get(broker)
        return None if follower is None else follower.counted(self._record.durability)

    def refusal_of(self, report: FollowerReport) -> FetchRefusal | None:
        """Say why a fetch may be neither served nor counted; None where it may."""
        leader_epoch = self._record.leader_epoch
        if report.leader_epoch != leader_epoch:
            stale = report.leader_epoch < leader_epoch
            return FetchRefusal.STALE_LEADER_EPOCH if stale else FetchRefusal.UNKNOWN_LEADER_EPOCH
        if not self._is_generation(report.broker, report.generation):
            return FetchRefusal.NOT_A_REPLICA
        if report.broker_epoch < self._newest_life(report.broker):
            return FetchRefusal.STALE_BROKER_EPOCH
        return None

    # -- the one door

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Take in one fact; answer what follows from it, in the order in which it must be done."""
        plan = not self._complete
        match event:
            case Appended():
                self._appended(event)
                plan = False
            case FollowerFetched():
                self._fetched(event)
                plan = not self._complete
            case Synced():
                self._synced(event)
            case FollowerSynced():
                self._follower_synced(event)
            case _:
                self._told(event)
                plan = True
        effects: list[LeaderEffect] = []
        if plan:
            # Before the high watermark moves: whom it is about to propose it has to wait for.
            self._plan(effects)
        self._advance(effects)
        if self._low_due:
            self._advance_low(effects)
        return effects

    def _told(self, event: _RareEvent) -> None:
        match event:
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
            case _:
                assert_never(event)

    def _appended(self, event: Appended) -> None:
        end = event.end_offset
        assert end >= self._end_offset, f"the log went back from {self._end_offset} to {end}"
        self._now = event.now
        self._ring.appended(end, event.now)
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
            # Another life or generation starts from what it says itself: it may have lost what the last one had.
            self._followers[report.broker] = KnownFollower(report)
            self._low_due = True
            self._recount()

    def _follower_synced(self, event: FollowerSynced) -> None:
        self._now = event.now
        follower = self._followers.get(event.broker)
        if follower is not None and self._progress_counts(event, follower):
            follower.synced(event.synced_offset)

    def _progress_counts(self, event: FollowerSynced, follower: KnownFollower) -> bool:
        """Rule 4.2: progress counts only from the life, generation and leader epoch of the last fetch."""
        return (
            event.leader_epoch == self._record.leader_epoch
            and event.broker_epoch == follower.broker_epoch
            and event.generation == follower.generation
            and self._is_generation(event.broker, event.generation)
        )

    def _time_passed(self, now: float) -> None:
        self._now = now
        self._ring.note(now)
        self._held_back = False

    def _record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        assert record.leader_epoch == self._record.leader_epoch, "another leader epoch is another machine"
        if revision > self._revision:
            self._adopt(record, revision)

    def _adopt(self, record: PartitionRecord, revision: Revision) -> None:
        """Go by a newer stored record. Whatever was proposed before is in it, or is refused by its revision."""
        self._record = record
        self._revision = revision
        self._in_flight = None
        self._in_doubt = frozenset()
        self._held_back = False
        self._resigned = self._resigned or not self._names_this_life(record)
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

    def _names_this_life(self, record: PartitionRecord) -> bool:
        """Rule 4.1: a broker leads only while the record names its current epoch."""
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
            return  # A newer record has decided already.
        self._in_flight = None
        match event.outcome:
            case WriteOutcome.STORED:
                assert event.stored_revision is not None, "a stored record has a revision"
                self._adopt(write.record, event.stored_revision)
                return
            case WriteOutcome.UNKNOWN:
                self._keep_in_doubt(write)
            case WriteOutcome.REFUSED:
                pass  # This attempt never was; earlier ones in doubt may have been what it lost against.
            case _:
                assert_never(event.outcome)
        self._held_back = True
        self._recount()

    def _keep_in_doubt(self, write: WriteRecord) -> None:
        """Rule 3.4: what may be stored stays in the maximal isr until a record with a higher revision."""
        self._in_doubt |= {entry.broker for entry in write.record.isr}

    # -- who may be counted

    def _is_generation(self, broker: BrokerId, generation: int) -> bool:
        """Rule 4.5: a report counts only in the generation that the record gives the replica."""
        return self._generations.get(broker) == generation

    def _newest_life(self, broker: BrokerId) -> BrokerEpoch:
        """The latest life of a broker that this leader knows of."""
        registered = self._registered.get(broker)
        follower = self._followers.get(broker)
        return max(
            BrokerEpoch(0) if registered is None else registered.epoch,
            BrokerEpoch(0) if follower is None else follower.broker_epoch,
            self._isr_epochs.get(broker, BrokerEpoch(0)),
        )

    # -- how far everything is committed

    def _advance(self, effects: list[LeaderEffect]) -> None:
        if not self._may_advance():
            return
        committed = self._least_counted()
        if committed is None or committed <= self._high_watermark:
            return
        self._high_watermark = committed
        effects.append(AdvanceHighWatermark(committed))

    def _may_advance(self) -> bool:
        """Whether this broker may still acknowledge anything."""
        return (
            self.enough_in_sync
            and not self._resigned
            and not self._directory_failed
            and not self._may_be_succeeded_uncleanly()
        )

    def _may_be_succeeded_uncleanly(self) -> bool:
        """Rule 3.7: alone in the isr with a doubtful lease, an unclean election may already have passed it by."""
        return not self._lease_confirmed and self._record.unclean and len(self._stored) == 1

    def _least_counted(self) -> Offset | None:
        """The least counted offset over the maximal isr and who is waited for; None while a member is silent."""
        durability = self._record.durability
        least = self._own_counted()
        for broker in self._maximal:
            if broker != self._broker:
                follower = self._followers.get(broker)
                if follower is None:
                    return None
                least = min(least, follower.counted(durability))
        if not self._complete:
            for follower in self._waited_for():
                least = min(least, follower.counted(durability))
        return least

    def _advance_low(self, effects: list[LeaderEffect]) -> None:
        self._low_due = False
        low = self.low_watermark or Offset(0)
        if low > self._low_watermark:
            effects.append(AdvanceLowWatermark(low))
        # Also down: who comes into the isr may begin earlier, and whoever waits for it hears when it has followed.
        self._low_watermark = low
