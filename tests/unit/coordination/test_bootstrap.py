from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from fairlead_api.identifiers import BrokerId
from fairlead_api.versions import FEATURE_LEVEL
from fairlead_broker.coordination.bootstrap import BrokerIdHeld, ClusterBootstrap, FeatureLevelTooHigh
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import LeaseNotFound, UnknownOutcome
from fairlead_broker.registry.records import (
    BrokerRegistration,
    ClusterRecord,
    ConfigRecord,
    ControllerEpochRecord,
    ControllerRecord,
    decode,
    encode,
)
from fairlead_broker.registry.store_writes import Get, KeyValue, Put
from refusals import raises

ONE, TWO = BrokerId(1), BrokerId(2)


async def read(store: EmbeddedCoordination, key: str) -> KeyValue | None:
    """Read one key."""
    return (await store.transact((), (Get(key),))).reads[0]


@pytest.fixture
def bootstrap(store: EmbeddedCoordination, clock: Any, kit: Any) -> ClusterBootstrap:
    """Return the bootstrap of the test's cluster."""
    return ClusterBootstrap(store, kit.keys, clock)


async def test_the_cluster_is_made_once(bootstrap: ClusterBootstrap, clock: Any) -> None:
    """A cluster is created once: concurrent brokers all get the same record."""
    records = await asyncio.gather(*(bootstrap.cluster(f"id-{n}") for n in range(20)))
    again = await bootstrap.cluster("another")

    assert {record.cluster_id for record in records} == {again.cluster_id}
    assert again.cluster_id.startswith("id-")
    assert (again.feature_level, again.created_us) == (FEATURE_LEVEL, clock.now_us())


async def test_the_first_broker_stores_its_mode(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any
) -> None:
    """Only the broker that creates the cluster stores a configuration, in the same transaction (rule Z1)."""
    modes = [{"security.mode": mode} for mode in ("enforce", "observe")]
    records = [await bootstrap.cluster(f"id-{number}", mode) for number, mode in enumerate(modes)]
    stored = await read(store, kit.keys.cluster_config)

    assert [record.cluster_id for record in records] == ["id-0", "id-0"]
    assert stored is not None
    assert decode(stored.key, stored.value, ConfigRecord).values == modes[0]


async def test_a_cluster_with_a_configuration_keeps_it(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any
) -> None:
    """A configuration without a cluster, as after a partial restore, is not replaced."""
    kept = encode(ConfigRecord(values={"security.mode": "observe"}))
    await store.transact((), (Put(kit.keys.cluster_config, kept),))
    record = await bootstrap.cluster("x", {"security.mode": "enforce"})
    stored = await read(store, kit.keys.cluster_config)

    assert record.cluster_id == "x"
    assert stored is not None
    assert stored.value == kept


async def test_a_cluster_beyond_this_release_is_refused(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any, clock: Any
) -> None:
    """A cluster with a higher feature level than the release supports is refused, and the refusal names both levels."""
    record = ClusterRecord(cluster_id="x", feature_level=FEATURE_LEVEL + 1, created_us=clock.now_us())
    await store.transact((), (Put(kit.keys.cluster, encode(record)),))
    with raises(FeatureLevelTooHigh, FEATURE_LEVEL + 1, FEATURE_LEVEL):
        await bootstrap.cluster("x")


async def test_the_broker_epoch_is_the_create_revision(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any, clock: Any
) -> None:
    """The broker epoch is the create revision of the registration, which has the broker's lease."""
    membership = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    item = await read(store, kit.keys.broker(ONE))

    assert item is not None
    assert (int(item.create_revision), item.lease_id) == (membership.broker_epoch, membership.lease.lease_id)
    assert decode(item.key, item.value, BrokerRegistration) == kit.registration() == membership.registration
    assert membership.confirmed_at == clock.monotonic()
    assert membership.is_confirmed


async def test_an_id_in_use_is_waited_for_and_then_refused(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any
) -> None:
    """A broker whose id is in use waits, and is then refused with the address of the broker that uses the id.

    The running broker's registration stays unchanged.
    """
    holder = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    with (
        capture_logs() as said,
        raises(BrokerIdHeld, 1, "127.0.0.1:9520") as refusal,
    ):
        await bootstrap.register(ONE, kit.registration(directory="d2"), kit.ttl_seconds, wait_seconds=0.05)
    item = await read(store, kit.keys.broker(ONE))
    await holder.keep_alive()

    assert refusal.value.holder == kit.registration()
    assert [line["holder"] for line in said] == ["127.0.0.1:9520"]
    assert item is not None
    assert int(item.create_revision) == holder.broker_epoch
    assert len(store._store.leases._held) == 1


