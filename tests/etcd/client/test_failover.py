"""Tests of a client with several endpoints whose members are dead, paused or without a leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from etcd_cluster import QUICK, EtcdCluster, free_ports
from fairlead_broker.coordination.etcd import EtcdCoordination, EtcdOptions, connect
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationClosed,
    CoordinationUnavailable,
    UnknownOutcome,
)
from fairlead_broker.registry.store_writes import Get, KeyValue, Put, unchanged_since
from refusals import raises


async def read(client: Coordination, key: str) -> KeyValue | None:
    """Read the current value of one key."""
    return (await client.transact((), (Get(key),))).reads[0]


async def count(client: Coordination, key: str, times: int) -> tuple[int, int]:
    """Increment a number by compare-and-set; return how many increments are certain and how many are unknown."""
    certain = unknown = 0
    while certain + unknown < times:
        seen = await read(client, key)
        value = int(seen.value) if seen else 0
        guard = unchanged_since(key, seen.mod_revision if seen else 0)
        try:
            result = await client.transact((guard,), (Put(key, str(value + 1).encode()),))
        except UnknownOutcome:
            unknown += 1
        else:
            certain += result.succeeded
    return certain, unknown


async def test_a_dead_endpoint_is_passed_over(alone: EtcdCluster) -> None:
    """A client works with one live member among its endpoints."""
    dead = f"http://127.0.0.1:{next(free_ports())}"
    async with await connect(alone.options(urls=(dead, alone.urls[0]))) as client:
        written = await client.transact((), (Put("/k", b"1"),))

        assert (await client.list("/")).revision == written.revision


async def test_error_without_a_reachable_member_names_every_reason() -> None:
    """A client that reaches no member gets an error that names each endpoint with its reason."""
    ports = free_ports()
    urls = tuple(f"http://127.0.0.1:{next(ports)}" for _ in range(2))
    with pytest.raises(CoordinationUnavailable) as refusal:
        await connect(EtcdOptions(urls, patience=QUICK))

    for url in urls:
        assert f"{url}: " in str(refusal.value)
    assert "onnection refused" in str(refusal.value)


async def test_an_unsent_transaction_has_a_known_outcome(alone: EtcdCluster) -> None:
    """A transaction that was not sent has a known outcome, and the same client works when the member returns."""
    client = alone.client(patience=replace(QUICK, call_seconds=2.0))
    await client.transact((), (Put("/k", b"1"),))
    alone.members[0].kill()
    with pytest.raises(CoordinationUnavailable):
        await client.list("/")
    with pytest.raises(CoordinationUnavailable):
        await client.transact((), (Put("/k", b"2"),))
    alone.members[0].start()
    await alone.wait_until_ready()
    seen = await read(client, "/k")

    assert seen is not None
    assert seen.value == b"1"


async def test_calls_go_on_while_members_die_one_after_the_other(three: EtcdCluster) -> None:
    """While the member in use is killed repeatedly, no certain increment is lost and none is applied twice."""
    client = three.client()
    certain = unknown = 0
    for member in three.members:
        more_certain, more_unknown = await count(client, "/n", 20)
        member.kill()
        further_certain, further_unknown = await count(client, "/n", 20)
        member.start()
        await three.wait_until_ready((member,))
        certain += more_certain + further_certain
        unknown += more_unknown + further_unknown
    total = await read(client, "/n")

    assert total is not None
    assert certain <= int(total.value) <= certain + unknown
    assert unknown <= 3, "a kill costs at most the one transaction that was on its way"


async def test_a_paused_member_is_left(three: EtcdCluster) -> None:
    """A paused member accepts connections and does not answer; reads use another member after one attempt."""
    leader = await three.leader()
    paused, other = (member for member in three.members if member is not leader)
    urls = (paused.url, other.url, leader.url)
    client = three.client(*urls)
    await client.list("/")
    paused.pause()
    async with asyncio.timeout(QUICK.call_seconds):
        page = await client.list("/")
    fresh = three.client(*urls)
    async with asyncio.timeout(QUICK.call_seconds):
        await fresh.transact((), (Put("/k", b""),))
    paused.resume()

    assert page.items == ()


async def test_a_change_of_leader_costs_one_answer_at_most(three: EtcdCluster) -> None:
    """A leader that hands over its leadership drops forwarded requests, so at most one answer is lost."""
    client = three.client()
    counting = asyncio.create_task(count(client, "/n", 200))
    for _ in range(2):
        leader = await three.leader()
        other = next(member for member in three.members if member is not leader)
        statuses = await three.etcdctl("member", "list", "--write-out=simple")
        other_id = next(line.split(",")[0] for line in statuses.splitlines() if other.name in line)
        await three.etcdctl("move-leader", other_id)
    certain, unknown = await counting
    total = await read(client, "/n")

    assert total is not None
    assert certain <= int(total.value) <= certain + unknown == 200
    assert unknown <= 2, "the leader was moved twice"


async def test_without_a_quorum_calls_fail_in_time_and_recover(three: EtcdCluster) -> None:
    """Without a quorum, reads are unavailable and transactions unavailable or unknown, and no call hangs.

    Once the quorum is back, all calls work.
    """
    patience = replace(QUICK, call_seconds=3.0)
    client = three.client(patience=patience)
    await client.transact((), (Put("/k", b"0"),))
    survivor, *others = three.members
    for member in others:
        member.kill()
    async with asyncio.timeout(2 * patience.call_seconds):
        with pytest.raises((CoordinationUnavailable, UnknownOutcome)):
            await client.transact((), (Put("/k", b"1"),))
    async with asyncio.timeout(2 * patience.call_seconds):
        with raises(CoordinationUnavailable, survivor.url):
            await client.list("/")
    for member in others:
        member.start()
    await three.wait_until_ready()
    await client.transact((), (Put("/k", b"2"),))
    seen = await read(client, "/k")

    assert seen is not None
    assert seen.value == b"2"


async def test_many_calls_at_once_share_one_attempt_to_connect(alone: EtcdCluster) -> None:
    """Many tasks that use a client from its start share one attempt to connect, and all get answers."""
    client = alone.client()
    results = await asyncio.gather(*(client.transact((), (Put(f"/k/{n}", b""),)) for n in range(100)))

    assert len({result.revision for result in results}) == 100


async def test_calls_on_their_way_end_with_the_client(alone: EtcdCluster) -> None:
    """Closing a client ends all its calls: reads are refused, and transactions have an unknown outcome."""
    client: EtcdCoordination = alone.client()
    await client.list("/")
    alone.members[0].pause()
    reading = asyncio.create_task(client.list("/"))
    writing = asyncio.create_task(client.transact((), (Put("/k", b""),)))
    await asyncio.wait([reading, writing], timeout=0.2)
    await client.close()
    async with asyncio.timeout(5):
        outcomes = await asyncio.gather(reading, writing, return_exceptions=True)
    alone.members[0].resume()

    assert [type(outcome) for outcome in outcomes] == [CoordinationClosed, UnknownOutcome]
