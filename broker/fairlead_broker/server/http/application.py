"""ASGI application of the data and peer listeners; the application processes every request.

Used by `listeners`. The application checks the head, finds the route, authorizes the caller, checks the query, runs the
endpoint, and converts every failure to an answer. An endpoint reads parameters and body from its `Call` and sends one
answer through the call.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import ref

from fairlead_api.access_needs import Kind, NameSource
from fairlead_api.audit_events import AuditEvent
from fairlead_api.configuration import SECURITY_PREFIXES
from fairlead_api.excerpts import shown
from fairlead_api.identifiers import check_group_name, check_topic_name
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_api.routes import ROUTES, Route
from fairlead_broker.clock import Clock
from fairlead_broker.runtime.audit_log import AUDITED_REQUEST, AuditLog
from fairlead_broker.runtime.refusals import RETRY_SOON_SECONDS
from fairlead_broker.server.connections.connection_guard import ConnectionGuard
from fairlead_broker.server.connections.sockets import Connections
from fairlead_broker.server.http.access_gate import AccessGate
from fairlead_broker.server.http.asgi import Receive, Scope, Send
from fairlead_broker.server.http.body import (
    CUT_OFF,
    DRAIN_BYTES_MAX,
    HTTP1_DRAIN_BYTES_MAX,
    BodyBudget,
    BodyLimits,
    ClientGone,
)
from fairlead_broker.server.http.call import (
    READING_METHODS,
    STALL_SECONDS_MAX,
    Call,
    Endpoint,
    Outside,
    ReaderStalled,
)
from fairlead_broker.server.http.peer_gate import PeerGate
from fairlead_broker.server.http.problem_handler import (
    FailureLog,
    Registrations,
    problem_answer,
    with_address_for,
)
from fairlead_broker.server.http.request_metrics import RequestMetrics
from fairlead_broker.server.http.request_target import ParsedQueries, RouteTable
from fairlead_broker.server.http.request_tracing import traced

FIELD_BYTES: Final = 32
"""Number of bytes counted for each header in addition to its name and value. HTTP/2 adds the same 32 bytes (RFC 9113,
6.5.2), so one limit applies to both HTTP versions."""
_CODINGS: Final = b"transfer-encoding"
_WITHOUT_BODY: Final = frozenset({"GET", "HEAD", "DELETE"})
_OF_THE_HEAD: Final = frozenset({"malformed_request", "headers_too_large"})


def check_head(scope: Scope, header_bytes_max: int) -> None:
    """Raise ProblemError headers_too_large, or malformed_request for a head that HTTP/1.1 does not allow.

    granian limits the size of request heads only over HTTP/2. granian also passes on a `gzip, chunked` body without
    decompressing it, and accepts any number of Host headers and any Expect header. A body of a GET or DELETE request is
    refused, because its header may be one that a proxy passed on as part of another header (RFC 9110, 9.3.1).
    """
    codings: list[bytes] = []
    hosts, host = 0, b""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    bodyless = scope["method"] in _WITHOUT_BODY
    for name, value in scope["headers"]:
        size += len(name) + len(value) + FIELD_BYTES
        if bodyless:
            check_no_body(name, value)
        if name == _CODINGS:
            codings.append(value)
        elif name == b"host":
            hosts, host = hosts + 1, value
        elif name == b"expect" and value.lower() != b"100-continue":
            raise _malformed("Expect", value, "100-continue")
    if size > header_bytes_max:
        raise ProblemError(
            "headers_too_large",
            f"target and headers of the request have {size} bytes, including {FIELD_BYTES} for each header; at most"
            f" {header_bytes_max} bytes are accepted",
            data={"limit_bytes": header_bytes_max},
        )
    if (hosts != 1 or not host) and scope["http_version"] == "1.1":
        raise _malformed("Host", b"%d times" % hosts if host else b"", "once, with a name")
    if codings:
        _check_codings(b",".join(codings))


def check_no_body(name: bytes, value: bytes) -> None:
    """Raise malformed_request if the header announces a body."""
    if name == b"content-length" and value != b"0":
        raise _malformed("Content-Length", value, "0")
    if name == _CODINGS:
        raise _malformed("Transfer-Encoding", value, "none")


def _check_codings(given: bytes) -> None:
    """Raise malformed_request unless the only transfer coding is a single `chunked`.

    A body with a transfer coding such as gzip would be stored undecoded.
    """
    codings = [coding for each in given.split(b",") if (coding := each.strip().lower())]
    if codings != [b"chunked"]:
        raise _malformed("Transfer-Encoding", given, "chunked")


def _malformed(header: str, given: bytes, allowed: str) -> ProblemError:
    value = given.decode("latin-1")
    return ProblemError(
        "malformed_request",
        f"header {header} {shown(value)} is not allowed; allowed: {allowed}",
        data={"parameter": header, "value": value[:80], "allowed": allowed},
    )


LOCALHOST: Final = "localhost"
AUTHORITIES_MAX: Final = 1000
"""Maximum number of cached authorities; clients on one machine use only a few authorities."""
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})


class HostCheck:
    """Checks of requests that a browser sends on behalf of a web page of another site (rule T13).

    A page can send simple requests to any address that its browser reaches, because they need no preflight; a listener
    on any address therefore checks the origin of calls that make changes. In an attack by DNS rebinding, the page's own
    host name resolves to the address of the broker, so the browser treats the broker as the page's own origin. Only the
    authority of a request reveals DNS rebinding, and only a listener on a loopback address can know all of its names.
    """

    def __init__(self, origins: Iterable[str], hosts: Iterable[str] | None) -> None:
        """`origins`: allowed origins, `*` for all.

        `hosts`: names of the broker in addition to IP addresses and localhost; None accepts every name.
        """
        self._hosts = None if hosts is None else frozenset(host.lower() for host in (*hosts, LOCALHOST))
        self._origins = frozenset(origin.encode() for origin in origins)
        self._allowed: set[bytes] = set()

    def check(self, route: Route, headers: Mapping[bytes, bytes]) -> None:
        """Raise ProblemError forbidden for a request that a web page of another site may have sent."""
        authority = headers.get(b"host", b"")
        self.check_authority(route, authority)
        if route.method not in READING_METHODS:
            self._check_origin(route, authority, headers)

    def check_authority(self, route: Route, authority: bytes) -> None:
        """Raise ProblemError forbidden for a request that may have been sent to a name of another site."""
        if self._hosts is None or authority in self._allowed:
            return
        name = authority.decode("latin-1")
        if not _is_own(host_of(name), self._hosts):
            raise _forbidden(
                route,
                f"this broker listens on a loopback address and does not accept the name {shown(name)}; allowed:"
                " IP addresses, localhost, and the names in the settings `hosts` and `advertise`",
            )
        if len(self._allowed) < AUTHORITIES_MAX:
            self._allowed.add(authority)

    def _check_origin(self, route: Route, authority: bytes, headers: Mapping[bytes, bytes]) -> None:
        site = headers.get(b"sec-fetch-site")
        if site in _OWN_SITE:
            # Only browsers set the header `Sec-Fetch-Site`. A proxy may have changed the authority.
            return
        origin = headers.get(b"origin")
        if origin is None:
            if site is None:
                return
            origin = b"of " + site
        # A proxy may have terminated TLS, so the scheme of the listener may differ from that of the page.
        elif origin in self._origins or b"*" in self._origins or origin.partition(b"://")[2] == authority:
            return
        raise _forbidden(
            route,
            f"a web page of origin {shown(origin.decode('latin-1'))} may not make changes; `cors_origins` names"
            " the origins that may",
        )


def _is_own(host: str, names: frozenset[str]) -> bool:
    if host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_of(authority: str) -> str:
    """Return the host of an authority in lower case, without its port and the brackets of an IPv6 address."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower()


