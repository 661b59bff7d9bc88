"""The faults of partitions, within the limits of the protocol.

The protocol tolerates any number of crashes. At any time, at most min_isr - 1 of the replicas with committed records
may lose them: because a disk is wiped or replaced by an older one, because written pages that already count were not
synced, or because bytes are damaged.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from fairlead_broker.registry.quorum import in_sync, relied_on
from fairlead_broker.registry.records import DurabilityState
from partitions.disk import Disk
from partitions.leading import Leading
from partitions.plan import Fault
from simulator.network import STORE
from simulator.storm import Storm

if TYPE_CHECKING:
    from partitions.broker import Broker
    from partitions.world import World


class Faults(Storm):
    """The faults of one world."""

    _world: World

    def __init__(self, world: World) -> None:
        """Create faults that have not begun."""
        super().__init__(world)
        self._copies: dict[int, Disk] = {}
        self._impaired: dict[int, int] = {}
        """Brokers that may lack committed records, each with the broker epoch after which it may be complete again."""
        self.all_lost_power = False
        """Whether brokers lost power while only synced records counted, which does not make them `_impaired`."""

    def victim(self, kind: Enum) -> Broker:
        """Return a random broker, in half of the cases a leader."""
        del kind
        brokers = self._world.brokers.values()
        leaders = [each for each in brokers if any(isinstance(role, Leading) for role in each.roles.values())]
        found: Broker = self.draw_broker(leaders, 0.5)
        return found

    def begin(self) -> None:
        """Start faults and drills."""
        super().begin()
        self._world.drills.begin()

    def stop(self) -> None:
        """Stop all faults, and heal everything that can be healed."""
        self._world.drills.stop()
        self._world.wishes.clear()
        self._world.ports.heal()
        for broker in self._world.brokers.values():
            broker.full_until = 0.0
            if broker.failed:
                broker.kill()
        super().stop()

    # -- processes

    def _kill_all(self, _: Broker) -> None:
        for broker in self._world.brokers.values():
            self._kill(broker)

    def _power(self, broker: Broker) -> None:
        if self._may_lose_unsynced(broker):
            self.cut_power(broker)

    def _power_all(self, _: Broker) -> None:
        if self._loses_nothing_that_counts():
            self.all_lost_power = True
            for broker in self._world.brokers.values():
                self.cut_power(broker)

    def cut_power(self, broker: Broker) -> None:
        """Kill the process, and lose unsynced bytes."""
        world = self._world
        was_alive = broker.alive
        broker.kill()
        world.boots[broker.number] += 1
        for log in broker.disk.logs.values():
            if Fault.TORN in world.plan.faults and self.may_impair(broker) and log.tear(world.schedule.rng):
                # A replica with a torn log leaves ISR and ELR, so even its synced records do not count as a copy.
                self.impair(broker)
                world.judge.counts["torn tails"] += 1
            else:
                world.judge.counts["cells lost"] += log.lose_unsynced(world.schedule.rng)
        if was_alive:
            self.bring_back(broker)

    def stopped(self, broker: Broker) -> None:
        """Start a cleanly stopped broker again, sometimes after a power cut."""
        world = self._world
        if not self._calm and world.schedule.happens(0.5) and Fault.POWER in world.plan.faults:
            self.cut_power(broker)
        super().stopped(broker)

    def _isolate(self, broker: Broker) -> None:
        others = [STORE, *(number for number in self._world.brokers if number != broker.number)]
        self.cut_for(self.links(broker.number, others), one_way=False)

    # -- the detector of ended processes

    def _port_refuses(self, broker: Broker) -> None:
        # Two refusals are 0.1 s apart, so some false answers are too short to be believed.
        schedule = self._world.schedule
        seconds = schedule.between(0.02, 0.1) if schedule.happens(0.5) else schedule.between(0.1, 6.0)
        self._world.ports.refuse(broker.number, seconds)

    def _port_flaps(self, broker: Broker) -> None:
        for number in range(5):
            self._world.schedule.after(1.5 * number, self._world.ports.refuse, broker.number, 0.6)

    def _port_silent(self, broker: Broker) -> None:
        self._world.ports.silence(broker.number, self._world.schedule.between(0.5, 3.0))
        self._kill(broker)

    def _connections_break(self, broker: Broker) -> None:
        self._world.ports.breaks[broker.number] += 1

    # -- disks

    def _torn(self, broker: Broker) -> None:
        self._power(broker)

    def _disk_full(self, broker: Broker) -> None:
        broker.full_until = self._world.now + self._world.schedule.between(0.2, 2.0)

    def _sync_fails(self, broker: Broker) -> None:
        if not broker.ready or not self._may_lose_unsynced(broker):
            return
        broker.receive(broker.fail_directory)
        schedule = self._world.schedule
        schedule.after(schedule.between(0.5, 3.0), self._restart, broker, broker.life)

    def _restart(self, broker: Broker, life: int) -> None:
        if broker.life == life:
            self._kill(broker)

    def _may_lose_unsynced(self, broker: Broker) -> bool:
        """Return whether a broker may lose unsynced records now, and record the loss if the records are guaranteed."""
        if self._loses_nothing_that_counts():
            self.all_lost_power = True
        elif self.may_impair(broker):
            self.impair(broker)
        else:
            return False
        return True

    def _loses_nothing_that_counts(self) -> bool:
        """Return whether every broker may lose power, because only synced records are guaranteed."""
        return all(item.value.durability is DurabilityState.SYNCED for item in self._world.records().values())

    def may_impair(self, broker: Broker) -> bool:
        """Return whether a broker may lose committed records: at most min_isr - 1 brokers may lose them at a time."""
        world = self._world
        for number, epoch in list(self._impaired.items()):
            other = world.brokers[number]
            entry_of = [
                next((entry.broker_epoch for entry in in_sync(item.value) if entry.broker == number), -1)
                for item in world.records().values()
            ]
            if other.ready and other.epoch > epoch and all(entry == other.epoch for entry in entry_of):
                del self._impaired[number]
        others = len(set(self._impaired) - {broker.number})
        return others < world.plan.min_isr_least - 1

    def impair(self, broker: Broker) -> None:
        """Record that a broker may lack committed records from now on."""
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
            and self._epochs_reveal(broker, copy)
            and self.may_impair(broker)
        ):
            self.impair(broker)
            broker.kill()
            broker.disk = copy
            del self._copies[broker.number]
            self.bring_back(broker)

    def _epochs_reveal(self, broker: Broker, copy: Disk) -> bool:
        """Return whether a record names a newer incarnation than the disk copy, which reveals the copy's age."""
        entries = [
            entry.broker_epoch
            for item in self._world.records().values()
            for entry in relied_on(item.value)
            if entry.broker == broker.number
        ]
        return copy.last_broker_epoch < max(entries, default=broker.disk.last_broker_epoch)

    def _damage(self, broker: Broker) -> None:
        self.damages(broker)

    def damages(self, broker: Broker) -> bool:
        """Damage bytes of a broker if the fault limits allow this, and return whether bytes were damaged."""
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
