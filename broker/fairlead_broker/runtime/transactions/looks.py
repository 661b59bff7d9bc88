"""Checks of open transactions: a leader reads producers' records and ends decided transactions (rules 7.3.2, 7.3.3).

Leader replicas report partitions with open transactions. One task watches the partitions with open transactions,
schedules checks by `transactions.looking`, aborts transactions that are open for longer than their timeout, and appends
markers. The task sleeps while this broker leads no partition with an open transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fairlead_api.batch.control_batches import MarkerKind
from fairlead_api.identifiers import Offset, ProducerEpoch, ProducerId, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.protocol import CoordinationError
from fairlead_broker.coordination.transaction_store import TransactionStore
from fairlead_broker.peers.transaction_messages import OpenAt
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.registry.transaction_records import EndReason, Outcome, TransactionRecord
from fairlead_broker.runtime.leading.shared_parts import TransactionalPartition
from fairlead_broker.runtime.requests import TransactionEnd
from fairlead_broker.runtime.transactions.decision_writes import DecisionWrites
from fairlead_broker.runtime.transactions.meters import TransactionMeters
from fairlead_broker.telemetry import Log
from fairlead_broker.transactions.decisions import Decide, Write, decide, restored
from fairlead_broker.transactions.looking import Looks
from fairlead_broker.transactions.outcomes import Finding, finding

TICK_SECONDS: Final = 0.1
"""Seconds between two searches for due checks, which is also the maximum delay of a check after a hint."""
MARKER_SECONDS_MAX: Final = 4.0
"""Maximum number of seconds to wait until a marker is committed; the next check appends a delayed marker again."""


class _Open(NamedTuple):
    """Transaction that is open in a partition."""

    partition: TransactionalPartition
    producer_id: ProducerId
    epoch: ProducerEpoch
    first_offset: Offset


@dataclass(slots=True)
class _Watched:
    since: float
    """Monotonic time at which this leader first saw the transaction."""
    is_ending: bool = False


class TransactionLooks:
    """Watch over the open transactions in the partitions that this broker leads."""

    __slots__ = (
        "_clock", "_hints", "_log", "_looks", "_meters", "_partitions", "_spawn", "_store", "_wake", "_watched",
        "_writes",
    )  # fmt: skip

    def __init__(
        self,
        store: TransactionStore,
        writes: DecisionWrites,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        meters: TransactionMeters,
        log: Log,
    ) -> None:
        self._store = store
        self._meters = meters
        self._writes = writes
        self._clock = clock
        self._spawn = spawn
        self._log = log
        self._looks = Looks()
        self._partitions: dict[TransactionalPartition, None] = {}
        self._watched: dict[_Open, _Watched] = {}
        self._hints: set[ProducerId] = set()
        self._wake = asyncio.Event()

    # -- reports

    def has_open(self, partition: TransactionalPartition) -> None:
        """Watch a partition with an open transaction.

        The leader calls this method for each group that it appends while a transaction is open.
        """
        if partition not in self._partitions:
            self._partitions[partition] = None
            self._wake.set()

    def took_leadership(self, partition: TransactionalPartition) -> None:
        """Watch a partition with open transactions that this broker now leads, and check the transactions at once."""
        self._hints |= {producer_id for producer_id, _, _ in partition.open_transactions()}
        self.has_open(partition)

    def appended_marker(self, kind: MarkerKind) -> None:
        """Count the marker that a leader appended."""
        self._meters.appended_marker(kind)

    def hint(self, producers: Iterable[ProducerId]) -> None:
        """Make the checks of these producers' open transactions due at once."""
        if self._partitions:
            self._hints.update(producers)

    # -- reading

    @property
    def oldest_seconds(self) -> float:
        """Age of the oldest open transaction; 0 if no transaction is open."""
        oldest = min((each.since for each in self._watched.values()), default=None)
        return 0.0 if oldest is None else self._clock.monotonic() - oldest

    @property
    def unstable_records(self) -> int:
        """Number of records from the last stable offset to the high watermark, for the partition with the most.

        The metric must not fail while a high watermark is unknown, so only records that may be served count.
        """
        return max((0, *(each.readable_limit - each.stable_limit for each in self._partitions)))

    @property
    def open_count(self) -> int:
        """Number of open transactions in partitions that this broker leads."""
        return len(self._watched)

    def age_seconds(
        self,
        partition: TransactionalPartition,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        first_offset: Offset,
    ) -> float:
        """Return the seconds since this leader first saw an open transaction."""
        watched = self._watched.get(_Open(partition, producer_id, epoch, first_offset))
        return 0.0 if watched is None else self._clock.monotonic() - watched.since

    def opened(self, producers: Iterable[ProducerId]) -> set[ProducerId]:
        """Return the given producers that have an open transaction in a partition led by this broker."""
        wanted = set(producers)
        return {
            producer_id
            for partition in self._partitions
            for producer_id, _, _ in partition.open_transactions()
            if producer_id in wanted
        }

    def open_at(self, producer_id: ProducerId) -> list[OpenAt]:
        """Return the partitions led by this broker with open transactions of a producer."""
        now = self._clock.monotonic()
        return [
            OpenAt(
                topic_id=each.partition.topic_id,
                partition=each.partition.index,
                epoch=each.epoch,
                first_offset=each.first_offset,
                age_seconds=now - watched.since,
            )
            for each, watched in self._watched.items()
            if each.producer_id == producer_id
        ]

    # -- the task

    async def run(self) -> None:
        """Check open transactions until cancelled."""
        while True:
            if not self._partitions:
                await self._wake.wait()
            self._wake.clear()
            now = self._clock.monotonic()
            self._watch(now)
            taken = self._looks.take(now)
            if taken:
                await self._look(taken)
            await asyncio.sleep(TICK_SECONDS)  # noqa: TID251 - no event announces that a transaction is old

    def _watch(self, now: float) -> None:
        """Compare the open transactions with those of the previous tick."""
        found: dict[_Open, _Watched] = {}
        for partition in list(self._partitions):
            if partition.closed or not partition.has_open_transactions:
                del self._partitions[partition]
                continue
            for producer_id, epoch, first_offset in partition.open_transactions():
                each = _Open(partition, producer_id, epoch, first_offset)
                found[each] = self._watched.get(each) or _Watched(now)
        producers = {each.producer_id for each in found}
        for producer_id in {each.producer_id for each in self._watched} - producers:
            self._looks.ended(producer_id)
        for producer_id in producers:
            self._looks.opened(producer_id, now)
        self._watched = found
        self._looks.hinted(self._hints & producers, now)
        self._hints.clear()

    async def _look(self, producers: list[ProducerId]) -> None:
        try:
            standings = await self._store.read(producers)
        except (CoordinationError, RecordUnreadable) as error:
            # The next check reads the records again.
            self._log.warning("transaction records not read", reason=str(error))
            return
        self._meters.looked(len(producers))
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        for producer_id, standing in standings.items():
            self._writes.noted(producer_id, standing)
        for each, watched in self._watched.items():
            if each.producer_id not in standings or watched.is_ending:
                continue
            record = standings[each.producer_id].record
            found = finding(record, each.epoch, each.partition.topic_id, each.partition.index)
            if found is Finding.OPEN:
                assert record is not None, "an open transaction has a record"
                if now - watched.since < record.timeout_ms / 1000:
                    continue
            watched.is_ending = True
            self._spawn(
                self._end(each, watched, found, _decided_us(record, each.epoch, now_us)), "transaction end"
            )

    async def _end(self, each: _Open, watched: _Watched, found: Finding, decided_us: TimestampUs) -> None:
        """Write the abort of a transaction that is too old or unknown to the store, then append the marker."""
        try:
            if found is Finding.OPEN:
                found = await self._writes.change(
                    each.producer_id, lambda record, now_us: _expired(each, record, now_us)
                )
                if found is Finding.ABORT:
                    self._meters.decided(Outcome.ABORT, EndReason.TIMEOUT)
                    self._log.warning(
                        "transaction aborted after its timeout",
                        transaction=f"{each.producer_id}.{each.epoch}",
                        partition=str(each.partition.key),
                    )
            elif found is Finding.RESTORED:
                found = await self._writes.change(
                    each.producer_id, lambda record, now_us: _restored(each, record, now_us)
                )
                if found is Finding.ABORT:
                    self._meters.decided(Outcome.ABORT, EndReason.RESTORED)
            if found in (Finding.ABORT, Finding.COMMIT):
                kind = MarkerKind.COMMIT if found is Finding.COMMIT else MarkerKind.ABORT
                end = TransactionEnd(each.producer_id, each.epoch, kind, decided_us)
                await each.partition.end_transaction(end, MARKER_SECONDS_MAX)
        except ProblemError as problem:
            self._log.info(
                "transaction not ended yet",
                transaction=f"{each.producer_id}.{each.epoch}",
                partition=str(each.partition.key),
                reason=problem.detail,
            )
        finally:
            watched.is_ending = False