def _forbidden(route: Route, detail: str) -> ProblemError:
    return ProblemError("forbidden", detail, data={"operation": route.operation, "resource": route.subject})


OVERLOADED: Final = "overloaded"
UNAUTHENTICATED: Final = "unauthenticated"
SHED: Final = problem_answer(
    ProblemError(
        OVERLOADED,
        "the limit of produce calls that the broker can serve in time is reached",
        retry_after_seconds=1,
    )
)
SHED_HEADERS: Final = [*SHED.headers, (b"content-length", b"%d" % len(SHED.body))]
CUT_OFF_ANSWER: Final = problem_answer(ProblemError("malformed_request", CUT_OFF))
GONE: Final = "the connection of the call is closing"
"""Reason for a client that counts as gone. granian reports a disconnect of every call that waits when a listener with a
previous certificate is closed, although its clients still wait for answers.
"""
GONE_ANSWERS: Final = {
    effect: problem_answer(
        ProblemError("shutting_down", GONE, side_effect=effect, retry_after_seconds=RETRY_SOON_SECONDS)
    )
    for effect in (SideEffect.NONE, SideEffect.MAYBE)
}
SHED_PATHS: Final = (b"/records", b"/v1/produce")
UNROUTED: Final = "none"
HEADER_BYTES_MAX: Final = 32 << 10


