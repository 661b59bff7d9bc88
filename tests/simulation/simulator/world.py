"""A whole cluster in one thread: a seed becomes a world, the world has its storm, then its rest, and a verdict.

The rules are the production ones (`replication`, `controller`, `producers`, `registry`); what surrounds them is made
of twins that misbehave as the real parts may. Nothing here knows a clock, a loop or a file; chance comes from the
seed alone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from fairlead_api.identifiers import BrokerId, LeaderEpoch, PartitionIndex
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import DurabilityState, InSync, PartitionRecord, Replica
from simulator.broker import TOPIC, Broker
from simulator.clients import Client, Producer, Reader
from simulator.disk import Disk
from simulator.drills import Drills
from simulator.faults import Faults
from simulator.judge import Judge, Liveness, ReplicasAgree, Violation
from simulator.leading import Leading
from simulator.messages import Outcome, Produce
from simulator.network import CLIENTS_FROM, Network
from simulator.plan import Plan, draw
from simulator.schedule import Schedule
from simulator.store import Store, Transaction, partition_key
from simulator.violations import violation_of
from simulator.wishes import Wishes

START_SECONDS = 1.0
REST_SECONDS = 40.0
LOOK_SECONDS = 1.0


@dataclass(slots=True)
class Verdict:
    """What came of a run."""

    seed: int
    violation: Violation | None
    digest: str
    """Equal for equal runs."""
    seconds: float
    """Simulated."""
    happened: int
    counts: dict[str, int]
    trace: list[str] = field(default_factory=list)


class World:
    """Everything there is in one run."""

    def __init__(self, seed: int, plan: Plan | None = None, *, traced: bool = False) -> None:
        """Draw the world of a seed."""
        self.seed = seed
        self.schedule = Schedule(seed)
        drawn = draw(self.schedule.rng)
        self.plan = drawn if plan is None else plan
        self.trace: list[str] | None = [] if traced else None
        self.traffic = True
        self.partitions = tuple(range(self.plan.partitions))
        self.keys = {number: PartitionKey(TOPIC, PartitionIndex(number)) for number in self.partitions}
        self.network = Network(self.schedule, self.plan.weather)
        self.store = Store(self.schedule)
        self.judge = Judge(self)
        self.wishes = Wishes(self)
        self.faults = Faults(self)
        self.drills = Drills(self)
        self.boots = dict.fromkeys(range(1, self.plan.brokers + 1), 0)
        self._leases = self._values = self._producers = self._directories = 0
        self.brokers = {
            number: Broker(self, number, Disk(self.next_directory(), boot=-1)) for number in self.boots
        }
        self.clients: list[Client] = []

    # -- names

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.schedule.now

    def next_lease(self) -> int:
        """Name a lease."""
        self._leases += 1
        return self._leases

    def next_value(self) -> int:
        """Make a value that nobody else has."""
        self._values += 1
        return self._values

    def next_producer(self) -> int:
        """Name a producer."""
        self._producers += 1
        return self._producers

    def next_directory(self) -> str:
        """Name a directory."""
        self._directories += 1
        return f"d{self._directories}"

    def note(self, what: str, *details: Any) -> None:
        """Write a line into the trace, if there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {what}: {' '.join(str(each) for each in details)}")

    def records(self) -> dict[int, Versioned[PartitionRecord]]:
        """Return the partitions as the store has them."""
        items = self.store.items
        return {number: items[key] for number in self.partitions if (key := partition_key(number)) in items}

    # -- calls of clients

    def produce(self, broker: int, partition: int, produce: Produce) -> None:
        """Take a value at a broker."""
        role = self.brokers[broker].roles.get(partition)
        if isinstance(role, Leading):
            # A request that came twice is two requests.
            role.produce(replace(produce))
        else:
            produce.answer(Outcome.FAILED, -1)

    def read(self, broker: int, partition: int, offset: int, leader_epoch: int, answer: Any) -> None:
        """Serve a reader at a broker."""
        role = self.brokers[broker].roles.get(partition)
        if isinstance(role, Leading):
            found = role.read(offset, leader_epoch, 4)
            if found is not None:
                answer(found)

    def stopped(self, broker: Broker) -> None:
        """Hear that a broker has stopped cleanly."""
        self.faults.stopped(broker)

    # -- the run

    def run(self) -> Verdict:
        """Go through storm and rest; nothing is raised, the verdict says what was wrong."""
        violation = violation_of(self._live)
        return Verdict(
            self.seed,
            violation,
            self._digest(),
            self.now,
            self.schedule.happened,
            dict(self.judge.counts),
            self.trace or [],
        )

    def _live(self) -> None:
        self._begin()
        self.schedule.run(self.now + self.plan.storm_seconds)
        self.drills.stop()
        self.faults.stop()
        self._rest()

    def _begin(self) -> None:
        plan = self.plan
        for number, broker in self.brokers.items():
            self.network.nodes[number] = broker
        weather, self.network.weather = self.network.weather, type(self.network.weather)()
        homes = self.schedule.rng.sample(sorted(self.brokers), plan.replicas)
        self.store.changed.append(self.judge.stored)
        for broker in self.brokers.values():
            broker.start()
        self.schedule.run(START_SECONDS)
        for partition in self.partitions:
            record = self._first_record(homes)
            self.store.transact(Transaction((), ((partition_key(partition), record, None),)))
        self.schedule.run(2 * START_SECONDS)
        self.network.weather = weather
        number = CLIENTS_FROM
        for partition in self.partitions:
            for kind in (*[Producer] * plan.producers, *[Reader] * plan.readers):
                arguments = (plan.idempotent,) if kind is Producer else ()
                client: Client = kind(self, number, partition, *arguments)
                self.clients.append(client)
                self.network.nodes[number] = client
                number += 1
        self.faults.begin()
        self.drills.begin()

    def _first_record(self, homes: list[int]) -> PartitionRecord:
        """Return a record whose replicas are all in sync and empty; the first leads when it is there."""
        plan = self.plan
        return PartitionRecord(
            leader=None,
            leader_epoch=LeaderEpoch(0),
            replicas=tuple(
                Replica(broker=BrokerId(home), directory=self.brokers[home].disk.directory) for home in homes
            ),
            isr=tuple(InSync(broker=BrokerId(home), broker_epoch=self.brokers[home].epoch) for home in homes),
            min_isr=plan.min_isr,
            durability=plan.durability,
            unclean=plan.unclean,
        )

    def _rest(self) -> None:
        """Wait until everything is as it should be; raise `Liveness` where it does not come to that."""
        until = self.now + REST_SECONDS
        stop_traffic = self.now + LOOK_SECONDS
        while True:
            self.schedule.run(self.now + LOOK_SECONDS)
            self.traffic = self.traffic and self.now < stop_traffic
            wrong = self._unrest()
            if wrong is None:
                break
            if self.now >= until:
                raise Liveness(wrong)
        for partition in self.partitions:
            self._compare_replicas(partition)

    def _unrest(self) -> str | None:
        for partition, item in self.records().items():
            record = item.value
            if (
                record.leader is None
                and self.faults.all_lost_power
                and record.durability is not DurabilityState.SYNCED
            ):
                # Everybody lost power while only synced records counted, and then written ones were made to count:
                # nobody can prove to be complete, and only an operator may go on with what is there.
                self.judge.counts["excused"] += 1
                continue
            if record.leader is None:
                return f"partition {partition} has no leader: {record}"
            role = self.brokers[record.leader.broker].roles.get(partition)
            if not isinstance(role, Leading) or role.epoch != record.leader_epoch:
                return f"broker {record.leader.broker} does not lead partition {partition}: {record}"
            if len(record.isr) != len(record.replicas) or record.adding or record.removing:
                return f"partition {partition} is not whole: {record}"
            if role.machine.high_watermark != role.log.end:
                return f"the high watermark is {role.machine.high_watermark}, the log ends at {role.log.end}"
            for entry in record.isr:
                if self.brokers[entry.broker].log(partition).end != role.log.end:
                    return f"broker {entry.broker} has not everything of partition {partition}"
        if any(client.open for client in self.clients if isinstance(client, Producer)):
            return "a producer waits for an answer"
        return None

    def _compare_replicas(self, partition: int) -> None:
        """In the end every replica has the same, and that is what was committed."""
        record = self.records()[partition].value
        if record.leader is None:
            return  # excused: nobody has told the replicas yet where they part
        for replica in record.replicas:
            log = self.brokers[replica.broker].log(partition)
            truth = self.judge.partitions[partition].committed
            for offset in range(max(log.base, log.log_start), min(log.end, len(truth))):
                if log.cell(offset) != truth[offset]:
                    raise ReplicasAgree(f"broker {replica.broker} has {log.cell(offset)} at {offset}")

    def _digest(self) -> str:
        """Sum up the run; chance is drawn for nearly everything, so its state tells runs apart."""
        text = repr(
            (
                self.now,
                self.schedule.happened,
                self.schedule.rng.getstate(),
                self.store.revision,
                [broker.disk for broker in self.brokers.values()],
                sorted(self.judge.counts.items()),
            )
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world of a seed."""
    return World(seed, traced=traced).run()
