"""Applications of the three listeners, with the parts that they share, and the order in which the listeners start.

`start` calls `bind_listeners`, `start_ops` before recovery, and `start_data` and `start_peer` after recovery.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Final

from fairlead_api.audit_events import AuditEvent
from fairlead_api.identifiers import BrokerId
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.certificates.material import Material, Side
from fairlead_broker.clock import Clock
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import BrokerRegistration
from fairlead_broker.runtime import Broker, BrokerState
from fairlead_broker.runtime.engine.loop_lag import LoopLag
from fairlead_broker.server.admin.ops import OpsApplication
from fairlead_broker.server.connections.bound_socket import BoundSocket, ListenError
from fairlead_broker.server.connections.connection_guard import ConnectionGuard, ConnectionSweep, GuardLimits
from fairlead_broker.server.connections.sockets import Peer
from fairlead_broker.server.http import body as admission
from fairlead_broker.server.http.application import Application, HostCheck
from fairlead_broker.server.http.asgi import AsgiApplication
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.call import Endpoint, Outside
from fairlead_broker.server.http.cross_origin import CrossOrigin
from fairlead_broker.server.http.http2_listener import (
    ConnectionLimits,
    TlsVersion,
    connections_from_descriptor_limit,
)
from fairlead_broker.server.http.listener_generations import ListenerGenerations
from fairlead_broker.server.http.peer_gate import PeerGate
from fairlead_broker.server.http.problem_handler import FailureLog
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.server.listeners import BoundSockets, Listeners, ServingListener, bind
from fairlead_broker.server.ops_listener import OpsListener
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES
from fairlead_broker.settings import Endpoint as Address
from fairlead_broker.settings import Limits, ListenerSettings
from fairlead_broker.telemetry import Telemetry
from fairlead_broker.wiring.endpoints import Endpoints

PEER_STREAMS_MAX: Final = 10_000
"""Maximum number of streams on a peer's connection. A peer forwards the calls of all its clients over one connection;
the number of calls that are served has other limits."""
KAFKA_REQUEST_SECONDS_MAX: Final = 10.0
"""Maximum time until the first request of a Kafka client is complete: clients send it as soon as they have connected,
and have no HTTP connections that wait in a pool."""
OPS_ROUTES: Final = {route.name: route for route in ROUTES if route.listener is Listener.OPS}


class ClosedConnections:
    """Reports of connections that the guards closed: as a metric and, once the broker is open, as audit records."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._closed = telemetry.metric("fairlead_closed_connections_total")
        self._happened: Callable[[AuditEvent, dict[str, object]], None] = lambda *_: None

    def audit(self, happened: Callable[[AuditEvent, dict[str, object]], None]) -> None:
        """Start writing audit records. The caller calls this method once the broker knows its cluster."""
        self._happened = happened

    def report(self, reason: str, addresses: list[str], count: int) -> None:
        """Report closed connections."""
        self._closed.labels(reason).inc(count)
        cut: dict[str, object] = {"reason": reason, "addresses": addresses, "connections": count}
        self._happened(AuditEvent.CONNECTION_CUT, cut)


ListenerFactory = Callable[
    [AsgiApplication, BoundSocket, int, ConnectionLimits, Material | None, TlsVersion], ServingListener
]
"""Function that returns the listener of an application at an address, with a maximum number of connections."""


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """Sockets of the listeners, and the parts that their applications share."""

    settings: ListenerSettings
    telemetry: Telemetry
    clock: Clock
    materials: Mapping[Side, Material]
    """Certificate of each listener with TLS."""
    bound: BoundSockets
    listeners: Listeners
    failures: FailureLog
    bodies: BodyBudget
    guards: Mapping[int, ConnectionGuard]
    """Guard of each bound port."""
    closed: ClosedConnections
    ops: OpsApplication
    connections_max: int
    kafka_connections_max: int
    open_listener: ListenerFactory


def bind_listeners(
    settings: ListenerSettings,
    telemetry: Telemetry,
    clock: Clock,
    state: BrokerState,
    materials: Mapping[Side, Material],
) -> ListenerParts:
    """Bind all addresses; no call is served yet. Raises ListenError."""
    if settings.kafka is not None and find_spec("fairlead_kafka_records") is None:
        message = (
            "the Kafka listener needs an extra of the distribution: pip install 'fairlead[broker,kafka]'"
        )
        raise ListenError(message)
    return listener_parts(settings, telemetry, clock, state, materials, bind(settings), _listener)


