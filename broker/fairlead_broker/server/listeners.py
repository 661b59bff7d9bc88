"""The three listeners of a broker, and the order in which they open and close.

`wiring` calls `bind`, `start_ops` before recovery, `start_data` and `start_peer` after recovery, `end_bodies` before
the broker answers its waiting calls, and `stop` after the broker has answered the waiting calls. The module must not
depend on any particular call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fairlead_api.audit_events import AuditEvent
from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.certificates.material import Material, Side
from fairlead_broker.clock import Clock, SystemClock
from fairlead_broker.runtime import BrokerState
from fairlead_broker.runtime.audit_log import AuditLog
from fairlead_broker.runtime.engine.loop_lag import LoopLag
from fairlead_broker.server.admin.ops import OpsApplication
from fairlead_broker.server.http import body as admission
from fairlead_broker.server.http.access_gate import AccessGate
from fairlead_broker.server.http.application import Application, HostCheck
from fairlead_broker.server.http.asgi import AsgiApplication
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.bound_socket import BoundSocket
from fairlead_broker.server.http.call import Endpoint, Outside
from fairlead_broker.server.http.connection_guard import ConnectionGuard, ConnectionSweep, GuardLimits
from fairlead_broker.server.http.cross_origin import CrossOrigin
from fairlead_broker.server.http.http2_listener import (
    ConnectionLimits,
    TlsVersion,
    connections_from_descriptor_limit,
)
from fairlead_broker.server.http.listener_generations import ListenerGenerations
from fairlead_broker.server.http.peer_gate import PeerGate
from fairlead_broker.server.http.problem_handler import FailureLog, Registrations
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.server.ops_listener import OpsListener
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES
from fairlead_broker.settings import Endpoint as Address
from fairlead_broker.settings import ListenerSettings
from fairlead_broker.telemetry import Telemetry

PEER_STREAMS_MAX: Final = 10_000
"""Maximum number of streams on a peer's connection. A peer forwards the calls of all its clients over one connection;
other limits apply to the number of calls that are served."""
OPS_ROUTES: Final = {route.name: route for route in ROUTES if route.listener is Listener.OPS}
# When the listeners stop, the broker has already answered every call; only slow clients are still receiving answers.
STOP_SECONDS_MAX: Final = 4.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses of the listeners, each ``host:port``; None before ``bind``."""

    data: str | None = None
    """First address of the data listener without TLS; None without such an address."""
    data_tls: str | None = None
    """First address of the data listener with TLS; None without such an address."""
    peer: str | None = None
    ops: str | None = None
    external: str | None = None
    """Address of the data listener for clients outside."""


