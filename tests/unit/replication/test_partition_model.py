"""A leader and its followers over logs in memory: in any order of events no acknowledged record is missing.

Records are unique numbers with the epoch of their leader. A write to the partition record may be stored late, and its
answer may be lost; a broker may lose unsynced records; any member of the ISR may be elected next.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import DurabilityState, InSync
from fairlead_broker.replication import (
    AdvanceHighWatermark,
    Appended,
    BrokersChanged,
    CopiesAppended,
    Diverged,
    EpochStart,
    Fetched,
    FollowerFetched,
    FollowerLogSynced,
    FollowerSynced,
    LeaderEffect,
    PartitionFollower,
    PartitionLeader,
    RecordChanged,
    RegisteredBroker,
    ReplicaProgress,
    ReportProgress,
    Synced,
    TimePassed,
    Truncated,
    TruncateTo,
    WriteAnswered,
    WriteOutcome,
    WriteRecord,
    divergence,
    epoch_end,
)
from replication_kit import EVERYBODY, LAG_SECONDS, LEADER, entries, life, partition_record, registered

BROKERS = st.sampled_from(EVERYBODY)
Copied = tuple[int, int]
"""Leader epoch and unique number of a record."""


@dataclass
class Replica:
    """A broker's log, and the state machine of the broker as a follower."""

    broker: BrokerId
    epoch: BrokerEpoch
    log: list[Copied]
    synced: int = 0
    follower: PartitionFollower | None = None

    @property
    def starts(self) -> list[EpochStart]:
        """The epochs of the records."""
        return [
            EpochStart(LeaderEpoch(epoch), Offset(at))
            for at, (epoch, _) in enumerate(self.log)
            if at == 0 or self.log[at - 1][0] != epoch
        ]

    @property
    def last_epoch(self) -> LeaderEpoch | None:
        """Epoch of the last record."""
        return LeaderEpoch(self.log[-1][0]) if self.log else None


