"""Transactions as clients use them: begin, commit, abort, add partitions, describe (rule 7.1).

The server calls `Transactions` on any broker. The pure package `transactions` decides, `decision_writes` writes, and
`ends` reports commits to the leaders. After an abort, other brokers get a hint to check the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fairlead_api.configuration import FEATURE_LEVEL_KEY
from fairlead_api.identifiers import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TimestampUs, TopicId
from fairlead_api.problems import ProblemError
from fairlead_api.transaction_id import TransactionId
from fairlead_broker.clock import Clock, ExpiryTime
from fairlead_broker.coordination.protocol import CoordinationError, TransactionTooLarge
from fairlead_broker.coordination.transaction_store import (
    ABSENT,
    READ_MAX,
    TransactionStore,
)
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.peers.transaction_messages import OpenAt
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.transaction_records import EndReason, Outcome, TransactionRecord
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.transactions.begins import Authorize, Begins, Begun
from fairlead_broker.runtime.transactions.decision_writes import Change, DecisionWrites
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.joint_commits import JointCommits
from fairlead_broker.runtime.transactions.joint_decisions import JointDecision
from fairlead_broker.runtime.transactions.looks import TransactionLooks
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.transactions.decisions import (
    Begin,
    Decide,
    Decided,
    NotFound,
    TooManyUnfinished,
    Write,
    committed,
    decide,
    is_forgotten,
    kept,
    name_partition,
    without_confirmed,
)

TRANSACTION_LEVEL: Final = 2
"""Lowest feature level at which every broker supports transactions."""
PAGE_MAX: Final = 100
"""Number of records that are examined at once."""


A = TypeVar("A")


class HiddenProducer(Exception):
    """Raised for a producer whose transactions the caller may neither change nor describe (rule Z7)."""


def check_level(level: int) -> None:
    """Raise `not_possible_now` if the cluster's feature level allows a release without transactions."""
    if level < TRANSACTION_LEVEL:
        raise ProblemError(
            "not_possible_now",
            f"transactions need feature level {TRANSACTION_LEVEL}, the cluster is at {level}; raise it"
            f" with: fairlead cluster config -c {FEATURE_LEVEL_KEY}={TRANSACTION_LEVEL}",
        )


@dataclass(slots=True)
class _Seen:
    """Records of the last attempt to store a decision."""

    stored: TransactionRecord | None = None
    """Record that was last read or written."""
    changed: TransactionRecord | None = None
    """Record that the attempt writes."""


