"""Group members that only make HTTP calls, used to simulate a thousand groups.

The parts of `groups.py` call this module. As the API requires, a client remembers the coordinator of each group: a
broker that is not the coordinator answers 421 with the address of the coordinator.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import TracebackType
from typing import Self
from urllib.parse import quote

import msgspec
import pyreqwest.client
import pyreqwest.exceptions

from fairlead_api.bodies.group_answers import AssignedPartitions, HeartbeatAnswer
from fairlead_api.bodies.media_types import FORWARD_NEVER, JSON, Header

HOPS_MAX = 4
TIMEOUT_SECONDS = 10.0
JOIN_PAUSE_SECONDS = 0.1
OUT = ("member_fenced", "member_not_found")


class PlainClient:
    """Client with connections to every broker, which remembers the coordinator of each group."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self.refused = 0
        """Number of calls that were neither accepted nor redirected, including attempts without an answer."""
        self._coordinators: dict[str, str] = {}
        self._turn = 0

    async def __aenter__(self) -> Self:
        builder = pyreqwest.client.ClientBuilder().http2_prior_knowledge().no_proxy().tcp_nodelay(True)
        self._client = builder.build()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()

    async def put(
        self, group: str, path: str, body: object, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> tuple[int, bytes]:
        """Call the coordinator of the group; return status and body of the answer, or status 0 without an answer."""
        data, status, answer = msgspec.json.encode(body), 421, b""
        for _ in range(HOPS_MAX):
            address = self._coordinators.get(group) or self._next_address()
            request = self._client.put(address + path).body_bytes(data)
            request = request.header("content-type", JSON).header(Header.FORWARD, FORWARD_NEVER)
            try:
                response = await request.timeout(timedelta(seconds=timeout_seconds)).build().send()
                status, answer = response.status, bytes(await response.bytes())
            except pyreqwest.exceptions.RequestError:
                status = 0
            if status == 200:
                return status, answer
            if status != 421:
                break
            self._coordinators[group] = f"http://{msgspec.json.decode(answer)['address']}"
        self._coordinators.pop(group, None)
        self.refused += 1
        return status, answer

    def _next_address(self) -> str:
        self._turn += 1
        return self.addresses[self._turn % len(self.addresses)]


class PlainMember:
    """Member that reads no records: it sends heartbeats, accepts assigned and releases revoked partitions."""

    def __init__(self, client: PlainClient, group: str, member_id: str, topic: str) -> None:
        self._client = client
        self._group = group
        self._topic = topic
        self._path = f"/v1/groups/{quote(group, safe='')}"
        self._owned_is_confirmed = True
        self.member_id = member_id
        self.epoch = 0
        self.interval_seconds = 5.0
        self.assignment: list[AssignedPartitions] = []

    async def join(self, session_timeout_ms: int) -> bool:
        """Join the group; return False if no broker accepted the call."""
        self._session_timeout_ms = session_timeout_ms
        return await self._call(
            {"member_epoch": 0, "topics": [self._topic], "session_timeout_ms": session_timeout_ms},
            TIMEOUT_SECONDS,
        )

    async def join_at_last(self, session_timeout_ms: int) -> None:
        """Join the group, and retry until a broker accepts the call."""
        accepted = await self.join(session_timeout_ms)
        while not accepted:
            await asyncio.sleep(JOIN_PAUSE_SECONDS)
            accepted = await self.join(session_timeout_ms)

    async def beat(self, timeout_seconds: float = TIMEOUT_SECONDS) -> bool:
        """Send a heartbeat; return False if no broker accepted the heartbeat."""
        if self.epoch == 0:
            return await self.join(self._session_timeout_ms)
        body: dict[str, object] = {"member_epoch": self.epoch}
        if not self._owned_is_confirmed:
            body["owned"] = [
                {"topic_id": each.topic_id, "partitions": each.partitions} for each in self.assignment
            ]
        accepted = await self._call(body, timeout_seconds)
        if accepted and "owned" in body:
            self._owned_is_confirmed = self._sent_while is self.assignment
        return accepted

    async def _call(self, body: dict[str, object], timeout_seconds: float) -> bool:
        self._sent_while = self.assignment
        path = f"{self._path}/members/{self.member_id}"
        status, found = await self._client.put(self._group, path, body, timeout_seconds)
        if status != 200:
            # After a failed call, the next heartbeat lists the member's partitions, in case an answer was lost; a
            # removed member joins again.
            self._owned_is_confirmed = False
            if status and msgspec.json.decode(found).get("code") in OUT:
                self.epoch, self.assignment, self._owned_is_confirmed = 0, [], True
            return False
        answer = msgspec.json.decode(found, type=HeartbeatAnswer)
        self.epoch = answer.member_epoch
        self.interval_seconds = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None and answer.assignment != self.assignment:
            self.assignment = answer.assignment
            self._owned_is_confirmed = False
        return True

    @property
    def partition_count(self) -> int:
        """Number of partitions that are assigned to the member."""
        return sum(len(each.partitions) for each in self.assignment)

    async def commit(self, offset: int) -> bool:
        """Commit an offset for all partitions of the member; return False if the commit was not stored."""
        offsets = [
            {"topic": each.topic, "partition": partition, "offset": offset}
            for each in self.assignment
            for partition in each.partitions
        ]
        body = {"member_id": self.member_id, "member_epoch": self.epoch, "offsets": offsets}
        return (await self._client.put(self._group, f"{self._path}/offsets", body))[0] == 200
