"""A leadership of a partition: the log of its broker, and the production state machine of producers.

The twin of `fairlead_broker.runtime.leading` appends in groups, with a delay of the disk. A partition has the committed
part of the log, which is on every in-sync replica; a new leader has this part, and possibly more batches of the
previous leader's log.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fairlead_api.batch.control_batches import Marker, MarkerKind
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs
from fairlead_broker.producers import (
    AlreadyEnded,
    AnswerAsAppended,
    AnswerStored,
    Append,
    Appended,
    AppendMarker,
    EndDecided,
    Look,
    PartitionProducers,
    ProducerState,
    Refuse,
    SequencedArrived,
    TimePassed,
    aborted_by,
)
from fairlead_broker.producers.aborted import AbortedTransaction
from fairlead_broker.producers.entries import StoredBatch
from transactional import guards
from transactional.messages import Answer, Input, ProduceCall, Refused

if TYPE_CHECKING:
    from transactional.broker import Broker
    from transactional.world import World

LEARN_SECONDS = 0.02
"""Mean time until a leader knows that all in-sync replicas have a batch."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A batch with one record, or a marker; each takes one offset."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    sequence: int = 0
    value: Input | None = None
    marker: Marker | None = None


@dataclass(slots=True, eq=False)
class Pending:
    """A request that waits for its append: a batch, or the end of a transaction."""

    entry: Entry
    answer: Callable[[Answer], None]
    others: list[Pending] = field(default_factory=list)
    """Repeats of the same batch."""


class Partition:
    """A partition: its committed log, and its leader."""

    def __init__(self, world: World, index: int) -> None:
        self._world = world
        self.index = index
        self.committed: list[Entry] = []
        self.leadership: Leadership | None = None
        self.epoch = 0

    def elect(self, broker: Broker) -> None:
        """Make a broker the leader, with the committed log and a part of the previous leader's other batches."""
        rng = self._world.schedule.rng
        tail = [] if self.leadership is None else self.leadership.log[len(self.committed) :]
        kept = tail[: rng.randint(0, len(tail))]
        self.epoch += 1
        self._world.note("leads", broker.number, self.index, self.epoch, len(self.committed), len(kept))
        known = rng.randint(0, len(self.committed))
        self.leadership = Leadership(self, broker, [*self.committed, *kept], known)
        self._world.judge.counts["leaders"] += 1
        broker.led[self.index] = self.leadership
        self.leadership.begin()


