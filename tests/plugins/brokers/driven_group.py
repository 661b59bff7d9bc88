"""A consumer group with its store, driven by events: every change is written before the next event.

`Driven.come` sends the heartbeat of a well-behaved member and applies the answer; tests may also send events that a
well-behaved member never sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.groups import (
    Group,
    GroupChange,
    GroupEvent,
    GroupRecords,
    Heartbeat,
    HeartbeatReply,
    Leave,
    MemberKey,
    Partitions,
    Reply,
    StateKey,
    Subscription,
    TargetKey,
    Topics,
    TopicShape,
    Turn,
)
from fairlead_broker.registry.group_records import GroupRecord, MemberRecord, TargetRecord

T, U = TopicId("t"), TopicId("u")
FLIGHTS: dict[str, TopicShape] = {"flights": TopicShape(T, 6)}
"""One topic of six partitions."""
BOTH: dict[str, TopicShape] = FLIGHTS | {"weather": TopicShape(U, 2)}


def wanting(*topics: str, **fields: str | int | None) -> Subscription:
    """Return a subscription to topics by name."""
    return Subscription(topics=frozenset(topics), **fields)  # type: ignore[arg-type]  # by keyword


@dataclass
class Client:
    """State of a member on the client's side."""

    epoch: int = 0
    owned: Partitions = field(default_factory=dict)


@dataclass
class Driven:
    """A group, the records written for the group, and the time."""

    topics: Topics = field(default_factory=lambda: FLIGHTS)
    now: float = 100.0
    records: GroupRecords = field(default_factory=GroupRecords)
    writes: int = 0
    clients: dict[str, Client] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Load the group."""
        self.group = self.loaded()

    @property
    def state(self) -> GroupRecord | None:
        """Stored record of the group."""
        return self.records.state

    @property
    def targets(self) -> Mapping[TopicId, TargetRecord]:
        """Stored target assignments of the group."""
        return self.records.targets

    @property
    def members(self) -> Mapping[str, MemberRecord]:
        """Members, as written."""
        return self.records.members

    def loaded(self) -> Group:
        """Load the stored records, as another coordinator would."""
        self.group = Group("g", self.records, self.now)
        return self.group

    def turn(self, *events: GroupEvent) -> tuple[Reply, ...]:
        """Run one turn and write its change."""
        return self.stand(self.group.turn(events, self.topics, self.now, int(self.now * 1e6)))

    def stand(self, turn: Turn) -> tuple[Reply, ...]:
        """Write the change of a turn and commit the turn."""
        if turn.change is not None:
            self.writes += 1
            for portion in turn.change.portions(2):
                self.records = written(self.records, portion)
            self.group.commit(turn)
        return turn.replies

    def accepted(self, event: Heartbeat) -> HeartbeatReply:
        """Send one heartbeat, which must be accepted."""
        (reply,) = self.turn(event)
        assert isinstance(reply, HeartbeatReply), reply
        return reply

    def refused(self, event: GroupEvent) -> str:
        """Send one event that must be refused; return the code."""
        (reply,) = self.turn(event)
        assert isinstance(reply, ProblemError), reply
        return reply.code

    def join(self, member_id: str, subscription: Subscription | None = None) -> HeartbeatReply:
        """Join with `subscription`, by default to `flights`, and apply the answer."""
        self.clients[member_id] = Client()
        return self._believe(member_id, Heartbeat(member_id, 0, subscription or wanting("flights")))

    def come(self, member_id: str, *, owned: bool = True) -> HeartbeatReply:
        """Send the heartbeat of a well-behaved member and apply the answer; `owned` includes its partitions."""
        client = self.clients[member_id]
        return self._believe(
            member_id, Heartbeat(member_id, client.epoch, owned=client.owned if owned else None)
        )

    def settle(self, *member_ids: str) -> None:
        """Advance the time until a target is computed, and send heartbeats until all members have their targets."""
        self.now += 1
        self.turn()
        for _ in range(4):
            for member_id in member_ids:
                self.come(member_id)

    def leave(self, member_id: str, *, static: bool = False) -> None:
        """Leave the group."""
        self.turn(Leave(member_id, static=static))
        del self.clients[member_id]

    def has(self, member_id: str) -> dict[str, set[int]]:
        """Return the partitions that a member may consume according to the stored records."""
        return {str(topic): set(each) for topic, each in self.members[member_id].assigned.items()}

    def _believe(self, member_id: str, event: Heartbeat) -> HeartbeatReply:
        reply = self.accepted(event)
        client = self.clients[member_id]
        client.epoch = reply.member_epoch
        if reply.assignment is not None:
            client.owned = reply.assignment
        return reply


def written(records: GroupRecords, change: GroupChange) -> GroupRecords:
    """Return the records of a store after a change."""
    state = None if StateKey() in change.deletes else records.state
    targets = {key: each for key, each in records.targets.items() if TargetKey(key) not in change.deletes}
    members = {key: each for key, each in records.members.items() if MemberKey(key) not in change.deletes}
    for key, value in change.puts.items():
        match key, value:
            case TargetKey(topic_id), TargetRecord():
                targets[topic_id] = value
            case MemberKey(member_id), MemberRecord():
                members[member_id] = value
            case _:
                assert isinstance(value, GroupRecord)
                state = value
    return GroupRecords(state, targets, members)


def partitions(*numbers: int, topic: TopicId = T) -> Mapping[TopicId, frozenset[int]]:
    """Return some partitions of a topic."""
    return {topic: frozenset(numbers)}
