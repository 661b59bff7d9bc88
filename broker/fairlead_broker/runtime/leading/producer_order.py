"""Ordering and deduplication of batches that name a producer or an idempotency key.

queue ──▶ admit ──▶ [state machine] ──▶ group, held for others, answered as a repeat, or refused

A `LeaderReplica` owns the `ProducerOrder` of its partition; only the partition's task calls the `ProducerOrder`. The
state machine of `producers` decides, the partition appends, and the shell passes the outcome of the append back to the
state machine.

A batch in the queue is a `PendingAppend`, and the call that sent the batch is a `PendingProduce` with one future and
one timer for all partitions. The partition settles each batch, and the last settled batch wakes the call. A task or a
future for each partition would cost more than the append. The code is in one file because the order and the calls share
the batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as SequenceOf
from enum import Enum, auto
from functools import partial
from typing import Final, Protocol, assert_never

import msgspec

from fairlead_api.batch.control_batches import Marker, MarkerKind, pack_marker
from fairlead_api.batch.header import HEADER_BYTES, NO_PRODUCER, BatchHeader, pack_header, read_header
from fairlead_api.identifiers import (
    Acks,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampUs,
)
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.producers import (
    AlreadyEnded,
    AnswerAsAppended,
    AnswerStored,
    Append,
    Appended,
    AppendFailed,
    AppendMarker,
    Effect,
    EndDecided,
    KeyedArrived,
    Look,
    PartitionProducers,
    ProducerState,
    Refuse,
    SequencedArrived,
    TimePassed,
    Withdrawn,
    advanced,
)
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.time_limits import TimeLimit, TimeLimits
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.meters import TopicMeters
from fairlead_broker.runtime.requests import AppendResult, KeyedRequest, TransactionEnd

_NO_MARKER: Final = memoryview(b"")
"""Bytes of a marker that is not ordered yet."""
_MARKER_HEADER: Final = read_header(
    pack_marker(Marker(ProducerId(0), ProducerEpoch(0), MarkerKind.COMMIT, None, TimestampUs(0)))
)
"""Header of a marker that is not ordered yet; its producer does not matter, because the decision names the producer."""


class AppendState(Enum):
    """Progress of a batch, which determines whether a refusal is definite."""

    QUEUED = auto()
    """While the batch is queued, none of its bytes are stored. After a timeout the batch is withdrawn, and its
    `ack_timeout` has the side effect `none`."""
    APPENDING = auto()
    """The batch is being written or is about to be written. From this state on, a refusal has the side effect
    `maybe`."""
    SETTLED = auto()
    """The batch has been answered. The partition still counts the bytes of the batch until the high watermark has
    passed the batch."""


class PendingAppend:
    """One batch of one produce call."""

    __slots__ = (
        "acks",
        "append_time_us",
        "base_offset",
        "batch",
        "call",
        "duplicate",
        "end",
        "header",
        "is_ordered",
        "keyed",
        "nbytes",
        "next_offset",
        "session",
        "slot",
        "state",
    )

    def __init__(
        self,
        call: PendingProduce,
        slot: int,
        batch: memoryview,
        header: BatchHeader,
        acks: Acks,
        keyed: KeyedRequest | None = None,
        end: TransactionEnd | None = None,
        session: ProducerEpoch | None = None,
    ) -> None:
        self.call = call
        self.slot = slot
        self.batch: memoryview | None = batch
        """Bytes of the batch as sent by the producer. The bytes are released after the append, because a batch that
        waits for acknowledgements should occupy no memory."""
        self.header = header
        self.keyed = keyed
        """Idempotency key under which the batch is stored; None if the request has no key."""
        self.end = end
        """Decision whose marker is appended; None for a client's batch."""
        self.session = session
        """First epoch of the session of a Kafka client whose sequences continue from one transaction to the next."""
        self.is_ordered = keyed is not None or header.producer_id != NO_PRODUCER
        """Whether the partition must check for an earlier attempt before it appends the batch."""
        self.duplicate = False
        """Whether an earlier attempt has stored the batch."""
        self.nbytes = 0 if end is not None else header.total_bytes
        """Number of bytes that the batch takes from the budget; 0 for a batch of the broker itself."""
        self.acks = acks
        self.state = AppendState.QUEUED
        self.base_offset = Offset(-1)
        self.next_offset = Offset(-1)
        self.append_time_us = TimestampUs(-1)

    def number(self, base_sequence: Sequence) -> None:
        """Assign a sequence to a transactional batch that a broker has encoded."""
        assert self.batch is not None, "a queued batch has its bytes"
        header = msgspec.structs.replace(self.header, base_sequence=base_sequence)
        rest = self.batch[HEADER_BYTES:]
        self.batch = memoryview(pack_header(header, [rest]) + rest)
        self.header = read_header(self.batch)

    @property
    def side_effect(self) -> SideEffect:
        """Side effect that a refusal of the batch must report: whether the batch may already be stored."""
        return SideEffect.NONE if self.state is AppendState.QUEUED else SideEffect.MAYBE

    def stored(self, leader_epoch: LeaderEpoch) -> None:
        """Answer with the offsets of the batch, which is stored as its acks require."""
        if self.state is not AppendState.SETTLED:
            last_offset = Offset(self.next_offset - 1)
            self._settle(
                AppendResult(self.base_offset, last_offset, self.append_time_us, leader_epoch, self.duplicate)
            )

    def is_repeat_of(self, base_offset: Offset, last_offset: Offset, append_time_us: TimestampUs) -> None:
        """Record the offsets at which an earlier attempt stored the batch. The batch is not stored again."""
        self.duplicate = True
        self.base_offset = base_offset
        self.next_offset = Offset(last_offset + 1)
        self.append_time_us = append_time_us
        if self.state is AppendState.QUEUED:
            self.state = AppendState.APPENDING

    def accepted(self, leader_epoch: LeaderEpoch) -> None:
        """Answer a valid acks=0 batch before it is appended; the answer has no offsets."""
        nothing = Offset(-1)
        self.call.settle(self.slot, AppendResult(nothing, nothing, TimestampUs(-1), leader_epoch))

    def refused(self, problem: ProblemError) -> None:
        """Answer with a problem: the batch is refused."""
        if self.state is not AppendState.SETTLED:
            self._settle(problem)

    def _settle(self, answer: AppendResult | ProblemError) -> None:
        self.state = AppendState.SETTLED
        self.call.settle(self.slot, answer)


