"""The state machine that stores each batch of an idempotent producer once, in the order in which it was sent.

    arrived ──repeat of one of the last five──▶ answered with the first offset
       │  ──the expected sequence──▶ ordered ──Appended──▶ remembered
       │                                └────AppendFailed──▶ forgotten
       │  ──ahead of it──▶ held ──missing batches arrived──▶ ordered
       │                     └───a second passed──▶ refused
       └──lower epoch, or long past──▶ refused

A batch without a sequence gets the expected sequence when it is ordered, never earlier: two batches that are held for
the same marker would otherwise get the same sequence, and the second batch would count as a repeat of the first.

A marker ends the transaction of its producer and epoch: later batches of the epoch are refused, and batches of a higher
epoch are held until the marker is ordered.

`step` is the only method that changes state; all other methods only read. A state machine serves one partition in
one leader epoch. A batch is ordered between its `Append` effect and the answer from the log: it counts as the
producer's last batch, so that later batches can be appended in the same group. The state changes only with
`Appended`, so a failed append leaves the state unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeAlias, TypeVar, assert_never

import msgspec

from fairlead_api.batch.control_batches import Marker
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, Sequence, TimestampUs
from fairlead_broker.producers.effects import (
    AlreadyEnded,
    AnswerAsAppended,
    AnswerStored,
    Append,
    AppendMarker,
    Effect,
    KeyReused,
    Look,
    MixedTransaction,
    OutOfOrder,
    ProducerFenced,
    Refusal,
    Refuse,
    TooManyKeys,
    TooManyTransactions,
    TransactionUnfinished,
    UnknownProducer,
)
from fairlead_broker.producers.entries import StoredBatch
from fairlead_broker.producers.events import (
    Appended,
    AppendFailed,
    EndDecided,
    Event,
    KeyedArrived,
    SequencedArrived,
    TimePassed,
    Withdrawn,
)
from fairlead_broker.producers.holding import HeldBatches
from fairlead_broker.producers.open_transactions import OPEN_MAX, OpenTransactions
from fairlead_broker.producers.sequences import FIRST, UNNUMBERED, advanced, is_ahead, record_count
from fairlead_broker.producers.state import KEYS_MAX, RETENTION_US, ProducerState

R = TypeVar("R")


class _Front(msgspec.Struct, Generic[R], gc=False):
    """A producer's batches that are ordered but not yet appended."""

    epoch: ProducerEpoch
    next_sequence: Sequence
    continued_sequence: Sequence
    """Next sequence of a Kafka client whose sequences continue after a marker."""
    ordered: list[SequencedArrived[R]]
    is_transactional: bool
    is_ended: bool = False
    """Whether a marker of this epoch is ordered, so that a batch of the epoch can no longer follow."""


_Ordered: TypeAlias = SequencedArrived[R] | KeyedArrived[R] | EndDecided[R]


