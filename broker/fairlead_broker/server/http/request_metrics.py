"""Request metrics and the access log.

Callers: ``application``, once per finished request. The labelled children of each metric are cached, because looking up
a child costs more than counting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead_broker.server.http.call import Call
from fairlead_broker.telemetry import Log, Telemetry

if TYPE_CHECKING:
    from prometheus_client import Histogram

CLIENT_GONE_STATUS = 499
"""Status recorded when the client disconnected before the answer, as in nginx."""

SHED_STATUS = 503


class RequestMetrics:
    """Counts requests by route, status and scheme, and logs each request if ``access_log`` is on."""

    def __init__(self, telemetry: Telemetry, *, access_log: bool) -> None:
        self._durations = telemetry.metric("fairlead_request_duration_seconds")
        self._stalled = telemetry.metric("fairlead_stalled_readers_total")
        requests = telemetry.metric("fairlead_requests_total")
        self._schemes = {scheme: requests.labels(scheme) for scheme in ("http", "https")}
        self._log: Log | None = telemetry.log if access_log else None
        self._children: dict[tuple[str, int], Histogram] = {}

    def count_stalled(self) -> None:
        """Count a client that stopped reading its answer."""
        self._stalled.inc()

    def count_shed(self, route: str, scheme: str) -> None:
        """Count a produce call that was refused before any work was done."""
        self._schemes[scheme].inc()
        self._child(route, SHED_STATUS).observe(0.0)

    def observe(self, call: Call, seconds: float) -> None:
        """Count a finished request."""
        if call.peer is None:
            self._schemes[call.scope["scheme"]].inc()
        route = "none" if call.route is None else call.route.name
        status = call.status or CLIENT_GONE_STATUS
        self._child(route, status).observe(seconds)
        if self._log is not None:
            self._log.info(
                "request answered",
                method=call.scope["method"],
                path=call.scope["path"],
                route=route,
                status=status,
                seconds=round(seconds, 6),
                received_bytes=call.body_reader.received_bytes,
                sent_bytes=call.bytes_sent,
                code=call.problem_code,
                client=call.scope["client"][0],
            )

    def _child(self, route: str, status: int) -> Histogram:
        child = self._children.get((route, status))
        if child is None:
            child = self._children[route, status] = self._durations.labels(route, str(status))
        return child
