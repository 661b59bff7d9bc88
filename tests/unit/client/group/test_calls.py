"""Calls from a member to its coordinator, against real listeners with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from fairlead.connection.transport import Transport
from fairlead.errors import (
    ClusterError,
    CoordinationUnavailableError,
    InternalServerError,
    NotCoordinatorError,
    StaleMemberEpochError,
    UnreachableError,
)
from fairlead.group.calls import HOPS_MAX, GroupCalls
from fairlead.settings import ConnectionSettings
from fairlead.topic_partition import TopicPartition
from fairlead_api.bodies.group_requests import HeartbeatRequest, OffsetCommit
from refusals import raises

if TYPE_CHECKING:
    from conftest import Received, Replies, Reply, ScriptedBroker

MEMBER = "/v1/groups/g/members/m"
OFFSETS = "/v1/groups/g/offsets"
JOIN = HeartbeatRequest(member_epoch=0, topics=("flights",))
ANSWER = {"member_epoch": 3, "heartbeat_interval_ms": 5000, "session_timeout_ms": 45000, "assignment": None}


def script(reply: Reply | None) -> object:
    """Return a script that sends the given answer, or never answers if it is None."""

    async def answer(_: Received) -> Reply:
        """Answer as scripted."""
        if reply is None:
            await asyncio.Event().wait()
        assert reply is not None
        return reply

    return answer


@pytest.fixture
async def other(broker: ScriptedBroker) -> AsyncIterator[ScriptedBroker]:
    """Yield a second broker."""
    async with type(broker)() as other:
        yield other


@pytest.fixture
async def calls(broker: ScriptedBroker, other: ScriptedBroker) -> AsyncIterator[GroupCalls]:
    """Yield the calls for member m of group g, with both brokers as bootstrap addresses."""
    async with Transport(ConnectionSettings(bootstrap=(broker.url, other.url))) as transport:
        yield GroupCalls(transport, "g", "m", heartbeat_seconds_max=0.5)


@pytest.mark.parametrize("scheme", ["http://", ""])
async def test_the_coordinator_is_followed_and_kept(
    calls: GroupCalls, broker: ScriptedBroker, other: ScriptedBroker, replies: Replies, scheme: str
) -> None:
    """The coordinator that a broker names is called in the same attempt, and directly in later calls."""
    broker.refuse(MEMBER, "not_coordinator", address=scheme + other.url.removeprefix("http://"))
    other.script(MEMBER, *[script(replies.json(ANSWER))] * 2)  # type: ignore[list-item]
    first = await calls.heartbeat(JOIN)
    await calls.heartbeat(HeartbeatRequest(member_epoch=3))

    assert first.member_epoch == 3
    assert (len(broker.received(MEMBER)), len(other.received(MEMBER))) == (1, 2)
    assert [request.headers["fairlead-forward"] for request in other.received(MEMBER)] == ["never"] * 2
    assert msgspec.json.decode(other.received(MEMBER)[1].body) == {"member_epoch": 3}


async def test_brokers_that_name_each_other_end_the_attempt(
    calls: GroupCalls, broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """If brokers name each other as the coordinator, the attempt ends, because the group is being moved."""
    broker.refuse(MEMBER, *["not_coordinator"] * HOPS_MAX, address=other.url)
    other.refuse(MEMBER, *["not_coordinator"] * HOPS_MAX, address=broker.url)
    with pytest.raises(NotCoordinatorError):
        await calls.heartbeat(JOIN)

    assert len(broker.requests) + len(other.requests) == HOPS_MAX


@pytest.mark.parametrize("code", ["coordination_unavailable", "shutting_down"])
async def test_a_coordinator_in_trouble_is_asked_once_and_then_the_next_broker(
    calls: GroupCalls, broker: ScriptedBroker, other: ScriptedBroker, replies: Replies, code: str
) -> None:
    """A coordinator that fails is called once, and the next attempt is sent to another broker."""
    broker.refuse(MEMBER, code)
    other.script(MEMBER, script(replies.json(ANSWER)))  # type: ignore[arg-type]
    with pytest.raises(ClusterError):
        await calls.heartbeat(JOIN)

    assert (await calls.heartbeat(JOIN)).member_epoch == 3


async def test_a_broker_that_does_not_answer_is_left(
    calls: GroupCalls, broker: ScriptedBroker, other: ScriptedBroker, replies: Replies
) -> None:
    """If a broker does not answer, the next attempt is sent to another broker, long before the session ends."""
    broker.script(MEMBER, script(None))  # type: ignore[arg-type]
    other.script(MEMBER, script(replies.json(ANSWER)))  # type: ignore[arg-type]
    with raises(UnreachableError, "0.5"):
        await calls.heartbeat(JOIN)

    assert (await calls.heartbeat(JOIN)).member_epoch == 3


async def test_a_commit_returns_the_error_of_each_partition(
    calls: GroupCalls, broker: ScriptedBroker, replies: Replies
) -> None:
    """A commit returns the error for each partition that was not stored, and raises the refusal of the whole commit."""
    entries = [OffsetCommit(topic="flights", partition=partition, offset=7) for partition in range(2)]
    refused = msgspec.json.decode(replies.problem("offset_out_of_range")[2])
    answer = {
        "offsets": [
            {"topic": "flights", "topic_id": None, "partition": 0},
            {"topic": "flights", "topic_id": None, "partition": 1, "problem": refused},
        ]
    }
    broker.script(OFFSETS, script(replies.json(answer, 207)))  # type: ignore[arg-type]
    errors = await calls.commit(3, entries)
    broker.refuse(OFFSETS, "stale_member_epoch")

    assert {place: error.code for place, error in errors.items()} == {
        TopicPartition("flights", 1): "offset_out_of_range"
    }
    sent = msgspec.json.decode(broker.received(OFFSETS)[0].body)
    assert (sent["member_id"], sent["member_epoch"]) == ("m", 3)
    with pytest.raises(StaleMemberEpochError):
        await calls.commit(2, entries)


async def test_leaving_and_answers_that_cannot_be_read(
    calls: GroupCalls, broker: ScriptedBroker, replies: Replies
) -> None:
    """A static member leaves with `static=true`, and an answer that cannot be read raises an error."""
    broker.script(MEMBER, script((204, {}, b"")), script((204, {}, b"")), script(replies.json([])))  # type: ignore[arg-type]
    await calls.leave(static=True)
    await calls.leave(static=False)
    with pytest.raises(InternalServerError):
        await calls.heartbeat(JOIN)
    broker.refuse(OFFSETS, "coordination_unavailable")
    with raises(CoordinationUnavailableError, "g"):
        await calls.committed()

    assert [request.query for request in broker.received(MEMBER)][:2] == [{"static": "true"}, {}]
