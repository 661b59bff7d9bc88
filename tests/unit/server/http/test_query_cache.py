"""Queries are parsed once, and their cache is limited."""

from __future__ import annotations

from fairlead_api.routes import parse_query, route
from fairlead_broker.server.http.route_table import QUERIES_MAX, QUERY_BYTES_MAX, ParsedQueries
from refusals import refuses

PRODUCE = route("produce")
FETCH = route("fetch_partition")
METADATA = route("metadata")


def test_a_query_is_parsed_once_for_each_route() -> None:
    """The values of a query are cached per route."""
    queries = ParsedQueries()

    first = queries.of(PRODUCE, b"acks=1")

    assert first == parse_query(PRODUCE, b"acks=1")
    assert queries.of(PRODUCE, b"acks=1") is first
    with refuses("unknown_option", "acks"):
        queries.of(FETCH, b"acks=1")


def test_a_wrong_query_is_refused_each_time() -> None:
    """A refused query is not cached, and is refused each time."""
    queries = ParsedQueries()

    for _ in range(2):
        with refuses("unknown_option", "nonsense"):
            queries.of(PRODUCE, b"nonsense=1")


def test_what_is_kept_is_bounded() -> None:
    """The cache is limited by the number of queries and by their length."""
    queries = ParsedQueries()
    first = queries.of(FETCH, b"offset=0")
    for offset in range(1, QUERIES_MAX):
        queries.of(FETCH, b"offset=%d" % offset)

    assert queries.of(FETCH, b"offset=0") is first
    queries.of(FETCH, b"offset=%d" % QUERIES_MAX)
    assert queries.of(FETCH, b"offset=0") is not first
    long = b"topics=" + b"a" * QUERY_BYTES_MAX
    assert queries.of(METADATA, long) is not queries.of(METADATA, long)
