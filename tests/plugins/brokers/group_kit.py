"""Members of consumer groups that a test drives by hand: each call sends one heartbeat to the current coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cluster_kit import SECONDS_MAX, Cluster
from fairlead_api.bodies.group_answers import GroupDescription, HeartbeatAnswer
from fairlead_api.bodies.group_requests import CommitRequest, HeartbeatRequest, OffsetCommit, OwnedPartitions
from fairlead_api.identifiers import TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.runtime.groups.groups import Groups
from waiting import LOOK_SECONDS, pause

T = TypeVar("T")
AGAIN = frozenset({"not_coordinator", "coordination_unavailable", "shutting_down"})
"""Codes after which a client retries, possibly at another broker."""


@dataclass
class GroupClient:
    """Requests about one group, sent from broker to broker until the coordinator answers."""

    cluster: Cluster
    name: str
    refusals: list[ProblemError] = field(default_factory=list)
    """Refusals after which a request was retried."""

    async def coordinator(self) -> int:
        """Return the broker that is or becomes the coordinator of the group."""
        asked = self.cluster.any
        elsewhere = await asked.groups.coordinator_elsewhere(self.name, again=True)
        return asked.entry.incarnation.broker if elsewhere is None else elsewhere

    async def call(self, about: Callable[[Groups], Awaitable[T]]) -> T:
        """Send a request to the coordinator, and wait while no broker is the coordinator."""
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    broker = await self.coordinator()
                    if broker in self.cluster.brokers:
                        return await about(self.cluster.broker(broker).groups)
                except ProblemError as problem:
                    if problem.code not in AGAIN:
                        raise
                    self.refusals.append(problem)
                await pause(LOOK_SECONDS)

    async def describe(self) -> GroupDescription:
        """Return the coordinator's description of the group."""
        return await self.call(lambda groups: groups.describe(self.name))

    async def offsets(self) -> dict[tuple[str, int], int]:
        """Return the committed offsets by topic and partition."""
        answer = await self.call(lambda groups: groups.offsets(self.name, None))
        return {(each.topic, each.partition): each.offset for each in answer.offsets}

    async def commit(
        self, offsets: dict[tuple[str, int], int], member: GroupMember | None = None
    ) -> list[str]:
        """Commit as a member or without a member; return the codes of refused entries."""
        request = CommitRequest(
            member_id=member.member_id if member else None,
            member_epoch=member.epoch if member else -1,
            offsets=tuple(
                OffsetCommit(topic=topic, partition=partition, offset=offset)
                for (topic, partition), offset in offsets.items()
            ),
        )
        answer = await self.call(lambda groups: groups.commit(self.name, request))
        return [str(each.problem["code"]) for each in answer.offsets if isinstance(each.problem, dict)]

    def member(self, member_id: str, *topics: str, epoch: int = 0, **options: Any) -> GroupMember:
        """Return a member that has not joined; with an epoch, a member that claims to have joined."""
        return GroupMember(self, member_id, topics, options, epoch)


@dataclass
class GroupMember:
    """A member that releases revoked partitions at once and reports the release in its next heartbeat."""

    client: GroupClient
    member_id: str
    topics: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    owned: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Name and partitions of assigned topics, by topic id."""
    answered: int = 0
    """Number of assignments received."""

    @property
    def partitions(self) -> set[tuple[str, int]]:
        """Partitions that the member may consume."""
        return {(name, index) for name, indexes in self.owned.values() for index in indexes}

    def request(self) -> HeartbeatRequest:
        """Return the next heartbeat: all fields in a join, later the owned partitions."""
        if self.epoch == 0:
            return HeartbeatRequest(member_epoch=0, topics=self.topics, **self.options)
        owned = tuple(
            OwnedPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, (_, indexes) in self.owned.items()
        )
        return HeartbeatRequest(member_epoch=self.epoch, owned=owned)

    async def beat(self) -> HeartbeatAnswer:
        """Join, or send a heartbeat with the owned partitions."""
        request = self.request()
        answer = await self.client.call(
            lambda groups: groups.heartbeat(self.client.name, self.member_id, request)
        )
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.answered += 1
            self.owned = {each.topic_id: (each.topic, tuple(each.partitions)) for each in answer.assignment}
        return answer

    async def leave(self, *, static: bool = False) -> None:
        """Leave the group."""
        await self.client.call(lambda groups: groups.leave(self.client.name, self.member_id, static=static))
        self.epoch, self.owned = 0, {}


async def filled_topic(
    cluster: Cluster, name: str, partitions: int, records: int, replication_factor: int = 3
) -> TopicId:
    """Create a topic with `records` records in each partition, so that offsets up to that number may be committed."""
    topic_id = await cluster.topic(name, partitions=partitions, replication_factor=replication_factor)

    async def fill(index: int) -> None:
        client = await cluster.led(name, topic_id, index)
        await client.produce(*(b"value" for _ in range(records)), partition=index)

    await asyncio.gather(*map(fill, range(partitions)))
    return topic_id


async def settle(*members: GroupMember) -> None:
    """Send heartbeats of members in turn until the group is stable and each member has its assignment."""
    client = members[0].client
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for member in members:
                await member.beat()
            described = await client.describe()
            if described.state == "stable" and _as_described(members, described):
                return


def _as_described(members: Sequence[GroupMember], described: GroupDescription) -> bool:
    held = {each.member_id: each.assignment for each in described.members}
    return all(
        member.partitions
        == {(each.topic, index) for each in held[member.member_id] for index in each.partitions}
        for member in members
    )
