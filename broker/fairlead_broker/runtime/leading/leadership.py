"""Shell around one partition's leader state machine: passes events to the state machine and executes its effects.

A `LeaderReplica`, which appends and reads, owns the shell of its partition's state machine. The shell communicates with
followers, the coordination store and the lease. The `LeaderMachine` makes all decisions. After `close`,
events are ignored, because answers from the store and from followers may still arrive after the leadership has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol, assert_never

from fairlead_api.identifiers import (
    Acks,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    Revision,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import InSync, PartitionRecord
from fairlead_broker.replication import (
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
    LeaderMachine,
    LeaseChanged,
    LogStartMoved,
    RaiseLogStart,
    RecordChanged,
    RegisteredBroker,
    Synced,
    TimePassed,
    WriteAnswered,
    WriteOutcome,
    WriteQuorumSet,
    WriteRecord,
)
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.meters import TopicMeters


class FollowerPlace(Protocol):
    """Interface of a follower's fetch session, which is notified of changes to the partition."""

    def grown(self) -> None:
        """Report that the partition has new records to fetch."""
        ...

    def offsets_moved(self) -> None:
        """Report that the high watermark, the log start, or the offset of removed tombstones has advanced."""
        ...

    def ended(self) -> None:
        """Report that this broker no longer leads the partition."""
        ...


