"""Drills: short sequences of faults that cause a specific coincidence of events, at times drawn from the seed.

Some rules matter only when three or four rare events coincide, which hardly ever happens with independent faults. A
drill makes such events coincide repeatedly during the storm, and damages brokers only through `Faults`, which keeps the
damage within the limits of the protocol. Each drill is a generator that yields the seconds to wait before its next
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from fairlead_broker.registry.quorum import in_sync
from fairlead_broker.registry.records import InSync, PartitionRecord
from partitions.disk import Disk
from partitions.leading import Leading
from partitions.plan import Fault
from simulator.network import STORE

if TYPE_CHECKING:
    from partitions.broker import Broker
    from partitions.world import World

Play: TypeAlias = Iterator[float]
LOOK_SECONDS = 0.02
PARTITION = 0


class Drills:
    """The drill of a world, which is repeated until the faults stop."""

    def __init__(self, world: World) -> None:
        """Create a drill that has not begun."""
        self._world = world
        self._calm = False
        self._cut: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Start the drill if the world has one."""
        if self._world.plan.drill is not None:
            self._world.schedule.after(self._between(0.3, 1.0), self._again)

    def stop(self) -> None:
        """Stop the drill; the links that it cut are healed together with all other links."""
        self._calm = True
        self._world.network.late.clear()

    def _again(self) -> None:
        drill = self._world.plan.drill
        assert drill is not None, "only a world with a drill plays"
        found = self._pair()
        if found is None:
            if not self._calm:
                self._world.schedule.after(0.3, self._again)
            return
        self._world.note("drill", drill.value, found[0].number, found[1].number)
        self._world.judge.counts[f"drill {drill.value}"] += 1
        play: Callable[[Broker, Broker], Play] = getattr(self, f"_{drill.name.lower()}")
        self._go_on(play(*found))

    def _go_on(self, play: Play) -> None:
        if self._calm:
            return
        pause = next(play, None)
        if pause is not None:
            self._world.schedule.after(pause, self._go_on, play)
            return
        self._heal()
        self._world.network.late.clear()
        self._world.schedule.after(self._between(0.5, 1.5), self._again)

    # -- parts of drills

    def _between(self, least: float, most: float) -> float:
        return self._world.schedule.between(least, most)

    def _record(self) -> PartitionRecord:
        return self._world.records()[PARTITION].value

    def _pair(self) -> tuple[Broker, Broker] | None:
        """Return the running leader and another running in-sync replica or voter."""
        brokers, record = self._world.brokers, self._record()
        if record.leader is None or not brokers[record.leader.broker].ready:
            return None
        others = [
            entry.broker
            for entry in in_sync(record)
            if entry.broker != record.leader.broker
            and brokers[entry.broker].ready
            and brokers[entry.broker].epoch == entry.broker_epoch
        ]
        if not others:
            return None
        return brokers[record.leader.broker], brokers[self._world.schedule.rng.choice(others)]

    def _others(self, broker: Broker) -> list[Broker]:
        return [each for each in self._world.brokers.values() if each is not broker]

    def _until(self, met: Callable[[], bool], seconds: float) -> Play:
        """Wait until a condition holds or the time has elapsed."""
        end = self._world.now + seconds
        while not met() and self._world.now < end:
            yield LOOK_SECONDS

    def _part(self, *links: tuple[int, int]) -> None:
        self._world.network.cut.update(links)
        self._cut.extend(links)

    def _heal(self) -> None:
        self._world.network.cut.difference_update(self._cut)
        self._cut.clear()

    def _end(self, broker: Broker, least: float, most: float) -> None:
        """Kill a process, in some cases end its lease, and start the process again after a while."""
        if broker.alive:
            lease = broker.lease
            broker.kill()
            if self._world.schedule.happens(0.7):
                self._world.store.revoke(lease)
            self._world.faults.bring_back(broker, least, most)

    def _end_at_once(self, broker: Broker) -> None:
        """Kill a process, which the drill starts again later, and end its lease at once."""
        if broker.alive:
            broker.kill()
            self._world.store.revoke(broker.lease)

    def _start(self, broker: Broker) -> None:
        if not broker.alive:
            broker.start()

    def _damages(self, broker: Broker) -> bool:
        return self._world.faults.damages(broker)

    def _is_live_member(self, broker: Broker) -> bool:
        record = self._record()
        return broker.ready and InSync(broker=broker.number, broker_epoch=broker.epoch) in record.isr

    def _leads(self, broker: Broker) -> bool:
        return isinstance(broker.roles.get(PARTITION), Leading)

    # -- drills

    def _damaged_follower(self, leader: Broker, follower: Broker) -> Play:
        """A follower drops damaged bytes, and the leader, which knows only its earlier reports, is killed."""
        if not self._world.faults.may_impair(follower):
            return
        self._part((follower.number, leader.number))
        yield self._between(0.0, 0.1)
        if not self._damages(follower):
            return
        yield self._between(0.05, 0.6)
        self._end(leader, 1.0, 2.5)
        yield 1.2

    def _damaged_newcomer(self, leader: Broker, follower: Broker) -> Play:
        """A follower with a new disk finds damage after catching up and before joining the ISR."""
        late = self._world.network.late
        if not self._loses_disk(follower):
            return
        late["write", leader.number] = self._between(0.4, 0.58)
        yield self._between(0.02, 0.1)
        self._start(follower)
        yield self._between(0.1, 0.5)
        if not self._damages(follower):
            return
        self._part((follower.number, leader.number))
        late.clear()
        yield self._between(0.1, 0.6)
        self._end(leader, 1.0, 2.5)
        yield 1.2

    def _power_after_stop(self, leader: Broker, follower: Broker) -> Play:
        """A follower that was stopped cleanly loses power later, and starts before all other brokers."""
        follower.receive(follower.stop)
        yield 0.3
        yield from self._until(lambda: self._is_live_member(follower), 4.0)
        yield self._between(0.2, 1.0)
        if not self._is_live_member(follower) or not self._loses_power(follower):
            return
        for other in self._others(follower):
            self._end(other, 1.2, 2.5)
        yield self._between(0.02, 0.3)
        self._start(follower)
        yield 1.5

    def _loses_disk(self, broker: Broker) -> bool:
        """Replace the disk and end process and lease if the fault limits allow it; return whether this was done."""
        if not self._world.faults.may_impair(broker):
            return False
        self._world.faults.impair(broker)
        self._end_at_once(broker)
        broker.disk = Disk(self._world.next_directory(), boot=-1)
        return True

    def _loses_power(self, broker: Broker) -> bool:
        """Cut the power and end the lease if the fault limits allow it; return whether this was done."""
        faults = self._world.faults
        if not faults.may_impair(broker):
            return False
        faults.impair(broker)
        faults.cut_power(broker)
        self._world.store.revoke(broker.lease)
        return True

    def _deposed_alone(self, leader: Broker, follower: Broker) -> Play:
        """A leader that is alone in the ISR loses the store, and another leader is elected uncleanly."""
        for other in self._others(leader):
            self._part((leader.number, other.number), (other.number, leader.number))
        yield from self._until(lambda: len(self._record().isr) == 1, 3.0)
        yield self._between(0.0, 0.3)
        self._part((leader.number, STORE), (STORE, leader.number))
        yield self._between(3.0, 4.5)

    def _late_progress(self, leader: Broker, follower: Broker) -> Play:
        """A follower's progress report arrives after its disk was replaced."""
        late = self._world.network.late
        late["progress", follower.number] = self._between(0.5, 1.2)
        yield self._between(0.1, 0.7)
        late.clear()
        if not self._loses_disk(follower):
            return
        self._part((leader.number, follower.number))
        yield self._between(0.02, 0.1)
        self._start(follower)
        yield self._between(0.6, 1.4)
        self._end(leader, 1.0, 2.5)
        yield 1.2

    def _synced_tail(self, leader: Broker, follower: Broker) -> Play:
        """A deposed leader syncs its unique tail before it learns of the next leader."""
        late = self._world.network.late
        self._part((leader.number, follower.number))
        yield self._between(0.1, 0.4)
        self._world.wishes.wish(PARTITION, Fault.MOVE_LEADER)
        yield from self._until(lambda: self._leads(follower), 1.5)
        late["fetch", leader.number] = self._between(0.0, 0.3)
        late["progress", leader.number] = self._between(0.3, 1.0)
        self._heal()
        yield self._between(0.1, 0.6)
        self._part((follower.number, leader.number))
        yield self._between(0.5, 1.2)

    def _short_of_epoch(self, leader: Broker, follower: Broker) -> Play:
        """A broker loses committed records; another broker leads without the high watermark and is killed again."""
        short, whole = self._world.schedule.rng.sample((leader, follower), 2)
        if not self._loses_power(short):
            return
        for other in self._others(short):
            self._end_at_once(other)
        self._part((whole.number, short.number))
        yield self._between(0.02, 0.1)
        self._start(whole)
        yield self._between(0.05, 0.3)
        self._start(short)
        yield from self._until(lambda: self._is_live_member(short), 1.0)
        yield self._between(0.0, 0.1)
        self._end(whole, 1.0, 2.0)
        yield 1.0
        for other in self._others(short):
            self._start(other)
        yield 0.5

    def _damaged_survivor(self, leader: Broker, follower: Broker) -> Play:
        """All brokers are killed, and the first broker to return leads alone and finds damage."""
        first = self._world.schedule.rng.choice((leader, follower))
        if not self._world.faults.may_impair(first):
            return
        for broker in self._world.brokers.values():
            self._end_at_once(broker)
        yield self._between(0.02, 0.1)
        self._start(first)
        yield from self._until(lambda: self._leads(first), 1.5)
        yield self._between(0.02, 0.3)
        self._damages(first)
        yield self._between(0.8, 1.5)
        for other in self._others(first):
            self._start(other)

    def _late_join(self, leader: Broker, follower: Broker) -> Play:
        """The write that adds a follower to the ISR is carried out long after its outcome became unknown."""
        network = self._world.network
        both = ((follower.number, leader.number), (leader.number, follower.number))
        self._part(*both)
        yield from self._until(lambda: not self._is_live_member(follower), 2.5)
        network.late["write", leader.number] = self._between(0.7, 1.4)
        self._heal()
        yield from self._until(lambda: self._is_proposed(leader, follower), 1.5)
        self._part(*both)
        network.late.clear()
        yield self._between(1.2, 1.9)
        self._end(leader, 1.0, 2.5)
        yield 1.2

    def _is_proposed(self, leader: Broker, follower: Broker) -> bool:
        role = leader.roles.get(PARTITION)
        return isinstance(role, Leading) and follower.number in role.machine.maximal_isr

    def _lost_in_between(self, leader: Broker, follower: Broker) -> Play:
        """A follower returns without some reported records, and the leader is killed before it learns of the loss."""
        if not self._loses_power(follower):
            return
        self._part((leader.number, follower.number), (follower.number, leader.number))
        yield self._between(0.02, 0.1)
        self._start(follower)
        yield from self._until(lambda: follower.ready, 1.0)
        yield self._between(0.1, 0.5)
        self._end(leader, 1.2, 2.5)
        yield 1.5

    def _late_watch(self, leader: Broker, _: Broker) -> Play:
        """A deposed leader is late to learn of its successor, and still answers readers."""
        leader.stalled_until = self._world.now + self._between(1.2, 3.0)
        self._world.wishes.wish(PARTITION, Fault.MOVE_LEADER)
        yield from self._until(lambda: False, 2.5)

    def _powered_last(self, leader: Broker, _: Broker) -> Play:
        """The other brokers are killed and keep their records; the last in-sync broker loses power and returns first.

        The lost records also exist on another broker, and no broker may lead without them.
        """
        faults = self._world.faults
        for other in self._others(leader):
            self._end_at_once(other)
        yield from self._until(lambda: len(self._record().isr) == 1, 1.0)
        yield self._between(0.0, 0.4)
        faults.all_lost_power = True
        faults.cut_power(leader)
        self._world.store.revoke(leader.lease)
        yield self._between(0.02, 0.1)
        self._start(leader)
        yield self._between(0.3, 1.2)
        for other in self._others(leader):
            self._start(other)

    def _deleted_beyond(self, leader: Broker, follower: Broker) -> Play:
        """A leader that is alone in the ISR deletes records, then follows a leader with newer records only."""
        for other in self._others(leader):
            self._end_at_once(other)
        yield from self._until(lambda: len(self._record().isr) == 1, 2.0)
        yield self._between(0.3, 1.5)
        role, epoch = leader.roles.get(PARTITION), self._record().leader_epoch
        if isinstance(role, Leading) and not role.closed:
            limit = role.machine.readable_limit
            all_of_it = self._world.schedule.happens(0.7)
            role.move_log_start(limit if all_of_it else self._world.schedule.rng.randint(0, limit))
            yield self._between(0.0, 0.1)
        third = next((each for each in self._others(leader) if each is not follower), None)
        if third is not None and self._world.schedule.happens(0.5):
            self._start(third)
            yield from self._until(lambda: self._is_live_member(third), 1.5)
            self._end_at_once(third)
        self._end_at_once(leader)
        self._start(follower)
        yield from self._until(lambda: self._record().leader_epoch > epoch, 4.0)
        yield self._between(0.1, 2.5)
        for other in self._others(follower):
            self._start(other)
        yield 1.5

    def _short_move(self, leader: Broker, follower: Broker) -> Play:
        """A replica is lost during a move, so that only the new replica would be left after the move."""
        world, late = self._world, self._world.network.late
        gone, stays = world.schedule.rng.sample((leader, follower), 2)
        homes = {replica.broker for replica in self._record().replicas}
        new = next((broker for number, broker in world.brokers.items() if number not in homes), None)
        if new is None or not new.ready:
            return
        late["write", leader.number] = late["write", stays.number] = 0.4
        world.wishes.homes[PARTITION] = [gone.number, new.number]
        world.wishes.wish(PARTITION, Fault.REASSIGN)
        yield from self._until(lambda: bool(self._record().adding), 1.0)
        self._end_at_once(gone)
        yield self._between(0.3, 0.5)
        late.clear()
        yield from self._until(lambda: not self._record().adding, 2.0)
        yield self._between(0.0, 0.2)
        if self._loses_disk(new):
            yield self._between(0.1, 0.3)
            self._start(new)
        self._start(gone)
        yield 1.0
