"""Writes by leaders to their own partition records, each by compare-and-set.

One task sends the writes and combines writes of many partitions in one transaction, because a returning follower may
join the isrs of a thousand partitions at once. A failed transaction is split into halves, so that a partition with a
conflict does not block other partitions. Every write gets exactly one answer, after which the state machine decides
whether to try again (protocol section 3, rules 3 and 4).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from fairlead_api.identifiers import Revision, TopicIdPartition
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationError,
    TransactionTooLarge,
    UnknownOutcome,
)
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import PartitionRecord, decode, encode
from fairlead_broker.registry.store_writes import (
    Compare,
    Get,
    KeyValue,
    Put,
    created_at,
    unchanged_since,
)
from fairlead_broker.replication import WriteOutcome, WriteRecord
from fairlead_broker.runtime.leading.shared_parts import RecordOwner
from fairlead_broker.telemetry import Log

RETRY_SECONDS: Final = 1.0
PARTITIONS_MAX: Final = 40
"""Maximum number of partitions per transaction. A transaction may have up to 128 compares: two per partition, and one
for the broker's own key."""

_Write = tuple[RecordOwner, WriteRecord]


class LeaderWrites:
    """Writer of the partition records that the leader state machines of this broker request."""

    __slots__ = ("_coordination", "_keys", "_log", "_queue", "_wake")

    def __init__(self, coordination: Coordination, keys: Keys, log: Log) -> None:
        self._coordination = coordination
        self._keys = keys
        self._log = log
        self._queue: deque[_Write] = deque()
        self._wake = asyncio.Event()

    def write(self, leadership: RecordOwner, write: WriteRecord) -> None:
        """Queue a partition record for writing; the leadership receives the outcome."""
        self._queue.append((leadership, write))
        self._wake.set()

    async def run(self) -> None:
        """Write queued records until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._write(self._take())

    def _take(self) -> list[_Write]:
        """Return the next writes of current leaderships, at most one per partition.

        While a write is queued, its state machine may receive a newer partition record and decide again. Only the
        newest decision of a state machine is written, because a transaction may change a key only once.
        """
        batch: list[_Write] = []
        epoch = None
        while self._queue and len(batch) < PARTITIONS_MAX:
            leadership, write = self._queue[0]
            if epoch is not None and leadership.incarnation.broker_epoch != epoch:
                break  # The write was decided in a different incarnation of this broker and needs its own compare.
            self._queue.popleft()
            if leadership.closed:
                continue
            if write.revision < leadership.machine.revision:
                self._answer([(leadership, write)], WriteOutcome.REFUSED, None)
            else:
                epoch = leadership.incarnation.broker_epoch
                batch.append((leadership, write))
        return batch

    async def _write(self, batch: list[_Write]) -> None:
        if not batch:
            return
        keys = self._keys
        names = [_name(keys, leadership.key) for leadership, _ in batch]
        incarnation = batch[0][0].incarnation
        # Writes of several partitions usually add the same broker to their isrs. The registration key of a broker that
        # several partitions add is compared only once.
        compares: dict[Compare, None] = {
            created_at(keys.broker(incarnation.broker), incarnation.broker_epoch): None
        }
        for name, (_, write) in zip(names, batch, strict=True):
            compares[unchanged_since(name, write.revision)] = None
            for broker, revision in write.added:
                compares[unchanged_since(keys.broker(broker), revision)] = None
        puts = [Put(name, encode(write.record)) for name, (_, write) in zip(names, batch, strict=True)]
        # A failed transaction of several partitions is split into halves. Only a transaction of a single partition
        # reads the current record.
        gets = [Get(names[0])] if len(batch) == 1 else []
        try:
            result = await self._coordination.transact(tuple(compares), puts, gets)
        except UnknownOutcome as error:
            self._warn(batch, error)
            self._answer(batch, WriteOutcome.UNKNOWN, None)
        except TransactionTooLarge:
            await self._write_halves(batch)
        except CoordinationError as error:
            self._warn(batch, error)
            # The store is unreachable, and no event announces when it can be reached again.
            await asyncio.sleep(RETRY_SECONDS)  # noqa: TID251
            self._answer(batch, WriteOutcome.REFUSED, None)
        else:
            if result.succeeded:
                self._stored(batch, result.revision)
            elif len(batch) > 1:
                await self._write_halves(batch)
            else:
                self._refused(batch[0], result.reads[0])

    async def _write_halves(self, batch: list[_Write]) -> None:
        assert len(batch) > 1, "a single record fits into a transaction"
        middle = len(batch) // 2
        for half in (batch[:middle], batch[middle:]):
            await self._write([each for each in half if not each[0].closed])

    def _stored(self, batch: list[_Write], revision: Revision) -> None:
        for leadership, write in batch:
            self._log.info(
                "partition record written by its leader",
                partition=str(leadership.key),
                isr=[entry.broker for entry in in_sync(write.record)],
                durability=write.record.durability.value,
                leader=write.record.leader is not None,
            )
        self._answer(batch, WriteOutcome.STORED, revision)

    def _refused(self, refused: _Write, standing: KeyValue | None) -> None:
        """Refuse a write, after passing a newer stored partition record to the leadership.

        The stored record may come from an earlier write whose answer was lost.
        """
        leadership, write = refused
        if standing is not None and standing.mod_revision > leadership.machine.revision:
            record = decode(standing.key, standing.value, PartitionRecord)
            if record.leader_epoch == leadership.machine.leader_epoch:
                leadership.record_changed(record, standing.mod_revision)
        self._answer([(leadership, write)], WriteOutcome.REFUSED, None)

    @staticmethod
    def _answer(batch: list[_Write], outcome: WriteOutcome, revision: Revision | None) -> None:
        for leadership, write in batch:
            leadership.write_answered(write, outcome, revision)

    def _warn(self, batch: list[_Write], error: CoordinationError) -> None:
        self._log.warning(
            "partition records not written yet",
            partitions=len(batch),
            first=str(batch[0][0].key),
            reason=str(error),
        )


def _name(keys: Keys, key: TopicIdPartition) -> str:
    return keys.partition(key.topic_id, key.partition)
