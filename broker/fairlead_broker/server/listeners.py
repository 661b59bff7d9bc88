"""The three listeners of a broker, and the order in which they open and close.

`wiring` calls `bind`, `start_ops` before recovery, `start_data` and `start_peer` after recovery, `end_bodies` before
the broker answers its waiting calls, and `stop` after the broker has answered the waiting calls. The module must not
depend on any particular call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead_api.routes import ROUTES, Listener
from fairlead_broker.clock import Clock, SystemClock
from fairlead_broker.runtime import BrokerState
from fairlead_broker.runtime.engine.loop_lag import LoopLag
from fairlead_broker.server.admin.ops import OpsApplication
from fairlead_broker.server.http import body as admission
from fairlead_broker.server.http.access_gate import AccessGate
from fairlead_broker.server.http.application import Application, HostCheck
from fairlead_broker.server.http.body import BodyBudget, BodyLimits
from fairlead_broker.server.http.bound_socket import BoundSocket
from fairlead_broker.server.http.call import Endpoint
from fairlead_broker.server.http.cross_origin import CrossOrigin
from fairlead_broker.server.http.http2_listener import (
    ConnectionLimits,
    Http2Listener,
    connections_from_descriptor_limit,
)
from fairlead_broker.server.http.peer_gate import PeerGate
from fairlead_broker.server.http.problem_handler import FailureLog
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.server.ops_listener import OpsListener
from fairlead_broker.server.routing.peer_calls import PEER_ROUTES
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
    peer: str | None = None
    ops: str | None = None


class Listeners:
    """Data, peer and ops listener of one broker."""

    def __init__(
        self,
        settings: ListenerSettings,
        telemetry: Telemetry,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._clock = clock or SystemClock()
        self._failures = FailureLog(telemetry.log, f"{self._clock.now_us():x}")
        self._bound: dict[str, BoundSocket] = {}
        self._data: Http2Listener | None = None
        self._peer: Http2Listener | None = None
        self._ops: OpsListener | None = None
        self._loop_lag: LoopLag | None = None
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
        return Addresses(**{name: str(bound) for name, bound in self._bound.items()})

    def bind(self) -> None:
        """Bind all three addresses so that the broker can register them; no call is served yet.

        Raises ListenError; no address remains bound after the error.
        """
        settings = self._settings
        wanted = {
            "data": (settings.data_host, settings.data_port),
            "peer": (settings.peer_host, settings.peer_port),
            "ops": (settings.ops_host, settings.ops_port),
        }
        try:
            for name, (host, port) in wanted.items():
                self._bound[name] = BoundSocket(name, host, port)
        except Exception:
            self._close_sockets()
            raise

    async def start_ops(self, state: BrokerState) -> None:
        """Start the ops listener, which answers probes and scrapers."""
        application = OpsApplication(OPS_ROUTES, state, self._telemetry.registry, self._failures)
        self._ops = OpsListener(application, self._bound["ops"])
        await self._ops.start()

    async def start_data(self, endpoints: Mapping[str, Endpoint], access: AccessGate | None = None) -> None:
        """Start the data listener, which answers clients; `endpoints` has one endpoint per route of this listener."""
        self._loop_lag = LoopLag(self._bodies.calls.observe_lag, admission.INTERVAL_SECONDS)
        self._loop_lag.start()
        self._data = self._http2(self._bound["data"], endpoints, access)
        await self._data.start()

    async def start_peer(
        self, endpoints: Mapping[str, Endpoint], gate: PeerGate, access: AccessGate | None = None
    ) -> None:
        """Start the peer listener, which answers calls from other brokers and client calls that they forward."""
        self._peer = self._http2(self._bound["peer"], endpoints, access, gate)
        await self._peer.start()

    def end_bodies(self) -> None:
        """Refuse all current and later produce calls with incomplete bodies, with `shutting_down`."""
        self._bodies.stop()

    async def stop(self, seconds_max: float = STOP_SECONDS_MAX) -> None:
        """Stop accepting connections, wait for answers under way, and close the listeners, the ops listener last."""
        serving = [listener for listener in (self._data, self._peer) if listener is not None]
        await asyncio.gather(*(listener.stop(seconds_max) for listener in serving))
        if self._loop_lag is not None:
            self._loop_lag.stop()
        if self._ops is not None:
            await self._ops.stop()
        self._close_sockets()

    def _http2(
        self,
        bound: BoundSocket,
        endpoints: Mapping[str, Endpoint],
        access: AccessGate | None,
        gate: PeerGate | None = None,
    ) -> Http2Listener:
        metrics = RequestMetrics(self._telemetry, access_log=self._settings.access_log)
        routes = [route for route in (*ROUTES, *PEER_ROUTES) if route.name in endpoints]
        limits, origins, hosts = (
            self._settings.limits,
            self._settings.cors_origins,
            self._settings.loopback_hosts,
        )
        application = Application(
            routes,
            endpoints,
            self._clock,
            metrics,
            self._failures,
            self._bodies,
            limits.reader_stall_seconds_max,
            gate,
            limits.header_bytes_max,
            HostCheck(hosts, origins) if hosts is not None and gate is None else None,
            access,
        )
        return Http2Listener(
            CrossOrigin(application, origins) if origins and gate is None else application,
            bound,
            connections_max=limits.connections_max or connections_from_descriptor_limit(),
            connection_limits=ConnectionLimits(
                streams_max=limits.streams_per_connection_max if gate is None else PEER_STREAMS_MAX,
                header_bytes_max=limits.header_bytes_max,
                header_seconds_max=limits.header_seconds_max,
                ping_interval_seconds=limits.ping_interval_seconds,
            ),
        )

    def _show_bodies(self) -> None:
        """Export the bytes of bodies in memory and the number of produce calls as metrics."""
        bodies, metric = self._bodies, self._telemetry.metric
        metric("fairlead_held_bytes").labels("bodies").set_function(lambda: bodies.held_bytes)
        metric("fairlead_produce_calls").set_function(lambda: bodies.calls.calls)
        metric("fairlead_admitted_produce_calls").set_function(lambda: bodies.calls.limit)

    def _close_sockets(self) -> None:
        for bound in self._bound.values():
            bound.close()
        self._bound.clear()
