"""A produce call in progress: one future for each call, regardless of the number of partitions.

The call waits for one future and one timer. Each batch of the call is a `PendingAppend` in the queue of its partition,
and the partition settles the batch. The last settled batch wakes the call. A task or a future for each partition would
cost more than the append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from fairlead_api.batch.header import NO_PRODUCER, BatchHeader
from fairlead_api.identifiers import Acks, LeaderEpoch, Offset, TimestampUs
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.runtime.requests import AppendResult, KeyedRequest


class AppendState(Enum):
    """Progress of a batch, which determines whether a refusal is definite."""

    QUEUED = auto()
    """No byte of the batch is stored. After a timeout the batch is withdrawn, and its `ack_timeout` has the side effect
    `none`."""
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
        "header",
        "is_ordered",
        "keyed",
        "nbytes",
        "next_offset",
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
    ) -> None:
        self.call = call
        self.slot = slot
        self.batch: memoryview | None = batch
        """Bytes of the batch as sent by the producer. The bytes are released after the append, because a batch that
        waits for acknowledgements should occupy no memory."""
        self.header = header
        self.keyed = keyed
        """Idempotency key under which the batch is stored; None if the request has no key."""
        self.is_ordered = keyed is not None or header.producer_id != NO_PRODUCER
        """Whether the partition must check for an earlier attempt before it appends the batch."""
        self.duplicate = False
        """Whether an earlier attempt has stored the batch."""
        self.nbytes = header.total_bytes
        self.acks = acks
        self.state = AppendState.QUEUED
        self.base_offset = Offset(-1)
        self.next_offset = Offset(-1)
        self.append_time_us = TimestampUs(-1)

    @property
    def side_effect(self) -> SideEffect:
        """Side effect that a refusal must report in the current state of the batch."""
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


class Acknowledging(Protocol):
    """Interface of the partition of a batch, as used by produce calls."""

    def timed_out(self, seconds: float, effect: SideEffect) -> ProblemError:
        """Return the problem that explains why the batch was not acknowledged in time."""
        ...


class PendingProduce:
    """One produce call with its answers so far and the number of missing answers."""

    __slots__ = ("_done", "_timer", "answers", "appends", "missing")

    def __init__(self, count: int) -> None:
        self.answers: list[AppendResult | ProblemError | None] = [None] * count
        self.appends: list[tuple[Acknowledging, PendingAppend]] = []
        """Partition and batch of every queued item. After a timeout, unsettled items are answered with a problem."""
        self.missing = count
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def settle(self, slot: int, answer: AppendResult | ProblemError) -> None:
        """Set the answer for one batch; later answers for the batch are ignored."""
        if self.answers[slot] is not None:
            return
        self.answers[slot] = answer
        self.missing -= 1
        if not self.missing and self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def wait(self, timeout_seconds: float) -> list[AppendResult | ProblemError]:
        """Wait until every batch has an answer; after a timeout, unsettled batches are answered with a problem."""
        if self.missing:
            loop = asyncio.get_running_loop()
            self._done = loop.create_future()
            self._timer = loop.call_later(timeout_seconds, self._time_out, timeout_seconds)
            try:
                await self._done
            finally:
                self._timer.cancel()
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
