"""Consumer groups: the package `fairlead_broker.groups`, and the SDK's state machine of a member.

The production code is surrounded by twins of brokers, coordinators and sessions, which fail as the real parts may.
"""

from __future__ import annotations

from typing import Any, Final

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups import TopicShape
from groups.broker import Broker
from groups.faults import Faults
from groups.judge import Judge, partitions_of
from groups.keys import MIRRORED, topic_key
from groups.member import Member
from groups.messages import Partition
from groups.plan import Plan, draw
from simulator.network import CLIENTS_FROM
from simulator.store import Store, Transaction
from simulator.world import Verdict
from simulator.world import World as Frame

GROUP: Final = "g"
NAMES: Final = ("topic-0", "topic-1", "topic-2", "topic-3")
PATTERN: Final = "topic-[0-2]"
TWINS_FROM: Final = 50
"""Difference between the numbers of the second and the first process of a static member."""


class World(Frame):
    """The brokers, topics and members of one group."""

    START_SECONDS = 1.0
    REST_SECONDS = 60.0
    plan: Plan

    def __init__(self, seed: int, plan: Plan | None = None, *, traced: bool = False) -> None:
        """Create the random world of a seed."""
        super().__init__(seed, draw, plan, traced=traced)
        self.judge = Judge(self)
        self.store = Store(self.schedule, self.judge.written, MIRRORED)
        self.faults = Faults(self)
        self.brokers = {number: Broker(self, number) for number in range(1, self.plan.brokers + 1)}
        self.members: dict[int, Member] = {}
        self._names: dict[TopicId, str] = {}

    # -- topics and subscriptions

    def topics(self) -> dict[str, TopicShape]:
        """Return the topics in the store."""
        items = self.store.items
        return {name: items[topic_key(name)].value for name in NAMES if topic_key(name) in items}

    def create_topic(self) -> None:
        """Create a missing topic with a new id."""
        free = [name for name in NAMES if topic_key(name) not in self.store.items]
        if free:
            topic_id = TopicId(f"t{len(self._names)}")
            self._names[topic_id] = free[0]
            self.put_topic(free[0], topic_id, self.schedule.rng.randint(1, self.plan.partitions_max))

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return the current or former name of a topic."""
        return self._names.get(topic_id)

    def put_topic(self, name: str, topic_id: TopicId, partitions: int) -> None:
        """Write a topic with a given number of partitions."""
        self.note("topic", name, topic_id, partitions)
        shape = TopicShape(topic_id, partitions)
        self.store.transact(Transaction((), ((topic_key(name), shape, None),)))

    def subscription(self) -> tuple[frozenset[str], str | None]:
        """Choose a member's subscription at random: the same for all members, unless the plan mixes subscriptions."""
        rng = self.schedule.rng
        if self.plan.mixed:
            return frozenset(rng.sample(NAMES, rng.randint(1, len(NAMES)))), None
        if self.plan.patterns:
            return frozenset(), PATTERN
        return frozenset(NAMES), None

    def twin(self, member: Member) -> Member | None:
        """Return the other process with the instance id of a member, or None for a dynamic member."""
        if member.instance_id is None:
            return None
        number = member.number
        second = number >= CLIENTS_FROM + TWINS_FROM
        return self.members[number - TWINS_FROM if second else number + TWINS_FROM]

    # -- the run

    def create(self) -> None:
        """Create the first topics."""
        for _ in range(self.plan.topics):
            self.create_topic()

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
        member.topics, member.pattern = self.subscription()
        self.members[number] = self.network.nodes[number] = member
        return member

    def unrest(self) -> str | None:
        """Return the first reason why the group is not settled, or None if it is settled."""
        alive = [member for member in self.members.values() if member.alive]
        if not alive:
            return None  # unless it is called, no broker takes over the group
        return self._unsettled(alive) or self._unowned(alive) or self._unbalanced(alive)

    def _unsettled(self, alive: list[Member]) -> str | None:
        """Return how the members in the store differ from the running processes and their partitions; None if equal."""
        records = self.judge.groups[GROUP].members
        for member in alive:
            record = records.get(member.member_id)
            if not member.joined or record is None or record.epoch != member.epoch:
                return f"{member.member_id} is no member: {record}"
            if record.revoking or partitions_of(record.assigned) != set(member.owned):
                return f"{member.member_id} owns {sorted(member.owned)}, but the record is {record}"
        if len(records) != len(alive):
            return f"members that are gone: {sorted(records)}"
        return None

    def _unowned(self, alive: list[Member]) -> str | None:
        """Describe a subscribed partition without owner or an owned partition without subscriber, or return None."""
        owners: dict[Partition, Member] = {}
        for member in alive:
            owners.update(dict.fromkeys(member.owned, member))
        for name, shape in self.topics().items():
            wanting = [member for member in alive if self.wants(member, name)]
            for partition in range(shape.partitions):
                owner = owners.pop((shape.topic_id, partition), None)
                if wanting and owner not in wanting:
                    return f"partition {partition} of {name} has no owner"
                if not wanting and owner is not None:
                    return f"no member wants {name}, but {owner.member_id} has it"
        return f"partitions that do not exist are owned: {sorted(owners)}" if owners else None

    def wants(self, member: Member, name: str) -> bool:
        """Return whether a member is subscribed to a topic."""
        return name in member.topics or (member.pattern is not None and name != NAMES[3])

    def _unbalanced(self, alive: list[Member]) -> str | None:
        """Return a description of shares that differ by more than one partition (with range, in one topic), or None."""
        if self.plan.mixed:
            return None
        topics = [{shape.topic_id} for shape in self.topics().values()]
        if self.plan.assignor != "range":
            topics = [set().union(*topics)]
        for topic_ids in topics:
            shares = [sum(topic in topic_ids for topic, _ in member.owned) for member in alive]
            if shares and max(shares) - min(shares) > 1:
                return f"shares of {sorted(topic_ids)} are {shares}"
        return None

    def fingerprint(self) -> list[Any]:
        """Return the states of the members."""
        return [member.describe() for member in self.members.values()]


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world for a seed."""
    return World(seed, traced=traced).run()
