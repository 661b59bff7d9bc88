"""Faults in the simulation of groups: faults of brokers and members, and changes to the members and topics."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from groups.keys import topic_key
from groups.plan import BROKER_FAULTS
from simulator.network import STORE
from simulator.process import Process
from simulator.store import Transaction
from simulator.storm import Storm

if TYPE_CHECKING:
    from groups.broker import Broker
    from groups.member import Member
    from groups.world import World

PARTITIONS_MAX = 12
"""Number of partitions up to which a topic grows."""
HANGS_SECONDS = 1_000.0
"""Duration of a hanging callback; longer than any run."""


class Faults(Storm):
    """The faults of one world."""

    PAUSE_LEASES = 3.0
    _world: World

    def victim(self, kind: Enum) -> Process | None:
        """Return a random broker (preferably a coordinator) or member, or None if the fault concerns topics."""
        world = self._world
        if kind in BROKER_FAULTS:
            coordinators = [broker for broker in world.brokers.values() if broker.groups]
            broker: Process = self.draw_broker(coordinators, 0.6)
            return broker
        if kind.name.startswith("MEMBER"):
            return world.schedule.rng.choice(list(world.members.values()))
        return None

    def stop(self) -> None:
        """Stop all faults, and heal everything that can be healed."""
        super().stop()
        members = self._world.members
        if not any(member.alive for member in members.values()):
            members[min(members)].start()

    def cut_leases(self) -> float:
        """Return the maximum duration of a cut, as a multiple of the lease: sometimes long enough for a takeover."""
        return self._world.schedule.rng.choice((2.5, 6.0))

    def _depose(self, broker: Broker) -> None:
        """Cut a coordinator off from the store for longer than its lease, and change the group during that time."""
        world = self._world
        lease = world.plan.lease_seconds
        self.cut_until(self.links(broker.number, [STORE]), 3.0 * lease, 6.0 * lease)
        for _ in range(2):
            member = world.schedule.rng.choice(list(world.members.values()))
            change = self._member_leave if member.alive else self._member_double
            world.schedule.after(world.schedule.between(1.0, 2.5) * lease, change, member)

    # -- members

    def _member_crash(self, member: Member) -> None:
        """Kill a member, which usually returns within its session, sometimes later or never."""
        member.kill()
        schedule = self._world.schedule
        if schedule.happens(0.85):
            self.bring_back(
                member, most=self._world.plan.session_seconds * schedule.rng.choice((0.5, 0.5, 2.0))
            )

    def _member_pause(self, member: Member) -> None:
        member.pause(self._world.schedule.between(0.1, 2.0 * self._world.plan.session_seconds))

    def _member_leave(self, member: Member) -> None:
        static = member.instance_id is not None and self._world.schedule.happens(0.6)
        if member.alive:
            member.receive(self._leave, member, static)

    def _leave(self, member: Member, static: bool) -> None:
        schedule = self._world.schedule
        member.leave(static=static)
        if schedule.happens(0.85):
            schedule.after(schedule.between(0.2, 2.0), self.start, member, member.life + 1)

    def _member_cut(self, member: Member) -> None:
        schedule = self._world.schedule
        links = self.links(member.number, list(self._world.brokers))
        chosen = links if schedule.happens(0.5) else links[schedule.rng.randrange(2) :: 2]
        self.cut_until(chosen, 0.2, 1.5 * self._world.plan.session_seconds)

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

    def _topic_create(self, _: None) -> None:
        self._world.create_topic()

    def _topic_grow(self, _: None) -> None:
        world = self._world
        shapes = world.topics()
        if shapes:
            name = world.schedule.rng.choice(sorted(shapes))
            partitions = min(PARTITIONS_MAX, shapes[name].partitions + world.schedule.rng.randint(1, 3))
            world.put_topic(name, shapes[name].topic_id, partitions)

    def _topic_delete(self, _: None) -> None:
        world = self._world
        shapes = world.topics()
        if shapes:
            name = world.schedule.rng.choice(sorted(shapes))
            world.store.transact(Transaction((), (), (topic_key(name),)))
