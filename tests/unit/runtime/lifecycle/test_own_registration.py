from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision
from fairlead_broker.clock import SystemClock
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.membership import Incarnation, Membership, MembershipLost
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationUnavailable
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import (
    Addresses,
    BrokerRegistration,
    BrokerState,
    Directory,
    decode,
)
from fairlead_broker.registry.store_writes import Compare, Delete, Get, KeyValue, Operation, TransactionResult
from fairlead_broker.runtime.lifecycle.own_registration import OwnRegistration

KEYS = Keys("test")
OWN = BrokerId(1)
DIRECTORY = Directory(id="d1", last_broker_epoch=BrokerEpoch(0))
SECONDS_MAX = 20.0
UNKNOWN = BrokerRegistration(
    state=BrokerState.RUNNING,
    addresses=Addresses(data="127.0.0.1:1", peer="127.0.0.1:2", ops="127.0.0.1:3"),
    rack=None,
    release="test",
    peer_secret_hash="00",
    directories=(),
)


class AwayAtTimes:
    """The real store, whose transactions are refused while `away` is set."""

    def __init__(self, inner: EmbeddedCoordination) -> None:
        """Start with an available store."""
        self.inner = inner
        self.away = False
        self.refused = asyncio.Event()

    async def transact(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TransactionResult:
        """Run a transaction, or refuse it."""
        if self.away:
            self.refused.set()
            raise CoordinationUnavailable("away")
        return await self.inner.transact(compares, success, failure)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the store."""
        return getattr(self.inner, name)


class Broker:
    """The registration of one broker, and the contents of its directory."""

    def __init__(self, store: AwayAtTimes, bootstrap: ClusterBootstrap, membership: Membership) -> None:
        """Register the broker without a directory."""
        self.store = store
        self.life = Incarnation(membership)
        self.draining = False
        self.remembered: list[tuple[BrokerEpoch, tuple[Directory, ...]]] = []
        """The incarnations that the directory has stored, each with the directories registered at that time."""
        self.begun = asyncio.Event()
        self.life.subscribe(self.begun.set)
        self.registration = OwnRegistration(
            bootstrap,
            self.life,
            5,
            structlog.wrap_logger(structlog.ReturnLogger(), processors=[]),
            remember=self._remember,
            draining=lambda: self.draining,
        )

    async def _remember(self, membership: Membership) -> None:
        self.remembered.append((membership.broker_epoch, (await self.standing()).directories))

    async def item(self) -> KeyValue | None:
        """Return the value of the broker's key."""
        return (await self.store.inner.transact((), (Get(KEYS.broker(OWN)),))).reads[0]

    async def standing(self) -> BrokerRegistration:
        """Return the registration that other brokers see."""
        item = await self.item()
        assert item is not None, "nothing is registered"
        return decode(item.key, item.value, BrokerRegistration)

    async def becomes(self, holds: Callable[[BrokerRegistration], bool]) -> BrokerRegistration:
        """Wait until the registration satisfies a condition."""
        watch = self.store.inner.watch(KEYS.broker(OWN), Revision(self.life.membership.revision))
        try:
            async with asyncio.timeout(SECONDS_MAX):
                while not (
                    (item := await self.item()) and holds(decode(item.key, item.value, BrokerRegistration))
                ):
                    await anext(aiter(watch))
        finally:
            await watch.cancel()
        return await self.standing()


@contextmanager
def running(*works: Awaitable[None]) -> Iterator[None]:
    """Run tasks that are cancelled at the end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """Yield a broker that has just registered."""
    clock = SystemClock()
    async with await EmbeddedCoordination.open(tmp_path / "store.sqlite", clock) as inner:
        store = AwayAtTimes(inner)
        bootstrap = ClusterBootstrap(store, KEYS, clock)  # type: ignore[arg-type]
        broker = Broker(store, bootstrap, await bootstrap.register(OWN, UNKNOWN, 5))
        with running(broker.registration.keep(), broker.registration.run()):
            yield broker


async def test_the_directory_is_registered_in_the_same_life(broker: Broker) -> None:
    """The directory is registered in the same incarnation, by a second write with the same create revision."""
    await broker.registration.begin(DIRECTORY)
    item = await broker.item()

    assert item is not None
    assert (int(item.create_revision), item.mod_revision) == (
        broker.life.epoch,
        broker.life.membership.revision,
    )
    assert (await broker.standing()).directories == (DIRECTORY,)


@pytest.mark.parametrize("how", ["lease", "key"])
async def test_a_lost_life_is_followed_by_one_that_the_directory_knows_first(
    broker: Broker, how: str
) -> None:
    """A broker that lost its registration registers no directory until the directory stores the new incarnation."""
    await broker.registration.begin(DIRECTORY)
    lost = broker.life.membership
    if how == "lease":
        await broker.store.revoke(lost.lease)
    else:
        await broker.store.transact((), (Delete(KEYS.broker(OWN)),))
    broker.registration.gone(lost.broker_epoch)
    async with asyncio.timeout(SECONDS_MAX):
        await broker.begun.wait()
    registration = await broker.becomes(lambda standing: bool(standing.directories))

    assert broker.life.epoch > lost.broker_epoch
    assert broker.remembered == [(broker.life.epoch, ())]
    assert registration.directories == (Directory(id="d1", last_broker_epoch=lost.broker_epoch),)
    assert registration.intact_since == lost.broker_epoch


async def test_a_removal_that_is_reported_twice_is_one_loss(broker: Broker) -> None:
    """A removed registration counts as lost once, even if a failed update and the mirror both report the removal."""
    await broker.registration.begin(DIRECTORY)
    lost = broker.life.membership
    await broker.store.transact((), (Delete(KEYS.broker(OWN)),))
    reported = asyncio.Event()

    def report_again() -> None:
        broker.registration.gone(lost.broker_epoch)
        reported.set()

    broker.registration.gone(lost.broker_epoch)
    # This callback runs directly after the timeout of the task has expired, and before the task has ended.
    asyncio.get_running_loop().call_soon(report_again)
    async with asyncio.timeout(SECONDS_MAX):
        await reported.wait()
        await broker.begun.wait()

    assert broker.life.epoch > lost.broker_epoch


async def test_a_life_that_is_lost_before_the_directory_knows_it_waits(broker: Broker) -> None:
    """A registration that is lost before its directory is known is replaced once the directory is known."""
    lost = broker.life.membership
    await broker.store.revoke(lost.lease)
    broker.registration.gone(lost.broker_epoch)
    early = list(broker.remembered)
    async with asyncio.timeout(SECONDS_MAX):
        await broker.registration.begin(DIRECTORY)

    assert early == []
    assert [epoch for epoch, _ in broker.remembered] == [broker.life.epoch]
    assert broker.life.epoch > lost.broker_epoch
    assert len((await broker.standing()).directories) == 1


async def test_what_is_wanted_of_the_broker_is_written(broker: Broker) -> None:
    """Draining, its end, a failed disk and a stop are each written to the registration."""
    await broker.registration.begin(DIRECTORY)
    states = []
    for draining in (True, False):
        broker.draining = draining
        broker.registration.look_again()
        wanted = BrokerState.DRAINING if draining else BrokerState.RUNNING
        states.append((await broker.becomes(lambda now, wanted=wanted: now.state is wanted)).state)  # type: ignore[misc]
    broker.registration.directory_failed()
    failed = await broker.becomes(lambda now: not now.directories)
    revision = await broker.registration.stopping()
    stopping = await broker.standing()

    assert states == [BrokerState.DRAINING, BrokerState.RUNNING]
    assert failed.state is BrokerState.RUNNING
    assert (stopping.state, stopping.directories) == (BrokerState.STOPPING, ())
    item = await broker.item()
    assert item is not None
    assert item.mod_revision == revision


async def test_a_disk_that_failed_in_one_life_is_not_registered_in_the_next(broker: Broker) -> None:
    """A failed disk is not registered by the next incarnation of the same process."""
    await broker.registration.begin(DIRECTORY)
    broker.registration.directory_failed()
    await broker.becomes(lambda now: not now.directories)
    lost = broker.life.membership
    await broker.store.revoke(lost.lease)
    broker.registration.gone(lost.broker_epoch)
    async with asyncio.timeout(SECONDS_MAX):
        await broker.begun.wait()
    await broker.registration.stopping()

    assert (await broker.standing()).directories == ()


async def test_a_store_that_is_away_is_tried_again(broker: Broker) -> None:
    """A write to an unavailable store is retried, and its callers wait."""
    broker.store.away = True
    begun = asyncio.ensure_future(broker.registration.begin(DIRECTORY))
    async with asyncio.timeout(SECONDS_MAX):
        await broker.store.refused.wait()
        early = begun.done(), (await broker.standing()).directories
        broker.store.away = False
        await begun

    assert early == (False, ())
    assert (await broker.standing()).directories == (DIRECTORY,)


async def test_a_wait_for_an_ended_task_fails(tmp_path: Path) -> None:
    """A caller that waits for a registration write fails when the writing task has ended."""
    clock = SystemClock()
    inner = await EmbeddedCoordination.open(tmp_path / "store.sqlite", clock)
    bootstrap = ClusterBootstrap(inner, KEYS, clock)
    broker = Broker(AwayAtTimes(inner), bootstrap, await bootstrap.register(OWN, UNKNOWN, 5))
    writing = asyncio.ensure_future(broker.registration.run())
    await inner.close()
    async with asyncio.timeout(SECONDS_MAX):
        with pytest.raises(MembershipLost):
            await broker.registration.begin(DIRECTORY)
        with pytest.raises(CoordinationClosed):
            await writing