class Transactions:
    """Transactions of all producers, on one broker."""

    def __init__(
        self,
        store: TransactionStore,
        writes: DecisionWrites,
        ends: TransactionEnds,
        looks: TransactionLooks,
        meters: TransactionMeters,
        new_id: Callable[[], Awaitable[ProducerId]],
        metadata: ClusterMetadata,
        peers: Peers,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        """`new_id` returns a producer id that was never used."""
        self._store = store
        self._writes = writes
        self._joint_commits = JointCommits(store, writes, clock, meters)
        self.ends = ends
        self.looks = looks
        self._meters = meters
        self._metadata = metadata
        self._peers = peers
        self._clock = clock
        self._expiry = ExpiryTime(clock)
        self._spawn = spawn
        self._begins = Begins(store, writes, ends, meters, new_id, clock, self._hint)

    async def begin(self, request: Begin, authorize: Authorize) -> Begun:
        """Begin a transaction. If a name is given, the open transaction of its producer is aborted (rule 7.1.2).

        Raises `coordination_unavailable`, or `conflict` if the name belongs to a producer without transactions.
        """
        return await self._begins.begin(request, authorize)

    async def decide(self, producer_id: ProducerId, request: Decide, authorize: Authorize) -> Decided:
        """Commit or abort a transaction (rules 7.1.3 to 7.1.5).

        Raises `transaction_not_found`, `producer_fenced`, `transaction_committed`, `transaction_aborted`,
        `transaction_unfinished`, `transaction_too_large` or `coordination_unavailable`.
        """
        seen, began = _Seen(), self._clock.monotonic()
        try:
            decided = await self._writes.change(
                producer_id, self._change(producer_id, request, authorize, seen)
            )
        except ProblemError:
            # The change may have failed because of a commit that another broker left unfinished. The record of this
            # change is not reported, because it might not have been written.
            self._report(producer_id, seen.stored)
            raise
        self._report(producer_id, seen.changed or seen.stored)
        self._measure(request, decided, began)
        if decided.outcome is Outcome.ABORT:
            self._hint(producer_id)
        return decided

    async def committed(self, transaction: TransactionId, authorize: Authorize) -> Decided | None:
        """Return the answer about a transaction that an earlier request committed, or None (rule 7.1.9).

        Raises `coordination_unavailable`, and the problem of `authorize`.
        """
        record = _shown(await self.standing(transaction.producer_id), authorize)
        return committed(record, transaction.epoch)

    async def commit_with(
        self,
        requests: Mapping[ProducerId, Decide],
        authorize: Authorize,
        write: Callable[[JointDecision], Awaitable[None]],
    ) -> dict[ProducerId, Decided]:
        """Commit transactions of different producers through `write`, which also stores offsets of a group (rule 7.5).

        Raises the problems of `commit_together` and of `write`.
        """

        async def change(changes: Mapping[ProducerId, Change[Decided]]) -> dict[ProducerId, Decided]:
            decision = JointDecision(changes, self._writes.noted)
            await write(decision)
            return decision.answers

        return await self._commit(requests, authorize, change)

    async def commit_together(
        self, requests: Mapping[ProducerId, Decide], authorize: Authorize
    ) -> dict[ProducerId, Decided]:
        """Commit transactions of different producers in one write: all of them, or none (rule 7.1.7).

        Raises the problems of `decide` for the first transaction that cannot be committed.
        """
        try:
            return await self._commit(requests, authorize, self._joint_commits.change)
        except TransactionTooLarge as error:
            [(producer_id, first), *_] = requests.items()
            raise ProblemError(
                "transaction_too_large",
                f"the records of {len(requests)} transactions do not fit in one write of the store: {error}",
                data={"transaction": str(TransactionId(producer_id, first.epoch)), "limit": error.limit},
            ) from error

    async def _commit(
        self,
        requests: Mapping[ProducerId, Decide],
        authorize: Authorize,
        write: Callable[
            [Mapping[ProducerId, Change[Decided]]], Coroutine[Any, Any, dict[ProducerId, Decided]]
        ],
    ) -> dict[ProducerId, Decided]:
        """Commit transactions through `write`, which applies the change to each producer's record."""
        began = self._clock.monotonic()
        seen = {producer_id: _Seen() for producer_id in requests}
        changes = {
            producer_id: self._change(producer_id, request, authorize, seen[producer_id])
            for producer_id, request in requests.items()
        }
        try:
            answers = await write(changes)
        except ProblemError:
            for producer_id, each in seen.items():
                self._report(producer_id, each.stored)
            raise
        for producer_id, decided in answers.items():
            self._report(producer_id, seen[producer_id].changed or seen[producer_id].stored)
            self._measure(requests[producer_id], decided, began)
        return answers

    async def change(self, producer_id: ProducerId, change: Change[A]) -> A:
        """Apply a change function to the record of a producer, and return its answer for the written record.

        Raises the problems of `DecisionWrites.change`.
        """
        return await self._writes.change(producer_id, change)

    async def name_partition(
        self, transaction: TransactionId, topic_id: TopicId, partition: PartitionIndex, authorize: Authorize
    ) -> None:
        """Add a partition to the record of a transaction, before a batch is appended in the partition (rule 7.1.6)."""

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, None]:
            del now_us
            record = _shown(record, authorize)
            outcome = name_partition(record, transaction.epoch, topic_id, partition)
            if not isinstance(outcome, TransactionRecord):
                raise refusals.from_transactions(outcome, transaction)
            return (None if outcome is record else outcome), None

        await self._writes.change(transaction.producer_id, change)

    async def standing(self, producer_id: ProducerId) -> TransactionRecord | None:
        """Return the record of a producer, read from the store. Raises `coordination_unavailable`."""
        try:
            standing = (await self._store.read([producer_id]))[producer_id]
        except CoordinationError as error:
            raise refusals.store_unavailable(error) from error
        self._writes.noted(producer_id, standing)
        return standing.record

    async def find(self, name: str) -> ProducerId | None:
        """Return the id of the transactional producer with a name, if any. Raises `coordination_unavailable`."""
        try:
            named = await self._store.find_name(name)
        except CoordinationError as error:
            raise refusals.store_unavailable(error) from error
        return named.producer_id if named is not None and named.is_transactional else None

    async def page(
        self, after: ProducerId | None, limit: int
    ) -> tuple[list[tuple[ProducerId, TransactionRecord]], bool]:
        """Return records in key order, and whether more records follow. Raises `coordination_unavailable`."""
        try:
            found, more = await self._store.page(after, limit)
        except CoordinationError as error:
            raise refusals.store_unavailable(error) from error
        return [(each, standing.record) for each, standing in found if standing.record is not None], more

    async def open_at(self, producer_id: ProducerId) -> tuple[list[tuple[BrokerId, OpenAt]], list[BrokerId]]:
        """Return a producer's open transactions, each with the leader, and the brokers that did not answer."""
        own = self._peers.own.broker
        found = [(own, each) for each in self.looks.open_at(producer_id)]
        silent: list[BrokerId] = []

        async def ask(broker: BrokerId) -> None:
            try:
                opened = await self._peers.open_transactions(broker, producer_id)
            except (PeerUnavailable, ProblemError):
                silent.append(broker)
            else:
                found.extend((broker, each) for each in opened)

        await asyncio.gather(*(ask(broker) for broker in self._metadata.brokers if broker != own))
        return found, sorted(silent)

    async def opened(self, producers: Sequence[ProducerId]) -> set[ProducerId]:
        """Return the producers with a transaction that is open in a partition whose leader answers."""
        own = self._peers.own.broker
        found = self.looks.opened(producers)

        async def ask(broker: BrokerId) -> None:
            with suppress(PeerUnavailable, ProblemError):
                found.update(await self._peers.open_producers(broker, producers))

        await asyncio.gather(*(ask(broker) for broker in self._metadata.brokers if broker != own))
        return found

    async def clean(self, producer_id: ProducerId) -> None:
        """Write a record without its confirmed commits (rule 7.3.4)."""
        seen: list[TransactionRecord | None] = []

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, None]:
            del now_us
            cleaned = None if record is None else without_confirmed(record, self.ends.confirmed(producer_id))
            seen[:] = [record if cleaned is None else cleaned]
            return cleaned, None

        await self._writes.change(producer_id, change)
        for record in seen:
            if record is None:
                self.ends.cleaned(producer_id)
            else:
                self.ends.written(producer_id, record)

    async def forget(self, producer_id: ProducerId) -> None:
        """Delete the record of a producer together with its name; the deletion aborts the open transaction.

        Raises `transaction_not_found`, or `transaction_unfinished` for commits that partitions have not confirmed.
        """
        is_forgotten = False
        try:
            while not is_forgotten:
                standing = (await self._store.read([producer_id]))[producer_id]
                record = standing.record
                if record is None:
                    raise refusals.from_transactions(NotFound(), TransactionId(producer_id, ProducerEpoch(0)))
                if left := kept(record, self.ends.confirmed(producer_id)):
                    self.ends.written(producer_id, record)
                    transaction = TransactionId(producer_id, record.epoch)
                    raise refusals.from_transactions(TooManyUnfinished(left), transaction)
                is_forgotten = await self._store.forget(producer_id, standing)
        except CoordinationError as error:
            raise refusals.store_unavailable(error) from error
        self._writes.noted(producer_id, ABSENT)
        self._meters.decided(Outcome.ABORT, EndReason.OPERATOR)
        self._hint(producer_id)

    async def timeouts_ms(self, producers: AbstractSet[ProducerId]) -> dict[ProducerId, int]:
        """Return the timeout of each producer that has a record. Raises `coordination_unavailable`."""
        wanted, found = sorted(producers), dict[ProducerId, int]()
        try:
            for at in range(0, len(wanted), READ_MAX):
                for producer_id, standing in (await self._store.read(wanted[at : at + READ_MAX])).items():
                    if standing.record is not None:
                        found[producer_id] = standing.record.timeout_ms
        except CoordinationError as error:
            raise refusals.store_unavailable(error) from error
        return found

    async def forget_idle(self, expiration_us: int) -> int:
        """Delete records of long-idle producers, with their names; return the number of deleted records (rule 7.1.8).

        Commits that another broker left unfinished are reported to the leaders. Raises `CoordinationError`.
        """
        forgotten, after, more = 0, None, True
        while more:
            found, more = await self._store.page(after, PAGE_MAX)
            now_us = self._expiry.now_us()
            for producer_id, standing in found:
                record = standing.record
                assert record is not None, "a listed key has a record"
                if record.unfinished:
                    self.ends.written(producer_id, record)
                elif is_forgotten(record, now_us, expiration_us):
                    forgotten += await self._store.forget(producer_id, standing)
                after = producer_id
        return forgotten

    # -- inside

    def _change(
        self, producer_id: ProducerId, request: Decide, authorize: Authorize, seen: _Seen
    ) -> Change[Decided]:
        """Return the change to a record that decides a transaction. `seen` gets the records of the last attempt."""

        def change(
            record: TransactionRecord | None, now_us: TimestampUs
        ) -> tuple[TransactionRecord | None, Decided]:
            seen.stored = seen.changed = None
            seen.stored = record = _shown(record, authorize)
            outcome = decide(record, request, self.ends.confirmed(producer_id), now_us)
            if isinstance(outcome, Write):
                seen.changed = outcome.record
                return outcome.record, outcome.answer
            if isinstance(outcome, Decided):
                return None, outcome
            raise refusals.from_transactions(outcome, TransactionId(producer_id, request.epoch))

        return change

    def _measure(self, request: Decide, decided: Decided, began: float) -> None:
        if not decided.duplicate:
            self._meters.decided(decided.outcome, request.reason)
            if decided.outcome is Outcome.COMMIT:
                self._meters.committed(self._clock.monotonic() - began)

    def _report(self, producer_id: ProducerId, record: TransactionRecord | None) -> None:
        """Report the unfinished commits of a stored record to the leaders."""
        if record is not None:
            self.ends.written(producer_id, record)

    def _hint(self, producer_id: ProducerId) -> None:
        """Send a hint to all live brokers to check the open transactions of a producer."""
        self.looks.hint((producer_id,))
        others = [broker for broker in self._metadata.brokers if broker != self._peers.own.broker]
        if others:
            self._spawn(self._hint_others(others, (producer_id,)), "transaction hints")

    async def _hint_others(self, brokers: Iterable[BrokerId], producers: tuple[ProducerId, ...]) -> None:
        async def send_hint(broker: BrokerId) -> None:
            try:
                await self._peers.transaction_looks(broker, producers)
            except (PeerUnavailable, ProblemError):
                # Without a hint, the broker finds the transaction at its next scheduled check.
                return

        await asyncio.gather(*map(send_hint, brokers))


def _shown(record: TransactionRecord | None, authorize: Authorize) -> TransactionRecord | None:
    """Return the record, or None if the producer must look missing to the caller. Raises the problem of `authorize`."""
    try:
        if record is not None:
            authorize(record)
    except HiddenProducer:
        return None
    return record