def listener_parts(
    settings: ListenerSettings,
    telemetry: Telemetry,
    clock: Clock,
    state: BrokerState,
    materials: Mapping[Side, Material],
    bound: BoundSockets,
    open_listener: ListenerFactory,
) -> ListenerParts:
    """Return the parts of listeners at bound addresses."""
    limits = settings.limits
    bodies = BodyBudget(
        BodyLimits(
            bodies_bytes_max=limits.bodies_bytes_max,
            produce_calls_max=limits.produce_calls_max,
            body_seconds_max=limits.body_seconds_max,
            body_idle_seconds_max=limits.body_idle_seconds_max,
        )
    )
    _show_bodies(bodies, telemetry)
    failures = FailureLog(telemetry.log, f"{clock.now_us():x}")
    connections_max = limits.connections_max or connections_from_descriptor_limit()
    # Both kinds of connections need descriptors of one process.
    kafka_connections_max = 0 if bound.kafka is None else max(1, connections_max // 2)
    connections_max = max(1, connections_max - kafka_connections_max)
    guards = _guards(settings, bound, connections_max)
    ops = OpsApplication(
        OPS_ROUTES,
        state,
        telemetry.registry,
        failures,
        guards[bound.others[Side.OPS].port],
        metrics_by_token=settings.metrics_by_token,
        host_check=HostCheck((), settings.own_names) if settings.ops.loopback else None,
    )
    return ListenerParts(
        settings=settings,
        telemetry=telemetry,
        clock=clock,
        materials=materials,
        bound=bound,
        listeners=Listeners(bound),
        failures=failures,
        bodies=bodies,
        guards=guards,
        closed=ClosedConnections(telemetry),
        ops=ops,
        connections_max=connections_max,
        kafka_connections_max=kafka_connections_max,
        open_listener=open_listener,
    )


async def start_ops(parts: ListenerParts) -> None:
    """Start the ops listener, which answers probes and scrapers, and the guard of all ports."""
    settings = parts.settings
    await parts.listeners.start_ops(
        OpsListener(
            parts.ops,
            parts.bound.others[Side.OPS],
            _material(parts, Side.OPS, settings.ops),
            settings.tls_min,
        )
    )
    sweep = ConnectionSweep(tuple(parts.guards.values()), parts.clock, parts.closed.report)
    sweeping = asyncio.get_running_loop().create_task(sweep.run(), name="connection-guard")
    parts.listeners.closing.push_async_callback(_cancel, sweeping)


async def start_data(parts: ListenerParts, endpoints: Endpoints, broker: Broker) -> None:
    """Start the data listener, which answers clients."""
    parts.ops.gate = endpoints.access
    parts.closed.audit(broker.audit.happened)
    loop_lag = LoopLag(partial(_observe_lag, parts), admission.INTERVAL_SECONDS)
    loop_lag.start()
    parts.listeners.closing.callback(loop_lag.stop)
    settings = parts.settings
    for address, bound in parts.bound.data:
        check = HostCheck(settings.cors_origins, settings.own_names if address.loopback else None)
        application: AsgiApplication = _application(
            parts,
            endpoints,
            endpoints.data,
            broker,
            bound,
            host_check=check,
            outside=_outside(settings, address),
        )
        if settings.cors_origins:
            application = CrossOrigin(application, settings.cors_origins)
        await _start(
            parts, Side.DATA, address, bound, application, settings.limits.streams_per_connection_max
        )


async def start_peer(parts: ListenerParts, endpoints: Endpoints, broker: Broker) -> None:
    """Start the peer listener, which answers calls from other brokers and client calls that they forward."""
    bound = parts.bound.others[Side.PEER]
    application = _application(parts, endpoints, endpoints.peer, broker, bound, gate=endpoints.gate)
    await _start(parts, Side.PEER, parts.settings.peer, bound, application, PEER_STREAMS_MAX)


async def start_kafka(parts: ListenerParts, broker: Broker, new_id: Callable[[], str]) -> None:
    """Start the listener for Kafka's protocol, if the broker has one. `new_id` returns a random UUID."""
    bound = parts.bound.kafka
    if bound is None:
        return
    # The package needs an extra of the distribution, and only a broker with this listener needs the package.
    from fairlead_broker.kafka.connection import ConnectionLimits  # noqa: PLC0415
    from fairlead_broker.kafka.dispatch import Dispatch  # noqa: PLC0415
    from fairlead_broker.kafka.frame_budget import FrameBudget  # noqa: PLC0415
    from fairlead_broker.kafka.listener import KafkaListener  # noqa: PLC0415

    limits, metric = parts.settings.limits, parts.telemetry.metric
    assert parts.settings.kafka is not None, "a listener is bound to an address of the settings"
    material = _material(parts, Side.DATA, parts.settings.kafka)
    budget, guard = FrameBudget(limits.bodies_bytes_max), parts.guards[bound.port]

    def noted(peer: Peer, is_authenticated: bool) -> None:
        (guard.admitted if is_authenticated else guard.refused).add(peer)

    listener = KafkaListener(
        Dispatch(broker, new_id),
        bound.listen,
        budget,
        ConnectionLimits(
            request_body_bytes_max=limits.request_body_bytes_max,
            body_seconds_max=limits.body_seconds_max,
            body_idle_seconds_max=limits.body_idle_seconds_max,
            reader_stall_seconds_max=limits.reader_stall_seconds_max,
            first_request_seconds_max=min(KAFKA_REQUEST_SECONDS_MAX, limits.first_request_seconds_max),
        ),
        connections_max=parts.kafka_connections_max,
        connections_per_address_max=_per_address(limits, parts.kafka_connections_max),
        noted=noted,
        material=material,
        tls_min=parts.settings.tls_min,
    )
    metric("fairlead_held_bytes").labels("kafka requests").set_function(lambda: budget.taken)
    metric("fairlead_kafka_connections").set_function(lambda: listener.connections)
    broker.reports.include_kafka(listener.report)
    await parts.listeners.start_kafka(listener)


async def _start(
    parts: ListenerParts,
    side: Side,
    address: Address,
    bound: BoundSocket,
    application: AsgiApplication,
    streams_max: int,
) -> None:
    limits, material = parts.settings.limits, _material(parts, side, address)
    version_min = TlsVersion.TLS_1_3 if side is Side.PEER else TlsVersion(parts.settings.tls_min)
    connection_limits = ConnectionLimits(
        streams_max=streams_max,
        header_bytes_max=limits.header_bytes_max,
        header_seconds_max=limits.header_seconds_max,
        ping_interval_seconds=limits.ping_interval_seconds,
    )
    listener = parts.open_listener(
        application, bound, parts.connections_max, connection_limits, material, version_min
    )
    await parts.listeners.start(side, listener, tls=material is not None)


def _listener(
    application: AsgiApplication,
    bound: BoundSocket,
    connections_max: int,
    limits: ConnectionLimits,
    material: Material | None,
    version_min: TlsVersion,
) -> ListenerGenerations:
    return ListenerGenerations(
        application,
        bound,
        connections_max=connections_max,
        connection_limits=limits,
        material=material,
        version_min=version_min,
    )


def _application(
    parts: ListenerParts,
    endpoints: Endpoints,
    served: Mapping[str, Endpoint],
    broker: Broker,
    bound: BoundSocket,
    *,
    gate: PeerGate | None = None,
    host_check: HostCheck | None = None,
    outside: Outside | None = None,
) -> Application:
    limits = parts.settings.limits

    def brokers() -> Mapping[BrokerId, Versioned[BrokerRegistration]]:
        return broker.metadata.brokers

    return Application(
        [route for route in (*ROUTES, *PEER_ROUTES) if route.name in served],
        served,
        parts.clock,
        RequestMetrics(parts.telemetry, access_log=parts.settings.access_log),
        parts.failures,
        parts.bodies,
        limits.reader_stall_seconds_max,
        gate,
        limits.header_bytes_max,
        host_check,
        endpoints.access,
        brokers,
        parts.guards.get(bound.port),
        outside,
        broker.audit,
    )


def _outside(settings: ListenerSettings, address: Address) -> Outside | None:
    """Return the external listener if the data address is for external clients; None for an internal address."""
    if address is not settings.external:
        return None
    return Outside(settings.external_scheme, settings.forwards_external)


def _material(parts: ListenerParts, side: Side, address: Address) -> Material | None:
    """Return the certificate for an address of a listener; None for an address without TLS."""
    return parts.materials[side] if address.scheme == "https" else None


def _observe_lag(parts: ListenerParts, seconds: float) -> None:
    """Adjust the number of admitted calls, and the networks whose new connections the data listener ignores."""
    parts.bodies.calls.observe_lag(seconds)
    for _, bound in parts.bound.data:
        bound.ignore(parts.guards[bound.port].ignored(seconds, parts.clock.monotonic()))


def _guards(
    settings: ListenerSettings, bound: BoundSockets, connections_max: int
) -> dict[int, ConnectionGuard]:
    """Return the guard of each bound port; only clients of the data listener have a limit for each address.

    The Kafka listener itself limits the connections of each address, because it accepts them itself.
    """
    limits = settings.limits
    allowed = _per_address(limits, connections_max)
    data = {each.port for _, each in bound.data}
    kafka = () if bound.kafka is None else (bound.kafka.port,)
    return {
        port: ConnectionGuard(
            port,
            GuardLimits(
                first_request_seconds_max=limits.first_request_seconds_max,
                connections_per_address_max=allowed if port in data else 0,
            ),
        )
        for port in (*data, *kafka, *(each.port for each in bound.others.values()))
    }


def _per_address(limits: Limits, connections_max: int) -> int:
    """Return the maximum number of connections from one address; 0 for no limit."""
    allowed = limits.connections_per_address_max
    return max(1, connections_max // 2) if allowed is None else allowed


def _show_bodies(bodies: BodyBudget, telemetry: Telemetry) -> None:
    """Export the bytes of bodies in memory and the number of produce calls as metrics."""
    metric = telemetry.metric
    metric("fairlead_held_bytes").labels("bodies").set_function(lambda: bodies.held_bytes)
    metric("fairlead_produce_calls").set_function(lambda: bodies.calls.calls)
    metric("fairlead_admitted_produce_calls").set_function(lambda: bodies.calls.limit)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