def pending_end(call: PendingProduce, slot: int, end: TransactionEnd) -> PendingAppend:
    """Return the append of a call that ends a transaction; its marker is packed when it is ordered."""
    return PendingAppend(call, slot, _NO_MARKER, _MARKER_HEADER, Acks.ALL, end=end)


def pending_beginning(batch: bytes) -> PendingAppend:
    """Return the append of a batch that begins a leader epoch, for which no call waits (quorum Q3)."""
    append = PendingAppend(PendingProduce(1), 0, memoryview(batch), read_header(batch), Acks.ALL)
    append.nbytes = 0
    return append


class Acknowledging(Protocol):
    """Interface of a batch's partition, as used by produce calls."""

    def timed_out(self, seconds: float, effect: SideEffect) -> ProblemError:
        """Return the problem that explains why the batch was not acknowledged in time."""
        ...


class PendingProduce:
    """One produce call with its answers so far and the number of missing answers."""

    __slots__ = ("_done", "answers", "appends", "missing")

    def __init__(self, count: int) -> None:
        self.answers: list[AppendResult | ProblemError | None] = [None] * count
        self.appends: list[tuple[Acknowledging, PendingAppend]] = []
        """Partition and batch of every queued item. After a timeout, unsettled items are answered with a problem."""
        self.missing = count
        self._done: asyncio.Future[None] | None = None

    def settle(self, slot: int, answer: AppendResult | ProblemError) -> None:
        """Set the answer for one batch; later answers for the batch are ignored."""
        if self.answers[slot] is not None:
            return
        self.answers[slot] = answer
        self.missing -= 1
        if not self.missing and self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(
        self, timeout_seconds: float, limits: TimeLimits | None = None
    ) -> list[AppendResult | ProblemError]:
        """Wait until every batch has an answer; after a timeout, unsettled batches are answered with a problem.

        If given, `limits` share a timer, and are used if they have the length of the timeout.
        """
        if self.missing:
            loop = asyncio.get_running_loop()
            self._done = loop.create_future()
            if limits is not None and limits.seconds == timeout_seconds:
                timer: TimeLimit | asyncio.TimerHandle = limits.begin(
                    partial(self._time_out, timeout_seconds)
                )
            else:
                timer = loop.call_later(timeout_seconds, self._time_out, timeout_seconds)
            try:
                await self._done
            finally:
                timer.cancel()
        return [answer for answer in self.answers if answer is not None]

    def refuse(self, refusal: Callable[[SideEffect], ProblemError]) -> None:
        """Answer every unanswered batch with a problem."""
        for _, append in self.appends:
            append.refused(refusal(append.side_effect))
        for slot in range(len(self.answers)):
            self.settle(slot, refusal(SideEffect.NONE))

    def _time_out(self, seconds: float) -> None:
        for partition, append in self.appends:
            if append.state is not AppendState.SETTLED:
                append.refused(partition.timed_out(seconds, append.side_effect))


