"""Start and stop of one broker with its listeners, or of several brokers that share one embedded store.

The module is used by the commands, and by tests that need a whole broker.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fairlead_broker.access.mode import SecurityMode
from fairlead_broker.certificates.material import Side
from fairlead_broker.certificates.watching import Certificates
from fairlead_broker.clock import Clock, SystemClock
from fairlead_broker.controlling.moving import CoordinationMove, Moved, MoveRefused
from fairlead_broker.coordination.embedded import EmbeddedCoordination
from fairlead_broker.coordination.protocol import Coordination
from fairlead_broker.log.segments.storage import Storage
from fairlead_broker.ports import ListenerAddresses
from fairlead_broker.registry.keys import Keys
from fairlead_broker.runtime import Broker, BrokerState
from fairlead_broker.runtime.lifecycle.cluster_entry import Advertised
from fairlead_broker.runtime.lifecycle.coordination_access import open_coordination, store_path
from fairlead_broker.server.routing.forwarding import Forwarding
from fairlead_broker.settings import BrokerSettings
from fairlead_broker.telemetry import Log, Telemetry
from fairlead_broker.wiring.broker import addresses_of, open_broker
from fairlead_broker.wiring.certificates import follow, load_certificates, peer_tls, registered
from fairlead_broker.wiring.endpoints import build_endpoints
from fairlead_broker.wiring.listeners import (
    ListenerParts,
    bind_listeners,
    start_data,
    start_kafka,
    start_ops,
    start_peer,
)
from fairlead_broker.wiring.security import keep_admin_token

READERS_SECONDS_MIN = 1.0
"""Minimum number of seconds that a stop leaves for unfinished answers, even if its other steps have used up the time
limit."""


class RunningBroker:
    """A running broker, which serves until it is stopped."""

    def __init__(
        self,
        broker: Broker,
        parts: ListenerParts,
        forwarding: Forwarding,
        certificates: Certificates | None = None,
    ) -> None:
        self.broker = broker
        self._certificates = certificates
        self.listeners = parts.listeners
        """Started listeners."""
        self.bodies = parts.bodies
        """Budget of request bodies."""
        self.addresses: ListenerAddresses = parts.bound.addresses
        """Addresses to which the listeners are bound."""
        self._forwarding = forwarding

    @property
    def brokers(self) -> tuple[RunningBroker, ...]:
        """Tuple with only this broker, as the counterpart of `LocalCluster.brokers`."""
        return (self,)

    def look_at_certificates(self) -> None:
        """Check the certificate files now."""
        if self._certificates is not None:
            self._certificates.look_now()

    async def wait_failed(self) -> BaseException:
        """Wait until the broker fails unexpectedly, and return the error. The process must exit afterwards."""
        return await self.broker.failure

    async def stop(self) -> None:
        """Answer waiting calls, close the listeners, sync, and leave the cluster, in less than ten seconds."""
        broker = self.broker
        broker.log.info("broker is stopping")
        begun = broker.clock.monotonic()
        try:
            await broker.announce_stop()
            end = broker.clock.monotonic() + broker.settings.limits.stop_answer_seconds
            # Calls that wait for other brokers or for the rest of a request body are ended first.
            self._forwarding.stop()
            self.bodies.stop()
            await broker.stop_answering()
            # Every call has been answered. Only slow clients are still receiving their answers.
            await self.listeners.stop(max(READERS_SECONDS_MIN, end - broker.clock.monotonic()))
        finally:
            # Without this step, threads of the broker would keep the process alive.
            await broker.stop()
        broker.log.info("broker has stopped", seconds=round(broker.clock.monotonic() - begun, 3))


async def start_broker(
    settings: BrokerSettings,
    *,
    clock: Clock | None = None,
    log: Log | None = None,
    storage: Storage | None = None,
    coordination: Coordination | None = None,
) -> RunningBroker:
    """Start a broker and return once it serves.

    If given, `storage` replaces the disk for the broker's logs. `coordination` is a client of a store that several
    brokers of this process share. The client is closed with the broker. The ops listener answers before recovery, so
    that a long recovery can be observed; the data listener answers after recovery. Raises OSError if an address is in
    use, LogError and CoordinationError if the directory or the cluster cannot be used.
    """
    clock = clock or SystemClock()
    telemetry = Telemetry(log)
    certificates = load_certificates(settings, clock, telemetry)
    warn_if_open(settings, telemetry.log)
    warn_if_unreachable(settings, telemetry.log)
    state = BrokerState()
    parts = bind_listeners(settings.listeners, telemetry, clock, state, certificates.materials)
    try:
        await start_ops(parts)
        broker = await open_broker(
            settings,
            telemetry,
            clock,
            release=release(),
            new_id=_new_id,
            state=state,
            advertised=replace(
                _advertised(settings, parts.bound.addresses), certificates=lambda: registered(certificates)
            ),
            storage=storage,
            coordination=coordination,
            tls=peer_tls(certificates.materials.get(Side.PEER)),
        )
    except BaseException:
        await parts.listeners.stop()
        raise
    try:
        running = await serve(broker, parts, certificates)
        follow(certificates, parts.listeners, broker)
    except BaseException:
        await parts.listeners.stop()
        await broker.stop()
        raise
    return running


async def serve(
    broker: Broker, parts: ListenerParts, certificates: Certificates | None = None
) -> RunningBroker:
    """Start the data and the peer listener of an opened broker."""
    endpoints = build_endpoints(broker)
    await keep_admin_token(broker)
    await start_data(parts, endpoints, broker)
    await start_peer(parts, endpoints, broker)
    await start_kafka(parts, broker, _new_id)
    return RunningBroker(broker, parts, endpoints.forwarding, certificates)


class LocalCluster:
    """Brokers of one process over one embedded store."""

    def __init__(self, store: Coordination, brokers: Sequence[RunningBroker]) -> None:
        """Take ownership of `store` and of brokers that already serve, each with its own client of the store.

        A stop closes the store last.
        """
        self._store = store
        self.brokers = tuple(brokers)

    async def wait_failed(self) -> BaseException:
        """Wait until a broker fails unexpectedly, and return the error of the first failed broker."""
        failures = [broker.broker.failure for broker in self.brokers]
        await asyncio.wait(failures, return_when=asyncio.FIRST_COMPLETED)
        return next(failure.result() for failure in failures if failure.done())

    def look_at_certificates(self) -> None:
        """Check the certificate files of all brokers now."""
        for broker in self.brokers:
            broker.look_at_certificates()

    async def stop(self) -> None:
        """Stop all brokers in parallel, because no broker remains that could take over partitions."""
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
    """Start brokers that share the embedded store in a file, and return once all serve and know each other.

    Raises the errors of `start_broker`, after all started brokers have been stopped.
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
    """Return once the mirror of each broker shows all brokers, so that no call is refused for a missing broker.

    Raises CoordinationUnavailable if a broker stops during the wait.
    """
    last = max(broker.broker.entry.incarnation.membership.revision for broker in brokers)
    await asyncio.gather(*(broker.broker.entry.mirror.wait_for(last) for broker in brokers))


