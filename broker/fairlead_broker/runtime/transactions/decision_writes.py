"""Writes of decisions: changes of many producers that arrive together share one compare-and-set (rule 7.6).

A change is a pure function of the stored record. While a write is in progress, further changes accumulate. A change
whose answer needs no write is answered from a read that began after the change had arrived. After an unknown outcome,
the records are read again: the compare lets either the first or the second attempt succeed, never both (rule 7.1.1).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import CoordinationError, TransactionTooLarge, UnknownOutcome
from fairlead_broker.coordination.transaction_store import (
    READ_MAX,
    Replacement,
    Standing,
    TransactionStore,
)
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.registry.transaction_records import TransactionRecord
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.transactions.meters import TransactionMeters

GATHERED_MAX: Final = READ_MAX
"""Maximum number of changes in one write, which has a compare, a put and a read for each change."""
WRITE_BYTES_MAX: Final = 512 << 10
"""Maximum number of bytes of the records in one write; a single larger record is written alone."""
UNDER_WAY_MAX: Final = 2
"""Maximum number of concurrent writes. More concurrent writes would delay the keep-alives of leases."""
CACHED_MAX: Final = 10_000
"""Maximum number of records in memory; the least recently used record is dropped first."""
SECONDS_MAX: Final = 10.0
"""Maximum number of seconds for which a change is attempted."""
RETRY_SECONDS: Final = 0.2

A = TypeVar("A")
Change = Callable[[TransactionRecord | None, TimestampUs], "tuple[TransactionRecord | None, A]"]
"""Function that receives the stored record (or None) and the time, and returns the record to write (or None) and the
answer."""


@dataclass(slots=True, eq=False)
class _Pending(Generic[A]):
    producer_id: ProducerId
    change: Change[A]
    deadline: float
    answer: asyncio.Future[A] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    standing: Standing | None = None
    """Record on which the next attempt is based; the records in memory may be dropped in the meantime."""
    is_fresh: bool = False
    """Whether this record was read after the change arrived."""
    side_effect: SideEffect = SideEffect.NONE

    def succeed(self, answer: A) -> None:
        """Set the answer, unless the caller was cancelled."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Set the error, unless the caller was cancelled."""
        if not self.answer.done():
            self.answer.set_exception(error)