class ProducerOrder:
    """Shell around one partition's `PartitionProducers`."""

    __slots__ = (
        "_end_offset",
        "_followers",
        "_group",
        "_high_watermark",
        "_index",
        "_leader_epoch",
        "_machine",
        "_meters",
        "_repeats",
        "_shared",
        "_timer",
        "_topic",
        "_wake",
    )

    def __init__(
        self,
        topic: str,
        index: PartitionIndex,
        leader_epoch: LeaderEpoch,
        state: ProducerState,
        shared: SharedParts,
        meters: TopicMeters,
        wake: Callable[[], None],
        end_offset: Offset,
    ) -> None:
        """`state`: producers known to the log, which ends at `end_offset`. The instance takes ownership of `state`.

        `wake` makes the partition's task call `take` again.
        """
        self._topic = topic
        self._index = index
        self._leader_epoch = leader_epoch
        self._machine: PartitionProducers[PendingAppend] = PartitionProducers(state)
        self._shared = shared
        self._meters = meters
        self._wake = wake
        self._end_offset = end_offset
        self._group: list[PendingAppend] = []
        """Batches of the next group. Answering an append may already queue markers for the next group."""
        self._followers: list[tuple[PendingAppend, PendingAppend]] = []
        self._repeats: list[PendingAppend] = []
        self._high_watermark = Offset(0)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_count(self) -> int:
        """Number of batches that wait for earlier batches from their producer."""
        return self._machine.held_count

    def knows_producer(self, producer_id: ProducerId) -> bool:
        """Return whether the producer wrote to the partition within the last 24 hours."""
        return self._machine.knows_producer(producer_id)

    def stable_offset(self, high_watermark: Offset, log_start: Offset) -> Offset:
        """Return the last stable offset that results from a high watermark."""
        return self._machine.transactions.stable_offset(high_watermark, log_start)

    @property
    def has_open(self) -> bool:
        """Whether a transaction is open in the partition."""
        return bool(self._machine.transactions.first_offsets)

    def open_transactions(self) -> Iterator[tuple[ProducerId, ProducerEpoch, Offset]]:
        """Return producer id, epoch and first offset of each open transaction."""
        return self._machine.open_transactions()

    def open_epoch(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """Return the epoch of a producer's open transaction, or None if no transaction is open."""
        return self._machine.open_epoch(producer_id)

    def digest_of(self, key: bytes) -> bytes | None:
        """Return the digest of the request that used an idempotency key; None if the key was not used."""
        return self._machine.digest_of(key)

    def append_time_us(self) -> TimestampUs:
        """Return the append time for a group that is appended now."""
        return self._machine.append_time_us(self._shared.clock.now_us())

    # -- before the append

    def take(self, queue: Iterable[PendingAppend]) -> list[PendingAppend]:
        """Return the batches of a queue that can be appended now, in order; all other batches are held or answered."""
        if self._machine.held_count:
            self._withdraw_answered()
        group = self._group
        now = self._shared.clock.monotonic()
        for append in queue:
            if append.state is not AppendState.QUEUED:
                self._shared.give_back_bytes(append.nbytes)
            elif append.is_ordered:
                self._admit(append, now)
            else:
                append.state = AppendState.APPENDING
                group.append(append)
        if self._machine.held_count:
            self._mind_the_time(now)
        self._group = []
        return group

    def _admit(self, append: PendingAppend, now: float) -> None:
        header, keyed, end = append.header, append.keyed, append.end
        if end is not None:
            decided = EndDecided(append, end.producer_id, end.epoch, end.kind, end.decided_us)
            self._run(self._machine.step(decided))
            return
        if keyed is not None:
            self._run(self._machine.step(KeyedArrived(append, keyed.key, keyed.digest)))
            return
        self._run(
            self._machine.step(
                SequencedArrived(
                    append,
                    ProducerId(header.producer_id),
                    ProducerEpoch(header.producer_epoch),
                    Sequence(header.base_sequence),
                    advanced(header.base_sequence, header.last_offset_delta),
                    now,
                    header.is_transactional,
                    append.session,
                )
            )
        )

    def _run(self, effects: list[Effect[PendingAppend]]) -> None:
        for effect in effects:
            match effect:
                case Append(request, assigned_sequence):
                    if assigned_sequence is not None:
                        request.number(assigned_sequence)
                    request.state = AppendState.APPENDING
                    self._group.append(request)
                case AppendMarker(request, marker):
                    packed = pack_marker(marker)
                    request.batch, request.header = memoryview(packed), read_header(packed)
                    request.state = AppendState.APPENDING
                    self._group.append(request)
                case AlreadyEnded(request):
                    # The marker may be in the log without being committed.
                    last = Offset(self._end_offset - 1)
                    request.is_repeat_of(last, last, TimestampUs(-1))
                    self._answer_when_committed(request)
                case Look(producer_id):
                    self._shared.looks.hint((producer_id,))
                case AnswerStored(request, base_offset, last_offset, append_time_us):
                    self._let_go(request)
                    self._answer_repeat(request, base_offset, last_offset, append_time_us)
                case AnswerAsAppended(request, original):
                    self._let_go(request)
                    request.state = AppendState.APPENDING
                    self._followers.append((request, original))
                case Refuse(request, refusal):
                    self._let_go(request)
                    request.refused(refusals.from_producers(refusal, self._topic, self._index))
                case _:
                    assert_never(effect)

    def _withdraw_answered(self) -> None:
        """Withdraw held batches of answered calls, because the answers state that the batches are not stored."""
        for append in [held for held in self._machine.held() if held.state is AppendState.SETTLED]:
            self._machine.step(Withdrawn(append))
            self._let_go(append)

    def _mind_the_time(self, now: float) -> None:
        deadline = self._machine.next_deadline()
        if deadline is not None and deadline <= now:
            self._run(self._machine.step(TimePassed(now)))
            deadline = self._machine.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = asyncio.get_running_loop().call_later(deadline - now, self._wake)

    def _let_go(self, append: PendingAppend) -> None:
        """Release the bytes of a batch that will not be appended."""
        append.batch = None
        self._shared.give_back_bytes(append.nbytes)

    # -- after the append

    def appended(self, group: SequenceOf[PendingAppend], append_time_us: TimestampUs) -> None:
        """Notify the state machine that a group was appended to the log."""
        ordered = [append for append in group if append.is_ordered]
        self._end_offset = group[-1].next_offset
        effects = self._machine.step(
            Appended(
                [append.base_offset for append in ordered],
                [Offset(append.next_offset - 1) for append in ordered],
                append_time_us,
            )
        )
        if any(append.end is not None for append in ordered):
            self._machine.transactions.committed(self._high_watermark)
        if effects:
            self._run(effects)
            self._wake()
        followers, self._followers = self._followers, []
        for follower, original in followers:
            last_offset = Offset(original.next_offset - 1)
            self._answer_repeat(follower, original.base_offset, last_offset, original.append_time_us)

    def copied(self, state: ProducerState, end_offset: Offset) -> None:
        """Adopt the transactions of the log after batches from another cluster were appended."""
        self._end_offset = end_offset
        if state.transactions or self._machine.transactions:
            self._machine = PartitionProducers(state.copy())
            self._machine.transactions.committed(self._high_watermark)

    def failed(self, problem: ProblemError) -> None:
        """Notify the state machine that the append of a group failed or has an unknown outcome."""
        self._run(self._machine.step(AppendFailed()))
        if self._group:
            self._wake()
        followers, self._followers = self._followers, []
        for follower, _ in followers:
            follower.refused(problem)

    def committed(self, high_watermark: Offset) -> None:
        """Update the high watermark, and answer repeated batches that waited for the high watermark."""
        self._high_watermark = high_watermark
        if self._repeats:
            waiting, self._repeats = self._repeats, []
            for append in waiting:
                self._answer_when_committed(append)

    def refuse(self, refusal: Callable[[SideEffect], ProblemError]) -> None:
        """Fail all held batches and waiting repeated batches with a problem."""
        for append in list(self._machine.held()):
            self._machine.step(Withdrawn(append))
            self._let_go(append)
            append.refused(refusal(append.side_effect))
        for append in self._group:
            self._let_go(append)
            append.refused(refusal(append.side_effect))
        for append in self._machine.waiting_ends():
            append.refused(refusal(append.side_effect))
        self._group = []
        for append in self._repeats:
            append.refused(refusal(append.side_effect))
        self._repeats.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer_repeat(
        self, append: PendingAppend, base_offset: Offset, last_offset: Offset, append_time_us: TimestampUs
    ) -> None:
        self._meters.repeated()
        append.is_repeat_of(base_offset, last_offset, append_time_us)
        if append.acks is Acks.ALL:
            self._answer_when_committed(append)
        else:
            append.stored(self._leader_epoch)

    def _answer_when_committed(self, append: PendingAppend) -> None:
        """Acknowledge a repeated batch once it is committed (rule 6.1), because the first attempt may still be lost."""
        if append.next_offset <= self._high_watermark:
            append.stored(self._leader_epoch)
        else:
            self._repeats.append(append)
