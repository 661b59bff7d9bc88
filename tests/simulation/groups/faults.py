"""Makes things go wrong, as often as the plan says, and makes the group change besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from groups.keys import topic_key
from groups.plan import BROKER_FAULTS
from simulator.network import STORE
from simulator.store import Transaction
from simulator.storm import Storm

if TYPE_CHECKING:
    from groups.broker import Broker
    from groups.member import Member
    from groups.world import World

PARTITIONS_MOST = 12
"""What a topic grows to."""

HANGS_SECONDS = 1_000.0
"""Longer than any world."""


class Faults(Storm):
    """The storm of one world."""

    _world: World

    def _strike(self) -> None:
        if self._calm:
            return
        world = self._world
        kind = world.schedule.rng.choice(world.plan.faults)
        handler = getattr(self, f"_{kind.name.lower()}")
        if kind in BROKER_FAULTS:
            broker = self._broker()
            world.note("fault", kind.value, broker.number)
            handler(broker)
        elif kind.name.startswith("MEMBER"):
            member = world.schedule.rng.choice(list(world.members.values()))
            world.note("fault", kind.value, member.number)
            handler(member)
        else:
            world.note("fault", kind.value)
            handler()
        world.judge.counts[f"fault {kind.value}"] += 1
        self._later()

    def _broker(self) -> Broker:
        """Pick a coordinator as often as anybody."""
        world = self._world
        coordinating = [broker for broker in world.brokers.values() if broker.groups]
        if coordinating and world.schedule.rng.random() < 0.6:
            return world.schedule.rng.choice(coordinating)
        return world.schedule.rng.choice(list(world.brokers.values()))

    def stop(self) -> None:
        """Heal everything that can be healed, and let nothing more go wrong."""
        world = self._world
        self._calm = True
        world.network.cut.clear()
        world.network.weather.loss = world.network.weather.repeat = world.network.weather.slow = 0.0
        world.store.available = True
        for broker in world.brokers.values():
            if not broker.alive:
                broker.start()
        if not any(member.alive for member in world.members.values()):
            world.members[min(world.members)].start()

    # -- brokers

    def _kill(self, broker: Broker) -> None:
        if broker.alive:
            broker.kill()
            self._bring_back(broker)

    def _bring_back(self, broker: Broker) -> None:
        schedule = self._world.schedule
        schedule.after(schedule.between(0.05, 2.5), self._start, broker, broker.life)

    def _start(self, process: Broker | Member, life: int) -> None:
        if not process.alive and process.life == life:
            process.start()

    def stopped(self, broker: Broker) -> None:
        """Let a broker that has stopped cleanly come back."""
        if self._calm:
            broker.start()
        else:
            self._bring_back(broker)

    def _stop(self, broker: Broker) -> None:
        broker.receive(broker.stop)

    def _pause(self, broker: Broker) -> None:
        schedule = self._world.schedule
        broker.pause(schedule.between(0.1, 3.0 * self._world.plan.lease_seconds))

    def _cut_store(self, broker: Broker) -> None:
        self._cut_for([(broker.number, STORE), (STORE, broker.number)])

    def _depose(self, broker: Broker) -> None:
        """Cut a coordinator from the store for longer than its lease, and change the group meanwhile."""
        world = self._world
        links = [(broker.number, STORE), (STORE, broker.number)]
        world.network.cut.update(links)
        lease = world.plan.lease_seconds
        world.schedule.after(
            world.schedule.between(3.0, 6.0) * lease, world.network.cut.difference_update, links
        )
        for _ in range(2):
            member = world.schedule.rng.choice(list(world.members.values()))
            change = self._member_leave if member.alive else self._member_double
            world.schedule.after(world.schedule.between(1.0, 2.5) * lease, change, member)

    def _cut_peers(self, broker: Broker) -> None:
        others = [number for number in self._world.brokers if number != broker.number]
        if others:
            other = self._world.schedule.rng.choice(others)
            self._cut_for([(broker.number, other), (other, broker.number)])

    def _cut_for(self, links: list[tuple[int, int]]) -> None:
        world = self._world
        if world.schedule.rng.random() < 0.4:
            links = [world.schedule.rng.choice(links)]
        world.network.cut.update(links)
        leases = world.schedule.rng.choice((2.5, 6.0))
        seconds = world.schedule.between(0.2, leases * world.plan.lease_seconds)
        world.schedule.after(seconds, world.network.cut.difference_update, links)

    # -- members

    def _back(self, member: Member) -> None:
        """Start a member anew: mostly within its session, sometimes behind it, sometimes never."""
        schedule = self._world.schedule
        if schedule.happens(0.85):
            most = self._world.plan.session_seconds * schedule.rng.choice((0.5, 0.5, 2.0))
            schedule.after(schedule.between(0.05, most), self._start, member, member.life)

    def _member_crash(self, member: Member) -> None:
        member.kill()
        self._back(member)

    def _member_pause(self, member: Member) -> None:
        member.pause(self._world.schedule.between(0.1, 2.0 * self._world.plan.session_seconds))

    def _member_leave(self, member: Member) -> None:
        schedule = self._world.schedule
        static = member.instance_id is not None and schedule.happens(0.6)
        if member.alive:
            member.receive(self._leave, member, static)

    def _leave(self, member: Member, static: bool) -> None:
        schedule = self._world.schedule
        member.leave(static=static)
        if schedule.happens(0.85):
            schedule.after(schedule.between(0.2, 2.0), self._start, member, member.life + 1)

    def _member_cut(self, member: Member) -> None:
        links = []
        for broker in self._world.brokers:
            links += [(member.number, broker), (broker, member.number)]
        world = self._world
        chosen = links if world.schedule.happens(0.5) else links[world.schedule.rng.randrange(2) :: 2]
        world.network.cut.update(chosen)
        seconds = world.schedule.between(0.2, 1.5 * world.plan.session_seconds)
        world.schedule.after(seconds, world.network.cut.difference_update, chosen)

    def _member_slow(self, member: Member) -> None:
        world = self._world
        seconds = world.schedule.between(0.5, 2.0) * world.plan.rebalance_seconds
        member.slow_until = world.now + (HANGS_SECONDS if world.schedule.happens(0.3) else seconds)

    def _member_double(self, member: Member) -> None:
        """Start a second process with the same instance id."""
        other = self._world.twin(member)
        if other is not None and not other.alive:
            other.start()

    def _member_resubscribe(self, member: Member) -> None:
        member.subscribe(*self._world.subscription())

    # -- topics

    def _topic_create(self) -> None:
        self._world.create_topic()

    def _topic_grow(self) -> None:
        world = self._world
        shapes = world.topics()
        if shapes:
            name = world.schedule.rng.choice(sorted(shapes))
            partitions = min(PARTITIONS_MOST, shapes[name].partitions + world.schedule.rng.randint(1, 3))
            world.put_topic(name, shapes[name].topic_id, partitions)

    def _topic_delete(self) -> None:
        world = self._world
        shapes = world.topics()
        if shapes:
            name = world.schedule.rng.choice(sorted(shapes))
            world.store.transact(Transaction((), (), (topic_key(name),)))