class Leadership:
    """One leadership, from its election until its broker has learned of the next one."""

    def __init__(self, partition: Partition, broker: Broker, log: list[Entry], known: int) -> None:
        self.partition = partition
        self.broker = broker
        self.log = log
        self.known = known
        """High watermark that the leader knows."""
        self.aborted: list[AbortedTransaction] = []
        self.stable_max = 0
        """Highest last stable offset that a reader has received."""
        self._life = broker.life
        self._inbox: list[Any] = []
        self._group: list[Pending] = []
        self._is_writing = False
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        state = ProducerState()
        for offset, entry in enumerate(log):
            self._replay(state, offset, entry)
        self.producers: PartitionProducers[Pending] = PartitionProducers(state)

    def _replay(self, state: ProducerState, offset: int, entry: Entry) -> None:
        time_us = TimestampUs(offset + 1)
        if entry.marker is not None:
            state.replay_marker(entry.producer_id, entry.epoch, Offset(offset), time_us)
            self._index(offset, entry.marker)
        else:
            first = Sequence(entry.sequence)
            stored = StoredBatch(first, first, Offset(offset), time_us)
            state.replay(entry.producer_id, entry.epoch, stored, is_transactional=True)

    def _index(self, offset: int, marker: Marker) -> None:
        aborted = aborted_by(marker, Offset(offset))
        if aborted is not None:
            self.aborted.append(aborted)

    @property
    def is_open(self) -> bool:
        """Whether the leader's process is still running and knows of no later leadership."""
        broker = self.broker
        return broker.life == self._life and broker.led.get(self.partition.index) is self

    def begin(self) -> None:
        """Check the open transactions, and replicate the log."""
        self.broker.hints |= {producer_id for producer_id, _, _ in self.producers.open_transactions()}
        self._replicate()
        self.broker.after(1.0, self._tick)

    def _tick(self) -> None:
        if self.is_open:
            self._feed(TimePassed(self.broker.world.now))
            self._replicate()
            self.broker.after(0.5, self._tick)

    @property
    def stable_offset(self) -> int:
        """The last stable offset."""
        return self.producers.transactions.stable_offset(Offset(self.known), Offset(0))

    # -- requests

    def produce(self, call: ProduceCall, answer: Callable[[Answer], None]) -> None:
        """Append a batch of a transaction."""
        entry = Entry(call.producer_id, call.epoch, call.sequence, call.value)
        sequence = Sequence(call.sequence)
        self._feed(
            SequencedArrived(
                Pending(entry, answer), call.producer_id, call.epoch, sequence, sequence,
                self.broker.world.now, is_transactional=True,
            )
        )  # fmt: skip

    def end(
        self, producer_id: ProducerId, epoch: ProducerEpoch, kind: MarkerKind, confirm: Callable[[], None]
    ) -> None:
        """Append the marker of a decided transaction, and call `confirm` when it is committed."""
        pending = Pending(Entry(producer_id, epoch), lambda _: confirm())
        now_us = TimestampUs(round(self.broker.world.now * 1e6))
        self._feed(EndDecided(pending, producer_id, epoch, kind, now_us))

    def _feed(self, event: Any) -> None:
        self._inbox.append(event)
        if not self._is_writing:
            self._work()

    def _work(self) -> None:
        inbox, self._inbox = self._inbox, []
        for event in inbox:
            self._carry_out(self.producers.step(event))
        if self._group:
            self._is_writing = True
            rng = self.broker.world.schedule.rng
            delay = rng.expovariate(1 / self.broker.world.plan.disk_seconds)
            self.broker.after(delay, self._written)

    def _carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Append(pending):
                    self._group.append(pending)
                case AppendMarker(pending, marker):
                    pending.entry = Entry(marker.producer_id, marker.epoch, marker=marker)
                    self._group.append(pending)
                case AlreadyEnded(pending):
                    self._answer_when_committed(pending, len(self.log) - 1)
                case AnswerStored(pending, base_offset):
                    self._answer_when_committed(pending, base_offset)
                case AnswerAsAppended(pending, original):
                    original.others.append(pending)
                case Refuse(pending, refusal):
                    pending.answer(Refused(type(refusal).__name__))
                case Look(producer_id):
                    self.broker.hints.add(producer_id)

    def _written(self) -> None:
        if not self.is_open:
            return
        group, self._group = self._group, []
        offsets = []
        for pending in group:
            offset = len(self.log)
            offsets.append(Offset(offset))
            self.log.append(pending.entry)
            if pending.entry.marker is not None:
                self._index(offset, pending.entry.marker)
        self._is_writing = False
        time_us = TimestampUs(len(self.log))
        self._carry_out(self.producers.step(Appended(offsets, offsets, time_us)))
        for pending, offset in zip(group, offsets, strict=True):
            for each in (pending, *pending.others):
                self._answer_when_committed(each, offset)
        self._replicate()
        self._work()

    def _answer_when_committed(self, pending: Pending, offset: int) -> None:
        end = offset + 1
        if pending.entry.value is None:
            end = guards.confirmed_from(self, end)
        if end <= self.known:
            pending.answer(offset)
        else:
            self._waiting.append((end, lambda: pending.answer(offset)))

    # -- replication

    def _replicate(self) -> None:
        world = self.broker.world
        rng = world.schedule.rng
        delay = rng.expovariate(1 / world.plan.replication_seconds)
        # The followers fetch while the leader is paused.
        world.schedule.after(delay, self._replicated, len(self.log))

    def _replicated(self, end: int) -> None:
        partition, world = self.partition, self.broker.world
        if partition.leadership is not self or self.broker.life != self._life:
            return
        committed = partition.committed
        if end > len(committed):
            added = self.log[len(committed) : end]
            committed += added
            world.judge.committed(partition, end - len(added))
        delay = world.schedule.rng.expovariate(1 / LEARN_SECONDS)
        self.broker.after(delay, self._learned, end)

    def _learned(self, end: int) -> None:
        if not self.is_open or end <= self.known:
            return
        self.known = end
        due = [answer for at, answer in self._waiting if at <= end]
        self._waiting = [each for each in self._waiting if each[0] > end]
        for answer in due:
            answer()
