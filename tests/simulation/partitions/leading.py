"""The shell of a leader, which appends batches, serves followers, and executes the effects of `PartitionLeader`.

This shell works like `fairlead_broker.runtime.leading`, without bytes, for one leader epoch of one partition, and
`closed` is set when the leadership ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead_api.identifiers import BrokerId, LeaderEpoch, Offset, Revision, TimestampUs
from fairlead_broker.producers import (
    AnswerAsAppended,
    AnswerStored,
    Append,
    PartitionProducers,
    ProducerState,
    Refuse,
    SequencedArrived,
    UnknownProducer,
    stored_batch,
)
from fairlead_broker.producers import Appended as ProducersAppended
from fairlead_broker.producers import TimePassed as ProducersTimePassed
from fairlead_broker.registry.records import PartitionRecord
from fairlead_broker.replication.divergence import divergence, end_before, epoch_before
from fairlead_broker.replication.leader import PartitionLeader
from fairlead_broker.replication.leader_messages import (
    AdvanceHighWatermark,
    Appended,
    BrokersChanged,
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
from partitions import guards
from partitions.disk import Cell, Log
from partitions.messages import (
    FetchAnswer,
    FetchDiverged,
    FetchedCells,
    FetchOutside,
    FetchRefused,
    Outcome,
    Produce,
    ReadAnswer,
)
from simulator.broker import own_registration
from simulator.store import Transaction, partition_key

if TYPE_CHECKING:
    from partitions.broker import Broker

PARK_SECONDS = 0.5
PRODUCER_EPOCH = 0
EPOCH_US = 1_800_000_000_000_000
"""Wall-clock time of the start of a world."""


@dataclass(slots=True)
class Parked:
    """A follower's fetch that waits for changes."""

    report: FollowerReport
    answer: Callable[[FetchAnswer], None]
    until: float


