"""Classic groups: the package `fairlead_broker.groups.classic` between twins of coordinators and of Kafka's clients.

Brokers, claims and faults are those of the worlds of groups.
"""

from __future__ import annotations

from typing import Any, Final

from classic.coordinator import Coordinator
from classic.judge import Judge
from classic.keys import group_key
from classic.member import Member
from classic.plan import Plan, draw
from groups.broker import Broker
from groups.faults import Faults
from groups.keys import MIRRORED
from simulator.network import CLIENTS_FROM
from simulator.store import Store
from simulator.world import Verdict
from simulator.world import World as Frame

GROUP: Final = "g"
TWINS_FROM: Final = 50
"""Difference between the numbers of the second and the first process of a static member."""


class World(Frame):
    """The brokers and members of one group."""

    START_SECONDS = 1.0
    REST_SECONDS = 60.0
    plan: Plan

    def __init__(self, seed: int, plan: Plan | None = None, *, traced: bool = False) -> None:
        """Create the random world of a seed."""
        super().__init__(seed, draw, plan, traced=traced)
        self.judge = Judge(self)
        self.store = Store(self.schedule, self.judge.written, MIRRORED)
        self.faults = Faults(self)
        self.brokers = {
            number: Broker(self, number, Coordinator) for number in range(1, self.plan.brokers + 1)
        }
        self.members: dict[int, Member] = {}

    def twin(self, member: Member) -> Member | None:
        """Return the other process with the instance id of a member, or None for a dynamic member."""
        if member.instance_id is None:
            return None
        second = member.number >= CLIENTS_FROM + TWINS_FROM
        return self.members[member.number - TWINS_FROM if second else member.number + TWINS_FROM]

    # -- the run

    def create(self) -> None:
        """Write nothing before the members join."""

    def populate(self) -> None:
        """Start the members one after another."""
        for place in range(self.plan.members):
            first = self._add(CLIENTS_FROM + place, place)
            if first.instance_id is not None:
                self._add(CLIENTS_FROM + TWINS_FROM + place, place)
            self.schedule.after(self.schedule.between(0.0, 2.0), self.faults.start, first, 0)

    def _add(self, number: int, place: int) -> Member:
        instance = f"i{place}" if place < self.plan.static else None
        member = Member(self, number, GROUP, instance)
        self.members[number] = self.network.nodes[number] = member
        return member

    def unrest(self) -> str | None:
        """Return the first reason why the group is not settled, or None if it is settled."""
        alive = [member for member in self.members.values() if member.alive]
        if not alive:
            return None
        record = self.store.items.get(group_key(GROUP))
        stored = {key[2] for key in self.store.items if key[0] == "classic member"}
        if record is None or stored != {member.member_id for member in alive}:
            return (
                f"the members {sorted(stored)} are stored, running are {[each.member_id for each in alive]}"
            )
        owned = [partition for member in alive for _, partition in member.owned]
        for member in alive:
            if not member.settled or member.generation != record.value.generation:
                return f"{member.member_id} is in generation {member.generation} of {record.value.generation}"
        if sorted(owned) != list(range(self.plan.partitions)):
            return f"the partitions {sorted(owned)} are owned"
        return None

    def fingerprint(self) -> list[Any]:
        """Return the states of the members."""
        return [member.describe() for member in self.members.values()]


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world for a seed."""
    return World(seed, traced=traced).run()