class PartitionModel(RuleBasedStateMachine):
    """One partition of three brokers with durability=synced."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_record = 0
        self.revision = 50
        # The third replica is not in sync at first and min_isr is one, so that proposals matter from the first step on.
        self.record = partition_record(
            durability=DurabilityState.SYNCED, isr=entries(EVERYBODY[:2]), min_isr=1
        )
        self.replicas = {broker: Replica(broker, life(broker), []) for broker in EVERYBODY}
        self.on_the_way: list[WriteRecord] = []
        self.acknowledged: list[Copied] = []
        self.lead(LEADER)

    # -- the shells

    def lead(self, broker: BrokerId) -> None:
        """Make the elected broker the leader, and the other brokers its followers."""
        self.leader = self.replicas[broker]
        self.in_flight: WriteRecord | None = None
        for replica in self.replicas.values():
            replica.follower = None
        self.machine = PartitionLeader(
            broker,
            self.leader.epoch,
            self.record,
            Revision(self.revision),
            self.registrations(),
            ReplicaProgress(Offset(len(self.leader.log)), Offset(self.leader.synced)),
            Offset(0),
            Offset(0),
            self.now,
            LAG_SECONDS,
        )

    def registrations(self) -> dict[BrokerId, RegisteredBroker]:
        """Return the registered incarnation of each broker."""
        return {
            broker: registered(broker, epoch=replica.epoch, revision=Revision(replica.epoch))
            for broker, replica in self.replicas.items()
        }

    def run(self, effects: list[LeaderEffect]) -> None:
        """Execute the effects of the leader's state machine."""
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(offset):
                    log = self.leader.log
                    known = len(self.acknowledged)
                    assert log[: min(known, offset)] == self.acknowledged[: min(known, offset)]
                    self.acknowledged += log[known:offset]
                case WriteRecord():
                    assert self.in_flight is None, "one write at a time"
                    self.in_flight = effect
                case _:
                    pass

    def store(self, write: WriteRecord) -> bool:
        """Write the partition record by compare-and-set."""
        registrations = self.registrations()
        holds = write.revision == self.revision and all(
            registrations[broker].revision == revision for broker, revision in write.added
        )
        if holds:
            self.revision += 1
            self.record = write.record
        return holds

    def following(self, replica: Replica) -> PartitionFollower:
        """Return the state machine of a follower, which is created when the follower first learns its leader."""
        if replica.follower is None:
            replica.follower = PartitionFollower(
                replica.broker,
                replica.epoch,
                0,
                self.machine.leader_epoch,
                Offset(len(replica.log)),
                Offset(replica.synced),
                Offset(0),
                Offset(0),
                replica.last_epoch,
            )
        return replica.follower

    # -- events

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        """Append a record at the leader."""
        for _ in range(count):
            self.leader.log.append((self.machine.leader_epoch, self.next_record))
            self.next_record += 1
        self.run(self.machine.step(Appended(Offset(len(self.leader.log)), self.now)))

    @rule(broker=BROKERS)
    def sync(self, broker: BrokerId) -> None:
        """Sync the log of a broker, and report the synced offset."""
        replica = self.replicas[broker]
        replica.synced = len(replica.log)
        if replica is self.leader:
            self.run(self.machine.step(Synced(Offset(replica.synced), self.now)))
            return
        follower = self.following(replica)
        for effect in follower.step(FollowerLogSynced(Offset(replica.synced))):
            assert isinstance(effect, ReportProgress)
            event = FollowerSynced(
                broker, replica.epoch, 0, follower.leader_epoch, effect.synced_offset, self.now
            )
            self.run(self.machine.step(event))

    @rule(broker=BROKERS, copies=st.integers(0, 4), answered=st.booleans())
    def fetch(self, broker: BrokerId, copies: int, answered: bool) -> None:
        """Fetch as a follower, possibly losing the answer."""
        replica = self.replicas[broker]
        if replica is self.leader:
            return
        follower = self.following(replica)
        report = follower.next_fetch()
        assert report is not None
        if self.machine.refusal_of(report) is not None:
            return
        leader = self.leader
        end = divergence(
            leader.starts, Offset(len(leader.log)), report.last_epoch, Offset(report.fetch_offset)
        )
        if end is not None:
            own = epoch_end(replica.starts, end.epoch, Offset(len(replica.log)))
            [cut] = follower.step(Diverged(end.epoch, end.end_offset, own))
            assert isinstance(cut, TruncateTo)
            del replica.log[cut.offset :]
            replica.synced = min(replica.synced, cut.offset)
            follower.step(Truncated(cut.offset, replica.last_epoch))
            return
        self.run(self.machine.step(FollowerFetched(report, self.now)))
        if not answered:
            return
        more = leader.log[report.fetch_offset : report.fetch_offset + copies]
        follower.step(Fetched(follower.leader_epoch, self.machine.high_watermark, Offset(0), len(more)))
        if more:
            replica.log += more
            follower.step(CopiesAppended(Offset(len(replica.log)), replica.last_epoch))

    @rule(seconds=st.sampled_from([1.0, LAG_SECONDS / 2, LAG_SECONDS + 1]))
    def pass_time(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        self.run(self.machine.step(TimePassed(self.now)))

    @precondition(lambda self: self.in_flight is not None)
    @rule(arrives=st.sampled_from(["now", "now, unheard", "later"]))
    def write(self, arrives: str) -> None:
        """Store the leader's write, or delay it beyond its timeout."""
        write, self.in_flight = self.in_flight, None
        assert write is not None
        if arrives == "later":
            self.on_the_way.append(write)
        stored = arrives != "later" and self.store(write)
        if arrives != "now":
            answer = WriteAnswered(write.revision, WriteOutcome.UNKNOWN)
        elif stored:
            answer = WriteAnswered(write.revision, WriteOutcome.STORED, Revision(self.revision))
        else:
            answer = WriteAnswered(write.revision, WriteOutcome.REFUSED)
        self.run(self.machine.step(answer))

    @precondition(lambda self: self.on_the_way)
    @rule()
    def late_write(self) -> None:
        """Store a write after its leader has given up on it."""
        self.store(self.on_the_way.pop(0))

    @rule()
    def mirror(self) -> None:
        """Update the leader's mirror."""
        self.run(self.machine.step(BrokersChanged(self.registrations())))
        if self.record.leader_epoch == self.machine.leader_epoch and self.revision > self.machine.revision:
            self.in_flight = None
            self.run(self.machine.step(RecordChanged(self.record, Revision(self.revision))))

    @rule(broker=BROKERS)
    def lose_power(self, broker: BrokerId) -> None:
        """Restart a follower in a new incarnation, without its unsynced records."""
        replica = self.replicas[broker]
        if replica is not self.leader:
            self.revision += 1
            replica.epoch = BrokerEpoch(self.revision + 100)
            del replica.log[replica.synced :]
            replica.follower = None

    @rule(data=st.data())
    def elect(self, data: st.DataObject) -> None:
        """Replace a lost leader with an in-sync replica, or else an eligible replica, in its current incarnation."""
        eligible = [entry.broker for entry in self.record.isr or self.record.elr]
        broker = data.draw(st.sampled_from(eligible))
        self.leader.follower = None
        del self.leader.log[self.leader.synced :]
        chosen = InSync(broker=broker, broker_epoch=self.replicas[broker].epoch)
        others = tuple(entry for entry in self.record.isr if entry.broker != broker)
        self.revision += 1
        self.record = msgspec.structs.replace(
            self.record,
            leader=chosen,
            leader_epoch=LeaderEpoch(self.record.leader_epoch + 1),
            isr=(chosen, *others),
            elr=tuple(entry for entry in self.record.elr if entry.broker != broker),
        )
        self.lead(broker)

    @invariant()
    def nothing_acknowledged_is_missing(self) -> None:
        """Every replica that may be elected has all acknowledged records on disk."""
        count = len(self.acknowledged)
        for entry in (*self.record.isr, *self.record.elr):
            replica = self.replicas[entry.broker]
            assert replica.log[: replica.synced][:count] == self.acknowledged

    @invariant()
    def the_maximal_isr_covers_the_stored_one(self) -> None:
        """The leader's maximal ISR includes the stored ISR."""
        if self.record.leader_epoch == self.machine.leader_epoch and self.machine.enough_in_sync:
            assert {entry.broker for entry in self.record.isr} <= self.machine.maximal_isr


TestPartitionModel = PartitionModel.TestCase
TestPartitionModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
