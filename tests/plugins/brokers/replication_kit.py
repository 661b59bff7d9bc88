"""A leader's state machine with a manual clock, and records of three replicas, for tests of replication."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Quorum, Replica
from fairlead_broker.replication import (
    AdvanceHighWatermark,
    Appended,
    BrokersChanged,
    FollowerFetched,
    FollowerReport,
    FollowerSynced,
    LeaderEffect,
    LeaderEvent,
    PartitionLeader,
    QuorumLeader,
    RecordChanged,
    RegisteredBroker,
    ReplicaProgress,
    Synced,
    TimePassed,
    WriteAnswered,
    WriteOutcome,
    WriteRecord,
)

LEADER, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
EVERYBODY = (LEADER, SECOND, THIRD)
LEADER_EPOCH = LeaderEpoch(3)
LAG_SECONDS = 10.0
FIRST_REVISION = Revision(50)


def life(broker: int) -> BrokerEpoch:
    """Return the first broker epoch of a broker."""
    return BrokerEpoch(10 + broker)


def entries(brokers: Iterable[int]) -> tuple[InSync, ...]:
    """Return brokers in their first broker epochs."""
    return tuple(InSync(broker=BrokerId(broker), broker_epoch=life(broker)) for broker in brokers)


def registered(broker: int, **fields: object) -> RegisteredBroker:
    """Return a broker in its first broker epoch as the leader's mirror shows it."""
    plain = RegisteredBroker(life(broker), Revision(20 + broker), joins=True, directories=(f"d{broker}",))
    values = {name: fields.get(name, getattr(plain, name)) for name in RegisteredBroker.__slots__}
    return RegisteredBroker(**values)  # type: ignore[arg-type]


def partition_record(**fields: object) -> PartitionRecord:
    """Return a record with every replica in sync, min.insync.replicas 2, replicated durability; `fields` override."""
    plain = PartitionRecord(
        leader=entries([LEADER])[0],
        leader_epoch=LEADER_EPOCH,
        replicas=tuple(Replica(broker=broker, directory=f"d{broker}") for broker in EVERYBODY),
        isr=entries(EVERYBODY),
        min_isr=2,
        durability=DurabilityState.REPLICATED,
    )
    return msgspec.structs.replace(plain, **fields)


def quorum_record(write: int = 2, voters: Iterable[int] = EVERYBODY, **fields: object) -> PartitionRecord:
    """Return a record with a write quorum, synced durability and all replicas as voters; `fields` override."""
    plain = partition_record(
        isr=(),
        min_isr=write,
        durability=DurabilityState.SYNCED,
        quorum=Quorum(write=write, voters=entries(voters)),
    )
    return msgspec.structs.replace(plain, **fields)


def voters_of(record: PartitionRecord) -> dict[int, int]:
    """Return the voters of a record with their incarnations."""
    assert record.quorum is not None
    return {voter.broker: voter.broker_epoch for voter in record.quorum.voters}


def isr_of(record: PartitionRecord) -> set[int]:
    """Return the in-sync replicas of a record."""
    return {entry.broker for entry in record.isr}


def elr_of(record: PartitionRecord) -> set[int]:
    """Return the eligible leader replicas of a record."""
    return {entry.broker for entry in record.elr}


class DrivenLeader:
    """A leader at the beginning of its leadership, at time 0."""

    def __init__(
        self,
        record: PartitionRecord | None = None,
        *,
        end: int = 0,
        synced: int | None = None,
        high_watermark: int = 0,
        log_start: int = 0,
        brokers: Mapping[BrokerId, RegisteredBroker] | None = None,
    ) -> None:
        self.now = 0.0
        self.brokers = dict(brokers or {broker: registered(broker) for broker in EVERYBODY})
        record = partition_record() if record is None else record
        self.machine: PartitionLeader | QuorumLeader = (QuorumLeader if record.quorum else PartitionLeader)(
            LEADER,
            life(LEADER),
            record,
            FIRST_REVISION,
            self.brokers,
            ReplicaProgress(Offset(end), Offset(end if synced is None else synced)),
            Offset(high_watermark),
            Offset(log_start),
            self.now,
            LAG_SECONDS,
        )

    def step(self, event: LeaderEvent) -> list[LeaderEffect]:
        """Pass an event to the machine."""
        return self.machine.step(event)

    def append(self, end: int) -> list[LeaderEffect]:
        """Extend the leader's log to `end`."""
        return self.step(Appended(Offset(end), self.now))

    def sync(self, offset: int) -> list[LeaderEffect]:
        """Sync the leader's log up to `offset`."""
        return self.step(Synced(Offset(offset), self.now))

    def report(self, broker: int, offset: int, **fields: object) -> FollowerReport:
        """Return the report of a follower's fetch, with its whole log synced by default."""
        plain: dict[str, object] = {
            "broker": BrokerId(broker),
            "broker_epoch": life(broker),
            "generation": 0,
            "leader_epoch": LEADER_EPOCH,
            "last_epoch": LEADER_EPOCH if offset else None,
            "fetch_offset": Offset(offset),
            "synced_offset": Offset(offset),
            "log_start": Offset(0),
        }
        return FollowerReport(**{**plain, **fields})  # type: ignore[arg-type]

    def fetch(self, broker: int, offset: int, **fields: object) -> list[LeaderEffect]:
        """Fetch as a follower whose log ends at `offset`."""
        return self.step(FollowerFetched(self.report(broker, offset, **fields), self.now))

    def progress(self, broker: int, synced: int, **fields: object) -> list[LeaderEffect]:
        """Report a follower's synced offset."""
        plain: dict[str, object] = {
            "broker": BrokerId(broker),
            "broker_epoch": life(broker),
            "generation": 0,
            "leader_epoch": LEADER_EPOCH,
            "synced_offset": Offset(synced),
            "now": self.now,
        }
        return self.step(FollowerSynced(**{**plain, **fields}))  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> list[LeaderEffect]:
        """Advance the time with a tick each second; return all effects."""
        effects: list[LeaderEffect] = []
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            effects += self.step(TimePassed(self.now))
        return effects

    def change(self, revision: int, **fields: object) -> list[LeaderEffect]:
        """Replace the partition record in the mirror with its successor."""
        record = msgspec.structs.replace(self.machine.record, **fields)
        return self.step(RecordChanged(record, Revision(revision)))

    def register(self, broker: int, **fields: object) -> list[LeaderEffect]:
        """Replace a broker's registration in the mirror."""
        self.brokers = {**self.brokers, BrokerId(broker): registered(broker, **fields)}
        return self.step(BrokersChanged(self.brokers))

    def answer(
        self, write: WriteRecord, outcome: WriteOutcome, stored: int | None = None
    ) -> list[LeaderEffect]:
        """Report the outcome of a write."""
        return self.step(WriteAnswered(write.revision, outcome, None if stored is None else Revision(stored)))


def advanced(effects: Iterable[LeaderEffect]) -> list[int]:
    """Return the high watermarks among effects."""
    return [effect.offset for effect in effects if isinstance(effect, AdvanceHighWatermark)]


def writes(effects: Iterable[LeaderEffect]) -> list[WriteRecord]:
    """Return the writes among effects."""
    return [effect for effect in effects if isinstance(effect, WriteRecord)]


def only_write(effects: Iterable[LeaderEffect]) -> WriteRecord:
    """Return the only write among effects."""
    [write] = writes(effects)
    return write


def proposes(effects: Iterable[LeaderEffect]) -> bool:
    """Return whether the effects include a write."""
    return len(writes(effects)) == 1
