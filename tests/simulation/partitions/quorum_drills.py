"""Drills of worlds with a write quorum, whose voters stay voters however late their reports and writes are.

Each drill makes those rare events coincide that reveal one dropped rule of reports or proposals; the drills of
`drills.py` wait for changes of the in-sync replicas instead.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fairlead_broker.replication.quorum_leader import QuorumLeader
from partitions.drills import PARTITION, Drills, Play
from partitions.leading import Leading
from partitions.plan import Fault

if TYPE_CHECKING:
    from partitions.broker import Broker


class QuorumDrill(Enum):
    """A drill of a world with a write quorum."""

    RETURNED_COPY = "returned copy"
    LATE_PROGRESS = "late progress of an emptied voter"
    DEPOSED_TAIL = "deposed tail"
    LATE_MOVE = "late move"


class QuorumDrills(Drills):
    """The drill of a world with a write quorum."""

    def _part_from_leader(self, leader: Broker, *kept: Broker) -> None:
        """Disconnect a leader from all brokers except the kept ones."""
        for other in self._others(leader):
            if other not in kept:
                self._part((leader.number, other.number), (other.number, leader.number))

    def _returned_copy(self, leader: Broker, follower: Broker) -> Play:
        """A follower copies records before its entry is renewed, and then starts with the disk from before."""
        faults, late = self._world.faults, self._world.network.late
        self._end_at_once(follower)
        copy = follower.disk.copy()
        self._part_from_leader(leader, follower)
        late["write", leader.number] = self._between(0.4, 0.58)
        yield self._between(0.02, 0.1)
        self._start(follower)
        yield self._between(0.2, 0.9)
        if not faults.may_impair(follower):
            return
        faults.impair(follower)
        self._end_at_once(follower)
        follower.disk = copy
        yield self._between(0.02, 0.1)
        self._start(follower)
        yield self._between(0.3, 1.0)

    def _late_progress(self, leader: Broker, follower: Broker) -> Play:
        """A follower's progress report arrives after its disk was replaced, while the other voters lack records."""
        late = self._world.network.late
        self._part_from_leader(leader, follower)
        late["progress", follower.number] = self._between(0.5, 1.2)
        yield self._between(0.1, 0.7)
        late.clear()
        if not self._loses_disk(follower):
            return
        self._part((leader.number, follower.number))
        yield self._between(0.02, 0.1)
        self._start(follower)
        yield self._between(0.6, 1.4)

    def _deposed_tail(self, leader: Broker, follower: Broker) -> Play:
        """A deposed leader syncs its unique tail after it has learned of the next leader, and reports it late."""
        late = self._world.network.late
        self._part_from_leader(leader)
        yield self._between(0.1, 0.4)
        self._world.wishes.wish(PARTITION, Fault.MOVE_LEADER)
        yield from self._until(lambda: self._has_other_leader(leader), 2.0)
        record = self._record()
        if record.leader is None or record.leader.broker == leader.number:
            return
        successor = self._world.brokers[record.leader.broker]
        self._heal()
        self._part_from_leader(successor, leader)
        late["fetch", leader.number] = self._between(0.0, 0.3)
        late["progress", leader.number] = self._between(0.3, 1.0)
        yield self._between(0.1, 0.6)
        self._part((successor.number, leader.number))
        yield self._between(0.5, 1.2)

    def _has_other_leader(self, leader: Broker) -> bool:
        record = self._record()
        return record.leader is not None and record.leader.broker != leader.number

    def _late_move(self, leader: Broker, follower: Broker) -> Play:
        """The write that ends a reassignment is carried out long after its outcome became unknown."""
        world, late = self._world, self._world.network.late
        homes = [replica.broker for replica in self._record().replicas]
        new = next((broker for number, broker in world.brokers.items() if number not in homes), None)
        if new is None or not new.ready:
            return
        world.wishes.homes[PARTITION] = [*(home for home in homes if home != follower.number), new.number]
        world.wishes.wish(PARTITION, Fault.REASSIGN)
        yield from self._until(lambda: bool(self._record().adding), 1.0)
        late["write", leader.number] = self._between(0.7, 1.4)
        yield from self._until(lambda: self._has_proposed(leader), 1.5)
        self._part_from_leader(leader, follower)
        late.clear()
        yield self._between(1.2, 1.9)

    def _has_proposed(self, leader: Broker) -> bool:
        role = leader.roles.get(PARTITION)
        if not isinstance(role, Leading) or not isinstance(role.machine, QuorumLeader):
            return False
        return bool(role.machine._proposed())
