"""Members of consumer groups over HTTP, behind a balancer that sends each request to the next broker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from waiting import LOOK_SECONDS, pause

JSON = {"content-type": "application/json"}
SECONDS_MAX = 30
NUMBERS = itertools.count(1)


class Balancer:
    """Sends each request to the next broker, as a plain load balancer does."""

    def __init__(self, three: Any) -> None:
        """Store `three`: the brokers and their clients, as returned by the fixtures of the HTTP tests."""
        self.three = three
        self._next = itertools.cycle(three.apis)

    async def call(
        self, method: str, path: str, value: object = None, headers: dict[str, str] | None = None
    ) -> Any:
        """Send a request with a JSON body or without a body."""
        body = None if value is None else msgspec.json.encode(value)
        return await next(self._next).call(method, path, body, headers or JSON)

    async def get(self, path: str) -> Any:
        """Send a GET, which must succeed."""
        answer = await self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json

    async def commit(self, group: str, **body: object) -> Any:
        """Commit offsets."""
        return await self.call("PUT", f"/v1/groups/{group}/offsets", body)

    async def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets by topic and partition."""
        found = (await self.get(f"/v1/groups/{group}/offsets"))["offsets"]
        return {(each["topic"], each["partition"]): each["offset"] for each in found}


@dataclass
class Member:
    """State of a client: its id, its member epoch and its assignment."""

    calls: Balancer
    group: str
    id: str
    epoch: int = 0
    assignment: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Path of the member's heartbeats."""
        return f"/v1/groups/{self.group}/members/{self.id}"

    @property
    def partitions(self) -> set[int]:
        """Assigned partitions of the only topic."""
        return {partition for topic in self.assignment for partition in topic["partitions"]}

    async def beat(self, **fields: object) -> None:
        """Send a heartbeat and apply the answer."""
        answer = await self.calls.call("PUT", self.path, {"member_epoch": self.epoch, **fields})
        assert answer.status == 200, answer
        self.epoch = answer.json["member_epoch"]
        if answer.json["assignment"] is not None:
            self.assignment = answer.json["assignment"]

    async def join(self, *topics: str, **fields: object) -> None:
        """Join the group."""
        await self.beat(topics=list(topics), **fields)

    async def settle(self) -> None:
        """Send heartbeats and release revoked partitions at once until the assignment is complete."""
        await self.beat(owned=[{k: each[k] for k in ("topic_id", "partitions")} for each in self.assignment])


async def until(members: list[Member], met: Callable[[], bool]) -> None:
    """Send heartbeats of members until a condition holds."""
    async with asyncio.timeout(SECONDS_MAX):
        while not met():
            for member in members:
                await member.settle()
            await pause(LOOK_SECONDS)


@dataclass
class Scene:
    """A topic with records and a name for a group, for one test."""

    calls: Balancer
    topic: str
    topic_id: str
    group: str

    async def joined(self, *ids: str, **fields: object) -> list[Member]:
        """Return members that share the topic evenly."""
        members = [Member(self.calls, self.group, each) for each in ids]
        for member in members:
            await member.join(self.topic, **fields)
        share = 3 // len(members)
        await until(members, lambda: all(len(member.partitions) == share for member in members))
        return members

    def entry(self, partition: int, offset: int, **fields: object) -> dict[str, object]:
        """Return one partition of a commit."""
        return {"topic": self.topic, "partition": partition, "offset": offset, **fields}
