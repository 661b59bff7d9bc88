"""Begins of transactions: by the name of a producer, which may be new, or without a name (rule 7.1.2).

After the last epoch of a producer id, its name continues with a new producer id. The same write ends the record of the
old producer id, so that no earlier instance can commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from fairlead_api.identifiers import ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import CoordinationError, UnknownOutcome
from fairlead_broker.coordination.transaction_store import (
    NamedProducer,
    Replacement,
    Standing,
    TransactionStore,
)
from fairlead_broker.registry.transaction_records import Outcome, TransactionRecord
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.transactions.decisions import Begin, begin, retired

Authorize = Callable[[TransactionRecord], None]
"""Function that raises a problem if the caller is not allowed to change the transactions of a producer, and
`HiddenProducer` if the producer must look missing to the caller."""
ATTEMPTS_MAX: Final = 20
"""Maximum number of attempts to create a name. An attempt fails only if another call changed the record of the name."""


@dataclass(frozen=True, slots=True)
class Begun:
    """New open transaction."""

    transaction: TransactionId
    record: TransactionRecord


class Begins:
    """Begins of transactions on one broker."""

    __slots__ = ("_clock", "_ends", "_hint", "_meters", "_new_id", "_store", "_writes")

    def __init__(
        self,
        store: TransactionStore,
        writes: DecisionWrites,
        ends: TransactionEnds,
        meters: TransactionMeters,
        new_id: Callable[[], Awaitable[ProducerId]],
        clock: Clock,
        hint: Callable[[ProducerId], None],
    ) -> None:
        """`new_id` returns a producer id that was never used; `hint` lets brokers check a producer's transactions."""
        self._store = store
        self._writes = writes
        self._ends = ends
        self._meters = meters
        self._new_id = new_id
        self._clock = clock
        self._hint = hint

    async def begin(self, request: Begin, authorize: Authorize) -> Begun:
        """Begin a transaction. If a name is given, the open transaction of its producer is aborted.

        Raises `coordination_unavailable`, or `conflict` if the name belongs to a producer without transactions.
        """
        try:
            for _ in range(ATTEMPTS_MAX):
                named = None if request.name is None else await self._find(request.name)
                begun = None if named is None else await self._begin_again(named, request, authorize)
                begun = begun or await self._create(request, named, authorize)
                if begun is not None:
                    return begun
        except CoordinationError as error:
            raise refusals.store_unavailable(error) from error
        raise ProblemError(
            "conflict", f"other calls changed the producer name {request.name} at the same time"
        )

    async def _find(self, name: str) -> NamedProducer | None:
        named = await self._store.find_name(name)
        if named is not None and not named.is_transactional:
            raise ProblemError("conflict", f"producer {name} has no transactions; choose another name")
        return named

    async def _begin_again(self, named: NamedProducer, request: Begin, authorize: Authorize) -> Begun | None:
        """Begin the next transaction of a name; return None if the name needs another producer id."""
        producer_id = named.producer_id

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, TransactionRecord | None]:
            if record is None:
                return None, None
            authorize(record)
            begun = begin(record, request, now_us)
            return (None if begun is record else begun), begun

        record = await self._writes.change(producer_id, change)
        if record is None:
            return None
        self._fenced(producer_id, record, request)
        return Begun(TransactionId(producer_id, record.epoch), record)

    async def _create(
        self, request: Begin, replaced: NamedProducer | None, authorize: Authorize
    ) -> Begun | None:
        """Begin the first transaction of a new producer id, and end the record of the name's previous producer id.

        Returns None if another call changed one of the records.
        """
        producer_id, now_us = await self._new_id(), self._clock.now_us()
        record = begin(None, request, now_us)
        assert record is not None, "a new producer id has a first epoch"
        ending: dict[ProducerId, Replacement] = {}
        if replaced is not None:
            previous = (await self._store.read([replaced.producer_id]))[replaced.producer_id]
            if previous.record is not None:
                authorize(previous.record)
                ended = retired(previous.record, now_us)
                ending[replaced.producer_id] = Replacement.encoded(previous, ended)
        try:
            standing = await self._store.create(producer_id, record, replaced, ending)
        except UnknownOutcome:
            # The next attempt finds the name, or uses another producer id.
            return None
        if standing is None:
            return None
        self._writes.noted(producer_id, standing)
        for old, replacement in ending.items():
            self._writes.noted(old, Standing(replacement.record, standing.revision))
            self._fenced(old, replacement.record, request)
        return Begun(TransactionId(producer_id, ProducerEpoch(record.epoch)), record)

    def _fenced(self, producer_id: ProducerId, record: TransactionRecord, request: Begin) -> None:
        """Announce that a begin has aborted the open transaction of a producer, whose new record is given."""
        self._meters.decided(Outcome.ABORT, request.reason)
        self._ends.written(producer_id, record)
        self._hint(producer_id)
