"""Access of each request: its caller, and the decisions on its path (rules A2, A21, Z7).

Callers: ``application``, before the query and the body of a request are read. On the data listener, the header
`Authorization` identifies the caller. On the peer listener, the forwarding broker names the caller, and this broker
decides about access again.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Protocol

from fairlead_api.access_needs import Audience, Kind, Operation
from fairlead_api.routes.definitions import Traffic
from fairlead_broker.access.caller import Caller, CallerSource
from fairlead_broker.access.caller_access import OPEN_ACCESS, CallerAccess
from fairlead_broker.identity.signed_tokens import CallerPending
from fairlead_broker.peers.forwarded_callers import FORWARDED_CALLER
from fairlead_broker.peers.identity import CALLER_ISSUED
from fairlead_broker.runtime.quota_view import QuotaView
from fairlead_broker.server.http.asgi import Scope
from fairlead_broker.server.http.body import UNKNOWN
from fairlead_broker.server.http.call import Call

AUTHORIZATION: Final = b"authorization"
_FORWARDED: Final = FORWARDED_CALLER.encode()
_ISSUED: Final = CALLER_ISSUED.encode()


class Callers(Protocol):
    """Access of callers by header and by name."""

    def by_header(self, values: list[bytes], address: str, *, waited: bool = False) -> CallerAccess:
        """Return the access of the caller at an address with these values of the header `Authorization`."""

    def of(self, caller: Caller) -> CallerAccess:
        """Return the access of a caller that another broker names."""

    def remembered(self, value: bytes) -> str | None:
        """Return the principal of a remembered header `Authorization`, or None."""


class AccessGate:
    """Identifies the caller of each request, and decides whether the caller may access the resources in the path."""

    def __init__(self, callers: Callers | None, quotas: QuotaView | None = None) -> None:
        """`callers`: None for test listeners without a cluster, which allow every call.

        `quotas`: limits of callers; None if there are no limits.
        """
        self._callers = callers
        self._quotas = quotas

    def admit(self, call: Call, *, waited: bool = False) -> Awaitable[None] | None:
        """Set the call's access, and charge the call to its caller's quotas.

        Raises `unauthenticated`, `forbidden` or `throttled`.

        Returns an awaitable if the caller's token can be verified only after a wait; after the wait, `admit` must be
        called again with `waited`.
        """
        callers = self._callers
        if callers is None:
            call.access = OPEN_ACCESS
        elif call.peer is None:
            try:
                call.access = _by_header(callers, call.scope, waited=waited)
            except CallerPending as pending:
                return pending.wait()
        else:
            call.access = callers.of(_forwarded(call, call.peer.broker))
        access = call.access
        if not access.is_open:
            route = call.matched_route
            access.check(route.access, call.parameters)
            if (
                self._quotas is not None
                and call.peer is None
                and route.access.audience is not Audience.PUBLIC
            ):
                quota = self._quotas.of(access, (call.scope.get("client") or UNKNOWN)[0])
                if quota.is_limited:
                    is_counted = quota.counts_bodies and route.traffic is Traffic.PRODUCE
                    quota.begin(route.traffic, call.announced_bytes if is_counted else 0)
                    call.quota = quota
        return None

    def remembered(self, scope: Scope) -> str | None:
        """Return the principal of a request whose token was verified earlier and is remembered, or None."""
        if self._callers is None:
            return None
        values = [value for name, value in scope["headers"] if name == AUTHORIZATION]
        return self._callers.remembered(values[0]) if len(values) == 1 else None

    @staticmethod
    def end(call: Call) -> None:
        """Complete the charge of a call whose body is complete or will not be read further."""
        quota = call.quota
        if quota is not None:
            traffic = call.matched_route.traffic
            is_counted = quota.counts_bodies and traffic is Traffic.PRODUCE
            quota.end(traffic, call.body_reader.received_bytes - call.announced_bytes if is_counted else 0)

    async def require(self, scope: Scope, operation: Operation, kind: Kind, name: str) -> None:
        """Raise `unauthenticated` or `forbidden` unless the caller of a request may execute one operation.

        The method is for requests that are not in the route table of the data listener.
        """
        if self._callers is None:
            return
        try:
            access = _by_header(self._callers, scope)
        except CallerPending as pending:
            await pending.wait()
            access = _by_header(self._callers, scope, waited=True)
        access.require(operation, kind, name)


def _by_header(callers: Callers, scope: Scope, *, waited: bool = False) -> CallerAccess:
    values = [value for name, value in scope["headers"] if name == AUTHORIZATION]
    return callers.by_header(values, scope["client"][0] if values else "", waited=waited)


def _forwarded(call: Call, broker: int) -> Caller:
    """Return the caller that the forwarding broker names, or the forwarding broker if it calls on its own behalf."""
    names = call.header_text(_FORWARDED)
    if not names:
        return Caller(principal=f"broker:{broker}", source=CallerSource.PEER)
    principal, *groups = names.split(",")
    issued = call.header_text(_ISSUED)
    return Caller(
        principal=principal,
        groups=tuple(groups),
        source=CallerSource.PEER,
        issued_us=int(issued) if issued else None,
    )
