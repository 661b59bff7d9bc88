"""Tests of watches whose members die, pause or compact: each revision is delivered once, or its loss is reported."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from etcd_cluster import QUICK, EtcdCluster
from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.etcd import EtcdCoordination, progress
from fairlead_broker.coordination.protocol import (
    Compacted,
    Coordination,
    CoordinationUnavailable,
    PutEvent,
    UnknownOutcome,
    Watch,
    WatchBatch,
)
from fairlead_broker.registry.store_writes import Put
from refusals import raises
from tcp_relay import TcpRelay, tcp_relay


@pytest.fixture
async def relay(alone: EtcdCluster) -> AsyncIterator[TcpRelay]:
    """Yield a relay in front of the member."""
    async with tcp_relay(alone.members[0].client_port) as running:
        yield running


async def take(watch: Watch, count: int, seconds: float = 20.0) -> list[WatchBatch]:
    """Wait for the given number of batches."""
    async with asyncio.timeout(seconds):
        return [await anext(watch) for _ in range(count)]


async def put(client: Coordination, value: object) -> Revision:
    """Write one key; return the revision."""
    return (await client.transact((), (Put("/k", str(value).encode()),))).revision


async def put_surely(client: Coordination, value: object) -> None:
    """Write one key at least once."""
    while True:
        try:
            await put(client, value)
        except (CoordinationUnavailable, UnknownOutcome):
            continue
        return


async def follow_until(watch: Watch, value: bytes) -> list[Revision]:
    """Collect the revisions of a watch up to the revision that writes this value."""
    revisions = []
    async for batch in watch:
        revisions.append(batch.revision)
        if any(isinstance(event, PutEvent) and event.item.value == value for event in batch.events):
            break
    return revisions


@pytest.mark.scenario
async def test_a_watch_outlives_the_members_it_runs_on(three: EtcdCluster) -> None:
    """While the members die one after another, every revision is delivered once."""
    watch = three.client().watch("/k", Revision(1))
    following = asyncio.create_task(follow_until(watch, b"end"))
    writer = three.client()
    for member in three.members:
        for n in range(10):
            await put_surely(writer, n)
        member.kill()
        for n in range(10):
            await put_surely(writer, n)
        member.start()
        await three.wait_until_ready((member,))
    await put_surely(writer, "end")
    async with asyncio.timeout(30):
        revisions = await following

    assert revisions == list(range(2, 2 + len(revisions)))
    assert len(revisions) >= 61


async def test_a_watch_leaves_a_paused_member(three: EtcdCluster) -> None:
    """A watch moves from a silent member, whose connection stays open, to another member."""
    leader = await three.leader()
    follower = next(member for member in three.members if member is not leader)
    client = three.client(follower.url, leader.url)
    first = await put(client, 1)
    watch = client.watch("/k", first)
    await take(watch, 1)
    follower.pause()
    second = await put(three.client(leader.url), 2)
    batches = await take(watch, 1)
    follower.resume()

    assert [batch.revision for batch in batches] == [second]


@pytest.mark.scenario
async def test_a_watch_without_a_quorum_ends_and_says_why(three: EtcdCluster) -> None:
    """A watch moves away from a member without a leader, and ends with the reason if no member has a leader."""
    client = three.client(patience=replace(QUICK, call_seconds=2.0))
    watch = client.watch("/k", Revision(1))
    await put(client, 1)
    await take(watch, 1)
    survivor, *others = three.members
    for member in others:
        member.kill()
    with raises(CoordinationUnavailable, survivor.url):
        await take(watch, 1)


async def test_a_link_that_breaks_again_and_again_leaves_no_gap(alone: EtcdCluster, relay: TcpRelay) -> None:
    """A watch that is cut at any moment, even within an answer, resumes at the next revision."""
    watch = alone.client(relay.url).watch("/k", Revision(1))
    following = asyncio.create_task(follow_until(watch, b"end"))
    writer = alone.client()
    for _ in range(10):
        for n in range(20):
            await writer.transact((), (Put("/k", str(n).encode()), Put(f"/k/{n}", bytes(20_000))))
        await relay.cut()
        await relay.start()
    await put(writer, "end")
    async with asyncio.timeout(30):
        revisions = await following

    assert revisions == list(range(2, 203))


async def test_a_frozen_link_is_left(alone: EtcdCluster, relay: TcpRelay) -> None:
    """A request for progress distinguishes a frozen connection from a quiet one."""
    watch = alone.client(relay.url, alone.urls[0]).watch("/k", Revision(1))
    await put(alone.client(), 1)
    await take(watch, 1)
    relay.hold_all()
    second = await put(alone.client(), 2)
    batches = await take(watch, 1)

    assert [batch.revision for batch in batches] == [second]


async def test_a_quiet_watch_is_left_alone(alone: EtcdCluster) -> None:
    """Automatic requests for progress neither end the watch nor reach its reader."""
    patience = replace(QUICK, silence_seconds=0.1)
    client = alone.client(patience=patience)
    first = await put(client, 1)
    watch = client.watch("/k", Revision(first + 1))
    with pytest.raises(TimeoutError):
        await take(watch, 1, seconds=1.0)
    second = await put(client, 2)

    assert [batch.revision for batch in await take(watch, 1)] == [second]


async def test_what_is_compacted_while_a_watch_is_cut_off_ends_it(
    alone: EtcdCluster, relay: TcpRelay
) -> None:
    """A watch ends if its next events were compacted while its link was cut.

    After the end of the watch, the caller continues with a list and a new watch.
    """
    client = alone.client(relay.url)
    watch = client.watch("/k", Revision(1))
    writer = alone.client()
    first = await put(writer, 1)
    seen = await take(watch, 1)
    await relay.cut()
    last = [await put(writer, n) for n in range(5)][-1]
    await writer.compact(last)
    await relay.start()
    with pytest.raises(Compacted) as ended:
        await take(watch, 1)
    with pytest.raises(Compacted):
        await take(watch, 1)
    page = await client.list("/k")
    further = await put(writer, "further")
    batches = await take(client.watch("/k", Revision(page.revision + 1)), 1)

    assert [batch.revision for batch in seen] == [first]
    assert ended.value.revision == last
    assert [batch.revision for batch in batches] == [further]


@pytest.mark.parametrize("behind", [0, 1])
async def test_compaction_up_to_the_next_revision_loses_nothing(
    alone: EtcdCluster, relay: TcpRelay, behind: int
) -> None:
    """Compaction of delivered revisions leaves the next revision readable."""
    client = alone.client(relay.url)
    watch = client.watch("/k", Revision(1))
    writer = alone.client()
    first = await put(writer, 1)
    await take(watch, 1)
    await relay.cut()
    second = await put(writer, 2)
    third = await put(writer, 3)
    await writer.compact(Revision(second - behind))
    await relay.start()
    batches = await take(watch, 2)

    assert first == second - 1
    assert [batch.revision for batch in batches] == [second, third]


async def test_a_slow_reader_fills_no_memory_and_misses_nothing(alone: EtcdCluster) -> None:
    """The stream is paused when the buffer is full, and every event is delivered later."""
    client = alone.client()
    watch = client.watch("/k", Revision(1))
    written = [await put(client, n) for n in range(1_000)]
    buffered = len(watch._buffer)
    batches = await take(watch, 1_000)

    assert buffered < 1_000
    assert [batch.revision for batch in batches] == written


async def test_progress_right_after_a_list(alone: EtcdCluster) -> None:
    """A watch from the revision after a list reports progress even if there are no events."""
    client: EtcdCoordination = alone.client()
    await put(client, 1)
    page = await client.list("/")
    watch = client.watch("/", Revision(page.revision + 1))
    for _ in range(3):
        await watch.request_progress()

        assert await take(watch, 1) == [WatchBatch(page.revision, ())]


async def test_progress_is_not_older_than_its_request(
    alone: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to an automatic request for progress is not mistaken for the answer to the reader's request."""
    # etcd starts the delivery of past events to a watch every 100 ms. The silence limit grows above 100 ms, even if it
    # was shorter at first.
    monkeypatch.setattr(progress, "SILENCES_MAX", 128)
    client = alone.client(patience=replace(QUICK, silence_seconds=0.002))
    await put(client, 0)
    watch = client.watch("/elsewhere", Revision(1))
    for n in range(50):
        revision = await put(client, n)
        await watch.request_progress()
        [batch] = await take(watch, 1)

        assert batch.revision >= revision
