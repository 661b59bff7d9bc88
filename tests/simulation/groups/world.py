"""Brokers, a store and the members of a group in one thread: a seed becomes a world, a storm, a rest, a verdict.

The rules are the production ones (`fairlead_broker.groups`); what surrounds them is made of twins that misbehave as
the real parts may. Nothing here knows a clock, a loop or a file; chance comes from the seed alone.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from fairlead_api.identifiers import TopicId
from fairlead_broker.groups import TopicShape
from groups.broker import Broker
from groups.faults import Faults
from groups.judge import Judge, partitions_of
from groups.keys import GroupStore, topic_key
from groups.member import Member, describe
from groups.messages import Partition
from groups.plan import Plan, draw
from groups.sdk_member import SdkMember
from simulator.judge import Liveness
from simulator.network import CLIENTS_FROM, Network, Weather
from simulator.schedule import Schedule
from simulator.store import Transaction
from simulator.violations import violation_of
from simulator.world import Verdict

GROUP: Final = "g"
START_SECONDS: Final = 1.0
REST_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
NAMES: Final = ("topic-0", "topic-1", "topic-2", "topic-3")
PATTERN: Final = "topic-[0-2]"
TWINS_FROM: Final = 50
"""Second processes of static members have the first one's number and this."""


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
        self.judge = Judge(self)
        self.network = Network(self.schedule, self.plan.weather)
        self.store = GroupStore(self.schedule, self.judge.written)
        self.faults = Faults(self)
        self.brokers = {number: Broker(self, number) for number in range(1, self.plan.brokers + 1)}
        self.members: dict[int, Member] = {}
        self._leases = 0
        self._names: dict[TopicId, str] = {}

    # -- names

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.schedule.now

    def next_lease(self) -> int:
        """Name a lease."""
        self._leases += 1
        return self._leases

    def note(self, what: str, *details: Any) -> None:
        """Write a line into the trace, if there is one."""
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {what} {' '.join(str(each) for each in details)}")

    # -- topics and subscriptions

    def topics(self) -> dict[str, TopicShape]:
        """Return the topics as the store has them."""
        items = self.store.items
        return {name: items[topic_key(name)].value for name in NAMES if topic_key(name) in items}

    def create_topic(self) -> None:
        """Create one of the topics that are not there, under an id that none has had."""
        free = [name for name in NAMES if topic_key(name) not in self.store.items]
        if free:
            topic_id = TopicId(f"t{len(self._names)}")
            self._names[topic_id] = free[0]
            self.put_topic(free[0], topic_id, self.schedule.rng.randint(1, self.plan.partitions_max))

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return the name that a topic has or had."""
        return self._names.get(topic_id)

    def put_topic(self, name: str, topic_id: TopicId, partitions: int) -> None:
        """Let a topic have so many partitions."""
        self.note("topic", name, topic_id, partitions)
        shape = TopicShape(topic_id, partitions)
        self.store.transact(Transaction((), ((topic_key(name), shape, None),)))

    def subscription(self) -> tuple[frozenset[str], str | None]:
        """Draw what a member wants: the same for all, unless the plan mixes."""
        rng = self.schedule.rng
        if self.plan.mixed:
            return frozenset(rng.sample(NAMES, rng.randint(1, len(NAMES)))), None
        if self.plan.patterns:
            return frozenset(), PATTERN
        return frozenset(NAMES), None

    def twin(self, member: Member) -> Member | None:
        """Return the other process with the same instance id, None for a dynamic member."""
        if member.instance_id is None:
            return None
        number = member.number
        return self.members[
            number - TWINS_FROM if number >= CLIENTS_FROM + TWINS_FROM else number + TWINS_FROM
        ]

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
        self.note("rest")
        self.faults.stop()
        self._rest()

    def _begin(self) -> None:
        plan, schedule = self.plan, self.schedule
        weather, self.network.weather = self.network.weather, Weather()
        for number, broker in self.brokers.items():
            self.network.nodes[number] = broker
            broker.start()
        for _ in range(plan.topics):
            self.create_topic()
        schedule.run(START_SECONDS)
        self.network.weather = weather
        for place in range(plan.members):
            instance = f"i{place}" if place < plan.static else None
            numbers = [CLIENTS_FROM + place]
            if instance is not None:
                numbers.append(CLIENTS_FROM + TWINS_FROM + place)
            for number in numbers:
                kind = SdkMember if plan.sdk else Member
                member = kind(self, number, GROUP, instance)
                member.topics, member.pattern = self.subscription()
                self.members[number] = member
                self.network.nodes[number] = member
            schedule.after(schedule.between(0.0, 2.0), self._start, self.members[numbers[0]])
        self.faults.begin()

    def _start(self, member: Member) -> None:
        if not member.alive:
            member.start()

    def _rest(self) -> None:
        """Wait until everything is as it should be; raise `Liveness` where it does not come to that."""
        until = self.now + REST_SECONDS
        while True:
            self.schedule.run(self.now + LOOK_SECONDS)
            wrong = self.unrest()
            if wrong is None:
                return
            if self.now >= until:
                raise Liveness(wrong)

    def unrest(self) -> str | None:
        """Say what is not yet as it is to be in the end; None when all is."""
        alive = [member for member in self.members.values() if member.alive]
        if not alive:
            return None  # nobody asks for the group, so nobody takes it over
        return self._unsettled(alive) or self._unowned(alive) or self._unbalanced(alive)

    def _unsettled(self, alive: list[Member]) -> str | None:
        """Every process is a member, no one else is, and what it owns is what its record says."""
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
        """Every partition of a topic that somebody wants has an owner who wants it, and no other has."""
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
                    return f"nobody wants {name}, but {owner.member_id} has it"
        return f"partitions that are not there are owned: {sorted(owners)}" if owners else None

    def wants(self, member: Member, name: str) -> bool:
        """Say whether a member is subscribed to a topic."""
        return name in member.topics or (member.pattern is not None and name != NAMES[3])

    def _unbalanced(self, alive: list[Member]) -> str | None:
        """Shares differ by one partition at most: of everything, or with the range assignor of each topic."""
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

    def _digest(self) -> str:
        """Sum up the run; chance is drawn for nearly everything, so its state tells runs apart."""
        text = repr(
            (
                self.now,
                self.schedule.happened,
                self.schedule.rng.getstate(),
                self.store.revision,
                [describe(member) for member in self.members.values()],
                sorted(self.judge.counts.items()),
            )
        )
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def run(seed: int, *, traced: bool = False) -> Verdict:
    """Run the world of a seed."""
    return World(seed, traced=traced).run()
