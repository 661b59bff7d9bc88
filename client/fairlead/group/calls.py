"""One member's calls to the broker that coordinates its group.

Every call is one attempt; after a refusal, the state machine of the member decides on the next action. Any broker can
name the coordinator (`not_coordinator`), which is cached until the coordinator fails to answer. The module must not
depend on how the answers are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, cast
from urllib.parse import quote

from msgspec import UNSET

from fairlead.connection.transport import Answer, Call, Query, Transport, decoded, json_call
from fairlead.errors import ClusterError, NotCoordinatorError, RetryError, UnreachableError, error_of
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_answers import CommitAnswer, CommittedOffset, HeartbeatAnswer, OffsetsAnswer
from fairlead_api.bodies.group_requests import CommitRequest, HeartbeatRequest, OffsetCommit
from fairlead_api.problems import JSON, ProblemError

HOPS_MAX: Final = 3
"""Maximum number of brokers asked in one attempt: while a group moves to another coordinator, two brokers may name each
other as coordinator."""


class GroupCalls:
    """Calls from a member to its coordinator. `heartbeat_seconds_max` is the timeout of a heartbeat."""

    def __init__(
        self, transport: Transport, group: str, member_id: str, *, heartbeat_seconds_max: float
    ) -> None:
        self._transport = transport
        self._heartbeat_seconds_max = heartbeat_seconds_max
        self._group_path = f"/v1/groups/{quote(group, safe='')}"
        self._member_path = f"{self._group_path}/members/{quote(member_id, safe='')}"
        self._subject = f"group {group}"
        self._coordinator: str | None = None
        self._turn = 0
        self.group = group
        self.member_id = member_id

    async def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        """Send a heartbeat or a join. A broker that does not answer within the timeout counts as unreachable."""
        call = json_call("PUT", self._member_path, f"heartbeat in {self._subject}", body=request)
        try:
            async with asyncio.timeout(self._heartbeat_seconds_max):
                answer = await self._at_coordinator(call)
        except TimeoutError as error:
            asked = self._address()
            self._forget()
            cause = f"no answer within {self._heartbeat_seconds_max:.3g} s"
            raise UnreachableError(call.subject, {asked: cause}, sent=True) from error
        return decoded(answer, HeartbeatAnswer, call.subject)

    async def leave(self, *, static: bool) -> None:
        """Leave the group; the group keeps the partitions of a static member until its session ends."""
        query: Query = {"static": "true"} if static else {}
        call = json_call("DELETE", self._member_path, f"leave {self._subject}", query=query)
        async with asyncio.timeout(self._heartbeat_seconds_max):
            await self._at_coordinator(call)

    async def commit(
        self, member_epoch: int, offsets: Sequence[OffsetCommit]
    ) -> dict[TopicPartition, ClusterError]:
        """Commit offsets and return the error for each partition whose offset was not stored."""
        subject = f"commit in {self._subject}"
        request = CommitRequest(member_id=self.member_id, member_epoch=member_epoch, offsets=tuple(offsets))
        call = json_call("PUT", f"{self._group_path}/offsets", subject, body=request)
        answer = await self._at_coordinator(call)
        return commit_errors(decoded(answer, CommitAnswer, subject), subject, answer.broker)

    async def committed(self) -> list[CommittedOffset]:
        """Return every committed offset of the group."""
        subject = f"committed offsets of {self._subject}"
        answer = await self._at_coordinator(json_call("GET", f"{self._group_path}/offsets", subject))
        return decoded(answer, OffsetsAnswer, subject).offsets

    async def _at_coordinator(self, call: Call) -> Answer:
        for hop in range(1, HOPS_MAX + 1):
            broker = self._address()
            try:
                return await self._transport.send(call, broker)
            except NotCoordinatorError as error:
                address = error.data.get("address")
                self._forget()
                if isinstance(address, str) and (named := _url(address, broker)) != broker:
                    self._coordinator = named
                if hop == HOPS_MAX or self._coordinator is None:
                    raise
            except (UnreachableError, RetryError):
                # Another broker may know the new coordinator of the group.
                self._forget()
                raise
        raise AssertionError("the last attempt returns or raises")

    def _address(self) -> str:
        """Return the coordinator or, if unknown, the next broker to ask for the coordinator."""
        addresses = list(dict.fromkeys(self._transport.settings.bootstrap + self._transport.known_brokers))
        return self._coordinator or addresses[self._turn % len(addresses)]

    def _forget(self) -> None:
        self._coordinator = None
        self._turn += 1


def _url(address: str, like: str) -> str:
    """Return a problem's address, HOST:PORT, as a URL with the scheme of the broker that reported the problem."""
    scheme, _, _ = like.partition("://")
    return f"{scheme}://{address.rpartition('://')[2].rstrip('/')}"


def commit_errors(
    answer: CommitAnswer, subject: str, broker: str | None
) -> dict[TopicPartition, ClusterError]:
    """Return the error for each partition whose offset the commit did not store."""
    return {
        TopicPartition(result.topic, result.partition): error_of(
            ProblemError.from_document(cast("Mapping[str, JSON]", result.problem)),
            subject=f"{subject} of {result.topic}-{result.partition}",
            broker=broker,
        )
        for result in answer.offsets
        if result.problem is not UNSET
    }