def _found(each: _Open, record: TransactionRecord | None) -> Finding:
    return finding(record, each.epoch, each.partition.topic_id, each.partition.index)


def _expired(
    each: _Open, record: TransactionRecord | None, now_us: TimestampUs
) -> tuple[TransactionRecord | None, Finding]:
    """Return the record that aborts a transaction after its timeout, unless its outcome is already decided."""
    if record is not None and record.epoch == each.epoch:
        write = decide(record, Decide(each.epoch, Outcome.ABORT, EndReason.TIMEOUT), frozenset(), now_us)
        assert isinstance(write, Write), "an open transaction can be aborted"
        return write.record, Finding.ABORT
    return None, _found(each, record)


def _restored(
    each: _Open, record: TransactionRecord | None, now_us: TimestampUs
) -> tuple[TransactionRecord | None, Finding]:
    """Return the record that aborts a transaction that is missing in a restored store."""
    if record is not None and record.epoch < each.epoch:
        return restored(record, each.epoch, now_us), Finding.ABORT
    return None, _found(each, record)


def _decided_us(record: TransactionRecord | None, epoch: ProducerEpoch, now_us: TimestampUs) -> TimestampUs:
    ended = None if record is None else record.ended
    return ended.at_us if ended is not None and ended.epoch == epoch else now_us
