"""Tests of leases that expire early or late, or are kept alive through members that do not answer."""

from __future__ import annotations

import asyncio
from typing import NoReturn

import pytest

from etcd_cluster import QUICK, EtcdCluster
from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.etcd import EtcdPatience
from fairlead_broker.coordination.protocol import (
    Coordination,
    CoordinationUnavailable,
    DeleteEvent,
    Lease,
    LeaseNotFound,
)
from fairlead_broker.registry.store_writes import Put
from tcp_relay import tcp_relay


async def keep_alive_always(client: Coordination, lease: Lease) -> NoReturn:
    """Keep a lease alive until a keep-alive fails."""
    while True:
        await client.keep_alive(lease)


async def test_a_lease_that_ends_early_is_reported(alone: EtcdCluster) -> None:
    """A lease that an operator revokes early loses its keys, and the next keep-alive reports the loss."""
    client = alone.client()
    lease = await client.grant_lease(60)
    put = await client.transact((), (Put("/k", b"", lease.lease_id),))
    watch = client.watch("/k", Revision(put.revision + 1))
    await client.keep_alive(lease)
    await alone.etcdctl("lease", "revoke", f"{lease.lease_id:x}")
    async with asyncio.timeout(10):
        batch = await anext(watch)
    with pytest.raises(LeaseNotFound) as refusal:
        await client.keep_alive(lease)

    assert batch.events == (DeleteEvent("/k"),)
    assert refusal.value.lease_id == lease.lease_id


@pytest.mark.scenario
async def test_a_lease_may_end_late(three: EtcdCluster) -> None:
    """A new leader restarts every lease, so a key may outlive its time to live, but is removed eventually."""
    loop = asyncio.get_running_loop()
    client = three.client()
    lease = await client.grant_lease(5)
    put = await client.transact((), (Put("/k", b"", lease.lease_id),))
    granted_at = loop.time()
    watch = client.watch("/k", Revision(put.revision + 1))
    (await three.leader()).kill()
    async with asyncio.timeout(60):
        batch = await anext(watch)

    assert batch.events == (DeleteEvent("/k"),)
    assert loop.time() - granted_at > 5


async def test_a_lease_is_kept_alive_through_members_that_fail(three: EtcdCluster) -> None:
    """A paused and a killed member each delay the keep-alive by one attempt, and the lease does not expire."""
    client = three.client()
    lease = await client.grant_lease(6)
    await client.transact((), (Put("/k", b"", lease.lease_id),))
    await client.keep_alive(lease)
    leader = await three.leader()
    followers = [member for member in three.members if member is not leader]
    followers[0].pause()
    await client.keep_alive(lease)
    followers[0].resume()
    followers[1].kill()
    await client.keep_alive(lease)

    assert [item.lease_id for item in (await client.list("/k")).items] == [lease.lease_id]


async def test_keep_alives_of_many_leases_do_not_mix(alone: EtcdCluster) -> None:
    """All keep-alives use one stream, and each caller gets the answer for its own lease."""
    client = alone.client()
    leases = [await client.grant_lease(30) for _ in range(20)]
    for lease in leases[::2]:
        await client.revoke(lease)
    outcomes = await asyncio.gather(*(client.keep_alive(lease) for lease in leases), return_exceptions=True)

    assert [isinstance(outcome, LeaseNotFound) for outcome in outcomes] == [True, False] * 10
    assert outcomes[1::2] == [None] * 10


async def test_a_late_answer_is_not_taken_for_one_to_a_later_request(alone: EtcdCluster) -> None:
    """A late answer to a keep-alive is not mistaken for the answer to a later keep-alive, whose lease may be gone."""
    patience = EtcdPatience(connect_seconds=1.5, attempt_seconds=1.5, call_seconds=1.8, silence_seconds=5.0)
    async with tcp_relay(alone.members[0].client_port) as relay:
        client = alone.client(relay.url, patience=patience)
        lease = await client.grant_lease(30)
        await client.keep_alive(lease)
        relay.hold_answers()
        with pytest.raises(CoordinationUnavailable):
            await client.keep_alive(lease)
        await alone.client().revoke(lease)
        relay.mend()
        with pytest.raises(LeaseNotFound):
            await client.keep_alive(lease)


async def test_a_caller_that_gives_up_does_not_confuse_the_next_one(alone: EtcdCluster) -> None:
    """After a keep-alive is cancelled at any moment, later keep-alives get their own answers."""
    client = alone.client()
    first, second = await client.grant_lease(30), await client.grant_lease(30)
    await client.revoke(second)
    for n in range(50):
        given_up = asyncio.create_task(client.keep_alive(first))
        for _ in range(n % 7):
            await asyncio.sleep(0)  # noqa: TID251 - yields to the loop, does not wait
        given_up.cancel()
        with pytest.raises(LeaseNotFound):
            await client.keep_alive(second)
        await asyncio.wait([given_up])
        await client.keep_alive(first)


async def test_a_transaction_names_the_lease_that_is_gone(alone: EtcdCluster) -> None:
    """The refusal of a transaction with several leases names the expired lease."""
    client = alone.client()
    leases = [await client.grant_lease(30) for _ in range(3)]
    gone = sorted(leases, key=lambda lease: lease.lease_id)[1]
    await client.revoke(gone)
    with pytest.raises(LeaseNotFound) as refusal:
        await client.transact((), [Put(f"/{lease.lease_id}", b"", lease.lease_id) for lease in leases])

    assert refusal.value.lease_id == gone.lease_id
    assert (await client.list("/")).items == ()


async def test_without_a_quorum_nothing_is_confirmed(three: EtcdCluster) -> None:
    """A member without a leader confirms no lease, and keep-alives fail in time."""
    client = three.client()
    lease = await client.grant_lease(4)
    await client.keep_alive(lease)
    for member in three.members[1:]:
        member.kill()
    async with asyncio.timeout(2 * QUICK.call_seconds):
        # The first keep-alive may still be answered while the remaining member still acts as the leader.
        with pytest.raises(CoordinationUnavailable):
            await keep_alive_always(client, lease)
