"""Replicated partitions: the state machines of leader and follower, elections, reassignment, ISR, producers.

The rules are production code (`replication`, `controller`, `producers`, `registry`), surrounded by twins that fail as
the real parts may.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fairlead_api.identifiers import BrokerId, LeaderEpoch, PartitionIndex
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Quorum, Replica
from partitions.broker import TOPIC, Broker
from partitions.clients import Client, Producer, Reader
from partitions.detecting import Ports
from partitions.disk import Disk
from partitions.drills import Drills
from partitions.faults import Faults
from partitions.judge import Judge, ReplicasAgree
from partitions.leading import Leading
from partitions.messages import Outcome, Produce
from partitions.plan import Plan, draw
from partitions.wishes import Wishes
from simulator.clocks import DAY_SECONDS, Clocks
from simulator.network import CLIENTS_FROM
from simulator.store import Store, Transaction, partition_key
from simulator.world import Verdict
from simulator.world import World as Frame

FAR_SECONDS = tuple(days * DAY_SECONDS for days in (-400, -2, 2, 400))
"""Clock errors that exceed the time for which producers are remembered."""


class World(Frame):
    """Brokers with replicas, their clients, and an operator."""

    START_SECONDS = 2.0
    REST_SECONDS = 40.0
    plan: Plan

    draw = staticmethod(draw)
    """Function that chooses the properties of a world at random."""
    drills_of: type[Drills] = Drills
    """Class of the world's drills."""

    def __init__(self, seed: int, plan: Plan | None = None, *, traced: bool = False) -> None:
        """Create the random world of a seed."""
        super().__init__(seed, self.draw, plan, traced=traced)
        self.partitions = tuple(range(self.plan.partitions))
        self.keys = {number: PartitionKey(TOPIC, PartitionIndex(number)) for number in self.partitions}
        self.judge = Judge(self)
        self.store = Store(self.schedule, self.judge.written)
        self.wishes = Wishes(self)
        self.faults = Faults(self)
        self.drills = self.drills_of(self)
        self.ports = Ports(self)
        self.boots = dict.fromkeys(range(1, self.plan.brokers + 1), 0)
        """Boot number of each broker's machine."""
        storm_end = self.START_SECONDS + self.plan.storm_seconds
        self.clocks = Clocks(seed, self.boots, self.START_SECONDS, storm_end, FAR_SECONDS)
        self._values = self._producers = self._directories = 0
        self.brokers = {
            number: Broker(self, number, Disk(self.next_directory(), boot=-1)) for number in self.boots
        }
        self.clients: list[Client] = []
        self._homes = self.schedule.rng.sample(sorted(self.brokers), self.plan.replicas)

    # -- names

    def next_value(self) -> int:
        """Return a value that no other record has."""
        self._values += 1
        return self._values

    def next_producer(self) -> int:
        """Return a new producer id."""
        self._producers += 1
        return self._producers

    def next_directory(self) -> str:
        """Return a new directory id."""
        self._directories += 1
        return f"d{self._directories}"

    def records(self) -> dict[int, Versioned[PartitionRecord]]:
        """Return the partition records in the store."""
        items = self.store.items
        return {number: items[key] for number in self.partitions if (key := partition_key(number)) in items}

    # -- calls from clients

    def produce(self, broker: int, partition: int, produce: Produce) -> None:
        """Pass a produced value to the leader on a broker."""
        role = self.brokers[broker].roles.get(partition)
        if isinstance(role, Leading):
            # A repeated message counts as a second request.
            role.produce(replace(produce))
        else:
            produce.answer(Outcome.FAILED, -1)

    def read(self, broker: int, partition: int, offset: int, leader_epoch: int, answer: Any) -> None:
        """Serve a reader on a broker."""
        role = self.brokers[broker].roles.get(partition)
        if isinstance(role, Leading):
            found = role.read(offset, leader_epoch, 4)
            if found is not None:
                answer(found)

    # -- the run

    def create(self) -> None:
        """Create the partitions after the brokers have registered."""
        self.schedule.run(self.START_SECONDS / 2)
        for partition in self.partitions:
            self.store.transact(Transaction((), ((partition_key(partition), self._first_record(), None),)))

    def _first_record(self) -> PartitionRecord:
        """Return a partition record with empty in-sync replicas; the first replica leads after its broker registers."""
        plan, homes = self.plan, [self.brokers[home] for home in self._homes]
        entries = tuple(InSync(broker=BrokerId(home.number), broker_epoch=home.epoch) for home in homes)
        return PartitionRecord(
            leader=None,
            leader_epoch=LeaderEpoch(0),
            replicas=tuple(
                Replica(broker=BrokerId(home.number), directory=home.disk.directory) for home in homes
            ),
            isr=entries if plan.write is None else (),
            quorum=None if plan.write is None else Quorum(write=plan.write, voters=entries),
            min_isr=plan.min_isr,
            durability=plan.durability,
            unclean=plan.unclean,
        )

    def populate(self) -> None:
        """Start producers, readers and drills."""
        plan, number = self.plan, CLIENTS_FROM
        for partition in self.partitions:
            for kind in (*[Producer] * plan.producers, *[Reader] * plan.readers):
                client = self.network.nodes[number] = kind(self, number, partition)
                self.clients.append(client)
                number += 1

    def unrest(self) -> str | None:
        """Return the first reason why the cluster is not at rest, or None if it is at rest.

        A cluster is not at rest while a partition has no leader or incomplete replicas, or a request is unanswered.
        """
        for partition, item in self.records().items():
            wrong = self._unrest_of(partition, item.value)
            if wrong is not None:
                return wrong
        if any(client.open for client in self.clients if isinstance(client, Producer)):
            return "a producer waits for an answer"
        return None

    def _unrest_of(self, partition: int, record: PartitionRecord) -> str | None:
        if record.leader is None:
            if self.faults.all_lost_power and record.durability is not DurabilityState.SYNCED:
                # All brokers lost power while only synced records counted, and then the durability was changed so that
                # written records count. No replica is provably complete, and only an operator may elect a leader.
                self.judge.counts["excused"] += 1
                return None
            return f"partition {partition} has no leader: {record}"
        role = self.brokers[record.leader.broker].roles.get(partition)
        if not isinstance(role, Leading) or role.epoch != record.leader_epoch:
            return f"broker {record.leader.broker} does not lead partition {partition}: {record}"
        current = [
            entry for entry in in_sync(record) if self.brokers[entry.broker].epoch == entry.broker_epoch
        ]
        if len(current) != len(record.replicas) or record.adding or record.removing:
            return f"partition {partition} is not whole: {record}"
        if role.machine.high_watermark != role.log.end:
            return f"the high watermark is {role.machine.high_watermark}, the log ends at {role.log.end}"
        for entry in in_sync(record):
            log = self.brokers[entry.broker].log(partition)
            if (log.last_epoch, log.end) != (role.log.last_epoch, role.log.end):
                return f"broker {entry.broker} has not everything of partition {partition}"
        return None

    def compare(self) -> None:
        """Check that every replica has exactly the committed records."""
        for partition, item in self.records().items():
            if item.value.leader is None:
                continue  # without a leader, replicas may still diverge
            for replica in item.value.replicas:
                log = self.brokers[replica.broker].log(partition)
                truth = self.judge.partitions[partition].committed
                for offset in range(max(log.base, log.log_start), min(log.end, len(truth))):
                    if log.cell(offset) != truth[offset]:
                        raise ReplicasAgree(f"broker {replica.broker} has {log.cell(offset)} at {offset}")

    def fingerprint(self) -> list[Any]:
        """Return the contents of the disks."""
        return [broker.disk for broker in self.brokers.values()]


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world of a seed."""
    return World(seed, traced=traced).run()
