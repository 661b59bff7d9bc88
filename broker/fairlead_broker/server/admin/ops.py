"""Application of the ops listener: liveness, readiness and metrics.

Callers: ``listeners``. The application must work before the broker has recovered and after the data listener has
closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder

from fairlead_api.access_needs import SINGLE_NAME, Kind, Operation
from fairlead_api.bodies.media_types import TEXT
from fairlead_api.problems import ProblemError
from fairlead_api.routes import Route
from fairlead_broker.runtime import BrokerState
from fairlead_broker.server.connections.connection_guard import ConnectionGuard
from fairlead_broker.server.http.access_gate import AccessGate
from fairlead_broker.server.http.application import HostCheck, check_no_body
from fairlead_broker.server.http.asgi import HeaderList, Receive, Scope, Send
from fairlead_broker.server.http.problem_handler import FailureLog, problem_answer
from fairlead_broker.server.http.request_target import RouteTable

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

Answer = tuple[int, HeaderList, bytes]
OpsEndpoint = Callable[[Scope], Awaitable[Answer]]


class OpsApplication:
    """ASGI application for probes and scrapers."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        state: BrokerState,
        registry: CollectorRegistry,
        failures: FailureLog,
        guard: ConnectionGuard | None = None,
        *,
        metrics_by_token: bool = False,
        host_check: HostCheck | None = None,
    ) -> None:
        """`guard` records which connections have made a request.

        `metrics_by_token`: whether metrics are refused until the attribute `gate` is set and admits the caller.
        `host_check` refuses requests for metrics whose host name is not a name of the broker.
        """
        self._host_check = host_check
        self._guard = guard
        self._metrics_by_token = metrics_by_token
        self.gate: AccessGate | None = None
        """Gate that decides which callers may read metrics; None until the broker has read tokens and ACLs."""
        self._endpoints: dict[str, OpsEndpoint] = {
            "healthz": self.healthz,
            "readyz": self.readyz,
            "metrics": self.metrics,
        }
        self._metrics_route = routes["metrics"]
        assert routes.keys() == self._endpoints.keys(), f"the ops listener serves {sorted(self._endpoints)}"
        self._routes = RouteTable(routes.values())
        self._state = state
        self._registry = registry
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        del receive
        if self._guard is not None:
            host, port = scope["client"]
            self._guard.admitted.add((host, str(port)))
        try:
            for name, value in scope["headers"]:
                check_no_body(name, value)
            route, _ = self._routes.find(scope["method"], scope["raw_path"].decode("latin-1"))
            status, headers, body = await self._endpoints[route.name](scope)
        except ProblemError as problem:
            answer = problem_answer(problem)
            # No call to this listener has a body. The bytes after a body might not be a request that a proxy sent.
            status, headers, body = answer.status, [*answer.headers, (b"connection", b"close")], answer.body
        except Exception as error:  # noqa: BLE001 - the last handler: every failure needs an answer
            answer = problem_answer(self._failures.record(error, "ops"))
            status, headers, body = answer.status, answer.headers, answer.body
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def healthz(self, scope: Scope) -> Answer:
        """``GET /healthz``: 200 while the process is alive and its event loop runs."""
        del scope
        return _text(200, "alive")

    async def readyz(self, scope: Scope) -> Answer:
        """``GET /readyz``: 200 while the broker serves, 503 while it starts or stops."""
        del scope
        if self._state.ready:
            return _text(200, "ready")
        return _text(503, "not ready")

    async def metrics(self, scope: Scope) -> Answer:
        """``GET /metrics``: Prometheus text format, or OpenMetrics if the Accept header names it."""
        headers = dict(scope["headers"])
        if self._host_check is not None:
            # Health checks are exempt, because they reveal nothing and proxies send them with other host names.
            self._host_check.check_authority(self._metrics_route, headers.get(b"host", b""))
        if self._metrics_by_token:
            await self._admit(scope)
        accept = headers.get(b"accept", b"").decode("latin-1")
        try:
            encoder, content_type = choose_encoder(accept)
        except TypeError:
            # choose_encoder compares the requested version numerically and fails if the version is not a number.
            encoder, content_type = choose_encoder("")
        return 200, [(b"content-type", content_type.encode())], encoder(self._registry)

    async def _admit(self, scope: Scope) -> None:
        """Raise `unauthenticated` or `forbidden` unless the caller may describe the cluster."""
        if self.gate is None:
            raise ProblemError(
                "coordination_unavailable",
                "the broker has not read the tokens and ACLs that metrics need yet",
            )
        await self.gate.require(scope, Operation.DESCRIBE, Kind.CLUSTER, SINGLE_NAME)


def _text(status: int, word: str) -> Answer:
    return status, [(b"content-type", TEXT.encode()), (b"cache-control", b"no-store")], f"{word}\n".encode()
