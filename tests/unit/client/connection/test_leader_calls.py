"""Calls to leaders that do not answer: a call ends early only if another broker leads the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from fairlead import Consumer, Producer, TopicPartition
from fairlead.connection import metadata
from waiting import until

if TYPE_CHECKING:
    from conftest import Received, Reply, ScriptedBroker

PRODUCE = "/v1/produce"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubt leaders after a short time."""
    monkeypatch.setattr(metadata, "DOUBT_SECONDS", 0.05)
    monkeypatch.setattr(metadata, "CHECK_SECONDS", 0.02)


@pytest.fixture
async def other(broker: ScriptedBroker) -> AsyncIterator[ScriptedBroker]:
    """Yield a second broker with the same metadata, in which the first broker leads."""
    async with type(broker)() as other:
        broker.addresses = other.addresses = {1: broker.url, 2: other.url}
        yield other


async def silent(_: Received) -> Reply | None:
    """Never answer."""
    await asyncio.get_running_loop().create_future()
    return None


async def test_a_batch_is_sent_to_the_next_leader_with_the_same_stamp(
    broker: ScriptedBroker, other: ScriptedBroker
) -> None:
    """A batch without an answer is sent to the next leader with its producer id, epoch and sequence.

    The metadata comes from the other broker, because the silent broker answers no call.
    """
    async with Producer([broker.url, other.url], linger_ms=0) as producer:
        await producer.send_and_wait("flights", b"before", partition=1)
        other.leaders = [2, 2]
        broker.script(PRODUCE, silent)
        broker.script("/v1/metadata", *[silent] * 5)
        await producer.send_and_wait("flights", b"after", partition=0)

    assert (broker.values(0), other.values(0)) == ([], [b"after"])
    assert broker.received(PRODUCE)[-1].stamps() == other.received(PRODUCE)[0].stamps()


async def test_a_slow_leader_keeps_its_requests(broker: ScriptedBroker) -> None:
    """A leader that still leads is given all of its time, and the batch is sent once."""
    checked = asyncio.Event()

    async def slow(_: Received) -> Reply | None:
        """Answer after the metadata was checked twice."""
        before = len(broker.received("/v1/metadata"))
        await until(lambda: len(broker.received("/v1/metadata")) >= before + 2)
        checked.set()
        return None

    broker.script(PRODUCE, slow)
    async with Producer(broker.url, linger_ms=0) as producer:
        await producer.send_and_wait("flights", b"one", partition=0)

    assert checked.is_set()
    assert len(broker.received(PRODUCE)) == 1


async def test_a_fetch_moves_to_the_next_leader(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    """A partition whose fetch has no answer is fetched from its next leader."""
    async with Consumer([broker.url, other.url], fetch_wait_max="10ms") as consumer:
        broker.script("/v1/fetch", silent)
        await consumer.assign([TopicPartition("flights", 0)], start=0)
        await until(lambda: bool(broker.received("/v1/fetch")))
        broker.leaders = other.leaders = [2, 2]
        await until(lambda: bool(other.received("/v1/fetch")))

    assert len(broker.received("/v1/fetch")) == 1
