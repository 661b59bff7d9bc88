"""A store on disk with a clock that tests move, a cluster on the store, and a store with faults on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import BrokerEpoch, BrokerId, Revision, TimestampUs, TopicId
from fairlead_broker.controller.log_end import LogEnd
from fairlead_broker.controller.term import ControllerTerm
from fairlead_broker.controlling.controllership import Controllership
from fairlead_broker.controlling.operations import ClusterOperations
from fairlead_broker.controlling.topics import TopicAdmin
from fairlead_broker.coordination.bootstrap import ClusterBootstrap
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.membership import Membership
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination, Page
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import Addresses, BrokerRegistration, BrokerState, Directory
from fairlead_broker.registry.store_writes import Compare, Operation, TransactionResult

KEYS = Keys("test")
TTL_SECONDS = 9
CLUSTER_ID = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"


class ManualClock:
    """Clock that only the test moves."""

    def __init__(self) -> None:
        """Start the clock at an arbitrary time."""
        self.seconds = 1000.0

    def now_us(self) -> TimestampUs:
        """Return the wall time in microseconds."""
        return TimestampUs(int(self.seconds * 1_000_000))

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start."""
        return self.seconds


Fault = Callable[[Callable[[], Any]], Any]


class Unreliable:
    """A real client of the store whose answers the test can replace, call by call.

    `faults` maps a method to functions that get the real call, which has not been made yet, and return the answer.
    """

    def __init__(self, inner: Coordination) -> None:
        """Start without faults."""
        self.inner = inner
        self.faults: dict[str, list[Fault]] = {}

    async def list(self, prefix: str, **about: Any) -> Page:
        """List keys, or apply the fault."""
        page: Page = await self._call("list", lambda: self.inner.list(prefix, **about))
        return page

    async def transact(
        self, compares: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()
    ) -> TransactionResult:
        """Run a transaction, or apply the fault."""
        result: TransactionResult = await self._call(
            "transact", lambda: self.inner.transact(compares, success, failure)
        )
        return result

    async def keep_alive(self, lease: Any) -> None:
        """Keep a lease alive, or apply the fault."""
        await self._call("keep_alive", lambda: self.inner.keep_alive(lease))

    def __getattr__(self, name: str) -> Any:
        """Return every other attribute of the real client."""
        return getattr(self.inner, name)

    async def _call(self, name: str, call: Callable[[], Any]) -> Any:
        faults = self.faults.get(name)
        return await (faults.pop(0)(call) if faults else call())


def registration(
    last_broker_epoch: int = 0, directory: str = "d1", rack: str | None = None
) -> BrokerRegistration:
    """Return the registration of a broker with one directory."""
    return BrokerRegistration(
        state=BrokerState.RUNNING,
        addresses=Addresses(data="127.0.0.1:9520", peer="127.0.0.1:9521", ops="127.0.0.1:9522"),
        rack=rack,
        release="0.1.0",
        peer_secret_hash="00",
        directories=(Directory(id=directory, last_broker_epoch=BrokerEpoch(last_broker_epoch)),),
    )


@dataclass
class Life:
    """One incarnation of a broker, from registration to stop, with a running mirror."""

    coordination: Unreliable
    clock: ManualClock
    membership: Membership
    mirror: Mirror
    controllership: Controllership
    admin: TopicAdmin
    operations: ClusterOperations
    ends: dict[int, LogEnd]
    """Log ends that the replicas report to the controller."""
    elections: dict[str, int] = field(default_factory=dict)
    """Number of leaders that this broker has elected, by kind."""
    ids: list[TopicId] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    surveyed_at: list[float] = field(default_factory=list)
    """Times at which this broker, as the controller, requested the log ends."""

    @property
    def term(self) -> ControllerTerm:
        """Term of this broker as the controller."""
        held = self.controllership.term
        assert held is not None, "another broker is the controller"
        return held

    def another_admin(self, prefix: str) -> TopicAdmin:
        """Return a second admin of the same controller, with separate topic ids."""
        return TopicAdmin(
            self.coordination,
            self.mirror,
            lambda: self.controllership.term,
            self.clock,
            self.controllership.load,
            new_topic_id=topic_ids(prefix),
        )


def topic_ids(prefix: str) -> Callable[[], TopicId]:
    """Return a factory of distinct topic ids."""
    count = iter(range(10_000))
    return lambda: TopicId(f"{prefix:0>8}-0000-4000-8000-{next(count):012}")


@asynccontextmanager
async def live(path: Path, clock: ManualClock, last_broker_epoch: int = 0) -> AsyncIterator[Life]:
    """Run broker 1 on a store, and close everything at the end without a graceful stop, as after a crash."""
    store = await EmbeddedCoordination.open(path, clock)
    try:
        async with asyncio.TaskGroup() as tasks:
            life = await join(tasks, store, clock, 1, registration(last_broker_epoch))
            claimed = await ClusterBootstrap(store, KEYS, clock).claim_controller(life.membership)
            assert claimed is not None, "there is no other broker"
            await life.mirror.wait_for(claimed.revision)
            yield life
            for task in life.tasks:
                task.cancel()
    finally:
        await store.close()


