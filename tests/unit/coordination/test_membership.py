from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerId
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.membership import Membership, MembershipLost
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.records import BrokerRegistration, BrokerState, decode, encode
from fairlead_broker.registry.store_writes import Delete, Get, KeyValue, Put
from refusals import raises


@pytest.fixture
def unreliable(store: EmbeddedCoordination, kit: Any) -> Any:
    """Return the store, with faults on request."""
    return kit.unreliable(store)


@pytest.fixture
async def membership(unreliable: Any, clock: Any, kit: Any) -> Membership:
    """Return a registered broker."""
    bootstrap = ClusterBootstrap(unreliable, kit.keys, clock)
    return await bootstrap.register(BrokerId(1), kit.registration(), kit.ttl_seconds)


async def standing(store: EmbeddedCoordination, kit: Any) -> KeyValue | None:
    """Read the registration."""
    return (await store.transact((), (Get(kit.keys.broker(BrokerId(1))),))).reads[0]


def drain(registration: BrokerRegistration) -> BrokerRegistration:
    """Return the registration in the state `draining`."""
    return msgspec.structs.replace(registration, state=BrokerState.DRAINING)


def stop(registration: BrokerRegistration) -> BrokerRegistration:
    """Return the registration in the state `stopping`."""
    return msgspec.structs.replace(registration, state=BrokerState.STOPPING)


async def test_a_confirmation_counts_from_its_sending_with_a_margin(
    membership: Membership, clock: Any, kit: Any
) -> None:
    """A keep-alive confirms the registration for three quarters of the lease, counted from the request."""
    clock.seconds += kit.ttl_seconds * 0.74
    before = membership.is_confirmed
    clock.seconds += kit.ttl_seconds * 0.02
    after = membership.is_confirmed
    await membership.keep_alive()

    assert (before, after, membership.is_confirmed) == (True, False, True)


async def test_a_slow_keep_alive_confirms_from_when_it_was_sent(
    membership: Membership, unreliable: Any, clock: Any
) -> None:
    """A slow keep-alive confirms the registration from the time of its request, not from the time of the answer."""
    sent_at = clock.seconds

    async def slowly(call: Any) -> None:
        clock.seconds += 5
        await call()

    unreliable.faults["keep_alive"] = [slowly]
    await membership.keep_alive()

    assert membership.confirmed_at == sent_at


async def test_an_ended_lease_is_the_end_of_this_life(
    membership: Membership, store: EmbeddedCoordination, clock: Any, kit: Any
) -> None:
    """Keep-alives and updates report a lost registration if its lease has ended, and leaving has no effect."""
    clock.seconds += kit.ttl_seconds + 1
    await store.expire_leases()
    with raises(MembershipLost, 1):
        await membership.keep_alive()
    with pytest.raises(MembershipLost):
        await membership.update(drain)
    await membership.leave()

    assert await standing(store, kit) is None


async def test_a_life_that_is_known_to_be_over_confirms_nothing(
    membership: Membership, store: EmbeddedCoordination
) -> None:
    """A registration that is known to be lost is not confirmed, even before the end of its lease."""
    await store.revoke(membership.lease)
    before = membership.is_confirmed
    with pytest.raises(MembershipLost):
        await membership.keep_alive()

    assert before
    assert not membership.is_confirmed


async def test_updates_keep_the_epoch(membership: Membership, store: EmbeddedCoordination, kit: Any) -> None:
    """An update of the registration keeps its create revision and lease."""
    await membership.update(drain)
    revision = await membership.update(stop)
    item = await standing(store, kit)

    assert item is not None
    assert (int(item.create_revision), item.mod_revision) == (membership.broker_epoch, revision)
    assert item.lease_id == membership.lease.lease_id
    assert decode(item.key, item.value, BrokerRegistration).state is BrokerState.STOPPING
    assert membership.registration.state is BrokerState.STOPPING


async def test_an_update_whose_answer_was_lost_can_be_made_again(
    membership: Membership, unreliable: Any, store: EmbeddedCoordination, kit: Any
) -> None:
    """An update after a lost answer is based on the stored registration."""

    async def lose_the_answer(call: Any) -> None:
        await call()
        raise UnknownOutcome("lost")

    unreliable.faults["transact"] = [lose_the_answer]
    with pytest.raises(UnknownOutcome):
        await membership.update(lambda before: msgspec.structs.replace(before, rack="r"))
    await membership.update(drain)
    item = await standing(store, kit)

    assert item is not None
    assert decode(item.key, item.value, BrokerRegistration) == membership.registration
    assert (membership.registration.rack, membership.registration.state) == ("r", BrokerState.DRAINING)


@pytest.mark.parametrize("taken", [True, False])
async def test_a_registration_that_is_not_ours_is_lost(
    membership: Membership, store: EmbeddedCoordination, kit: Any, taken: bool
) -> None:
    """A registration that was deleted or replaced is lost."""
    key = kit.keys.broker(BrokerId(1))
    await store.transact((), (Delete(key),))
    if taken:
        await store.transact((), (Put(key, encode(kit.registration())),))
    with pytest.raises(MembershipLost):
        await membership.update(drain)


async def test_leaving_frees_the_place_at_once(
    membership: Membership, store: EmbeddedCoordination, kit: Any
) -> None:
    """A broker that leaves removes its registration at once."""
    await membership.leave()

    assert await standing(store, kit) is None


async def test_running_keeps_the_lease_alive(store: EmbeddedCoordination, clock: Any, kit: Any) -> None:
    """A registration is renewed three times per lease time.

    A failed keep-alive is retried, and a lost lease raises an error.
    """
    unreliable = kit.unreliable(store)
    membership = await ClusterBootstrap(unreliable, kit.keys, clock).register(
        BrokerId(1), kit.registration(), 1
    )
    sent: list[str] = []
    confirmed = asyncio.Event()

    async def away(_: Any) -> None:
        sent.append("away")
        raise CoordinationUnavailable("away")

    async def through(call: Any) -> None:
        clock.seconds += 0.5
        await call()
        sent.append("confirmed")
        confirmed.set()

    unreliable.faults["keep_alive"] = [away, through]
    running = asyncio.create_task(membership.run())
    async with asyncio.timeout(10):
        await confirmed.wait()
        clock.seconds += 2
        await store.expire_leases()
        with pytest.raises(MembershipLost):
            await running

    assert sent == ["away", "confirmed"]


async def test_a_closed_client_ends_the_run(membership: Membership, unreliable: Any) -> None:
    """Closing the client ends the renewal of the lease."""

    async def closed(_: Any) -> None:
        raise CoordinationClosed("closed")

    membership.lease = type(membership.lease)(membership.lease.lease_id, 1)
    unreliable.faults["keep_alive"] = [closed]
    async with asyncio.timeout(10):
        with pytest.raises(CoordinationClosed):
            await membership.run()
