"""Transactions: the packages `fairlead_broker.transactions` and `fairlead_broker.producers`, which decide and order.

The production code is surrounded by twins of brokers, leaders and clients, which fail as the real parts may.
"""

from __future__ import annotations

from typing import Any

from fairlead_api.identifiers import ProducerId
from simulator.network import CLIENTS_FROM
from simulator.store import Store, Transaction
from simulator.world import Verdict
from simulator.world import World as Frame
from transactional.broker import Broker
from transactional.client import Client
from transactional.faults import Faults
from transactional.judge import EveryTransactionEnds, Judge
from transactional.leading import Partition
from transactional.messages import Offset, offset_key
from transactional.plan import Plan, draw

REST_SECONDS = 10.0
"""Maximum time in which a transaction ends after the last fault, in addition to its timeout."""
READ_SECONDS = 0.15
"""Mean time between two reads of committed records."""


class World(Frame):
    """The brokers, partitions and programs."""

    START_SECONDS = 0.5
    LIVENESS = EveryTransactionEnds
    plan: Plan

    def __init__(self, seed: int, plan: Plan | None = None, *, traced: bool = False) -> None:
        """Create the random world of a seed."""
        super().__init__(seed, draw, plan, traced=traced)
        self.judge = Judge(self)
        self.store = Store(self.schedule, self.judge.written, frozenset())
        self.faults = Faults(self)
        self.brokers = {number: Broker(self, number) for number in range(1, self.plan.brokers + 1)}
        self.partitions = [Partition(self, index) for index in range(self.plan.partitions)]
        self.clients: dict[int, Client] = {}
        self._producers = 0
        self._transactions = 0

    def next_producer(self) -> ProducerId:
        """Return a producer id that was never used."""
        self._producers += 1
        return ProducerId(self._producers)

    def next_transaction(self) -> int:
        """Return the number of a client's new transaction, which is independent of the epoch."""
        self._transactions += 1
        return self._transactions

    def twin(self, client: Client) -> Client:
        """Return the other process of a client's program."""
        return self.clients[CLIENTS_FROM + ((client.number - CLIENTS_FROM) ^ 1)]

    def create(self) -> None:
        """Elect the first leaders."""
        for partition in self.partitions:
            partition.elect(self.schedule.rng.choice(list(self.brokers.values())))
        for program in range(self.plan.names):
            self.store.transact(Transaction((), ((offset_key(program), Offset(), None),)))

    def populate(self) -> None:
        """Start one process of each program, and the readers."""
        for program in range(self.plan.names):
            producer_id = self.next_producer()
            for number in (CLIENTS_FROM + 2 * program, CLIENTS_FROM + 2 * program + 1):
                client = Client(self, number, program, producer_id)
                self.clients[number] = self.network.nodes[number] = client
            self.clients[CLIENTS_FROM + 2 * program].start()
        self.schedule.after(READ_SECONDS, self._read)

    def _read(self) -> None:
        for broker in self.brokers.values():
            for leadership in list(broker.led.values()):
                broker.receive(self.judge.read, leadership)
        self.schedule.after(self.schedule.rng.expovariate(1 / READ_SECONDS), self._read)

    def unrest(self) -> str | None:
        """Return a transaction that has not ended, or None."""
        return self.judge.unended()

    @property
    def rest_seconds(self) -> float:
        """Maximum time in which every transaction ends after the last fault."""
        return self.plan.timeout_ms / 1000 + REST_SECONDS

    def compare(self) -> None:
        """Compare the records that readers received with the decisions."""
        self.judge.compare()

    def fingerprint(self) -> list[Any]:
        """Return the committed logs."""
        return [partition.committed for partition in self.partitions]


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world of a seed."""
    return World(seed, traced=traced).run()