class Application:
    """ASGI application that serves ``routes``; each route is served by the endpoint with its name."""

    def __init__(
        self,
        routes: Iterable[Route],
        endpoints: Mapping[str, Endpoint],
        clock: Clock,
        metrics: RequestMetrics,
        failures: FailureLog,
        budget: BodyBudget | None = None,
        stall_seconds_max: float = STALL_SECONDS_MAX,
        gate: PeerGate | None = None,
        header_bytes_max: int = HEADER_BYTES_MAX,
        host_check: HostCheck | None = None,
        access: AccessGate | None = None,
        brokers: Registrations = dict,
        guard: ConnectionGuard | None = None,
        outside: Outside | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        """`budget` is shared by all listeners.

        `stall_seconds_max`: maximum number of seconds for which a client may stop reading its answer. `gate` checks
        each call on the peer listener, which only brokers may call. `header_bytes_max` limits the head of an HTTP/1.1
        request. `host_check` refuses requests from web pages of other sites. `access` identifies and admits the caller
        of each request; None allows every request. `brokers` returns the registered brokers, whose addresses some
        problems contain. `guard` records which connections have made a request. `outside` is set on the listener for
        external clients. `audit` reports refusals and changes.
        """
        self._audit = audit
        self._guard = guard
        self._outside = outside
        self._brokers = brokers
        self._header_bytes_max = header_bytes_max
        self._gate = gate
        self._host_check = host_check
        self._access = access or AccessGate(None)
        self._endpoints = {name: traced(name, endpoint) for name, endpoint in endpoints.items()}
        self._routes = RouteTable(routes)
        self._clock = clock
        self._metrics = metrics
        self._failures = failures
        self._budget = budget or BodyBudget(BodyLimits())
        self._stall_seconds_max = stall_seconds_max
        self._connections = Connections()
        self._queries = ParsedQueries()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = self._clock.monotonic()
        if self._budget.calls.full and is_shed(scope) and not self._has_part(scope):
            await self._shed(scope, send)
            return
        call = Call(scope, receive, send, self._budget, self._stall_seconds_max)
        call.outside = self._outside
        if self._gate is not None:
            call.stamp = self._gate.stamp
        if self._audit is not None:
            AUDITED_REQUEST.set(ref(call))
        try:
            await self._answer(call)
        except ClientGone:
            await self._send_cut_off(call, send)
        except ReaderStalled:
            self._metrics.count_stalled()
            self._connections.cut(*scope["client"])
        except ProblemError as problem:
            await self._refuse(call, problem)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the last handler: every failure needs an answer
            # The HTTP server cancels no request, so a cancellation comes from work that the request has waited for.
            await self._fail(call, error)
        finally:
            self._access.end(call)
            call.body_reader.release()
            if call.held is not None:
                call.held.release()
            self._metrics.observe(call, self._clock.monotonic() - started)
            if self._audit is not None:
                report(self._audit, call)

    async def _answer(self, call: Call) -> None:
        if call.http1:
            check_head(call.scope, self._header_bytes_max)
        route, call.parameters = self._routes.find(call.scope["method"], call.raw_path)
        call.route = route
        if self._host_check is not None:
            self._host_check.check(route, call.headers)
        _check_names(call.parameters)
        if self._gate is not None:
            await self._gate.admit(call)
        pending = self._access.admit(call)
        if pending is not None:
            await pending
            self._access.admit(call, waited=True)
        self._note(call.scope)
        call.check_query(self._queries)
        await self._endpoints[route.name](call)

    def _has_part(self, scope: Scope) -> bool:
        """Return whether the caller is remembered and has few enough produce calls in progress to admit one more."""
        caller = self._access.remembered(scope)
        return caller is not None and self._budget.calls.admits(caller)

    async def _shed(self, scope: Scope, send: Send) -> None:
        """Refuse a produce call with as little work as possible, so that the event loop can serve admitted calls.

        Refusing a call without a `Call` object takes a third of the time of an ordinary refusal (measured). No `Call`
        is created and no body is read. Over HTTP/2, a client that is still sending may see only the reset of its stream
        instead of the answer; clients also treat the reset as a refusal.
        """
        self._note(scope)
        headers = SHED_HEADERS if self._gate is None else [*SHED_HEADERS, *self._gate.stamp()]
        route = "produce" if scope["raw_path"].endswith(b"produce") else "produce_partition"
        self._metrics.count_shed(route, scope["scheme"])
        await send({"type": "http.response.start", "status": SHED.status, "headers": headers})
        await send({"type": "http.response.body", "body": SHED.body})

    async def _send_cut_off(self, call: Call, send: Send) -> None:
        """Send a refusal for an incomplete body, or to a client that counts as gone; the connection may still be open.

        The metrics count the request as a request whose client disconnected, because a disconnect is the usual cause.
        """
        if call.status:
            return
        answer = CUT_OFF_ANSWER
        if call.body_reader.complete:
            is_reading = call.scope["method"] in READING_METHODS
            answer = GONE_ANSWERS[SideEffect.NONE if is_reading else SideEffect.MAYBE]
        headers = [*answer.headers, (b"content-length", b"%d" % len(answer.body))]
        if self._gate is not None:
            headers += self._gate.stamp()
        if call.http1:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _refuse(self, call: Call, problem: ProblemError) -> None:
        """Answer with the problem; if an answer has already begun, only log the problem."""
        self._note(call.scope, refused=problem.code == UNAUTHENTICATED)
        if call.status:
            self._failures.record(problem, self._route_name(call))
            return
        answer = problem_answer(with_address_for(problem, call.caller_side, self._brokers()))
        call.problem_code = problem.code
        call.body_reader.release()
        if problem.code == OVERLOADED and not call.http1:
            # The answer is sent immediately, without draining the rest of the body.
            await call.answer(answer.status, answer.headers, answer.body)
            return
        await self._drain(call)
        refused_head = call.route is None and problem.code in _OF_THE_HEAD
        if call.http1 and (refused_head or not call.body_reader.complete):
            # Without `connection: close`, the rest of the body would be parsed as the next request. After a head that a
            # proxy may have understood differently, the next bytes might not be the request that the proxy sent.
            answer.headers.append((b"connection", b"close"))
        await call.answer(answer.status, answer.headers, answer.body)

    @staticmethod
    async def _drain(call: Call) -> None:
        """Read and discard the rest of a refused body, within limits, so that the client can finish sending."""
        reader = call.body_reader
        if call.scope["method"] in _WITHOUT_BODY and not call.announced_bytes:
            # Waiting for the end of a body that is not sent would take a quarter of the time of a refusal (measured).
            reader.complete = True
            return
        if b"expect" in call.headers and not reader.received_bytes:
            # The client waits for 100 Continue and has not sent a body. Reading the body would make the server send 100
            # Continue.
            return
        await reader.drain(HTTP1_DRAIN_BYTES_MAX if call.http1 else DRAIN_BYTES_MAX)

    async def _fail(self, call: Call, error: BaseException) -> None:
        problem = self._failures.record(
            error, self._route_name(call), mutating=call.scope["method"] not in READING_METHODS
        )
        if not call.status:
            await self._refuse(call, problem)

    def _note(self, scope: Scope, *, refused: bool = False) -> None:
        """Record in the guard that a connection has made a request (rule T11)."""
        if self._guard is not None:
            (self._guard.refuse if refused else self._guard.admitted.add)(scope["client"])

    @staticmethod
    def _route_name(call: Call) -> str:
        return UNROUTED if call.route is None else call.route.name


def _check_names(parameters: Mapping[str, str]) -> None:
    """Raise invalid_topic_name or invalid_group_name for a name in the path, before any decision about the name."""
    topic = parameters.get("topic")
    if topic is not None:
        check_topic_name(topic)
        return
    group = parameters.get("group")
    if group is not None:
        check_group_name(group)
        if "member" in parameters:
            check_group_name(parameters["member"])


_AUDITED: Final = frozenset(route.name for route in ROUTES if route.is_audited)
_REFUSED: Final = frozenset({"forbidden", UNAUTHENTICATED, "peer_refused"})
"""Problems of calls by callers that are not known or not allowed."""


def report(audit: AuditLog, call: Call) -> None:
    """Report the end of a request to the audit log, if the request was refused or changes something."""
    route, problem = call.route, call.problem_code
    if problem in _REFUSED:
        operation, name = ("call", "") if route is None else (route.operation, resource_of(call))
        audit.refused(call, operation, name, problem)
    elif call.change is not None or (route is not None and route.name in _AUDITED and not call.is_forwarded):
        changed = problem is None and route is not None and _changes_security(route, call.change)
        event = AuditEvent.SECURITY_CHANGED if changed else AuditEvent.ADMIN
        change = {**call.parameters, **(call.change or {})}
        audit.changed(call, event, resource_of(call), status=call.status, problem=problem, change=change)


def _changes_security(route: Route, change: Mapping[str, object] | None) -> bool:
    if any(need.kind is Kind.SECURITY for need in route.access.needs):
        return True
    config = (change or {}).get("config")
    return isinstance(config, Mapping) and any(str(name).startswith(SECURITY_PREFIXES) for name in config)


def resource_of(call: Call) -> str:
    """Return the resource in the path of a call, as `kind:name`; empty if the path names no resource."""
    for need in call.matched_route.access.gate:
        if need.source is NameSource.SINGLE:
            return f"{need.kind}:*"
        return f"{need.kind}:{call.parameters[need.kind]}"
    return ""


def is_shed(scope: Scope) -> bool:
    """Return whether a request may be shed, as only a produce call over HTTP/2 may.

    Over HTTP/1.1, a refusal must drain the body.
    """
    return (
        scope["method"] == "POST"
        and scope["raw_path"].endswith(SHED_PATHS)
        and not scope["http_version"].startswith("1")
    )
