"""Ordering and deduplication of batches that name a producer or an idempotency key.

queue ──▶ admit ──▶ [state machine] ──▶ group, held for others, answered as a repeat, or refused

Owned by a `LeaderReplica` and called only by its task. The state machine of `producers` decides, the partition appends,
and the shell passes the outcome of the append back to the state machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from typing import assert_never

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
    AnswerAsAppended,
    AnswerStored,
    Append,
    Appended,
    AppendFailed,
    Effect,
    KeyedArrived,
    PartitionProducers,
    ProducerState,
    Refuse,
    SequencedArrived,
    TimePassed,
    Withdrawn,
    advanced,
)
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.leading.pending_append import AppendState, PendingAppend
from fairlead_broker.runtime.leading.shared_parts import SharedParts
from fairlead_broker.runtime.meters import TopicMeters


class ProducerOrder:
    """Shell of one partition's `PartitionProducers`."""

    __slots__ = (
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
    ) -> None:
        """`state`: producers known to the log. The object takes ownership of the state.

        `wake` makes the partition's task call `take` again.
        """
        self._topic = topic
        self._index = index
        self._leader_epoch = leader_epoch
        self._machine: PartitionProducers[PendingAppend] = PartitionProducers(state)
        self._shared = shared
        self._meters = meters
        self._wake = wake
        self._group: list[PendingAppend] = []
        self._followers: list[tuple[PendingAppend, PendingAppend]] = []
        self._repeats: list[PendingAppend] = []
        self._high_watermark = Offset(0)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def held_count(self) -> int:
        """Number of batches that wait for earlier batches of their producer."""
        return self._machine.held_count

    def knows_producer(self, producer_id: ProducerId) -> bool:
        """Return whether the producer wrote to the partition within the last 24 hours."""
        return self._machine.knows_producer(producer_id)

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
        group: list[PendingAppend] = []
        self._group = group
        now = self._shared.clock.monotonic()
        for append in queue:
            if append.state is not AppendState.QUEUED:
                self._shared.budget.give_back(append.nbytes)
            elif append.is_ordered:
                self._admit(append, now)
            else:
                append.state = AppendState.APPENDING
                group.append(append)
        if self._machine.held_count:
            self._mind_the_time(now)
        return group

    def _admit(self, append: PendingAppend, now: float) -> None:
        header, keyed = append.header, append.keyed
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
                )
            )
        )

    def _run(self, effects: list[Effect[PendingAppend]]) -> None:
        for effect in effects:
            match effect:
                case Append(request):
                    request.state = AppendState.APPENDING
                    self._group.append(request)
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
        self._shared.budget.give_back(append.nbytes)

    # -- after the append

    def appended(self, group: SequenceOf[PendingAppend], append_time_us: TimestampUs) -> None:
        """Notify the state machine that a group was appended to the log."""
        ordered = [append for append in group if append.is_ordered]
        self._machine.step(
            Appended(
                [append.base_offset for append in ordered],
                [Offset(append.next_offset - 1) for append in ordered],
                append_time_us,
            )
        )
        followers, self._followers = self._followers, []
        for follower, original in followers:
            last_offset = Offset(original.next_offset - 1)
            self._answer_repeat(follower, original.base_offset, last_offset, original.append_time_us)

    def failed(self, problem: ProblemError) -> None:
        """Notify the state machine that the append of a group failed or has an unknown outcome."""
        self._machine.step(AppendFailed())
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
