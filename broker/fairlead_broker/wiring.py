"""The composition root: which real thing stands behind each port, and in which order a broker starts and stops.

Called by the commands and by tests that want a whole broker. Decides nothing; everything it builds is handed in.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fairlead_broker.clock import Clock, SystemClock
from fairlead_broker.controlling.moving import CoordinationMove, Moved, MoveRefused
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log.segments.storage import Storage
from fairlead_broker.ports import ListenerAddresses
from fairlead_broker.registry.keys import Keys
from fairlead_broker.runtime import BrokerRuntime
from fairlead_broker.runtime.lifecycle.coordination_access import open_coordination, store_path
from fairlead_broker.server.listeners import Listeners
from fairlead_broker.settings import BrokerSettings, Endpoint
from fairlead_broker.telemetry import Log, Telemetry

READERS_SECONDS_MIN = 1.0
"""What a stop gives to answers on their way even when the rest took all of its time."""


class RunningBroker:
    """A broker that serves until it is stopped."""

    def __init__(
        self,
        runtime: BrokerRuntime,
        listeners: Listeners,
        clock: Clock,
        log: Log,
        answer_seconds_max: float,
    ) -> None:
        """`answer_seconds_max`: what a stop gives to everything that waits for an answer."""
        self.runtime = runtime
        self._listeners = listeners
        self._clock = clock
        self._log = log
        self._answer_seconds_max = answer_seconds_max

    @property
    def brokers(self) -> tuple[RunningBroker, ...]:
        """This one alone; see `LocalCluster`."""
        return (self,)

    @property
    def addresses(self) -> ListenerAddresses:
        """Where its listeners are bound."""
        return self._listeners.addresses

    async def wait_failed(self) -> BaseException:
        """Wait for the failure that nobody expected and answer it; the program has to end then."""
        return await self.runtime.failure

    async def stop(self) -> None:
        """Answer what waits, close the listeners, sync, leave: below ten seconds in all."""
        self._log.info("broker is stopping")
        begun = self._clock.monotonic()
        await self.runtime.announce_stop()
        end = self._clock.monotonic() + self._answer_seconds_max
        self._listeners.end_waits()
        await self.runtime.stop_answering()
        # Everything has its answer; what is left are readers that take theirs slowly.
        await self._listeners.stop(max(READERS_SECONDS_MIN, end - self._clock.monotonic()))
        await self.runtime.stop()
        self._log.info("broker has stopped", seconds=round(self._clock.monotonic() - begun, 3))


async def start_broker(
    settings: BrokerSettings,
    *,
    clock: Clock | None = None,
    log: Log | None = None,
    storage: Storage | None = None,
    coordination: Coordination | None = None,
) -> RunningBroker:
    """Start a broker and return once it serves. `storage` stands for the disk of its logs.

    `coordination`: a client of a store that several brokers of this process share, closed with the broker.

    The ops listener answers before recovery, so that a long one can be watched; the data listener only after it.
    Raises OSError when an address is taken, LogError and CoordinationError when directory or cluster refuse.
    """
    clock = clock or SystemClock()
    telemetry = Telemetry(log)
    warn_if_open(settings, telemetry.log)
    warn_if_unreachable(settings, telemetry.log)
    runtime = BrokerRuntime(
        settings,
        telemetry,
        clock,
        release=release(),
        new_id=_new_id,
        storage=storage,
        coordination=coordination,
    )
    listeners = Listeners(runtime, settings.listeners, telemetry, clock)
    try:
        listeners.bind()
        bound = listeners.addresses
        runtime.set_advertised(
            data=_advertised(settings.advertise, bound.data),
            peer=_advertised(settings.peer_advertise, bound.peer),
            ops=bound.ops,
        )
        await listeners.start_ops()
        await runtime.start()
        await listeners.start_data()
        await listeners.start_peer()
    except BaseException:
        await listeners.stop()
        await runtime.stop()
        raise
    log = telemetry.log.bind(broker=settings.id)
    return RunningBroker(runtime, listeners, clock, log, settings.limits.stop_answer_seconds)


class LocalCluster:
    """Brokers of one process over one embedded store."""

    def __init__(self, store: Coordination, brokers: Sequence[RunningBroker]) -> None:
        """Take over brokers that serve, each with a client of its own of `store`, which is closed last."""
        self._store = store
        self.brokers = tuple(brokers)

    async def wait_failed(self) -> BaseException:
        """Wait for the first broker that fails and answer why."""
        failures = [broker.runtime.failure for broker in self.brokers]
        await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
        return next(failure.result() for failure in failures if failure.done())

    async def stop(self) -> None:
        """Stop all at once: nobody is left to take over from another."""
        try:
            stopping = [broker.stop() for broker in self.brokers]
            for outcome in await asyncio.gather(*stopping, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        finally:
            await self._store.close()


async def start_local_cluster(
    brokers: Sequence[BrokerSettings], store: Path, *, clock: Clock | None = None, log: Log | None = None
) -> LocalCluster:
    """Start brokers that share the embedded store in this file; return once all serve and know each other.

    Raises like `start_broker`; nothing is left running then.
    """
    clock = clock or SystemClock()
    coordination = await EmbeddedCoordination.open(store, clock)
    running: list[RunningBroker] = []
    try:
        for settings in brokers:
            client = coordination.connect()
            running.append(await start_broker(settings, clock=clock, log=log, coordination=client))
        await acquaint(running)
    except BaseException:
        await LocalCluster(coordination, running).stop()
        raise
    return LocalCluster(coordination, running)


async def acquaint(brokers: Collection[RunningBroker]) -> None:
    """Return once each of these knows all of them, so that none refuses what needs another.

    Raises CoordinationUnavailable if one stops meanwhile.
    """
    last = max(broker.runtime.registered_at for broker in brokers)
    await asyncio.gather(*(broker.runtime.hear_of(last) for broker in brokers))


async def move_coordination(settings: BrokerSettings) -> Moved:
    """Move the coordination of the broker that these settings describe from its directory to etcd.

    Raises CoordinationError saying what is in the way; it may be called again then.
    """
    store = store_path(settings.data)
    if not store.exists():
        message = f"{settings.data} has no embedded coordination store ({store} is missing)"
        raise MoveRefused(message)
    log = Telemetry().log
    async with await EmbeddedCoordination.open(store, SystemClock()) as old:
        new = await open_coordination(settings, SystemClock(), log)
        try:
            return await CoordinationMove(old, new, Keys(settings.cluster), settings.etcd or "").run()
        finally:
            await new.close()


def release() -> str:
    """Version of the installed software."""
    try:
        return version("fairlead")
    except PackageNotFoundError:
        return "unknown"


def warn_if_open(settings: BrokerSettings, log: Log) -> None:
    """Say it plainly when anybody on the network may read and write: there is no authentication yet."""
    for name, endpoint in (
        ("data", settings.listen),
        ("peer", settings.peer_listen),
        ("ops", settings.ops_listen),
    ):
        if not endpoint.loopback:
            log.warning(
                "listener is reachable from other machines without authentication",
                listener=name,
                address=str(endpoint),
            )


def warn_if_unreachable(settings: BrokerSettings, log: Log) -> None:
    """Say it plainly when others are told where this broker listens and cannot go there: it works on this machine."""
    told = {"advertise": settings.advertise or settings.listen}
    if settings.etcd_endpoints:
        told["peer-advertise"] = settings.peer_advertise or settings.peer_listen
    for option, address in told.items():
        if address.everywhere:
            log.warning(
                "other machines are told an address that means themselves; say where they reach this one",
                option=f"--{option}",
                address=str(address),
            )


def _advertised(told: Endpoint | None, bound: str | None) -> str | None:
    return bound if told is None else str(told)


def _new_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251 - the edge where chance enters the broker
