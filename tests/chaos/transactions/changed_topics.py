"""Transactions with records in two topics, one of which is changed before the commit: deleted, trimmed or grown.

A topic is trimmed by deleting records up to the middle of the transaction's records, and grown by adding partitions,
which also get records of the transaction. The other topic keeps all its records.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chaos_cluster import ChaosCluster, pause
from committed_reads import Places, read
from fairlead import Admin, Producer
from fairlead.errors import FairleadError, PartitionNotFoundError
from fairlead.transaction import Transaction

KEPT_TOPIC: Final = "kept"
"""Topic that is not changed, with a record of each transaction."""
TRIMMED_TOPIC: Final = "trimmed"
TRIMMED_RECORDS: Final = 4
"""Records of a transaction in the trimmed topic, of which the first half is deleted."""
GROWN_PARTITIONS: Final = 3
KNOWN_SECONDS: Final = 5.0
"""Maximum time until a broker's metadata contain a new partition."""
NAMES: Final = {True: "committed", False: "aborted", None: "unknown"}


@dataclass(slots=True)
class _Changed:
    """A transaction with a record in the topic that is kept."""

    change: str
    """`deleted`, `trimmed` or `grown`."""
    value: bytes
    topic: str
    is_committed: bool | None = None
    """Outcome that the commit reported; None if unknown."""
    is_changed: bool = False
    """Whether the change was answered before the commit."""


class ChangedTopics:
    """Transactions with changed topics, and their outcomes."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self._cluster = cluster
        self._changed: list[_Changed] = []

    async def create(self) -> None:
        """Create the topics that exist from the start."""
        async with Admin(self._cluster.urls) as admin:
            for topic in (KEPT_TOPIC, TRIMMED_TOPIC):
                await admin.create_topic(topic, partitions=1, replication_factor=len(self._cluster.nodes))

    async def delete(self) -> None:
        """Delete a topic while a transaction is open in it, and commit the transaction."""
        await self._commit(self._begin("deleted"))

    async def trim(self) -> None:
        """Delete half of the records of an open transaction, and commit the transaction."""
        await self._commit(self._begin("trimmed", TRIMMED_TOPIC))

    async def grow(self) -> None:
        """Add partitions to a topic while a transaction is open in it, and commit records in all partitions."""
        await self._commit(self._begin("grown"))

    def _begin(self, change: str, topic: str | None = None) -> _Changed:
        number = len(self._changed)
        begun = _Changed(change, b"%d" % number, topic or f"{change}-{number}")
        self._changed.append(begun)
        return begun

    async def _commit(self, changed: _Changed) -> None:
        urls = self._cluster.urls
        async with (
            Admin(urls) as admin,
            Producer(urls, transactional=True, transaction_timeout="10s") as producer,
        ):
            if changed.topic != TRIMMED_TOPIC:
                await admin.create_topic(
                    changed.topic, partitions=1, replication_factor=len(self._cluster.nodes)
                )
            transaction = producer.transaction()
            # A broker that knows of a deletion refuses the commit, and the transaction may exceed its timeout.
            with suppress(FairleadError):
                async with transaction:
                    await transaction.send_and_wait(KEPT_TOPIC, changed.value)
                    await self._change(admin, producer, transaction, changed)
            changed.is_committed = transaction.is_committed

    async def _change(
        self, admin: Admin, producer: Producer, transaction: Transaction, changed: _Changed
    ) -> None:
        """Send records to a topic and change the topic."""
        topic, value = changed.topic, changed.value
        if changed.change == "trimmed":
            stored = [
                await transaction.send_and_wait(topic, b"%s.%d" % (value, number))
                for number in range(TRIMMED_RECORDS)
            ]
            await admin.delete_records(topic, 0, stored[TRIMMED_RECORDS // 2].offset)
        else:
            await transaction.send_and_wait(topic, value, partition=0)
            if changed.change == "deleted":
                await admin.delete_topic(topic)
            else:
                await admin.alter_topic(topic, partitions=GROWN_PARTITIONS)
                for partition in range(1, GROWN_PARTITIONS):
                    await _send_to_new(producer, transaction, topic, value, partition)
        changed.is_changed = True

    def places(self) -> list[tuple[str, int]]:
        """Return the partitions of the topics that still exist."""
        grown = [each.topic for each in self._changed if each.change == "grown" and each.is_changed]
        return [
            (KEPT_TOPIC, 0),
            (TRIMMED_TOPIC, 0),
            *((topic, partition) for topic in grown for partition in range(GROWN_PARTITIONS)),
        ]

    def counts(self) -> dict[str, int]:
        """Return the number of transactions by change and outcome."""
        return dict(Counter(f"{each.change}_{NAMES[each.is_committed]}" for each in self._changed))

    async def wrong(self) -> list[str]:
        """Return the transactions whose committed records contradict their outcomes."""
        found = await read(self._cluster, self.places())
        kept = Counter(found[KEPT_TOPIC, 0])
        return [
            f"{each.topic}: transaction {each.value.decode()}, reported as {NAMES[each.is_committed]}"
            for each in self._changed
            if kept[each.value] > 1
            or (each.is_committed is not None and bool(kept[each.value]) is not each.is_committed)
            or not self._is_whole(each, found, is_visible=bool(kept[each.value]))
        ]

    def _is_whole(self, changed: _Changed, found: Places, *, is_visible: bool) -> bool:
        """Return whether a changed topic has the records of a transaction if and only if the kept topic has."""
        if changed.change == "deleted" or not changed.is_changed:
            return True
        if changed.change == "grown":
            places = [found[changed.topic, partition] for partition in range(GROWN_PARTITIONS)]
            return all(values == [changed.value] * is_visible for values in places)
        return self._trimmed_as(changed, found[TRIMMED_TOPIC, 0], is_visible=is_visible)

    def _trimmed_as(self, changed: _Changed, values: list[bytes], *, is_visible: bool) -> bool:
        """Return whether the trimmed topic has the rest of a transaction, or none of it after a later trim."""
        own = [value for value in values if value.startswith(changed.value + b".")]
        numbers = range(TRIMMED_RECORDS // 2, TRIMMED_RECORDS)
        rest = [b"%s.%d" % (changed.value, number) for number in numbers] if is_visible else []
        is_last = (
            changed is [each for each in self._changed if each.change == "trimmed" and each.is_changed][-1]
        )
        return own == rest if is_last else own == []


async def _send_to_new(
    producer: Producer, transaction: Transaction, topic: str, value: bytes, partition: int
) -> None:
    """Send to a partition that was added, once the producer knows the partition."""
    deadline = time.monotonic() + KNOWN_SECONDS
    while True:
        await producer.refresh_metadata()
        try:
            await transaction.send_and_wait(topic, value, partition=partition)
        except PartitionNotFoundError:
            if time.monotonic() > deadline:
                raise
            await pause(0.1)
        else:
            return