class DecisionWrites:
    """Queue of changes, and the records that this broker read or wrote last."""

    __slots__ = ("_busy", "_cache", "_clock", "_meters", "_queue", "_spawn", "_store", "_writers")

    def __init__(
        self,
        store: TransactionStore,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        meters: TransactionMeters,
    ) -> None:
        """`spawn` starts a supervised task."""
        self._meters = meters
        self._store = store
        self._clock = clock
        self._spawn = spawn
        self._queue: deque[_Pending[Any]] = deque()
        self._cache: OrderedDict[ProducerId, Standing] = OrderedDict()
        self._busy: set[ProducerId] = set()
        """Producers whose change is in progress; further changes of the same producers wait."""
        self._writers = 0

    async def change(self, producer_id: ProducerId, change: Change[A]) -> A:
        """Apply a change function to a producer's record, and return the function's answer for the written record.

        The function may be called several times. A `ProblemError` that the function raises propagates only if the
        record was read after the call began. Raises `coordination_unavailable` if the store does not answer in time,
        `transaction_too_large` for a record that does not fit in one write, and `internal` for a record that cannot be
        read.
        """
        pending = _Pending(producer_id, change, self._clock.monotonic() + SECONDS_MAX)
        self._queue.append(pending)
        if self._writers < UNDER_WAY_MAX:
            self._writers += 1
            self._spawn(self._write_queued(), "transaction decisions")
        return await pending.answer

    def noted(self, producer_id: ProducerId, standing: Standing) -> None:
        """Keep a record that was read or written elsewhere."""
        self._cache[producer_id] = standing
        self._cache.move_to_end(producer_id)
        if len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)

    async def _write_queued(self) -> None:
        try:
            while group := self._take():
                try:
                    await self._carry_out(group)
                finally:
                    self._busy -= group.keys()
        finally:
            self._writers -= 1

    def _take(self) -> dict[ProducerId, _Pending[Any]]:
        """Return the next changes, at most one for each producer."""
        group: dict[ProducerId, _Pending[Any]] = {}
        later: list[_Pending[Any]] = []
        while self._queue and len(group) < GATHERED_MAX:
            pending = self._queue.popleft()
            if pending.producer_id in group or pending.producer_id in self._busy:
                later.append(pending)
            elif not pending.answer.done():
                group[pending.producer_id] = pending
        self._queue.extendleft(reversed(later))
        self._busy |= group.keys()
        return group

    async def _carry_out(self, group: dict[ProducerId, _Pending[Any]]) -> None:
        """Attempt the unanswered changes of a group repeatedly, until every change has an answer."""
        left = dict(group)
        try:
            while left:
                await self._attempt(left)
                for producer_id in [each for each, pending in left.items() if pending.answer.done()]:
                    del left[producer_id]
        except asyncio.CancelledError:
            for pending in left.values():
                pending.fail(refusals.shutting_down())
            raise

    async def _attempt(self, left: dict[ProducerId, _Pending[Any]]) -> None:
        try:
            for producer_id, pending in left.items():
                pending.standing = pending.standing or self._cache.get(producer_id)
            await self._read([each for each, pending in left.items() if pending.standing is None], left)
            changes = _fitting(self._changes(left))
            stale = [
                each for each, pending in left.items() if not pending.answer.done() and not pending.is_fresh
            ]
            await self._read([each for each in stale if each not in changes], left)
            if not changes:
                return
            try:
                written, standings = await self._store.write(
                    {each: replacement for each, (replacement, _) in changes.items()}
                )
            except TransactionTooLarge as error:
                await self._split(changes, left, error)
                return
        except UnknownOutcome as error:
            await self._wait_or_fail(left, error, SideEffect.MAYBE)
        except CoordinationError as error:
            await self._wait_or_fail(left, error, SideEffect.NONE)
        except RecordUnreadable as error:
            for pending in left.values():
                pending.fail(ProblemError("internal", str(error)))
        else:
            if written:
                self._meters.wrote(len(changes))
            for producer_id, standing in standings.items():
                self.noted(producer_id, standing)
                pending = left[producer_id]
                pending.standing, pending.is_fresh = standing, True
                if written:
                    pending.succeed(changes[producer_id][1])

    async def _split(
        self,
        changes: dict[ProducerId, tuple[Replacement, Any]],
        left: dict[ProducerId, _Pending[Any]],
        error: TransactionTooLarge,
    ) -> None:
        """Attempt each change of a write that is too large alone, and fail a change that is too large alone."""
        if len(changes) > 1:
            for producer_id in changes:
                await self._attempt({producer_id: left[producer_id]})
            return
        [(producer_id, (replacement, _))] = changes.items()
        before = replacement.standing.record
        transaction = TransactionId(producer_id, ProducerEpoch(0) if before is None else before.epoch)
        left[producer_id].fail(
            ProblemError(
                "transaction_too_large",
                f"the record of transaction {transaction} does not fit in one write of the store: {error}",
                data={"transaction": str(transaction), "limit": error.limit},
            )
        )

    async def _read(self, producers: list[ProducerId], left: dict[ProducerId, _Pending[Any]]) -> None:
        if not producers:
            return
        for producer_id, standing in (await self._store.read(producers)).items():
            self.noted(producer_id, standing)
            left[producer_id].standing, left[producer_id].is_fresh = standing, True

    def _changes(self, left: dict[ProducerId, _Pending[Any]]) -> dict[ProducerId, tuple[Replacement, Any]]:
        """Return the records to write with their answers, and answer changes that need no write."""
        changes: dict[ProducerId, tuple[Replacement, Any]] = {}
        now_us = self._clock.now_us()
        for producer_id, pending in left.items():
            standing = pending.standing
            assert standing is not None, "the records of all changes are read"
            try:
                record, answer = pending.change(standing.record, now_us)
            except ProblemError as problem:
                if pending.is_fresh:
                    pending.fail(problem)
                continue
            if record is not None:
                changes[producer_id] = (Replacement.encoded(standing, record), answer)
            elif pending.is_fresh:
                pending.succeed(answer)
        return changes

    async def _wait_or_fail(
        self, left: dict[ProducerId, _Pending[Any]], error: CoordinationError, effect: SideEffect
    ) -> None:
        """Fail the changes whose time limit has passed; wait before the next attempt of the remaining changes."""
        now = self._clock.monotonic()
        for producer_id, pending in left.items():
            self._cache.pop(producer_id, None)
            pending.standing, pending.is_fresh = None, False
            if effect is SideEffect.MAYBE:
                pending.side_effect = effect
            if now + RETRY_SECONDS >= pending.deadline:
                pending.fail(
                    ProblemError(
                        "coordination_unavailable",
                        f"the coordination store did not answer: {error}",
                        side_effect=pending.side_effect,
                    )
                )
        if not all(pending.answer.done() for pending in left.values()):
            await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251 - no event announces that the store answers again


def _fitting(
    changes: dict[ProducerId, tuple[Replacement, Any]],
) -> dict[ProducerId, tuple[Replacement, Any]]:
    """Return the first changes whose records fit in one write; the other changes are attempted again."""
    fitting: dict[ProducerId, tuple[Replacement, Any]] = {}
    nbytes = 0
    for producer_id, change in changes.items():
        nbytes += len(change[0].value)
        if fitting and nbytes > WRITE_BYTES_MAX:
            break
        fitting[producer_id] = change
    return fitting