async def join(
    tasks: asyncio.TaskGroup,
    store: Coordination,
    clock: ManualClock,
    broker: int,
    registered: BrokerRegistration,
) -> Life:
    """Start an incarnation of a broker that does not claim to be the controller."""
    coordination = Unreliable(store)
    bootstrap = ClusterBootstrap(coordination, KEYS, clock)
    await bootstrap.cluster(CLUSTER_ID)
    membership = await bootstrap.register(BrokerId(broker), registered, TTL_SECONDS)
    mirror = Mirror(coordination, KEYS)
    await mirror.load()
    ends: dict[int, LogEnd] = {}

    surveyed_at: list[float] = []

    async def survey(_: object, brokers: Sequence[BrokerId]) -> dict[BrokerId, LogEnd]:
        surveyed_at.append(clock.monotonic())
        return {each: ends[each] for each in brokers if each in ends}

    elections: dict[str, int] = {}

    def count(kind: str, number: int) -> None:
        elections[kind] = elections.get(kind, 0) + number

    controllership = Controllership(
        coordination, mirror, lambda: membership, clock, survey=survey, count_elections=count
    )
    admin = TopicAdmin(
        coordination,
        mirror,
        lambda: controllership.term,
        clock,
        controllership.load,
        new_topic_id=topic_ids(f"{membership.broker_epoch:x}"),
    )
    operations = ClusterOperations(coordination, mirror, controllership)
    running = tasks.create_task(mirror.run())
    return Life(
        coordination,
        clock,
        membership,
        mirror,
        controllership,
        admin,
        operations,
        ends,
        elections,
        tasks=[running],
        surveyed_at=surveyed_at,
    )


@dataclass
class Cluster:
    """Several brokers in one store, each with a running controllership."""

    tasks: asyncio.TaskGroup
    store: Coordination
    clock: ManualClock
    lives: dict[int, Life] = field(default_factory=dict)

    @property
    def controller(self) -> Life:
        """The broker that is the controller."""
        return next(life for life in self.lives.values() if life.controllership.term is not None)

    @property
    def metadata(self) -> Any:
        """Metadata in the mirror of a broker."""
        return next(iter(self.lives.values())).mirror.metadata

    async def add(
        self, broker: int, *, last_broker_epoch: int = 0, rack: str | None = None, **fields: Any
    ) -> Life:
        """Start an incarnation of a broker and wait until every broker sees it; `fields` change its registration."""
        registered = msgspec.structs.replace(registration(last_broker_epoch, f"d{broker}", rack), **fields)
        life = await join(self.tasks, self.store, self.clock, broker, registered)
        self.lives[broker] = life
        life.tasks.append(self.tasks.create_task(life.controllership.run()))
        await self.until(lambda metadata: BrokerId(broker) in metadata.brokers)
        return life

    async def kill(self, broker: int) -> int:
        """Revoke a broker's lease and cancel its tasks; return the broker epoch."""
        life = self.lives.pop(broker)
        for task in life.tasks:
            task.cancel()
        await asyncio.wait(life.tasks)
        await life.membership.leave()
        return life.membership.broker_epoch

    async def until(self, holds: Callable[[Any], Any]) -> None:
        """Wait until the mirror of every broker satisfies a condition."""
        async with asyncio.timeout(30):
            for life in tuple(self.lives.values()):
                seen = asyncio.Event()
                end = life.mirror.subscribe(lambda _, seen=seen: seen.set())  # type: ignore[misc]
                try:
                    while not holds(life.mirror.metadata):
                        await seen.wait()
                        seen.clear()
                finally:
                    end()

    def close(self) -> None:
        """Cancel every task."""
        for life in self.lives.values():
            for task in life.tasks:
                task.cancel()


class Kit:
    """The helpers of this module, for tests that get them from the fixture `kit` instead of an import."""

    keys = KEYS
    ttl_seconds = TTL_SECONDS
    cluster_id = CLUSTER_ID
    clock = ManualClock
    unreliable = Unreliable
    registration = staticmethod(registration)
    live = staticmethod(live)
    log_end = LogEnd
    topic_ids = staticmethod(topic_ids)
    revision = Revision


@pytest.fixture
def kit() -> type[Kit]:
    """Return the helpers that make brokers and clusters."""
    return Kit


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that only the test moves."""
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the store."""
    return tmp_path / "coordination.sqlite"


@pytest.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[EmbeddedCoordination]:
    """Yield an open store."""
    async with await EmbeddedCoordination.open(path, clock) as opened:
        yield opened


@pytest.fixture
async def life(path: Path, clock: ManualClock) -> AsyncIterator[Life]:
    """Yield a cluster of one broker."""
    async with live(path, clock) as begun:
        yield begun


@pytest.fixture
async def cluster(store: EmbeddedCoordination, clock: ManualClock) -> AsyncIterator[Cluster]:
    """Yield a cluster without brokers."""
    async with asyncio.TaskGroup() as tasks:
        made = Cluster(tasks, store, clock)
        yield made
        made.close()