class PartitionProducers(Generic[R]):
    """State machine that decides on every batch that names a producer or an idempotency key."""

    __slots__ = ("_ends", "_fronts", "_held", "_ordered", "_ordered_keys", "_state")

    def __init__(self, state: ProducerState) -> None:
        """Start with a copy of the log's producer state. The state machine takes ownership of the copied state."""
        self._state = state
        self._held: HeldBatches[R] = HeldBatches()
        self._ordered: list[_Ordered[R]] = []
        self._fronts: dict[ProducerId, _Front[R]] = {}
        self._ordered_keys: dict[bytes, KeyedArrived[R]] = {}
        self._ends: dict[ProducerId, list[EndDecided[R]]] = {}
        """Ends of decided transactions, which wait for an append or for the end of an earlier transaction."""

    # -- reading

    @property
    def held_count(self) -> int:
        """Number of held batches."""
        return len(self._held)

    def held(self) -> Iterator[R]:
        """Return the requests of the held batches, in order of arrival."""
        return (batch.request for batch in self._held)

    def next_deadline(self) -> float | None:
        """Return the time at which `TimePassed` is due, in monotonic seconds, or None if no batch is held."""
        return self._held.next_deadline()

    def waiting_ends(self) -> Iterator[R]:
        """Return the requests of transaction ends that wait for earlier batches or for an earlier end."""
        return (end.request for ends in self._ends.values() for end in ends)

    @property
    def transactions(self) -> OpenTransactions:
        """Open transactions of the partition. Callers must not change the object."""
        return self._state.transactions

    def open_transactions(self) -> Iterator[tuple[ProducerId, ProducerEpoch, Offset]]:
        """Return producer id, epoch and first offset of each open transaction, in ascending order of offsets."""
        for producer_id, first_offset in self._state.transactions.first_offsets.items():
            entry = self._state.producer(producer_id)
            assert entry is not None, "a producer with an open transaction is remembered"
            yield producer_id, entry.epoch, first_offset

    def open_epoch(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """Return the epoch of a producer's open transaction, or None if no transaction is open."""
        if producer_id not in self._state.transactions:
            return None
        entry = self._state.producer(producer_id)
        assert entry is not None, "a producer with an open transaction is remembered"
        return entry.epoch

    def knows_producer(self, producer_id: ProducerId) -> bool:
        """Return whether the producer has written to this partition within the last 24 hours."""
        return self._state.producer(producer_id) is not None

    def append_time_us(self, now_us: TimestampUs) -> TimestampUs:
        """Return the append time, according to the leader's clock, for batches that the leader appends now."""
        return self._state.append_time_us(now_us)

    def digest_of(self, key: bytes) -> bytes | None:
        """Return the digest of the request that used an idempotency key in this partition, or None."""
        ordered = self._ordered_keys.get(key)
        if ordered is not None:
            return ordered.digest
        entry = self._state.key(key)
        return None if entry is None else entry.digest

    # -- events

    def step(self, event: Event[R]) -> list[Effect[R]]:
        """Apply one event, and return the resulting effects in the order in which the caller must run them."""
        match event:
            case SequencedArrived():
                return self._sequenced(event)
            case Appended():
                self._appended(event)
                return self._after_append() if self._ends else []
            case KeyedArrived():
                return [self._keyed(event)]
            case EndDecided():
                waiting = self._ends.setdefault(event.producer_id, [])
                waiting.append(event)
                waiting.sort(key=lambda end: end.epoch)
                return self._end(event.producer_id)
            case AppendFailed():
                return self._append_failed()
            case Withdrawn(request):
                held = self._held.find(request)
                if held is not None:
                    self._held.remove(held)
                return []
            case TimePassed(now):
                return self._time_passed(now)
            case _:
                assert_never(event)

    # -- sequences

    def _sequenced(self, batch: SequencedArrived[R]) -> list[Effect[R]]:
        effect = self._decide(batch)
        if effect is None:
            if not self._held.add(batch):
                return [Refuse(batch.request, self._too_far(batch))]
            return [] if self._open_below(batch) is None else [Look(batch.producer_id)]
        if isinstance(effect, Append) and self._held:
            return [effect, *self._release(batch.producer_id)]
        return [effect]

    def _decide(self, batch: SequencedArrived[R]) -> Effect[R] | None:
        """Return the effect for a batch, or None if the batch must be held."""
        producer_id, epoch, first = batch.producer_id, batch.epoch, batch.first_sequence
        current = self._fronts.get(producer_id) or self._state.producer(producer_id)
        if current is None or epoch > current.epoch:
            following = FIRST
            if current is not None and batch.session is not None and current.epoch >= batch.session:
                following = current.continued_sequence
            if first not in (following, UNNUMBERED) or self._open_below(batch) is not None:
                return None
            return self._open(batch, following) if batch.is_transactional else self._order(batch, following)
        if epoch < current.epoch or current.is_ended:
            return Refuse(batch.request, ProducerFenced(producer_id, epoch, current.epoch))
        if batch.is_transactional is not current.is_transactional:
            return Refuse(batch.request, MixedTransaction(producer_id, epoch))
        expected = current.next_sequence
        if first in (expected, UNNUMBERED):
            return self._order(batch, expected)
        repeat = self._find_repeat(batch)
        if repeat is not None:
            return repeat
        if is_ahead(first, expected):
            return None
        return Refuse(batch.request, OutOfOrder(producer_id, epoch, first, expected))

    def _open(self, batch: SequencedArrived[R], first: Sequence) -> Effect[R]:
        """Order the first batch of a transaction, if the partition has room for another open transaction."""
        if len(self._state.transactions) >= OPEN_MAX:
            return Refuse(batch.request, TooManyTransactions(OPEN_MAX))
        return self._order(batch, first)

    def _open_below(self, batch: SequencedArrived[R]) -> ProducerEpoch | None:
        """Return the epoch of the producer's open transaction if the batch has a higher epoch (rule 7.2.3)."""
        front = self._fronts.get(batch.producer_id)
        if front is not None:
            opened = front.is_transactional and not front.is_ended and front.epoch < batch.epoch
            return front.epoch if opened else None
        entry = self._state.producer(batch.producer_id)
        if entry is None or entry.epoch >= batch.epoch or batch.producer_id not in self._state.transactions:
            return None
        return entry.epoch

    def _order(self, batch: SequencedArrived[R], first: Sequence) -> Append[R]:
        """Order a batch whose first sequence is `first`, or whose first sequence becomes `first`."""
        assigned: Sequence | None = None
        if batch.first_sequence == UNNUMBERED:
            assigned = first
            last = advanced(first, record_count(UNNUMBERED, batch.last_sequence) - 1)
            batch = msgspec.structs.replace(batch, first_sequence=first, last_sequence=last)
        following = advanced(batch.last_sequence, 1)
        front = self._fronts.get(batch.producer_id)
        if front is not None and front.epoch == batch.epoch:
            front.next_sequence = front.continued_sequence = following
            front.ordered.append(batch)
        else:
            self._fronts[batch.producer_id] = _Front(
                batch.epoch, following, following, [batch], batch.is_transactional
            )
        self._ordered.append(batch)
        return Append(batch.request, assigned)

    def _find_repeat(self, batch: SequencedArrived[R]) -> Effect[R] | None:
        first, last = batch.first_sequence, batch.last_sequence
        front = self._fronts.get(batch.producer_id)
        for ordered in front.ordered if front is not None else ():
            if ordered.first_sequence == first and ordered.last_sequence == last:
                return AnswerAsAppended(batch.request, ordered.request)
        entry = self._state.producer(batch.producer_id)
        if entry is None or entry.epoch != batch.epoch:
            return None
        stored = entry.find(first, last)
        if stored is None:
            return None
        return AnswerStored(batch.request, stored.base_offset, stored.last_offset, stored.append_time_us)

    def _release(self, producer_id: ProducerId) -> list[Effect[R]]:
        """Decide again on a producer's held batches after another of its batches was ordered."""
        effects: list[Effect[R]] = []
        moved = True
        while moved:
            moved = False
            for held in self._held.of(producer_id):
                effect = self._decide(held)
                if effect is not None:
                    self._held.remove(held)
                    effects.append(effect)
                    moved = True
        return effects

    def _time_passed(self, now: float) -> list[Effect[R]]:
        effects: list[Effect[R]] = []
        for batch in self._held.due(now):
            self._held.remove(batch)
            effects.append(Refuse(batch.request, self._too_far(batch)))
        return effects

    def _too_far(self, batch: SequencedArrived[R]) -> Refusal:
        """Return the refusal for a batch that was held too long or cannot be held."""
        producer_id, epoch, first = batch.producer_id, batch.epoch, batch.first_sequence
        current = self._fronts.get(producer_id) or self._state.producer(producer_id)
        opened = self._open_below(batch)
        if opened is not None:
            return TransactionUnfinished(producer_id, epoch, opened)
        if current is None or current.epoch < epoch:
            return UnknownProducer(producer_id, epoch, first)
        # A held batch with an ended or lower epoch was refused when its producer's newer batch or marker was ordered.
        return OutOfOrder(producer_id, epoch, first, current.next_sequence)

    # -- ends of transactions

    def _end(self, producer_id: ProducerId) -> list[Effect[R]]:
        """Decide on the waiting transaction ends of a producer (rule 7.2.5).

        A marker waits while batches of its producer are ordered, since it contains the transaction's first offset.
        """
        effects: list[Effect[R]] = []
        waiting = self._ends.pop(producer_id, [])
        while waiting and producer_id not in self._fronts:
            end = waiting.pop(0)
            entry = self._state.producer(producer_id)
            if entry is not None and (
                entry.epoch > end.epoch or (entry.epoch == end.epoch and entry.is_ended)
            ):
                effects.append(AlreadyEnded(end.request))
                continue
            first = self._state.transactions.first_offsets.get(producer_id)
            if entry is not None and entry.epoch < end.epoch and first is not None:
                # An earlier transaction of the producer is still open. The effect `Look` makes the leader end the
                # producer's earlier transaction first.
                effects.append(Look(producer_id))
                waiting.insert(0, end)
                break
            continued = FIRST if entry is None else entry.continued_sequence
            self._fronts[producer_id] = _Front(end.epoch, FIRST, continued, [], True, True)
            self._ordered.append(end)
            marker = Marker(producer_id, end.epoch, end.kind, first, end.decided_us)
            effects.append(AppendMarker(end.request, marker))
            effects += self._release(producer_id)
        if waiting:
            self._ends[producer_id] = waiting
        return effects

    def _after_append(self) -> list[Effect[R]]:
        """Decide again on the waiting transaction ends of all producers."""
        return [effect for producer_id in list(self._ends) for effect in self._end(producer_id)]

    # -- idempotency keys

    def _keyed(self, batch: KeyedArrived[R]) -> Effect[R]:
        key = batch.key
        ordered = self._ordered_keys.get(key)
        if ordered is not None:
            if ordered.digest == batch.digest:
                return AnswerAsAppended(batch.request, ordered.request)
            return Refuse(batch.request, KeyReused(key))
        entry = self._state.key(key)
        if entry is not None:
            if entry.digest == batch.digest:
                return AnswerStored(batch.request, entry.base_offset, entry.last_offset, entry.append_time_us)
            return Refuse(batch.request, KeyReused(key))
        keys = self._state.keys
        if len(keys) + len(self._ordered_keys) >= KEYS_MAX:
            return Refuse(batch.request, TooManyKeys(KEYS_MAX, self._oldest_key_expires_seconds()))
        self._ordered_keys[key] = batch
        self._ordered.append(batch)
        return Append(batch.request)

    def _oldest_key_expires_seconds(self) -> float:
        oldest = next(iter(self._state.keys.values()), None)
        if oldest is None:
            return RETENTION_US / 1e6
        return (oldest.partition_time_us + RETENTION_US - self._state.partition_time_us) / 1e6

    # -- answers of the log

    def _appended(self, event: Appended) -> None:
        state, time_us = self._state, event.append_time_us
        state.advance(time_us)
        if not self._ordered:
            return
        for batch, base_offset, last_offset in zip(
            self._ordered, event.base_offsets, event.last_offsets, strict=True
        ):
            self._remember(batch, base_offset, last_offset, time_us)
        self._forget_ordered()

    def _remember(self, batch: _Ordered[R], base: Offset, last: Offset, time_us: TimestampUs) -> None:
        if isinstance(batch, SequencedArrived):
            stored = StoredBatch(batch.first_sequence, batch.last_sequence, base, time_us)
            self._state.replay(batch.producer_id, batch.epoch, stored, batch.is_transactional)
        elif isinstance(batch, EndDecided):
            self._state.replay_marker(batch.producer_id, batch.epoch, base, time_us)
        else:
            self._state.replay_key(batch.key, batch.digest, base, last, time_us)

    def _append_failed(self) -> list[Effect[R]]:
        """Forget the ordered batches, and decide again on ends and batches that waited for them."""
        producers = list(self._fronts) if self._held else []
        self._forget_ordered()
        effects = self._after_append()
        for producer_id in producers:
            effects += self._release(producer_id)
        return effects

    def _forget_ordered(self) -> None:
        self._ordered.clear()
        self._fronts.clear()
        self._ordered_keys.clear()
