"""The controller's term: claimed by any broker, fenced by its key's create revision.

Every registered broker tries to claim the term. The controller writes the record that `controller.next_record` plans
for each partition, one partition per transaction, and fulfils requests from operators (`wishes.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, Revision
from fairlead_broker.controller.leader_moves import is_leaving, moved
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.partition_changes import ClusterView, elect_unclean, next_record
from fairlead_broker.controller.vacancies import Promise, appointed
from fairlead_broker.registry.keys import PartitionKey
from fairlead_broker.registry.records import ControllerRecord, PartitionRecord
from fairlead_broker.replication.quorum_leader import QuorumLeader
from partitions import guards
from simulator.broker import own_registration
from simulator.store import CONTROLLER, Compare, Transaction, partition_key

if TYPE_CHECKING:
    from fairlead_broker.registry.metadata import Versioned
    from partitions.broker import Broker

LOOK_SECONDS = 0.5
MOVE_SECONDS = 1.0
"""Seconds between two leadership moves."""


class Controlling:
    """The part of a broker's process that claims and uses the term."""

    def __init__(self, broker: Broker) -> None:
        """Start without the controller's term."""
        self._broker = broker
        self._term: Revision | None = None
        self._claiming = False
        self._writing: dict[int, Revision] = {}
        self._leaderless_since: dict[int, float] = {}
        self._timed = False
        self._asked: dict[int, tuple[Revision, dict[BrokerId, Promise]]] = {}
        """Answers about the vacancy of each partition, with the revision of its record."""
        self._last_asked: dict[int, float] = {}
        self._last_moved: dict[int, float] = {}

    @property
    def holds_term(self) -> bool:
        """Whether this broker acts as the controller."""
        return self._term is not None

    def look(self) -> None:
        """Write the changes that the mirror calls for."""
        broker = self._broker
        if not broker.ready or broker.stopping:
            return
        if not self._timed:
            self._timed = True
            self._tick()
            return
        key = broker.mirror.controller
        if key is None:
            self._term = None
            self._claim()
            return
        record: ControllerRecord = key.value
        own = (record.broker, record.broker_epoch) == (broker.number, broker.epoch)
        self._term = key.create_revision if own else None
        if own:
            for partition in list(broker.mirror.partitions):
                self._look_at(partition)

    def _tick(self) -> None:
        self.look()
        self._broker.after(LOOK_SECONDS, self._tick)

    def _claim(self) -> None:
        if self._claiming:
            return
        self._claiming = True
        broker = self._broker
        value = ControllerRecord(broker=BrokerId(broker.number), broker_epoch=BrokerEpoch(broker.epoch))
        transaction = Transaction(
            (Compare(CONTROLLER, 0, created=True), *own_registration(broker.number, broker.epoch)),
            ((CONTROLLER, value, broker.lease),),
        )
        broker.ask_store(lambda: broker.world.store.transact(transaction), self._claimed)

    def _claimed(self, _: object) -> None:
        self._claiming = False

    # -- partitions

    def _look_at(self, partition: int) -> None:
        broker, world = self._broker, self._broker.world
        item = broker.mirror.partitions[partition]
        if self._writing.get(partition) == item.mod_revision:
            return
        view = ClusterView(brokers=broker.mirror.brokers)
        key = world.keys[partition]
        record = next_record(key, item.value, view)
        if record is None and item.value.quorum is not None and item.value.leader is None:
            record = self._appointed(partition, key, item, view)
        elif record is None:
            record = (
                self._unclean(partition, key, item.value, view)
                or self._moved(partition, key, item.value, view)
                or world.wishes.next_record(partition, key, item, view)
            )
        else:
            self._leaderless_since.pop(partition, None)
        if record is not None and record != item.value:
            self.write(partition, item, record)

    def _moved(
        self, partition: int, key: PartitionKey, record: PartitionRecord, view: ClusterView
    ) -> PartitionRecord | None:
        """Return the vacancy that ends the leadership of a leaving broker, if another voter has caught up."""
        world = self._broker.world
        if not is_leaving(record, view) or record.leader is None:
            return None
        if world.now < self._last_moved.get(partition, -1.0) + MOVE_SECONDS:
            return None
        self._last_moved[partition] = world.now
        role = world.brokers[record.leader.broker].roles.get(partition)
        machine = getattr(role, "machine", None)
        return moved(key, record, view, machine.caught_up) if isinstance(machine, QuorumLeader) else None

    def _appointed(
        self, partition: int, key: PartitionKey, item: Versioned[PartitionRecord], view: ClusterView
    ) -> PartitionRecord | None:
        """Ask the replicas of a vacancy, and return the record that fills it once enough answers count (quorum Q8)."""
        asked = self._asked.get(partition)
        if asked is None or asked[0] != item.mod_revision:
            asked = self._asked[partition] = (item.mod_revision, {})
        broker, world = self._broker, self._broker.world
        filled = appointed(key, item.value, asked[1], view.brokers)
        if filled is None and self._last_asked.get(partition, -1.0) + LOOK_SECONDS / 2 <= world.now:
            self._last_asked[partition] = world.now
            for replica in item.value.replicas:
                other = world.brokers[replica.broker]
                question = (partition, item.value.leader_epoch, item.mod_revision)
                if other is broker:
                    other.promise(*question, self._answer_of(partition, item.mod_revision, other.number))
                else:
                    answer = self._over_network(partition, item.mod_revision, other.number)
                    world.network.send(broker.number, other.number, other.promise, *question, answer)
            broker.after(LOOK_SECONDS / 4, self.look)
        return filled

    def _over_network(self, partition: int, revision: Revision, number: int) -> Callable[[Promise], None]:
        broker, life = self._broker, self._broker.life
        answered = self._answer_of(partition, revision, number)

        def answer(promise: Promise) -> None:
            broker.world.network.send(number, broker.number, broker.alive_in, life, answered, promise)

        return answer

    def _answer_of(self, partition: int, revision: Revision, number: int) -> Callable[[Promise], None]:
        def answered(promise: Promise) -> None:
            asked = self._asked.get(partition)
            if asked is not None and asked[0] == revision:
                asked[1][BrokerId(number)] = promise

        return answered

    def write(self, partition: int, item: Versioned[PartitionRecord], record: PartitionRecord) -> None:
        """Write the next version of a partition record."""
        assert self._term is not None, "only the controller writes"
        self._writing[partition] = item.mod_revision
        broker = self._broker
        transaction = Transaction(
            (
                *guards.controller_term(self._term),
                *guards.controller_sees_partition(partition, item.mod_revision),
                *guards.installed_leader(record),
            ),
            ((partition_key(partition), record, None),),
        )
        broker.world.note("controller writes", broker.number, item.mod_revision, record)
        broker.ask_store(lambda: broker.world.store.transact(transaction), self._written, partition)

    def _written(self, result: tuple[bool, Revision] | None, partition: int) -> None:
        if result is None or not result[0]:
            # The next pass plans again from the newer mirror.
            self._broker.after(LOOK_SECONDS / 2, self._forget, partition)

    def _forget(self, partition: int) -> None:
        self._writing.pop(partition, None)

    def _unclean(
        self, partition: int, key: PartitionKey, record: PartitionRecord, view: ClusterView
    ) -> PartitionRecord | None:
        """Elect a replica that may lack records, if this is allowed and no better replica has returned for a while."""
        world = self._broker.world
        if record.leader is not None or not record.unclean:
            self._leaderless_since.pop(partition, None)
            return None
        since = self._leaderless_since.setdefault(partition, world.now)
        if world.now - since < world.plan.unclean_seconds:
            return None
        ends = {}
        for replica in record.replicas:
            other = world.brokers[replica.broker]
            if other.ready and (self._broker.number, other.number) not in world.network.cut:
                log = other.log(partition)
                epoch = log.last_epoch
                ends[replica.broker] = LogEnd(LeaderEpoch(-1) if epoch is None else epoch, Offset(log.end))
        elected = elect_unclean(key, record, view, ends)
        if elected is not None:
            world.judge.unclean.append(elected)
        return elected
