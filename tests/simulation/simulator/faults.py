"""Makes things go wrong, as often as the plan says, and never more than the protocol promises to bear.

What it bears: any number of crashes; of the replicas that hold committed records at most min_isr - 1 at a time may
lose what they had (a wiped or old disk, unsynced pages while only written ones count, bytes found damaged).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_broker.registry.records import DurabilityState
from simulator.disk import Disk
from simulator.leading import Leading
from simulator.network import STORE
from simulator.plan import Fault
from simulator.storm import Storm

if TYPE_CHECKING:
    from simulator.broker import Broker
    from simulator.world import World


class Faults(Storm):
    """The storm of one world."""

    _world: World

    def __init__(self, world: World) -> None:
        """Begin calm."""
        super().__init__(world)
        self._copies: dict[int, Disk] = {}
        self._impaired: dict[int, int] = {}
        """Brokers that may lack committed records, with the life from which on they may be whole again."""
        self.all_lost_power = False
        """Whether power cuts were not counted, as only synced records counted at the time."""

    def _strike(self) -> None:
        if self._calm:
            return
        world = self._world
        kind = world.schedule.rng.choice(world.plan.faults)
        broker = self._victim()
        world.note("fault", kind.value, broker.number)
        getattr(self, f"_{kind.name.lower()}")(broker)
        world.judge.counts[f"fault {kind.value}"] += 1
        self._later()

    def _victim(self) -> Broker:
        """Pick a leader as often as anybody."""
        world = self._world
        rng = world.schedule.rng
        leading = [
            broker
            for broker in world.brokers.values()
            if any(isinstance(role, Leading) for role in broker.roles.values())
        ]
        if leading and rng.random() < 0.5:
            return rng.choice(leading)
        return world.brokers[rng.randint(1, world.plan.brokers)]

    def stop(self) -> None:
        """Heal everything that can be healed, and let nothing more go wrong."""
        world = self._world
        self._calm = True
        world.network.cut.clear()
        world.network.weather.loss = world.network.weather.repeat = world.network.weather.slow = 0.0
        world.store.available = True
        world.wishes.clear()
        for broker in world.brokers.values():
            broker.full_until = 0.0
            if broker.failed:
                broker.kill()
            if not broker.alive:
                broker.start()

    # -- processes

    def bring_back(self, broker: Broker, least: float = 0.05, most: float = 2.0) -> None:
        """Start a process anew after a while."""
        schedule = self._world.schedule
        life = broker.life
        schedule.after(schedule.between(least, most), self._start, broker, life)

    def _start(self, broker: Broker, life: int) -> None:
        if not broker.alive and broker.life == life:
            broker.start()

    def _kill(self, broker: Broker) -> None:
        if broker.alive:
            broker.kill()
            self.bring_back(broker)

    def _kill_all(self, _: Broker) -> None:
        for broker in self._world.brokers.values():
            self._kill(broker)

    def _power(self, broker: Broker) -> None:
        if not self._loses_nothing_that_counts() and not self.may_impair(broker):
            return
        if self._loses_nothing_that_counts():
            self.all_lost_power = True
        else:
            self.impair(broker)
        self.cut_power(broker)

    def _power_all(self, _: Broker) -> None:
        if self._loses_nothing_that_counts():
            self.all_lost_power = True
            for broker in self._world.brokers.values():
                self.cut_power(broker)

    def cut_power(self, broker: Broker) -> None:
        """End the process and lose what was not synced."""
        world = self._world
        was_alive = broker.alive
        broker.kill()
        world.boots[broker.number] += 1
        for log in broker.disk.logs.values():
            if Fault.TORN in world.plan.faults and self.may_impair(broker) and log.tear(world.schedule.rng):
                # Also where only what is synced counts: it goes out of isr and elr, and is none of the copies then.
                self.impair(broker)
                world.judge.counts["torn tails"] += 1
            else:
                world.judge.counts["cells lost"] += log.lose_unsynced(world.schedule.rng)
        if was_alive:
            self.bring_back(broker)

    def _stop(self, broker: Broker) -> None:
        broker.receive(broker.stop)

    def stopped(self, broker: Broker) -> None:
        """Let a broker that has stopped cleanly come back, sometimes after a power cut."""
        if self._calm:
            broker.start()
            return
        if self._world.schedule.happens(0.5) and Fault.POWER in self._world.plan.faults:
            self.cut_power(broker)
        self.bring_back(broker)

    def _pause(self, broker: Broker) -> None:
        schedule = self._world.schedule
        broker.pause(schedule.between(0.1, 2.0 * self._world.plan.lease_seconds))

    # -- links

    def _cut_store(self, broker: Broker) -> None:
        self._cut_for([(broker.number, STORE), (STORE, broker.number)])

    def _cut_peers(self, broker: Broker) -> None:
        world = self._world
        others = [number for number in world.brokers if number != broker.number]
        other = world.schedule.rng.choice(others)
        self._cut_for([(broker.number, other), (other, broker.number)])

    def _isolate(self, broker: Broker) -> None:
        links = []
        for other in (STORE, *self._world.brokers):
            if other != broker.number:
                links += [(broker.number, other), (other, broker.number)]
        self._cut_for(links, one_way=False)

    def _cut_for(self, links: list[tuple[int, int]], *, one_way: bool = True) -> None:
        world = self._world
        rng = world.schedule.rng
        if one_way and rng.random() < 0.4:
            links = [rng.choice(links)]
        world.network.cut.update(links)
        seconds = world.schedule.between(0.2, 2.5 * world.plan.lease_seconds)
        world.schedule.after(seconds, world.network.cut.difference_update, links)

    # -- disks

    def _torn(self, broker: Broker) -> None:
        self._power(broker)

    def _disk_full(self, broker: Broker) -> None:
        broker.full_until = self._world.now + self._world.schedule.between(0.2, 2.0)

    def _sync_fails(self, broker: Broker) -> None:
        if not broker.ready:
            return
        if self._loses_nothing_that_counts():
            self.all_lost_power = True
        elif self.may_impair(broker):
            self.impair(broker)
        else:
            return
        broker.receive(broker.fail_directory)
        schedule = self._world.schedule
        schedule.after(schedule.between(0.5, 3.0), self._restart, broker, broker.life)

    def _restart(self, broker: Broker, life: int) -> None:
        if broker.life == life:
            self._kill(broker)

    def _loses_nothing_that_counts(self) -> bool:
        """Say whether a power cut may happen to anybody, as only what is synced was promised."""
        return all(item.value.durability is DurabilityState.SYNCED for item in self._world.records().values())

    def may_impair(self, broker: Broker) -> bool:
        """Say whether a broker may lose committed records: min_isr - 1 at a time."""
        world = self._world
        for number, epoch in list(self._impaired.items()):
            other = world.brokers[number]
            entry_of = [
                next((entry.broker_epoch for entry in item.value.isr if entry.broker == number), -1)
                for item in world.records().values()
            ]
            if other.ready and other.epoch > epoch and all(entry == other.epoch for entry in entry_of):
                del self._impaired[number]
        others = len(set(self._impaired) - {broker.number})
        return others < world.plan.min_isr_least - 1

    def impair(self, broker: Broker) -> None:
        """Note that a broker may lack committed records from now on."""
        item = self._world.store.items.get(("broker", broker.number))
        registered = 0 if item is None else item.create_revision
        self._impaired[broker.number] = max(registered, broker.epoch)

    def _wipe(self, broker: Broker) -> None:
        if not self.may_impair(broker):
            return
        self.impair(broker)
        broker.kill()
        broker.disk = Disk(self._world.next_directory(), boot=-1)
        self.bring_back(broker)
        if self._world.schedule.happens(0.5):
            self._world.schedule.after(self._world.schedule.between(1.0, 3.0), self._kill, broker)

    def _old_disk(self, broker: Broker) -> None:
        copy = self._copies.get(broker.number)
        if copy is None or not self._world.schedule.happens(0.5):
            self._copies[broker.number] = broker.disk.copy()
        elif (
            copy.directory == broker.disk.directory
            and self._is_told_by_epochs(broker, copy)
            and self.may_impair(broker)
        ):
            self.impair(broker)
            broker.kill()
            broker.disk = copy
            del self._copies[broker.number]
            self.bring_back(broker)

    def _is_told_by_epochs(self, broker: Broker, copy: Disk) -> bool:
        """Say whether the copy is of an earlier life than a record names: nothing else tells its age."""
        entries = [
            entry.broker_epoch
            for item in self._world.records().values()
            for entry in (*item.value.isr, *item.value.elr)
            if entry.broker == broker.number
        ]
        return copy.last_broker_epoch < max(entries, default=broker.disk.last_broker_epoch)

    def _damage(self, broker: Broker) -> None:
        self.damages(broker)

    def damages(self, broker: Broker) -> bool:
        """Let a broker find damaged bytes, where that is allowed."""
        found = False
        for partition, log in broker.disk.logs.items():
            if log.end > log.log_start and broker.ready and self.may_impair(broker):
                self.impair(broker)
                offset = self._world.schedule.rng.randrange(log.log_start, log.end)
                broker.receive(broker.find_damage, partition, offset)
                found = True
        return found

    # -- operators

    def _retention(self, broker: Broker) -> None:
        for role in broker.roles.values():
            if isinstance(role, Leading) and not role.closed:
                limit = role.machine.readable_limit
                if limit > role.log.log_start:
                    role.move_log_start(self._world.schedule.rng.randint(role.log.log_start, limit))

    def _wish(self, kind: Fault) -> None:
        for partition in self._world.partitions:
            self._world.wishes.wish(partition, kind)

    def _reassign(self, _: Broker) -> None:
        self._wish(Fault.REASSIGN)

    def _change_min_isr(self, _: Broker) -> None:
        self._wish(Fault.CHANGE_MIN_ISR)

    def _change_durability(self, _: Broker) -> None:
        self._wish(Fault.CHANGE_DURABILITY)

    def _move_leader(self, _: Broker) -> None:
        self._wish(Fault.MOVE_LEADER)
