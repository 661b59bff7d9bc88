"""Changes to the cluster that Kafka's clients request, each made as a call of the HTTP API.

A change has the access rules and the audit record of the corresponding HTTP call, and is made on the same broker: the
controller carries out the change, and any other broker forwards the HTTP call to the controller. The families of
administration calls use this module.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fairlead_api.access_needs import Kind, NameSource
from fairlead_api.audit_events import AuditEvent
from fairlead_api.bodies.media_types import JSON
from fairlead_api.configuration import SECURITY_PREFIXES
from fairlead_api.problems import CATALOGUE, ProblemError
from fairlead_api.routes import ROUTES, Route
from fairlead_broker.kafka.calls.call import KafkaCall
from fairlead_broker.peers import messages
from fairlead_broker.peers.forwarded_callers import audited_caller_headers
from fairlead_broker.peers.peers import problem_of
from fairlead_broker.runtime import Broker
from fairlead_broker.runtime.peer_serving.forwarded_calls import ForwardedCalls

if TYPE_CHECKING:
    from msgspec import Struct

_ROUTES: Final[Mapping[str, Route]] = {route.name: route for route in ROUTES}


@dataclass(frozen=True, slots=True)
class Changed:
    """Outcome of a change on this broker."""

    status: HTTPStatus = HTTPStatus.OK
    """Status with which the HTTP call would be answered."""
    audited: Mapping[str, object] = field(default_factory=dict)
    """Changed values for the audit log."""


@dataclass(frozen=True, slots=True)
class Change:
    """One call of the HTTP API."""

    route: str
    """Name of the call in the route table."""
    names: Mapping[str, str]
    """Path parameters of the call, by name."""
    run: Callable[[], Awaitable[Changed]]
    """Function that carries out the change on this broker."""
    body: Struct | None = None
    """Request as a body that msgspec can encode; None for a call without a body."""
    headers: tuple[tuple[str, str], ...] = ()


class Changes:
    """Carries out changes on the broker that is allowed to make them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.forwarded = ForwardedCalls(
            broker.peer_side,
            broker.controllership,
            lambda: broker.ready,
            broker.telemetry.metric("fairlead_forwarded_requests_total"),
        )

    async def make(self, call: KafkaCall, change: Change) -> HTTPStatus:
        """Return the status of the HTTP call once this broker's mirror shows the change.

        Raises the problem with which the HTTP call would be refused.
        """
        route = _ROUTES[change.route]
        await self.forwarded.wait_for_controller()
        controller = self._broker.peer_side.controller_elsewhere()
        if controller is not None:
            call.access.check(route.access, dict(change.names))
            path = route.path.format(**{name: quote(value, safe="") for name, value in change.names.items()})
            body = b"" if change.body is None else messages.encode(change.body)
            headers = [*audited_caller_headers(call.access, call.client.address), *change.headers]
            if body:
                headers.append(("content-type", JSON))
            heard = await self.forwarded.ask_controller(
                route.name, controller, route.method, path, headers, body
            )
            if heard.status >= HTTPStatus.BAD_REQUEST:
                raise problem_of(heard)
            return HTTPStatus(heard.status)
        return await self.make_here(call, change)

    async def make_here(self, call: KafkaCall, change: Change) -> HTTPStatus:
        """Carry out a change on this broker; return the status of the HTTP call. Raises the call's problems."""
        route = _ROUTES[change.route]
        call.access.check(route.access, dict(change.names))
        try:
            changed = await change.run()
        except ProblemError as problem:
            self._report(
                call, route, change, Changed(HTTPStatus(CATALOGUE[problem.code].status)), problem.code
            )
            raise
        self._report(call, route, change, changed, None)
        return changed.status

    def _report(
        self, call: KafkaCall, route: Route, change: Change, changed: Changed, problem: str | None
    ) -> None:
        config = changed.audited.get("config")
        is_security = isinstance(config, Mapping) and any(
            str(name).startswith(SECURITY_PREFIXES) for name in config
        )
        self._broker.audit.changed(
            call,
            AuditEvent.SECURITY_CHANGED if is_security else AuditEvent.ADMIN,
            _resource(route, change.names),
            status=changed.status,
            problem=problem,
            change={**change.names, **changed.audited},
        )


def _resource(route: Route, names: Mapping[str, str]) -> str:
    """Return the resource in the path of a call, as `kind:name`; empty if the path names no resource."""
    for need in route.access.gate:
        if need.source is NameSource.SINGLE:
            return f"{need.kind}:*"
        return f"{need.kind}:{names[need.kind]}"
    topic = names.get("topic")
    return "" if topic is None else f"{Kind.TOPIC}:{topic}"
