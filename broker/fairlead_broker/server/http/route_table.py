"""Route lookup and query parsing of requests.

Callers: ``application``, once for each request. The table is built from ``fairlead_api.routes``; this module does not
depend on any particular call. A lookup walks the segments of the raw path. The path is split before it is decoded, so
``%2F`` inside a name remains part of the name, and an encoded path cannot reach another route. Measured: 2 µs for the
longest path, compared with 15 µs for a list of patterns. Clients repeat a few queries, and parsing a query costs more
than matching its route, so ``ParsedQueries`` caches a bounded number of parsed queries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from fairlead_api.excerpts import shown
from fairlead_api.problems import ProblemError
from fairlead_api.routes import ROUTES, Route, parse_query
from fairlead_api.routes.query_parameters import QueryValues
from fairlead_api.versions import API_VERSIONS

_LISTENERS = {route.path: route.listener for route in ROUTES}
"""Listener of each path. If a call reaches a different listener, the answer names the correct listener."""


@dataclass(slots=True)
class _Node:
    """Node of the tree of path segments."""

    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    parameter_name: str = ""
    verbs: dict[str, _Node] = field(default_factory=dict)
    """Child node of a segment `{parameter}:verb`, by verb."""
    routes: dict[str, Route] = field(default_factory=dict)


class RouteTable:
    """Table that maps a method and a path to a route."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and its decoded path parameters.

        For HEAD, the result is the GET route of the path. Raises ProblemError route_not_found, unsupported_version or
        method_not_allowed (with ``allowed``).
        """
        node = self._root
        parameters: dict[str, str] = {}
        for segment in raw_path.split("/")[1:]:
            below = node.literals.get(segment)
            if below is None:
                below, value = node.parameter, segment
                if node.verbs and ":" in segment:
                    value, _, verb = segment.rpartition(":")
                    below = node.verbs.get(verb)
                if below is None:
                    raise not_found(raw_path)
                parameters[node.parameter_name] = unquote(value) if "%" in value else value
            node = below
        if not node.routes:
            raise not_found(raw_path)
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            raise _method_not_allowed(method, raw_path, node.routes)
        return route, parameters

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path.split("/")[1:]:
            if segment.startswith("{"):
                name, _, verb = segment[1:].partition("}")
                assert node.parameter_name in ("", name), f"{route.path} renames {node.parameter_name}"
                node.parameter_name = name
                if verb:
                    node = node.verbs.setdefault(verb.removeprefix(":"), _Node())
                else:
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        assert route.method not in node.routes, f"two routes answer {route.method} {route.path}"
        node.routes[route.method] = route


def not_found(raw_path: str) -> ProblemError:
    """Return the problem for a path without a route: unsupported_version if it begins with another API version."""
    version = raw_path.lstrip("/").partition("/")[0]
    if version.startswith("v") and version[1:].isdecimal() and version not in API_VERSIONS:
        return ProblemError(
            "unsupported_version",
            f"version {shown(version)} of the API is not supported; supported: {', '.join(API_VERSIONS)}",
            data={"value": version[:80], "supported": list(API_VERSIONS)},
        )
    listener = _LISTENERS.get(raw_path)
    told = f"; it is served by the {listener} listener" if listener else ""
    detail = f"there is no call at path {shown(raw_path)}{told}; GET /openapi.json of the data listener lists all calls"
    return ProblemError("route_not_found", detail)


def _method_not_allowed(method: str, raw_path: str, routes: dict[str, Route]) -> ProblemError:
    allowed = sorted({*routes, "HEAD"} if "GET" in routes else routes)
    return ProblemError(
        "method_not_allowed",
        f"method {shown(method)} is not allowed at path {shown(raw_path)}; allowed are {', '.join(allowed)}",
        data={"allowed": allowed},
    )


QUERIES_MAX: Final = 1024
QUERY_BYTES_MAX: Final = 128
"""Maximum number of bytes of a query that is cached. Longer queries name topics and are rarely repeated. Together with
the limit on the number of queries, the cache stays below half a MiB."""


class ParsedQueries:
    """Cache of the typed values of queries by route name and query text."""

    __slots__ = ("_parsed",)

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, bytes], QueryValues] = {}

    def of(self, route: Route, raw_query: bytes) -> QueryValues:
        """Return the values of a query. Raises ProblemError for unknown, repeated and invalid parameters."""
        key = (route.name, raw_query)
        values = self._parsed.get(key)
        if values is None:
            values = parse_query(route, raw_query)
            if len(raw_query) <= QUERY_BYTES_MAX:
                if len(self._parsed) >= QUERIES_MAX:
                    # Queries with offsets and tokens fill the cache with entries that are used only once. Repeated
                    # queries are soon cached again.
                    self._parsed.clear()
                self._parsed[key] = values
        return values
