from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from fairlead_api.identifiers import Revision
from fairlead_broker.coordination.protocol import (
    Coordination,
    DeleteEvent,
    LeaseNotFound,
)
from fairlead_broker.registry.store_writes import (
    Delete,
    Put,
    absent,
)


class Bench(Protocol):
    """The method of the conformance bench that these tests need in addition to a client."""

    async def let_pass(self, seconds: float) -> None:
        """Wait until the leases that expire within `seconds` have expired."""
        ...


async def keys(client: Coordination) -> list[str]:
    """List every key of the store."""
    return [item.key for item in (await client.list("/")).items]


async def test_a_key_carries_its_lease(client: Coordination) -> None:
    """Reading a key also returns the key's lease; when the lease ends, the key is deleted."""
    lease = await client.grant_lease(10)
    await client.transact((), (Put("/k", b"", lease.lease_id),))
    [item] = (await client.list("/")).items

    assert item.lease_id == lease.lease_id
    assert lease.ttl_seconds == 10


async def test_a_lease_that_is_not_kept_alive_ends_with_its_keys(
    bench: Bench, client: Coordination, other: Coordination
) -> None:
    """A lease that is not kept alive expires and removes all its keys in one revision, and no other key."""
    lease = await client.grant_lease(3)
    await client.transact(
        (), (Put("/a", b"", lease.lease_id), Put("/b", b"", lease.lease_id), Put("/c", b""))
    )
    last = await client.transact((), (Put("/d", b""),))
    watch = other.watch("/", Revision(last.revision + 1))
    await bench.let_pass(5)
    async with asyncio.timeout(10):
        batch = await anext(watch)

    assert batch.events == (DeleteEvent("/a"), DeleteEvent("/b"))
    assert batch.revision == last.revision + 1
    assert await keys(other) == ["/c", "/d"]


async def test_a_lease_that_is_kept_alive_stays(bench: Bench, client: Coordination) -> None:
    """Each keep-alive restarts the time to live of a lease."""
    lease = await client.grant_lease(3)
    await client.transact((), (Put("/a", b"", lease.lease_id),))
    for _ in range(4):
        await bench.let_pass(2)
        await client.keep_alive(lease)

    assert await keys(client) == ["/a"]


async def test_an_ended_lease_stays_ended(bench: Bench, client: Coordination) -> None:
    """Keep-alive, revoke and put report an expired lease as not found, and the put's transaction is not applied."""
    lease = await client.grant_lease(3)
    await bench.let_pass(5)
    with pytest.raises(LeaseNotFound):
        await client.keep_alive(lease)
    with pytest.raises(LeaseNotFound):
        await client.revoke(lease)
    with pytest.raises(LeaseNotFound) as refusal:
        await client.transact((), (Put("/a", b""), Put("/b", b"", lease.lease_id)))

    assert refusal.value.lease_id == lease.lease_id
    assert await keys(client) == []


async def test_a_dead_lease_in_the_branch_that_does_not_run_does_no_harm(client: Coordination) -> None:
    """An expired or revoked lease causes no error in the branch of a transaction that is not run."""
    lease = await client.grant_lease(3)
    await client.revoke(lease)
    result = await client.transact((absent("/a"),), (Put("/a", b""),), (Put("/b", b"", lease.lease_id),))

    assert result.succeeded


async def test_revoking_removes_the_keys_at_once(client: Coordination, other: Coordination) -> None:
    """When any client revokes a lease by its id, the lease ends and its keys are removed in one revision."""
    lease = await client.grant_lease(60)
    before = await client.transact((), [Put(f"/k/{n:03}", b"", lease.lease_id) for n in range(100)])
    await client.transact((), [Put(f"/l/{n:03}", b"", lease.lease_id) for n in range(100)])
    await other.revoke(lease)
    page = await client.list("/")

    assert page.items == ()
    assert page.revision == before.revision + 2


async def test_revoking_a_lease_without_keys_takes_no_revision(client: Coordination) -> None:
    """A lease without keys is revoked without a new revision."""
    before = await client.transact((), (Put("/k", b""),))
    await client.revoke(await client.grant_lease(60))

    assert (await client.list("/")).revision == before.revision


async def test_a_put_without_a_lease_detaches_the_key(client: Coordination) -> None:
    """A key is deleted with the lease of its last put, if there is one."""
    first, second = await client.grant_lease(60), await client.grant_lease(60)
    for key in ("/a", "/b", "/c"):
        await client.transact((), (Put(key, b"", first.lease_id),))
    await client.transact((), (Put("/b", b""), Put("/c", b"", second.lease_id)))
    await client.revoke(first)
    after_first = await keys(client)
    await client.revoke(second)

    assert after_first == ["/b", "/c"]
    assert await keys(client) == ["/b"]


async def test_a_key_created_again_after_its_deletion_has_no_lease(client: Coordination) -> None:
    """A key that is created again after its deletion has no lease."""
    lease = await client.grant_lease(60)
    await client.transact((), (Put("/a", b"", lease.lease_id),))
    await client.transact((), (Delete("/a"),))
    await client.transact((), (Put("/a", b"again"),))
    await client.revoke(lease)

    assert await keys(client) == ["/a"]


async def test_leases_end_each_at_its_own_time(bench: Bench, client: Coordination) -> None:
    """A shorter lease expires while a longer lease remains."""
    short, long = await client.grant_lease(3), await client.grant_lease(60)
    await client.transact((), (Put("/short", b"", short.lease_id), Put("/long", b"", long.lease_id)))
    await bench.let_pass(5)

    assert await keys(client) == ["/long"]
    await client.keep_alive(long)


async def test_leases_have_different_ids(client: Coordination, other: Coordination) -> None:
    """No two leases have the same id."""
    leases = [await each.grant_lease(60) for each in (client, other) * 3]

    assert len({lease.lease_id for lease in leases}) == 6


async def test_a_lease_outlives_the_client_that_made_it(client: Coordination, other: Coordination) -> None:
    """A lease outlives its client until the lease expires or is revoked."""
    lease = await other.grant_lease(60)
    await other.transact((), (Put("/a", b"", lease.lease_id),))
    await other.close()

    assert await keys(client) == ["/a"]
    await client.keep_alive(lease)
