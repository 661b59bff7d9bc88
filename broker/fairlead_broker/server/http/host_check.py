"""Checks of a loopback listener that keep web pages of other sites away from a developer's broker.

Used by the application of the data listener. A browser sends requests to 127.0.0.1 for any page. Without these checks
a page writes by `fetch`, whose simple requests need no preflight, and reads by DNS rebinding, where the name of the
page's own site resolves to 127.0.0.1. Rule T13. Must not know any call.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError
from fairlead_api.routes import Route

LOCALHOST: Final = "localhost"
AUTHORITIES_MAX: Final = 1000
"""Maximum number of remembered authorities; clients of one machine use few."""
READING_METHODS: Final = frozenset({"GET", "HEAD"})
"""Methods of calls that change nothing."""
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})


class HostCheck:
    """Which authorities a loopback listener answers, and which origins may change something through it."""

    def __init__(self, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """`hosts`: names of the broker beside IP addresses and localhost; `origins`: allowed ones, or `*` for all."""
        self._hosts = frozenset(host.lower() for host in (*hosts, LOCALHOST))
        self._origins = frozenset(origin.encode() for origin in origins)
        self._allowed: set[bytes] = set()

    def check(self, route: Route, headers: Mapping[bytes, bytes]) -> None:
        """Raise ProblemError forbidden for a call that a web page of another site may have sent."""
        authority = headers.get(b"host", b"")
        if authority not in self._allowed:
            self._check_authority(route, authority)
        if route.method not in READING_METHODS:
            self._check_origin(route, authority, headers)

    def _check_authority(self, route: Route, authority: bytes) -> None:
        name = authority.decode("latin-1")
        if not self._is_own(host_of(name)):
            raise _forbidden(
                route,
                f"this broker listens on a loopback address and is not called {shown(name)}; allowed are IP addresses,"
                " localhost, and the names in the settings `hosts` and `advertise`",
            )
        if len(self._allowed) < AUTHORITIES_MAX:
            self._allowed.add(authority)

    def _check_origin(self, route: Route, authority: bytes, headers: Mapping[bytes, bytes]) -> None:
        origin = headers.get(b"origin")
        if origin is None:
            site = headers.get(b"sec-fetch-site")
            if site is None or site in _OWN_SITE:
                return
            origin = b"of " + site
        elif origin in self._origins or b"*" in self._origins or origin == b"http://" + authority:
            return
        raise _forbidden(
            route,
            f"a web page of origin {shown(origin.decode('latin-1'))} may not change anything here; `cors_origins` names"
            " the origins that may",
        )

    def _is_own(self, host: str) -> bool:
        if host in self._hosts:
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
    return ProblemError("forbidden", detail, data={"operation": route.operation, "resource": route.resource})