class Listeners:
    """Data, peer and ops listener of one broker."""

    def __init__(
        self,
        settings: ListenerSettings,
        telemetry: Telemetry,
        clock: Clock | None = None,
        materials: Mapping[Side, Material] = MappingProxyType({}),
    ) -> None:
        """`materials` has the certificate of each listener with TLS."""
        self._materials = dict(materials)
        self._settings = settings
        self._telemetry = telemetry
        self._clock = clock or SystemClock()
        self._failures = FailureLog(telemetry.log, f"{self._clock.now_us():x}")
        self._bound_data: list[tuple[Address, BoundSocket]] = []
        """Bound addresses of the data listener, followed by that for clients outside."""
        self._bound: dict[Side, BoundSocket] = {}
        """Bound peer and ops address."""
        self._data: list[ListenerGenerations] = []
        self._peer: ListenerGenerations | None = None
        self._ops: OpsListener | None = None
        self._ops_application: OpsApplication | None = None
        self._loop_lag: LoopLag | None = None
        self._guards: dict[int, ConnectionGuard] = {}
        """Guard of each bound port."""
        self._sweeping: asyncio.Task[None] | None = None
        self._audit: AuditLog | None = None
        limits = settings.limits
        self._bodies = BodyBudget(
            BodyLimits(
                bodies_bytes_max=limits.bodies_bytes_max,
                produce_calls_max=limits.produce_calls_max,
                body_seconds_max=limits.body_seconds_max,
                body_idle_seconds_max=limits.body_idle_seconds_max,
            )
        )

        self._show_bodies()

    @property
    def addresses(self) -> Addresses:
        """Bound addresses, with their actual ports."""
        data: dict[str, str] = {}
        others = {side.value: str(bound) for side, bound in self._bound.items()}
        for address, bound in self._bound_data:
            if address is self._settings.external:
                others["external"] = str(bound)
            else:
                data.setdefault(address.scheme, str(bound))
        return Addresses(data=data.get("http"), data_tls=data.get("https"), **others)

    def bind(self) -> None:
        """Bind all addresses so that the broker can register them; no call is served yet.

        Raises ListenError; no address remains bound after the error.
        """
        settings = self._settings
        try:
            external = () if settings.external is None else (settings.external,)
            for address in (*settings.data, *external):
                bound = BoundSocket(Side.DATA.value, address.host, address.port)
                self._bound_data.append((address, bound))
            for side, address in ((Side.PEER, settings.peer), (Side.OPS, settings.ops)):
                self._bound[side] = BoundSocket(side.value, address.host, address.port)
            self._guard_ports()
        except Exception:
            self._close_sockets()
            raise

    async def start_ops(self, state: BrokerState) -> None:
        """Start the ops listener, which answers probes and scrapers."""
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep().run(), name="connection-guard")
        bound = self._bound[Side.OPS]
        guard = self._guards[bound.port]
        self._ops_application = OpsApplication(
            OPS_ROUTES,
            state,
            self._telemetry.registry,
            self._failures,
            guard,
            metrics_by_token=self._settings.metrics_by_token,
            host_check=HostCheck((), self._settings.own_names) if self._settings.ops.loopback else None,
        )
        material = self._material(Side.OPS, self._settings.ops)
        self._ops = OpsListener(self._ops_application, bound, material, self._settings.tls_min)
        await self._ops.start()

    async def start_data(
        self,
        endpoints: Mapping[str, Endpoint],
        access: AccessGate | None = None,
        brokers: Registrations = dict,
        audit: AuditLog | None = None,
    ) -> None:
        """Start the data listener, which answers clients; `endpoints` has one endpoint per route of this listener.

        `access` names and admits callers; `brokers` returns the registered brokers; `audit` reports refusals and
        changes.
        """
        self._audit = audit
        if self._ops_application is not None:
            self._ops_application.gate = access
        self._loop_lag = LoopLag(self._bodies.calls.observe_lag, admission.INTERVAL_SECONDS)
        self._loop_lag.start()
        for address, bound in self._bound_data:
            listener = self._http2(
                self._data_application(address, bound.port, endpoints, access, brokers),
                bound,
                self._settings.limits.streams_per_connection_max,
                self._material(Side.DATA, address),
                TlsVersion(self._settings.tls_min),
            )
            self._data.append(listener)
            await listener.start()

    async def start_peer(
        self,
        endpoints: Mapping[str, Endpoint],
        gate: PeerGate,
        access: AccessGate | None = None,
        brokers: Registrations = dict,
        audit: AuditLog | None = None,
    ) -> None:
        """Start the peer listener, which answers calls from other brokers and client calls that they forward."""
        self._peer = self._http2(
            self._application(
                self._bound[Side.PEER].port, endpoints, access, brokers, gate=gate, audit=audit
            ),
            self._bound[Side.PEER],
            PEER_STREAMS_MAX,
            self._material(Side.PEER, self._settings.peer),
            TlsVersion.TLS_1_3,
        )
        await self._peer.start()

    async def renew(self, side: Side, material: Material) -> None:
        """Use another certificate for the connections that a listener accepts from now on.

        A listener that has not started yet starts with this certificate.
        """
        self._materials[side] = material
        match side:
            case Side.DATA:
                tls = [
                    listener
                    for (address, _), listener in zip(self._bound_data, self._data, strict=False)
                    if address.scheme == "https"
                ]
                await asyncio.gather(*(listener.renew(material) for listener in tls))
            case Side.PEER:
                if self._peer is not None and self._settings.peer.scheme == "https":
                    await self._peer.renew(material)
            case Side.OPS:
                if self._ops is not None:
                    await self._ops.renew(material)

    def end_bodies(self) -> None:
        """Refuse all current and later produce calls with incomplete bodies, with `shutting_down`."""
        self._bodies.stop()

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Stop accepting connections, wait for answers under way, and close the listeners, the ops listener last."""
        serving = [listener for listener in (*self._data, self._peer) if listener is not None]
        await asyncio.gather(*(listener.stop(seconds_max) for listener in serving))
        if self._loop_lag is not None:
            self._loop_lag.stop()
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        if self._ops is not None:
            await self._ops.stop()
        self._close_sockets()

    def _material(self, side: Side, address: Address) -> Material | None:
        """Return the certificate for an address of a listener; None for an address without TLS."""
        return self._materials[side] if address.scheme == "https" else None

    def _data_application(
        self,
        address: Address,
        port: int,
        endpoints: Mapping[str, Endpoint],
        access: AccessGate | None,
        brokers: Registrations,
    ) -> AsgiApplication:
        origins = self._settings.cors_origins
        check = HostCheck(origins, self._settings.own_names if address.loopback else None)
        outside = None
        if address is self._settings.external:
            outside = Outside.FORWARDED if self._settings.forwards_external else Outside.DIRECT
        application = self._application(
            port, endpoints, access, brokers, host_check=check, outside=outside, audit=self._audit
        )
        return CrossOrigin(application, origins) if origins else application

    def _guard_ports(self) -> None:
        """Create the guard of each bound port; only clients of the data listener have a limit for each address."""
        limits = self._settings.limits
        allowed = limits.connections_per_address_max
        if allowed is None:
            allowed = max(1, self._connections_max // 2)
        data = {bound.port for _, bound in self._bound_data}
        for port in (*data, *(bound.port for bound in self._bound.values())):
            self._guards[port] = ConnectionGuard(
                port,
                GuardLimits(
                    first_request_seconds_max=limits.first_request_seconds_max,
                    connections_per_address_max=allowed if port in data else 0,
                ),
            )

    def _sweep(self) -> ConnectionSweep:
        closed = self._telemetry.metric("fairlead_closed_connections_total")

        def told(reason: str, addresses: list[str], count: int) -> None:
            closed.labels(reason).inc(count)
            if self._audit is not None:
                cut: dict[str, object] = {"reason": reason, "addresses": addresses, "connections": count}
                self._audit.happened(AuditEvent.CONNECTION_CUT, cut)

        return ConnectionSweep(tuple(self._guards.values()), self._clock, told)

    @property
    def _connections_max(self) -> int:
        return self._settings.limits.connections_max or connections_from_descriptor_limit()

    def _application(
        self,
        port: int,
        endpoints: Mapping[str, Endpoint],
        access: AccessGate | None,
        brokers: Registrations,
        *,
        gate: PeerGate | None = None,
        host_check: HostCheck | None = None,
        outside: Outside | None = None,
        audit: AuditLog | None = None,
    ) -> Application:
        limits = self._settings.limits
        return Application(
            [route for route in (*ROUTES, *PEER_ROUTES) if route.name in endpoints],
            endpoints,
            self._clock,
            RequestMetrics(self._telemetry, access_log=self._settings.access_log),
            self._failures,
            self._bodies,
            limits.reader_stall_seconds_max,
            gate,
            limits.header_bytes_max,
            host_check,
            access,
            brokers,
            self._guards.get(port),
            outside,
            audit,
        )

    def _http2(
        self,
        application: AsgiApplication,
        bound: BoundSocket,
        streams_max: int,
        material: Material | None,
        version_min: TlsVersion,
    ) -> ListenerGenerations:
        limits = self._settings.limits
        return ListenerGenerations(
            application,
            bound,
            connections_max=self._connections_max,
            connection_limits=ConnectionLimits(
                streams_max=streams_max,
                header_bytes_max=limits.header_bytes_max,
                header_seconds_max=limits.header_seconds_max,
                ping_interval_seconds=limits.ping_interval_seconds,
            ),
            material=material,
            version_min=version_min,
        )

    def _show_bodies(self) -> None:
        """Export the bytes of bodies in memory and the number of produce calls as metrics."""
        bodies, metric = self._bodies, self._telemetry.metric
        metric("fairlead_held_bytes").labels("bodies").set_function(lambda: bodies.held_bytes)
        metric("fairlead_produce_calls").set_function(lambda: bodies.calls.calls)
        metric("fairlead_admitted_produce_calls").set_function(lambda: bodies.calls.limit)

    def _close_sockets(self) -> None:
        for bound in (*(bound for _, bound in self._bound_data), *self._bound.values()):
            bound.close()
        self._bound_data.clear()
        self._bound.clear()
