"""Members of consumer groups over HTTP, behind a balancer that sends each call to the next broker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

JSON = {"content-type": "application/json"}
SECONDS_MAX = 30
NUMBERS = itertools.count(1)


class Balancer:
    """Sends each call to the next broker, as a plain load balancer does."""

    def __init__(self, three: Any) -> None:
        """`three`: brokers and calls to each, as the fixtures of the HTTP tests make them."""
        self.three = three
        self._next = itertools.cycle(three.apis)

    async def call(
        self, method: str, path: str, value: object = None, headers: dict[str, str] | None = None
    ) -> Any:
        """A call with a JSON body, or none."""
        body = None if value is None else msgspec.json.encode(value)
        return await next(self._next).call(method, path, body, headers or JSON)

    async def get(self, path: str) -> Any:
        """A GET that has to succeed."""
        answer = await self.call("GET", path)
        assert answer.status == 200, answer
        return answer.json

    async def commit(self, group: str, **body: object) -> Any:
        """A commit of offsets."""
        return await self.call("PUT", f"/v1/groups/{group}/offsets", body)

    async def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Committed offsets by topic and partition."""
        found = (await self.get(f"/v1/groups/{group}/offsets"))["offsets"]
        return {(each["topic"], each["partition"]): each["offset"] for each in found}


@dataclass
class Member:
    """What a client has to know: its id, its epoch and what it was given."""

    calls: Balancer
    group: str
    id: str
    epoch: int = 0
    assignment: list[dict[str, Any]] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Where it heartbeats."""
        return f"/v1/groups/{self.group}/members/{self.id}"

    @property
    def partitions(self) -> set[int]:
        """What it was given of its only topic."""
        return {partition for topic in self.assignment for partition in topic["partitions"]}

    async def beat(self, **fields: object) -> None:
        """Be heard, and take over what is answered."""
        answer = await self.calls.call("PUT", self.path, {"member_epoch": self.epoch, **fields})
        assert answer.status == 200, answer
        self.epoch = answer.json["member_epoch"]
        if answer.json["assignment"] is not None:
            self.assignment = answer.json["assignment"]

    async def join(self, *topics: str, **fields: object) -> None:
        """Become a member."""
        await self.beat(topics=list(topics), **fields)

    async def settle(self) -> None:
        """Be heard, giving up at once what is no longer given."""
        await self.beat(owned=[{k: each[k] for k in ("topic_id", "partitions")} for each in self.assignment])


async def until(members: list[Member], met: Callable[[], bool]) -> None:
    """Let members be heard until something holds."""
    async with asyncio.timeout(SECONDS_MAX):
        while not met():
            for member in members:
                await member.settle()


@dataclass
class Scene:
    """A topic with records and a name for a group, of one test."""

    calls: Balancer
    topic: str
    topic_id: str
    group: str

    async def joined(self, *ids: str, **fields: object) -> list[Member]:
        """Members that share the topic evenly."""
        members = [Member(self.calls, self.group, each) for each in ids]
        for member in members:
            await member.join(self.topic, **fields)
        share = 3 // len(members)
        await until(members, lambda: all(len(member.partitions) == share for member in members))
        return members

    def entry(self, partition: int, offset: int, **fields: object) -> dict[str, object]:
        """One partition of a commit."""
        return {"topic": self.topic, "partition": partition, "offset": offset, **fields}
