"""Programs of the SDK that read and write in transactions over five partitions, without a group.

Each transaction reads committed records of some partitions up to their last stable offsets, and sends two or three
records to each of up to five partitions. It reads before its first record, and in half of the transactions again after
its first records are stored. The records that no program waits for are sent together with the commit, in one request if
one broker leads their partitions. A tenth of the transactions are aborted.

The transactions, their reads and the reads of a reader that runs throughout form a history, which the checker must find
valid. The checker counts the transactions that read one partition before, and another one after, the commit of a
transaction (read skew), which is allowed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chaos_cluster import ChaosCluster, http_client, pause
from fairlead import Producer
from fairlead.errors import FairleadError
from fairlead.producing.delivery import Delivery
from fairlead.transaction import Transaction
from history_checker import Report, check
from history_recorder import HistoryRecorder
from pricing_process import TIMEOUT_SECONDS
from recorded_reads import RecordedReads

if TYPE_CHECKING:
    from pyreqwest.client import Client

TOPIC: Final = "plain"
PARTITIONS: Final = 5
PROGRAMS: Final = 2
KEYS: Final = tuple(f"{TOPIC}-{number}" for number in range(PARTITIONS))
ABORT_SHARE: Final = 0.1
WAITING_SHARE: Final = 0.5
"""Fraction of the transactions that wait for some of their records before they read again."""
READ_MAX: Final = 3
"""Maximum number of partitions that a transaction reads at a time."""
REST_SECONDS: Final = 0.2
DELIVERY_TIMEOUT: Final = "10s"
"""Maximum time for which a program sends a record again, so that a transaction ends during a fault."""


@dataclass(slots=True)
class _Sent:
    """A record of a transaction, by the number of its request in the history."""

    request: int
    delivery: Delivery


@dataclass(slots=True)
class PlainTransactions:
    """The programs, their transactions, and the history."""

    cluster: ChaosCluster
    rng: random.Random
    history: HistoryRecorder = field(default_factory=lambda: HistoryRecorder({"retries": False}))
    counts: Counter[str] = field(default_factory=Counter)
    _transactions: list[Transaction] = field(default_factory=list)
    """Transactions, in the order of their numbers in the history."""
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def reads(self) -> RecordedReads:
        """Readers of all partitions."""
        return RecordedReads(self.cluster, self.rng, self.history, KEYS)

    async def run(self) -> None:
        """Run the programs until `end`, or until cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(PROGRAMS):
                group.create_task(self._program(number))
        self._has_ended.set()

    async def end(self) -> None:
        """End the programs after their open transactions."""
        self._is_over.set()
        await self._has_ended.wait()

    async def _program(self, number: int) -> None:
        """Run a program, with a new producer after each error."""
        reader = _Reader(self.reads, self.reads.start())
        async with http_client() as client:
            while not self._is_over.is_set():
                try:
                    await self._produce(client, number, reader)
                except FairleadError as error:
                    self.counts[type(error).__name__] += 1
                await pause(REST_SECONDS)

    async def _produce(self, client: Client, number: int, reader: _Reader) -> None:
        """Run transactions of one producer until an error."""
        process = self.history.process()
        producer = Producer(
            self.cluster.urls,
            transactional=f"{TOPIC}-{number}",
            transaction_timeout=f"{TIMEOUT_SECONDS}s",
            delivery_timeout=DELIVERY_TIMEOUT,
        )
        async with producer:
            while not self._is_over.is_set():
                transaction = producer.transaction()
                txn = len(self._transactions)
                self._transactions.append(transaction)
                sent: list[_Sent] = []
                try:
                    async with transaction:
                        await self._fill(client, transaction, txn, process, reader, sent)
                except _UnwantedError:
                    pass
                finally:
                    await self._end_sends(process, sent)
                await pause(self.rng.uniform(0, REST_SECONDS))

    async def _fill(
        self,
        client: Client,
        transaction: Transaction,
        txn: int,
        process: int,
        reader: _Reader,
        sent: list[_Sent],
    ) -> None:
        """Read and send the records of a transaction. Raises `_UnwantedError` if the program aborts it."""
        rng = self.rng
        places = rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS))
        waiting = rng.randint(1, len(places)) if rng.random() < WAITING_SHARE else 0
        await self._read(client, txn, reader)
        for index, partition in enumerate(places):
            for _ in range(rng.randint(2, 3)):
                request, [value] = self.history.begin_send(process, f"{TOPIC}-{partition}", txn=txn)
                delivery = await transaction.send(TOPIC, value.encode(), partition=partition)
                sent.append(_Sent(request, delivery))
                if index < waiting:
                    await delivery
        if waiting:
            await self._read(client, txn, reader)
        if rng.random() < ABORT_SHARE:
            raise _UnwantedError

    async def _read(self, client: Client, txn: int, reader: _Reader) -> None:
        """Read some partitions in a transaction."""
        for key in self.rng.sample(KEYS, self.rng.randint(1, READ_MAX)):
            await reader.read(client, key, txn)

    async def _end_sends(self, process: int, sent: list[_Sent]) -> None:
        """Record the outcomes of a transaction's sends."""
        for each in sent:
            kind, told = "info", {}
            if each.delivery.done:
                try:
                    offset = (await each.delivery).offset
                except FairleadError:
                    offset = -1
                # The offset is unknown if the answer to the request with the commit was lost.
                if offset >= 0:
                    kind, told = "ok", {"offset": offset}
            self.history.end_send(process, each.request, kind, **told)

    async def report(self, ends: dict[str, int]) -> Report:
        """Read everything up to the ends of the partitions, and return what the checker finds in the history."""
        await self.reads.read_all(ends)
        kinds = {True: "ok", False: "fail", None: "info"}
        for txn, transaction in enumerate(self._transactions):
            kind = kinds[transaction.is_committed]
            self.counts[f"transactions_{kind}"] += 1
            opened = transaction._open
            self.counts["commits_with_batches"] += opened is not None and opened.decided is not None
            self.history.events.append({"op": "txn", "type": kind, "id": txn})
        self.history.events.append({"op": "end", "keys": ends})
        return check(self.history.events)


@dataclass(slots=True)
class _Reader:
    """The reads of one program's transactions."""

    reads: RecordedReads
    process: int
    positions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KEYS, 0))

    async def read(self, client: Client, key: str, txn: int) -> None:
        """Read a partition up to its last stable offset, in a transaction, unless no broker answers."""
        while True:
            answer = await self.reads.poll(client, self.process, key, self.positions[key], txn=txn)
            if answer is None:
                return
            self.positions[key], stable = answer
            if self.positions[key] >= stable:
                return


class _UnwantedError(Exception):
    """The program aborts its transaction."""
