"""Stored transactions: reads of many records, and writes of many decisions by one compare-and-set (rule 7.1).

The runtime calls the store. Any broker may change any record, so every write compares the revision at which each record
was read. If another broker has changed one of the records since it was read, the write changes nothing and returns the
current records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from fairlead_api.identifiers import ProducerEpoch, ProducerId, Revision
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import ProducerNameRecord, decode, encode
from fairlead_broker.registry.store_writes import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    absent,
    unchanged_since,
)
from fairlead_broker.registry.transaction_records import TransactionRecord

READ_MAX: Final = 100
"""Maximum number of records in one read."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Record of a producer as it was read."""

    record: TransactionRecord | None
    revision: Revision
    """Mod revision of the record, or 0 if the producer has no record."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Record that replaces a stored record."""

    standing: Standing
    """Record to replace, as it was read."""
    record: TransactionRecord
    value: bytes
    """Encoded record."""

    @classmethod
    def encoded(cls, standing: Standing, record: TransactionRecord) -> Self:
        """Return the replacement of a stored record, and encode the new record."""
        return cls(standing, record, encode(record))


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """Producer that is registered under a name."""

    producer_id: ProducerId
    is_transactional: bool
    revision: Revision
    """Mod revision of the name's key."""


ABSENT: Final = Standing(None, Revision(0))


class TransactionStore:
    """Access to stored transactions.

    All methods may raise `CoordinationError`; methods that write also raise `UnknownOutcome`.
    """

    __slots__ = ("_coordination", "_keys")

    def __init__(self, coordination: Coordination, keys: Keys) -> None:
        self._coordination = coordination
        self._keys = keys

    async def read(self, producers: Sequence[ProducerId]) -> dict[ProducerId, Standing]:
        """Return the records of up to `READ_MAX` different producers, all read at one revision."""
        assert len(producers) <= READ_MAX, f"a read of {len(producers)} records"
        gets = [Get(self._keys.transaction(each)) for each in producers]
        result = await self._coordination.transact((), gets)
        return dict(zip(producers, map(_standing, result.reads), strict=True))

    async def write(
        self, changes: Mapping[ProducerId, Replacement]
    ) -> tuple[bool, dict[ProducerId, Standing]]:
        """Replace records if none of them has changed since it was read. If any record has changed, nothing is written.

        Returns whether the records were written, and the current state of all records.
        """
        compares, puts = self.replacement(changes)
        gets = [Get(self._keys.transaction(each)) for each in changes]
        result = await self._coordination.transact(compares, puts, gets)
        if not result.succeeded:
            return False, dict(zip(changes, map(_standing, result.reads), strict=True))
        return True, {each: Standing(change.record, result.revision) for each, change in changes.items()}

    def replacement(self, changes: Mapping[ProducerId, Replacement]) -> tuple[list[Compare], list[Operation]]:
        """Return the compares and the puts that replace records if none of them has changed since it was read."""
        key = self._keys.transaction
        compares: list[Compare] = [
            unchanged_since(key(each), change.standing.revision) for each, change in changes.items()
        ]
        return compares, [Put(key(each), change.value) for each, change in changes.items()]

    async def find_name(self, name: str) -> NamedProducer | None:
        """Return the producer with a name, or None, also for a name that no producer can have."""
        try:
            key = self._keys.producer_name(name)
        except ValueError:
            return None
        [item] = (await self._coordination.transact((), (Get(key),))).reads
        if item is None:
            return None
        record = decode(key, item.value, ProducerNameRecord)
        return NamedProducer(record.producer_id, record.transactional, item.mod_revision)

    async def create(
        self,
        producer_id: ProducerId,
        record: TransactionRecord,
        replaced: NamedProducer | None,
        ending: Mapping[ProducerId, Replacement] | None = None,
    ) -> Standing | None:
        """Write the first record of a producer, together with its name, if it has one.

        `replaced`: previous producer with the name; `ending`: its record, which the same write ends. Returns None if
        another call took or changed the name, or changed this record.
        """
        key = self._keys.transaction(producer_id)
        compares, puts = self.replacement(ending or {})
        compares.append(absent(key))
        puts.append(Put(key, encode(record)))
        if record.name is not None:
            name = self._keys.producer_name(record.name)
            compares.append(unchanged_since(name, 0 if replaced is None else replaced.revision))
            named = ProducerNameRecord(
                producer_id=producer_id,
                producer_epoch=ProducerEpoch(0),
                used_us=record.used_us,
                transactional=True,
            )
            puts.append(Put(name, encode(named)))
        result = await self._coordination.transact(compares, puts)
        return Standing(record, result.revision) if result.succeeded else None

    async def forget(self, producer_id: ProducerId, standing: Standing) -> bool:
        """Delete the record of a producer, and its name unless another producer has the name now.

        Returns False if the record or the name was changed in the meantime.
        """
        key = self._keys.transaction(producer_id)
        compares, deletes = [unchanged_since(key, standing.revision)], [Delete(key)]
        name = None if standing.record is None else standing.record.name
        named = None if name is None else await self.find_name(name)
        if name is not None and named is not None and named.producer_id == producer_id:
            compares.append(unchanged_since(self._keys.producer_name(name), named.revision))
            deletes.append(Delete(self._keys.producer_name(name)))
        result = await self._coordination.transact(compares, deletes)
        return result.succeeded

    async def page(
        self, after: ProducerId | None, limit: int
    ) -> tuple[list[tuple[ProducerId, Standing]], bool]:
        """Return records in key order, and whether more records follow."""
        keys = self._keys
        start = None if after is None else keys.transaction(after)
        found = await self._coordination.list(keys.transactions, after=start, limit=limit)
        items = [(ProducerId(int(item.key.rpartition("/")[2])), _standing(item)) for item in found.items]
        return items, found.next is not None


def _standing(item: KeyValue | None) -> Standing:
    if item is None:
        return ABSENT
    return Standing(decode(item.key, item.value, TransactionRecord), item.mod_revision)
