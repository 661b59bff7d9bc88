"""Requests that the sender makes during the lifetime of a batch. The clock is stopped unless a test advances it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fairlead import Producer, clock
from fairlead.errors import DeliveryTimeoutError
from refusals import raises
from waiting import until

if TYPE_CHECKING:
    from conftest import Received, Replies, Reply, ScriptedBroker

PRODUCE = "/v1/produce"


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list with the time of the client's clock, which a test can change."""
    seconds = [1000.0]
    monkeypatch.setattr(clock, "monotonic", lambda: seconds[0])
    return seconds


async def test_a_leader_whose_time_runs_out_is_looked_up_again(
    broker: ScriptedBroker, replies: Replies, seconds: list[float]
) -> None:
    """If a batch was not acknowledged in time, the leader is looked up again, because it may be isolated."""
    async with type(broker)() as other, Producer(broker.url, linger_ms=0) as producer:
        await producer.send_and_wait("flights", b"before", partition=1)

        async def cut_off(_: Received) -> Reply:
            """Time out while another leader is elected."""
            broker.addresses = {1: broker.url, 2: other.url}
            broker.leaders = [2, 1]
            seconds[0] += 30
            return replies.problem("ack_timeout")

        broker.script(PRODUCE, cut_off)
        delivery = await producer.send("flights", b"after", partition=0)
        await until(lambda: producer._metadata.picture.leader("flights", 0) == other.url)
        seconds[0] += 1
        await delivery

    assert (broker.values(0), other.values(0)) == ([], [b"after"])


async def test_a_broker_is_given_what_is_left_of_the_delivery_timeout(
    broker: ScriptedBroker, replies: Replies, seconds: list[float]
) -> None:
    """The request timeout is the remaining delivery timeout, but at least one second."""
    spent = [30.0, 9.0, 5.0]

    async def late(_: Received) -> Reply:
        """Let time pass, and answer that the acknowledgements timed out."""
        seconds[0] += spent.pop(0)
        return replies.problem("ack_timeout")

    broker.script(PRODUCE, late, late, late)
    async with Producer(broker.url, linger_ms=0, delivery_timeout="40s") as producer:
        delivery = await producer.send("flights", b"x", partition=0)
        for count in (1, 2):
            await until(lambda count=count: len(broker.received(PRODUCE)) == count)  # type: ignore[misc]
            await until(lambda: not producer._accumulator.unfinished[0].queue.in_flight)
            seconds[0] += 0.3
        with raises(DeliveryTimeoutError, "44.600", 3):
            await delivery

    assert [request.query["timeout_ms"] for request in broker.received(PRODUCE)] == ["30000", "9700", "1000"]


async def test_a_broker_is_given_the_time_of_the_batch_that_has_longest(
    broker: ScriptedBroker, seconds: list[float]
) -> None:
    """The request timeout depends on the batch whose delivery timeout ends last."""
    async with Producer(broker.url, linger_ms=8000, delivery_timeout="10s") as producer:
        await producer.send("flights", b"x", partition=0)
        seconds[0] += 5
        await producer.send("flights", b"y", partition=1)
        seconds[0] += 1
        await producer.flush()

    assert [request.query["timeout_ms"] for request in broker.received(PRODUCE)] == ["9000"]
