"""Producer ids and names, which identify a producer across all partitions and restarts of brokers.

The runtime calls the registry for `POST /v1/producers`. Ids are reserved in the store in blocks, so that most
calls write nothing to the store. A restart loses the unused ids of a block, which is acceptable because there are
2^63 ids. A name keeps its producer id, and each call with the name begins a new epoch: the first batch of the new
epoch fences the previous producer in each partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead_api.identifiers import ProducerEpoch, ProducerId, Revision, TimestampUs, check_group_name
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.clock import Clock, ExpiryTime
from fairlead_broker.coordination.protocol import Coordination, CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import ProducerIdsRecord, ProducerNameRecord, decode, encode
from fairlead_broker.registry.store_writes import Delete, Get, KeyValue, Put, unchanged_since

BLOCK_IDS: Final = 1_000
"""Number of ids in one block."""
NAME_IDLE_US: Final = 7 * 24 * 3600 * 1_000_000
"""Number of microseconds that an unused name is kept."""
NAME_NOTED_US: Final = 24 * 3600 * 1_000_000
"""Microseconds between two updates of the time at which a name was last used. Only partition leaders see that a
producer is in use, but any broker may drop its name. The stored time of a used name is therefore updated long before
the name could be dropped.
"""
NAMES_AT_ONCE: Final = 50
"""Number of names that are examined at once. Examining a name may require checking all partitions that this broker
leads, which blocks the event loop.
"""
EPOCH_MAX: Final = 2**31 - 1
ATTEMPTS_MAX: Final = 20
"""Maximum number of compare-and-set attempts. Each failed attempt means that a write by another broker succeeded."""


@dataclass(frozen=True, slots=True)
class AllocatedProducer:
    """Identity of a producer, whose sequences begin at 0 in every partition."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class ProducerRegistry:
    """Registry that allocates producer ids and keeps producer names."""

    def __init__(
        self,
        coordination: Coordination,
        keys: Keys,
        clock: Clock,
        first_id: Callable[[], ProducerId] = lambda: ProducerId(0),
    ) -> None:
        """`first_id` returns the lowest id to allocate."""
        self._first_id = first_id
        self._coordination = coordination
        self._keys = keys
        self._clock = clock
        self._expiry = ExpiryTime(clock)
        self._block = range(0)
        self._taking = asyncio.Lock()

    async def allocate(self, name: str | None) -> AllocatedProducer:
        """Return a new producer id, or the next epoch of a named producer.

        Raises `invalid_group_name`, `coordination_unavailable`, or `conflict` if another broker's write succeeds
        first in every attempt.
        """
        try:
            if name is None:
                return AllocatedProducer(await self._next_id(), ProducerEpoch(0))
            return await self._next_epoch(check_group_name(name))
        except CoordinationUnavailable as error:
            raise ProblemError(
                "coordination_unavailable",
                f"the coordination store did not answer: {error}",
                side_effect=SideEffect.NONE,
            ) from error

    async def new_id(self) -> ProducerId:
        """Return a producer id that was never used. Raises `CoordinationUnavailable` and `conflict`."""
        return await self._next_id()

    async def forget_idle_names(self, is_active: Callable[[ProducerId], bool]) -> int:
        """Drop names that were unused for seven days, and return the number of dropped names.

        `is_active` returns whether this broker knows of writes by a producer; the name of an active producer counts as
        used. Every broker must call this method at intervals shorter than seven days. After a `CoordinationError`, the
        next call drops the remaining names.
        """
        now_us, expiry_us, dropped, after = self._clock.now_us(), self._expiry.now_us(), 0, None
        while True:
            page = await self._coordination.list(self._keys.producer_names, after=after, limit=NAMES_AT_ONCE)
            for item in page.items:
                record = decode(item.key, item.value, ProducerNameRecord)
                if record.transactional:
                    # The name is deleted together with the record of its transactions.
                    continue
                if now_us - record.used_us >= NAME_NOTED_US and is_active(record.producer_id):
                    await self._note_use(item, record)
                elif expiry_us - record.used_us >= NAME_IDLE_US:
                    dropped += await self._drop(item)
            if page.next is None:
                return dropped
            after = page.next

    async def _note_use(self, item: KeyValue, record: ProducerNameRecord) -> None:
        used = msgspec.structs.replace(record, used_us=self._clock.now_us())
        await self._coordination.transact(
            (unchanged_since(item.key, item.mod_revision),), (Put(item.key, encode(used)),)
        )

    async def _drop(self, item: KeyValue) -> bool:
        unchanged = unchanged_since(item.key, item.mod_revision)
        return (await self._coordination.transact((unchanged,), (Delete(item.key),))).succeeded

    async def _next_id(self) -> ProducerId:
        async with self._taking:
            if not self._block:
                self._block = await self._take_block()
            first, self._block = self._block[0], self._block[1:]
            return ProducerId(first)

    async def _take_block(self) -> range:
        key = self._keys.producer_ids
        for _ in range(ATTEMPTS_MAX):
            item, revision = await self._read(key)
            record = decode(key, item.value, ProducerIdsRecord) if item else ProducerIdsRecord(next_id=0)
            first = max(record.next_id, self._first_id())
            block = range(first, first + BLOCK_IDS)
            taken = ProducerIdsRecord(next_id=block.stop, unknown=record.unknown)
            if await self._replace(key, revision, encode(taken)):
                return block
        raise _conflict("ids")

    async def _next_epoch(self, name: str) -> AllocatedProducer:
        key = self._keys.producer_name(name)
        for _ in range(ATTEMPTS_MAX):
            item, revision = await self._read(key)
            before = decode(key, item.value, ProducerNameRecord) if item else None
            if before is not None and before.transactional:
                raise ProblemError(
                    "conflict", f"producer {name} has transactions; begin one with POST /v1/transactions"
                )
            if before is None or before.producer_epoch == EPOCH_MAX:
                producer = AllocatedProducer(await self._next_id(), ProducerEpoch(0))
            else:
                epoch = ProducerEpoch(before.producer_epoch + 1)
                producer = AllocatedProducer(before.producer_id, epoch)
            record = ProducerNameRecord(
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                used_us=TimestampUs(self._clock.now_us()),
                unknown=before.unknown if before else {},
            )
            if await self._replace(key, revision, encode(record)):
                return producer
        raise _conflict("name " + name)

    async def _read(self, key: str) -> tuple[KeyValue | None, Revision]:
        """Return the stored key and its mod revision, which is 0 for an absent key."""
        [item] = (await self._coordination.transact((), (Get(key),))).reads
        return item, item.mod_revision if item else Revision(0)

    async def _replace(self, key: str, revision: Revision, value: bytes) -> bool:
        """Replace a key.

        Returns False if the key was not replaced or the outcome is unknown, so that the caller has to start again. If a
        write with an unknown outcome did succeed, some ids or an epoch are skipped, which is harmless.
        """
        try:
            result = await self._coordination.transact((unchanged_since(key, revision),), (Put(key, value),))
        except UnknownOutcome:
            return False
        return result.succeeded


def _conflict(what: str) -> ProblemError:
    return ProblemError(
        "conflict", f"other brokers changed the producer {what} in {ATTEMPTS_MAX} consecutive attempts; retry"
    )
