"""Queries that were parsed before.

Callers: ``application``. Clients send the same few queries again and again, and parsing one costs more than matching
its route. What is kept is bounded, since a query can be anything.
"""

from __future__ import annotations

from typing import Final

from fairlead_api.routes import Route, parse_query
from fairlead_api.routes.query_parameters import QueryValues

QUERIES_MAX: Final = 1024
QUERY_BYTES_MAX: Final = 128
"""Longer ones name topics, and are seldom the same; both limits together keep this below half a MiB."""


class ParsedQueries:
    """The typed values of queries by route name and text."""

    __slots__ = ("_parsed",)

    def __init__(self) -> None:
        self._parsed: dict[tuple[str, bytes], QueryValues] = {}

    def of(self, route: Route, raw_query: bytes) -> QueryValues:
        """Return the values of a query. Raises ProblemError for unknown, repeated and wrong parameters."""
        key = (route.name, raw_query)
        values = self._parsed.get(key)
        if values is None:
            values = parse_query(route, raw_query)
            if len(raw_query) <= QUERY_BYTES_MAX:
                if len(self._parsed) >= QUERIES_MAX:
                    # Offsets and tokens fill it; what is sent again is back soon.
                    self._parsed.clear()
                self._parsed[key] = values
        return values