class Leadership:
    """Leadership of this broker for one partition in one leader epoch."""

    __slots__ = (
        "_advanced",
        "_clock",
        "_index",
        "_low_watermark_waiters",
        "_meters",
        "_places",
        "_raise_log_start",
        "_shared",
        "_topic",
        "closed",
        "incarnation",
        "key",
        "machine",
    )

    def __init__(
        self,
        topic: str,
        key: TopicIdPartition,
        machine: LeaderMachine,
        shared: SharedParts,
        meters: TopicMeters,
        advanced: Callable[[Offset], None],
        raise_log_start: Callable[[Offset], None],
    ) -> None:
        """`advanced` is called with each new high watermark, and `raise_log_start` with each log start to move to."""
        leader = machine.record.leader
        assert leader is not None, "the record of a leadership names the leader"
        self.machine = machine
        self.key = key
        self.incarnation: Final[InSync] = leader
        """Incarnation of this broker that leads; every write is conditional on this incarnation being current."""
        self.closed = False
        self._topic = topic
        self._index = key.partition
        self._shared = shared
        self._clock = shared.clock
        self._meters = meters
        self._advanced = advanced
        self._raise_log_start = raise_log_start
        self._places: dict[FollowerPlace, None] = {}
        self._low_watermark_waiters: list[tuple[Offset, asyncio.Future[None]]] = []

    # -- checks

    def check_writable(self, acks: Acks) -> None:
        """Raise the refusal of a batch whose acks could not be satisfied (rules 3.7 and 4.4).

        The check runs before any memory or time is spent on the batch.
        """
        self._look_at_lease()
        machine = self.machine
        if machine.resigned:
            raise refusals.no_leader(self._topic, self._index)
        if not machine.lease_confirmed and not self._may_acknowledge(acks):
            raise refusals.lease_in_doubt(self._topic, self._index)
        if acks is Acks.ALL and not machine.enough_in_sync:
            raise refusals.not_enough_replicas(
                self._topic, self._index, machine.in_sync_count, machine.min_isr
            )

    def _may_acknowledge(self, acks: Acks) -> bool:
        """Return whether batches with these acks may be acknowledged while the lease is in doubt (rule 3.7).

        While the lease is in doubt, another leader may have been elected.
        """
        if acks is not Acks.ALL:
            return self.machine.serves_weak_acks
        return self.machine.acknowledges_in_doubt

    def check_latest(self) -> Offset:
        """Return the high watermark for clients. Raises `offset_not_available` if a higher high watermark may exist."""
        self._look_at_lease()
        high_watermark = self.machine.high_watermark
        if high_watermark is None or not self.machine.serves_weak_acks:
            raise refusals.offset_not_available(self._topic, self._index)
        return high_watermark

    def timed_out(self, seconds: float, effect: SideEffect) -> ProblemError:
        """Return the problem that explains why a batch was not acknowledged in time."""
        machine = self.machine
        if effect is SideEffect.MAYBE and not machine.enough_in_sync:
            return refusals.not_enough_replicas_after_append(
                self._topic, self._index, machine.in_sync_count, machine.min_isr
            )
        return refusals.ack_timeout(self._topic, self._index, seconds, effect)

    # -- the leader's own log

    def appended(self, end_offset: Offset) -> None:
        """Pass the new end offset of the leader's log to the state machine."""
        self._step(Appended(end_offset, self._clock.monotonic()))
        for place in self._places:
            place.grown()

    def synced(self, offset: Offset) -> None:
        """Pass the synced offset of the leader's log to the state machine."""
        self._step(Synced(offset, self._clock.monotonic()))

    def log_start_moved(self, log_start: Offset) -> None:
        """Pass a new start of the leader's log to the state machine and to the followers."""
        self._step(LogStartMoved(log_start))
        for place in self._places:
            place.offsets_moved()

    def tombstones_removed(self) -> None:
        """Let followers know below which offset the leader's log may now lack tombstones."""
        for place in self._places:
            place.offsets_moved()

    def directory_failed(self) -> None:
        """Notify the state machine that the leader's disk has failed: another replica must lead, if possible."""
        self._step(DirectoryFailed())

    # -- the cluster

    def record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        """Pass a new version of the partition record with the same leader epoch to the state machine."""
        self._step_counting(RecordChanged(record, revision))

    def brokers_changed(self, registered: Mapping[BrokerId, RegisteredBroker]) -> None:
        """Pass the changed registrations of brokers to the state machine."""
        self._step(BrokersChanged(registered))

    def write_answered(
        self, write: WriteRecord, outcome: WriteOutcome, stored_revision: Revision | None
    ) -> None:
        """Pass the outcome of a write to the state machine: written, refused or unknown."""
        self._step_counting(WriteAnswered(write.revision, outcome, stored_revision))

    def write_quorum_set(self, write: int | None) -> None:
        """Pass the configured write quorum to the state machine."""
        self._step(WriteQuorumSet(write))

    def time_passed(self) -> None:
        """Check the lease, and pass the time to the state machine."""
        self._step(TimePassed(self._clock.monotonic()))

    # -- followers

    def refusal_of(self, report: FollowerReport) -> FetchRefusal | None:
        """Return the reason why a follower's report is refused; None if the report is accepted."""
        return self.machine.refusal_of(report)

    def follower_fetched(self, report: FollowerReport) -> None:
        """Pass a follower's fetch to the state machine; the fetch offset must lie in the leader's log."""
        self._step(FollowerFetched(report, self._clock.monotonic()))

    def follower_synced(
        self,
        broker: BrokerId,
        broker_epoch: BrokerEpoch,
        generation: int,
        leader_epoch: LeaderEpoch,
        synced_offset: Offset,
    ) -> None:
        """Pass the synced offset of a follower to the state machine."""
        now = self._clock.monotonic()
        self._step(FollowerSynced(broker, broker_epoch, generation, leader_epoch, synced_offset, now))

    def add_place(self, place: FollowerPlace) -> None:
        """Register a follower's session that is notified of later changes to the partition."""
        self._places[place] = None

    def remove_place(self, place: FollowerPlace) -> None:
        """Unregister a follower's session."""
        self._places.pop(place, None)

    @property
    def replica_lag(self) -> int:
        """Number of records by which the slowest follower that has sent a report is behind the leader."""
        machine = self.machine
        counted = [machine.counted_of(replica.broker) for replica in machine.record.replicas]
        return machine.end_offset - min(
            (each for each in counted if each is not None), default=machine.end_offset
        )

    @property
    def under_replicated(self) -> bool:
        """Whether any replica is out of sync; replicas that a reassignment is adding do not count."""
        record = self.machine.record
        present = {entry.broker for entry in in_sync(record)}
        return any(each.broker not in present | {*record.adding} for each in record.replicas)

    async def low_watermark(self, offset: Offset, seconds: float) -> bool:
        """Wait until the log of every isr member starts at an offset or later (rule 4.12).

        Returns False after a timeout, and if the leadership has ended.
        """
        low_watermark = self.machine.low_watermark
        if low_watermark is not None and low_watermark >= offset:
            return True
        if self.closed:
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (offset, waiter)
        self._low_watermark_waiters.append(entry)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            return False
        finally:
            if entry in self._low_watermark_waiters:
                self._low_watermark_waiters.remove(entry)
        return not self.closed

    def close(self) -> None:
        """End the leadership: notify the waiting calls and sessions, and ignore later events."""
        self.closed = True
        for place in tuple(self._places):
            place.ended()
        self._places.clear()
        for _, waiter in self._low_watermark_waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- the state machine

    def _look_at_lease(self) -> None:
        """Detect a lease in doubt at once, even if this process was just suspended (rule 3.7)."""
        confirmed = self._shared.lease_confirmed(self.incarnation.broker_epoch)
        if confirmed is not self.machine.lease_confirmed:
            self._run(self.machine.step(LeaseChanged(confirmed)))

    def _step(self, event: LeaderEvent) -> None:
        if not self.closed:
            self._look_at_lease()
            self._run(self.machine.step(event))

    def _step_counting(self, event: LeaderEvent) -> None:
        before = {entry.broker for entry in in_sync(self.machine.record)}
        self._step(event)
        after = {entry.broker for entry in in_sync(self.machine.record)}
        self._meters.isr_changed(joined=len(after - before), left=len(before - after))

    def _run(self, effects: list[LeaderEffect]) -> None:
        for effect in effects:
            match effect:
                case AdvanceHighWatermark(offset):
                    self._advanced(offset)
                    for place in self._places:
                        place.offsets_moved()
                case WriteRecord():
                    self._shared.write_record(self, effect)
                case AdvanceLowWatermark(offset):
                    self._answer_low_watermark(offset)
                case RaiseLogStart(offset):
                    self._raise_log_start(offset)
                case _:
                    assert_never(effect)

    def _answer_low_watermark(self, low_watermark: Offset) -> None:
        for offset, waiter in self._low_watermark_waiters:
            if offset <= low_watermark and not waiter.done():
                waiter.set_result(None)