async def test_a_start_goes_on_when_the_former_life_is_gone(bootstrap: ClusterBootstrap, kit: Any) -> None:
    """A waiting registration succeeds with a higher epoch when the previous incarnation has ended."""
    former = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    other = await bootstrap.register(BrokerId(10), kit.registration(), kit.ttl_seconds)
    waiting = asyncio.create_task(bootstrap.register(ONE, kit.registration(), kit.ttl_seconds))
    # A change to a broker whose id has the same first digit does not end the wait.
    await other.update(lambda before: before)
    await other.leave()
    await former.leave()
    async with asyncio.timeout(10):
        membership = await waiting

    assert membership.broker_epoch > former.broker_epoch


@pytest.mark.parametrize("told_seconds", [None, 30])
async def test_the_lease_of_the_holder_says_how_long_to_wait(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any, told_seconds: int | None
) -> None:
    """A registration waits for the lease time of the holder, or by default for the broker's own lease time."""
    held = msgspec.structs.replace(kit.registration(), lease_seconds=told_seconds)
    former = await bootstrap.register(ONE, held, told_seconds or kit.ttl_seconds)
    with capture_logs() as said:
        waiting = asyncio.create_task(bootstrap.register(ONE, kit.registration(), kit.ttl_seconds))
        async with asyncio.timeout(30):
            while not said:
                await store.list("/")
            await former.leave()
            await waiting

    assert [line["seconds_max"] for line in said] == [2 * (told_seconds or kit.ttl_seconds) + 5]


async def test_registration_waits_for_a_lease_to_run_out(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any, clock: Any
) -> None:
    """A registration waits for the lease of an incarnation that ended without leaving."""
    former = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    waiting = asyncio.create_task(bootstrap.register(ONE, kit.registration(), kit.ttl_seconds))
    await store.list("/")
    clock.seconds += kit.ttl_seconds + 1
    await store.expire_leases()
    async with asyncio.timeout(10):
        membership = await waiting

    assert membership.broker_epoch > former.broker_epoch


@pytest.mark.parametrize("applied", [True, False])
async def test_an_unknown_outcome_leaves_no_registration(
    store: EmbeddedCoordination, kit: Any, clock: Any, applied: bool
) -> None:
    """A registration with an unknown outcome revokes its lease, so that a late put is refused."""
    unreliable = kit.unreliable(store)
    held_back = []

    async def lose_the_answer(call: Any) -> Any:
        held_back.append(call)
        if applied:
            await call()
        raise UnknownOutcome("lost")

    unreliable.faults["transact"] = [lose_the_answer]
    bootstrap = ClusterBootstrap(unreliable, kit.keys, clock)
    with pytest.raises(UnknownOutcome):
        await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    if not applied:
        with pytest.raises(LeaseNotFound):
            await held_back[0]()
    left = await read(store, kit.keys.broker(ONE))
    membership = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds, wait_seconds=0)

    assert left is None
    assert membership.broker_epoch


async def test_a_lease_that_expired_on_the_way_is_replaced(
    store: EmbeddedCoordination, kit: Any, clock: Any
) -> None:
    """A registration whose lease expires before its write arrives is retried with a new lease."""
    unreliable = kit.unreliable(store)

    async def slowly(call: Any) -> Any:
        clock.seconds += kit.ttl_seconds + 1
        await store.expire_leases()
        return await call()

    unreliable.faults["transact"] = [slowly]
    bootstrap = ClusterBootstrap(unreliable, kit.keys, clock)
    membership = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    await membership.keep_alive()

    assert len(store._store.leases._held) == 1


async def test_one_broker_is_controller(
    store: EmbeddedCoordination, bootstrap: ClusterBootstrap, kit: Any
) -> None:
    """One broker at a time is the controller.

    A controller's term ends with its lease, and each term has a higher epoch.
    """
    first = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    second = await bootstrap.register(TWO, kit.registration(), kit.ttl_seconds)
    term = await bootstrap.claim_controller(first)
    refused = await bootstrap.claim_controller(second)
    item = await read(store, kit.keys.controller)
    await first.leave()
    next_term = await bootstrap.claim_controller(second)
    epoch = await read(store, kit.keys.controller_epoch)

    assert term is not None
    assert refused is None
    assert item is not None
    assert item.create_revision == term.revision
    assert decode(item.key, item.value, ControllerRecord).broker_epoch == first.broker_epoch
    assert next_term is not None
    assert next_term.revision > term.revision
    assert epoch is not None
    assert decode(epoch.key, epoch.value, ControllerEpochRecord).epoch == 2
    assert epoch.lease_id is None


async def test_a_life_that_is_over_does_not_become_controller(bootstrap: ClusterBootstrap, kit: Any) -> None:
    """A broker whose registration has ended cannot become the controller."""
    membership = await bootstrap.register(ONE, kit.registration(), kit.ttl_seconds)
    await membership.leave()

    assert await bootstrap.claim_controller(membership) is None