async def move_coordination(settings: BrokerSettings) -> Moved:
    """Move the coordination data of the broker that has these settings from the broker's directory to etcd.

    Raises CoordinationError with the reason. The call may be repeated after an error.
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
    """Return the version of the installed software."""
    try:
        return version("fairlead")
    except PackageNotFoundError:
        return "unknown"


def data_url(addresses: ListenerAddresses) -> str:
    """Return the URL of a broker's data listener, preferably of an address without TLS."""
    return f"http://{addresses.data}" if addresses.data else f"https://{addresses.data_tls}"


def warn_if_open(settings: BrokerSettings, log: Log) -> None:
    """Log a warning for each listener that other machines can reach without authentication.

    The peer listener refuses callers without a proof, but without TLS, the records in its answers can be read by anyone
    on the network.
    """
    listeners = settings.listeners
    external = () if listeners.external is None else (("external", listeners.external),)
    closed = settings.security_floor is SecurityMode.ENFORCE
    data = () if closed else (*(("data", each) for each in listeners.data), *external)
    peer = (("peer", listeners.peer),) if listeners.peer.scheme == "http" else ()
    ops = () if listeners.metrics_by_token else (("ops", listeners.ops),)
    kafka = () if closed or settings.kafka_listen is None else (("kafka", settings.kafka_listen),)
    for name, endpoint in (*data, *kafka, *peer, *ops):
        if not endpoint.loopback:
            log.warning(
                "listener is reachable from other machines without authentication",
                listener=name,
                address=str(endpoint),
            )


def warn_if_unreachable(settings: BrokerSettings, log: Log) -> None:
    """Log a warning if an advertised address can be used only on this machine."""
    secure = settings.advertised("https")
    addresses = {} if (plain := settings.advertised("http")) is None else {"advertise": plain}
    if secure is not None:
        addresses["advertise-tls"] = secure
    if settings.etcd_endpoints:
        addresses["peer-advertise"] = settings.peer_advertise or settings.peer_listen
    for option, address in addresses.items():
        if address.everywhere:
            log.warning(
                "the advertised address only works on this machine; set an address that other machines can reach",
                option=f"--{option}",
                address=str(address),
            )


def _advertised(settings: BrokerSettings, bound: ListenerAddresses) -> Advertised:
    """Return the addresses to register: those in the settings, or else the bound addresses with their actual ports."""
    known = addresses_of(settings)
    return Advertised(
        data=known.data if settings.advertise and known.data else bound.data or "",
        peer=known.peer if settings.peer_advertise else bound.peer or known.peer,
        ops=bound.ops or known.ops,
        data_tls=_advertised_tls(settings, bound),
        peer_scheme=known.peer_scheme,
        external=known.external,
        kafka=known.kafka if settings.kafka_advertise else bound.kafka,
    )


def _advertised_tls(settings: BrokerSettings, bound: ListenerAddresses) -> str | None:
    """Return the address for clients with TLS; None if there is none."""
    if bound.data_tls is None:
        return None
    named = settings.advertise_tls or (settings.advertise if bound.data is None else None)
    return str(named) if named else bound.data_tls


def _new_id() -> str:
    return str(uuid.uuid4())  # noqa: TID251 - the only source of randomness
