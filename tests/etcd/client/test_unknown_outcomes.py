"""Tests of transactions whose answer is lost, and of transactions that were certainly not received."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from etcd_cluster import EtcdCluster
from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdPatience
from fairlead_broker.coordination.protocol import CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.store_writes import Get, Put, TransactionResult, absent
from tcp_relay import TcpRelay, tcp_relay

SHORT = EtcdPatience(connect_seconds=1.0, attempt_seconds=1.0, call_seconds=2.0, silence_seconds=1.0)
"""Timeouts that a busy machine does not exceed; a call has time for an attempt at each of two endpoints."""


@pytest.fixture
async def relay(alone: EtcdCluster) -> AsyncIterator[TcpRelay]:
    """Yield a relay in front of the member."""
    async with tcp_relay(alone.members[0].client_port) as running:
        yield running


async def value(cluster: EtcdCluster, key: str) -> bytes | None:
    """Read a key directly, bypassing the relay."""
    [found] = (await cluster.client().transact((), (Get(key),))).reads
    return found.value if found else None


async def applied(cluster: EtcdCluster, key: str) -> None:
    """Wait until a key exists, with a watch that bypasses the relay."""
    async with asyncio.timeout(10):
        await anext(aiter(cluster.client().watch(key, 1)))  # type: ignore[arg-type]


def put(client: EtcdCoordination, key: str) -> asyncio.Task[TransactionResult]:
    """Start the creation of a key."""
    return asyncio.create_task(client.transact((absent(key),), (Put(key, b"1"),)))


async def test_an_answer_cut_off_is_an_unknown_outcome(alone: EtcdCluster, relay: TcpRelay) -> None:
    """A transaction is applied even if its connection breaks before the answer; the client gets an unknown outcome."""
    client = alone.client(relay.url)
    await client.list("/")
    relay.hold_answers()
    writing = put(client, "/k")
    await applied(alone, "/k")
    await relay.cut()
    with pytest.raises(UnknownOutcome):
        await writing

    assert await value(alone, "/k") == b"1"


async def test_an_answer_that_does_not_come_is_an_unknown_outcome(
    alone: EtcdCluster, relay: TcpRelay
) -> None:
    """A transaction without an answer in time has an unknown outcome, and is not sent again."""
    client = alone.client(relay.url, patience=SHORT)
    first = await client.transact((), (Put("/first", b""),))
    relay.hold_answers()
    with pytest.raises(UnknownOutcome):
        await put(client, "/k")
    relay.mend()
    page = await alone.client().list("/")

    assert await value(alone, "/k") == b"1"
    assert page.revision == first.revision + 1, "it was applied once"


async def test_a_request_that_arrives_after_it_was_given_up_is_still_applied(
    alone: EtcdCluster, relay: TcpRelay
) -> None:
    """A request that is delivered after its timeout is applied, so an unchanged key does not prove a failure."""
    client = alone.client(relay.url, patience=SHORT)
    await client.list("/")
    relay.hold_all(until=b"/k")
    writing = put(client, "/k")
    await relay.held.wait()
    relay.orphan()
    with pytest.raises(UnknownOutcome):
        await writing
    before = await value(alone, "/k")
    relay.mend()
    await applied(alone, "/k")

    assert before is None


async def test_a_cut_link_is_not_an_unknown_outcome(alone: EtcdCluster, relay: TcpRelay) -> None:
    """Without a connection, a transaction fails with an error that says it was definitely not sent."""
    client = alone.client(relay.url, patience=SHORT)
    await client.list("/")
    await relay.cut()
    first, second = put(client, "/k"), put(client, "/k")
    outcomes = await asyncio.gather(first, second, return_exceptions=True)
    later = await asyncio.gather(put(client, "/k"), return_exceptions=True)
    await relay.start()

    assert await value(alone, "/k") is None
    assert isinstance(later[0], CoordinationUnavailable), "the client knows by now that it is cut off"
    assert all(isinstance(outcome, CoordinationUnavailable | UnknownOutcome) for outcome in outcomes)
    assert (await put(client, "/k")).succeeded, "the link is mended"


async def test_reads_are_asked_again(alone: EtcdCluster, relay: TcpRelay) -> None:
    """Reads, even in read-only transactions, are sent again and never have an unknown outcome."""
    client = alone.client(relay.url, alone.urls[0], patience=SHORT)
    await client.transact((), (Put("/k", b"1"),))
    relay.hold_answers()
    page = await client.list("/")
    other = alone.client(relay.url, alone.urls[0], patience=SHORT)
    [found] = (await other.transact((), (Get("/k"),))).reads

    assert [item.key for item in page.items] == ["/k"]
    assert found is not None


async def test_a_transaction_is_sent_elsewhere_only_if_it_was_not_sent_before(
    alone: EtcdCluster, relay: TcpRelay
) -> None:
    """A transaction whose answer is lost has an unknown outcome even with a second endpoint; a dead link is skipped."""
    client = alone.client(relay.url, alone.urls[0], patience=SHORT)
    await client.list("/")
    relay.hold_answers()
    with pytest.raises(UnknownOutcome):
        await put(client, "/k")
    await relay.cut()
    fresh = alone.client(relay.url, alone.urls[0], patience=SHORT)

    assert (await put(fresh, "/other")).succeeded