class Leading:
    """A partition that one broker leads in one leader epoch."""

    def __init__(
        self, broker: Broker, partition: int, log: Log, record: PartitionRecord, revision: Revision
    ) -> None:
        """Become leader."""
        world = broker.world
        self.broker = broker
        self.partition = partition
        self.log = log
        self.epoch = record.leader_epoch
        self.broker_epoch = broker.epoch
        self.closed = False
        place = (
            BrokerId(broker.number),
            broker.epoch,
            record,
            revision,
            broker.registered_brokers(),
            ReplicaProgress(log.end, Offset(log.synced)),
            Offset(log.high_watermark),
            Offset(log.log_start),
            world.now,
            world.plan.lag_seconds,
        )
        self.machine: PartitionLeader | QuorumLeader
        if record.quorum is None:
            self.machine = PartitionLeader(*place)
        else:
            self.machine = QuorumLeader(*place, world.wishes.writes.get(partition, world.plan.write))
        self._producers: PartitionProducers[Produce] = PartitionProducers(replayed(log))
        self._waiting: list[tuple[int, Produce]] = []
        self._parked: dict[int, Parked] = {}
        self._told: dict[int, tuple[int | None, int]] = {}
        self._clock_error = 0.0
        world.judge.leads(self)
        if self.machine.begins_with_batch:
            self.begin_epoch()
        self.step(LeaseChanged(broker.leased))
        self._tick()

    def begin_epoch(self) -> None:
        """Append the batch that begins the epoch of a partition with a write quorum (quorum Q3)."""
        self._append([Produce(self.broker.world.next_value(), -1, -1, acks_all=True, answer=_nothing)])

    def step(self, event: LeaderEvent) -> None:
        """Pass an event to `PartitionLeader`, and execute its effects."""
        if self.closed:
            return
        effects = self.machine.step(event)
        for effect in effects:
            self._run(effect)
            if self.closed:
                return

    def _run(self, effect: LeaderEffect) -> None:
        match effect:
            case AdvanceHighWatermark(offset):
                self._advance(offset)
            case WriteRecord():
                self._write(effect)
            case RaiseLogStart(offset):
                self.move_log_start(offset)
            case _:
                pass

    def _advance(self, offset: int) -> None:
        self.broker.world.judge.commits(self, offset)
        self.log.high_watermark = offset
        waiting, self._waiting = self._waiting, []
        for at, produce in waiting:
            if at < offset:
                produce.answer(Outcome.OK, at)
            else:
                self._waiting.append((at, produce))
        self._wake()

    # -- the partition's record

    def _write(self, order: WriteRecord) -> None:
        broker = self.broker
        transaction = Transaction(
            (
                *guards.leader_sees_partition(self.partition, order.revision),
                *own_registration(broker.number, self.broker_epoch),
                *guards.added_brokers(order.added),
            ),
            ((partition_key(self.partition), order.record, None),),
        )
        broker.world.note("leader writes", broker.number, order.revision, order.record)
        late = broker.world.network.lateness("write", broker.number)
        broker.ask_store(lambda: broker.world.store.transact(transaction), self._written, order, late=late)

    def _written(self, result: tuple[bool, Revision] | None, order: WriteRecord) -> None:
        if self.closed:
            return
        if result is None:
            self.written_unknown(order)
        elif result[0]:
            self.step(WriteAnswered(order.revision, WriteOutcome.STORED, result[1]))
        else:
            self.step(WriteAnswered(order.revision, WriteOutcome.REFUSED))

    def written_unknown(self, order: WriteRecord) -> None:
        """Report an unknown outcome, which only a newer record or a definite answer resolves."""
        self.step(WriteAnswered(order.revision, WriteOutcome.UNKNOWN))

    def record_changed(self, record: PartitionRecord, revision: Revision) -> None:
        """Apply a record of the mirror."""
        self.step(RecordChanged(record, revision))
        self._drop_refused()

    def brokers_changed(self) -> None:
        """Apply the registrations of the mirror."""
        self.step(BrokersChanged(self.broker.registered_brokers()))

    # -- time

    def _tick(self) -> None:
        if self.closed:
            return
        world = self.broker.world
        self.look_at_lease()
        wanted = world.wishes.writes.get(self.partition)
        if wanted is not None:
            self.step(WriteQuorumSet(wanted))
        self.step(TimePassed(world.now))
        self._producers_effects(self._producers.step(ProducersTimePassed(world.now)))
        for number, parked in list(self._parked.items()):
            if parked.until <= world.now:
                del self._parked[number]
                self._answer(parked)
        self.broker.after(min(world.plan.lag_seconds / 2, PARK_SECONDS), self._tick)

    def look_at_lease(self) -> None:
        """Report to `PartitionLeader` whether the lease is still valid according to this broker's clock."""
        confirmed = self.broker.leased
        if confirmed != self.machine.lease_confirmed:
            self.step(LeaseChanged(confirmed))

    def close(self) -> None:
        """Stop leading, and tell clients that the outcome of their waiting values is unknown."""
        if self.closed:
            return
        self.closed = True
        for _, produce in self._waiting:
            produce.answer(Outcome.MAYBE, -1)
        for held in self._producers.held():
            held.answer(Outcome.FAILED, -1)
        for parked in self._parked.values():
            parked.answer(FetchRefused())

    # -- clients

    def produce(self, produce: Produce) -> None:
        """Append a value, or answer with the reason of the refusal."""
        self.look_at_lease()
        if (
            self.closed
            or not self.broker.takes_writes
            or (produce.acks_all and not self.machine.enough_in_sync)
            or (not produce.acks_all and not self.machine.serves_weak_acks)
        ):
            produce.answer(Outcome.FAILED, -1)
        elif produce.producer < 0:
            self._append([produce])
        else:
            self._producers_effects(
                self._producers.step(
                    SequencedArrived(
                        produce,
                        produce.producer,
                        PRODUCER_EPOCH,
                        produce.sequence,
                        produce.sequence,
                        self.broker.world.now,
                    )
                )
            )

    def _producers_effects(self, effects: list[object]) -> None:
        appended: list[Produce] = []
        later: list[object] = []
        for effect in effects:
            if isinstance(effect, Append):
                appended.append(effect.request)
            else:
                later.append(effect)
        base = self.log.end
        if appended:
            self._append(appended)
        for effect in later:
            match effect:
                case AnswerStored(request, base_offset):
                    self.answer_repeat(request, base_offset)
                case AnswerAsAppended(request, original):
                    place = next(index for index, each in enumerate(appended) if each is original)
                    self.answer_repeat(request, base + place)
                case Refuse(request, refusal):
                    unknown = isinstance(refusal, UnknownProducer)
                    if unknown:
                        self.broker.world.judge.does_not_know(self, request.producer)
                    request.answer(Outcome.UNKNOWN_PRODUCER if unknown else Outcome.OUT_OF_ORDER, -1)

    def answer_repeat(self, produce: Produce, offset: int) -> None:
        """Answer a duplicate according to its own acks (protocol section 6, rule 1)."""
        if produce.acks_all and offset >= self.machine.readable_limit:
            self._waiting.append((offset, produce))
        else:
            produce.answer(Outcome.OK, offset)

    def _append(self, produced: list[Produce]) -> None:
        first = self.log.end
        append_time_us = self._producers.append_time_us(self._clock_us())
        self.log.append(
            [Cell(self.epoch, each.value, each.producer, each.sequence, append_time_us) for each in produced]
        )
        offsets = [Offset(first + index) for index in range(len(produced))]
        self._producers.step(ProducersAppended(offsets, offsets, append_time_us))
        for index, each in enumerate(produced):
            if each.acks_all:
                self._waiting.append((first + index, each))
            else:
                each.answer(Outcome.OK, first + index)
        self.step(Appended(self.log.end, self.broker.world.now))
        self.broker.sync_soon(self.partition)
        self._wake()

    def _clock_us(self) -> TimestampUs:
        """Return the time of the machine's wall clock, and record a jump since the last append."""
        world, number = self.broker.world, self.broker.number
        error = world.clocks.error(number, world.now)
        if error != self._clock_error:
            self._clock_error = error
            world.note("clock jumps", number, f"{error:.0f} s ahead")
            world.judge.counts["clock jumps"] += 1
        return TimestampUs(EPOCH_US + int((world.now + error) * 1e6))

    def synced(self, offset: int) -> None:
        """Handle the sync of this replica's log up to an offset."""
        self.step(Synced(Offset(offset), self.broker.world.now))

    def read(self, offset: int, leader_epoch: int, most: int) -> ReadAnswer | None:
        """Return the answer to a reader, or None if this broker cannot answer or does not lead."""
        self.look_at_lease()
        if self.closed or not reader_is_known(leader_epoch, self.epoch):
            return None
        machine = self.machine
        limit = machine.readable_limit
        cells = (
            self.log.read(offset, max(0, min(most, limit - offset))) if offset >= self.log.log_start else []
        )
        known = machine.high_watermark if machine.lease_confirmed else None
        return ReadAnswer(offset, [cell.value for cell in cells], known, self.epoch)

    # -- followers

    def fetch(self, report: FollowerReport, answer: Callable[[FetchAnswer], None]) -> None:
        """Serve a follower's fetch, at once or later."""
        self.look_at_lease()
        if self.closed or self.machine.refusal_of(report) is not None:
            answer(FetchRefused())
            return
        log = self.log
        if log.log_start > report.fetch_offset:
            answer(self._outside(log.end))
            return
        parted = divergence(log.epochs, log.end, report.last_epoch, report.fetch_offset)
        if parted is not None:
            self.broker.world.note("diverges", report.broker, report, parted)
            answer(FetchDiverged(parted))
            return
        end = end_before(log.epochs, log.end, report.deleted_epoch, report.fetch_offset)
        if end is not None or report.fetch_offset > log.end:
            answer(self._outside(log.end if end is None else end))
            return
        self.step(FollowerFetched(report, self.broker.world.now))
        if self.closed:
            answer(FetchRefused())
            return
        parked = Parked(report, answer, self.broker.world.now + PARK_SECONDS)
        if self._has_news(parked):
            self._answer(parked)
        else:
            self._parked[report.broker] = parked

    def _outside(self, end: int) -> FetchOutside:
        log = self.log
        return FetchOutside(log.log_start, end, epoch_before(log.epochs, Offset(log.log_start)))

    def _has_news(self, parked: Parked) -> bool:
        report = parked.report
        told = self._told.get(report.broker)
        return report.fetch_offset < self.log.end or told != (self.machine.readable_limit, self.log.log_start)

    def _wake(self) -> None:
        for number, parked in list(self._parked.items()):
            if self._has_news(parked):
                del self._parked[number]
                self._answer(parked)

    def _answer(self, parked: Parked) -> None:
        log, report = self.log, parked.report
        if report.fetch_offset < log.log_start:
            parked.answer(self._outside(log.end))
            return
        self._told[report.broker] = (self.machine.readable_limit, log.log_start)
        cells = log.read(report.fetch_offset, self.broker.world.plan.fetch_cells)
        parked.answer(FetchedCells(self.epoch, self.machine.readable_limit, log.log_start, cells))

    def _drop_refused(self) -> None:
        """Answer waiting fetches that the partition record no longer allows."""
        if self.closed:
            return
        for number, parked in list(self._parked.items()):
            if self.machine.refusal_of(parked.report) is not None:
                del self._parked[number]
                parked.answer(FetchRefused())

    def progress(
        self, broker: int, broker_epoch: int, generation: int, leader_epoch: LeaderEpoch, synced: int
    ) -> None:
        """Handle a follower's progress report."""
        self.look_at_lease()
        self.step(
            FollowerSynced(
                BrokerId(broker),
                broker_epoch,
                generation,
                leader_epoch,
                Offset(synced),
                self.broker.world.now,
            )
        )

    def move_log_start(self, offset: int) -> None:
        """Drop the oldest records, as retention does."""
        if offset > self.log.log_start:
            self.log.log_start = offset
            self.broker.world.judge.deletes(self, offset)
            self.step(LogStartMoved(Offset(offset)))
            self._wake()


def reader_is_known(seen: int, own: int) -> bool:
    """Return whether a leader's epoch is at least the epoch that a client has received (rule 4.9)."""
    return seen <= own


def replayed(log: Log) -> ProducerState:
    """Return the producer state that follows from the log."""
    state = ProducerState()
    for index, cell in enumerate(log.cells):
        state.advance(cell.append_time_us)
        if cell.producer >= 0:
            batch = stored_batch(cell.sequence, 0, log.base + index, cell.append_time_us)
            state.replay(cell.producer, PRODUCER_EPOCH, batch)
    return state


def _nothing(outcome: Outcome, offset: int) -> None:
    """Answer no client."""
