"""Queries are parsed to typed values once, and their cache is limited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.problems import ProblemError
from fairlead_api.routes import ROUTES, Route, route
from fairlead_api.routes.query_parameters import (
    EARLIEST,
    LATEST,
    OffsetExpression,
    OffsetOrigin,
    ParameterKind,
    QueryParameter,
)
from fairlead_broker.server.http.request_target import (
    FIELDS_MAX,
    QUERIES_MAX,
    QUERY_BYTES_MAX,
    ParsedQueries,
    QueryValues,
    parse_offset,
    parse_parameters,
    parse_query,
)
from refusals import raises, refuses

PRODUCE = route("produce")
FETCH = route("fetch_partition")
METADATA = route("metadata")
PARAMETERS = (
    QueryParameter(
        name="limit", kind=ParameterKind.INTEGER, explanation="", default=100, minimum=1, maximum=1000
    ),
    QueryParameter(name="epoch", kind=ParameterKind.INTEGER, explanation=""),
    QueryParameter(
        name="acks", kind=ParameterKind.CHOICE, explanation="", default="all", choices=("all", "0")
    ),
    QueryParameter(name="dry_run", kind=ParameterKind.FLAG, explanation="", default=False),
    QueryParameter(name="topics", kind=ParameterKind.TOPIC_NAMES, explanation=""),
    QueryParameter(name="after", kind=ParameterKind.TEXT, explanation="", maximum=5),
    QueryParameter(
        name="offset", kind=ParameterKind.OFFSET, explanation="", default=EARLIEST, excludes=("timestamp",)
    ),
    QueryParameter(name="timestamp", kind=ParameterKind.TIMESTAMP, explanation=""),
)


def refusal(raw_query: bytes | str) -> ProblemError:
    """Return the problem of an invalid query."""
    with pytest.raises(ProblemError) as refused:
        parse_parameters(PARAMETERS, raw_query)
    return refused.value


@pytest.mark.parametrize("raw_query", ["", b""])
def test_absent_parameters_have_their_defaults(raw_query: bytes | str) -> None:
    """Absent parameters have their defaults, or None if their absence has a special meaning."""
    values = parse_parameters(PARAMETERS, raw_query)

    assert values.integer("limit") == 100
    assert values.integer_or_none("epoch") is None
    assert values.text("acks") == "all"
    assert values.flag("dry_run") is False
    assert values.names("topics") is None
    assert values.text_or_none("after") is None
    assert values.offset("offset") == EARLIEST
    assert values.timestamp_us("timestamp") is None


def test_given_parameters_are_typed() -> None:
    """Given parameters are typed and percent-decoded; repeated names in a list count once."""
    values = parse_parameters(
        PARAMETERS,
        b"limit=7&epoch=0&acks=0&dry_run=true&topics=b,a,b&after=%C3%A9%26&offset=-5",
    )
    by_time = parse_parameters(PARAMETERS, "timestamp=1970-01-01T00%3A00%3A01%2B00:00")

    assert values.integer("limit") == 7
    assert values.integer_or_none("epoch") == 0
    assert values.text("acks") == "0"
    assert values.flag("dry_run") is True
    assert values.names("topics") == ("b", "a")
    assert values.text_or_none("after") == "é&"
    assert values.offset("offset") == OffsetExpression(OffsetOrigin.BEFORE_END, 5)
    assert by_time.timestamp_us("timestamp") == 1_000_000


@pytest.mark.parametrize(
    ("raw_query", "code", "parameter", "part"),
    [
        ("limits=7", "unknown_option", "limits", "allowed are limit, epoch"),
        ("Limit=7", "unknown_option", "Limit", "allowed are"),
        ("=7", "unknown_option", "", "allowed are"),
        ("limit[]=7", "unknown_option", "limit[]", "allowed are"),
        ("limit=1&limit=1", "malformed_request", "limit", "is repeated"),
        ("limit=0", "malformed_request", "limit", "an integer from 1 to 1000"),
        ("limit=1001", "malformed_request", "limit", "an integer from 1 to 1000"),
        ("limit=", "malformed_request", "limit", "''"),
        ("limit", "malformed_request", "limit", "''"),
        ("limit=1.0", "malformed_request", "limit", "'1.0'"),
        ("limit=+1", "malformed_request", "limit", "' 1'"),
        ("limit=%D9%A1", "malformed_request", "limit", "an integer"),
        ("limit=" + "9" * 5000, "malformed_request", "limit", "an integer"),
        ("epoch=-1", "malformed_request", "epoch", "an integer from 0"),
        ("acks=-1", "malformed_request", "acks", "one of all, 0"),
        ("acks=ALL", "malformed_request", "acks", "one of all, 0"),
        ("dry_run=1", "malformed_request", "dry_run", "true or false"),
        ("dry_run", "malformed_request", "dry_run", "true or false"),
        ("after=", "malformed_request", "after", "at most 5"),
        ("after=123456", "malformed_request", "after", "at most 5"),
        ("offset=soon", "malformed_request", "offset", "earliest, latest"),
        ("offset=1&timestamp=1", "malformed_request", "offset", "cannot be combined with timestamp"),
        ("timestamp=soon", "malformed_request", "timestamp", "RFC 3339"),
    ],
)
def test_a_bad_parameter_is_refused_by_name(raw_query: str, code: str, parameter: str, part: str) -> None:
    """An invalid parameter is refused, and the problem contains its name, its value and the allowed values."""
    for query in (raw_query, raw_query.encode()):
        problem = refusal(query)

        assert problem.code == code
        assert problem.data["parameter"] == parameter
        assert part in problem.detail


@pytest.mark.parametrize("topics", ["", "a,", "a,,b", "a/b", ".."])
def test_a_bad_name_in_a_list_is_an_invalid_topic_name(topics: str) -> None:
    """An invalid or empty topic name in a list is refused as an invalid topic name."""
    assert refusal(f"topics={topics}").code == "invalid_topic_name"


@pytest.mark.parametrize(
    "raw_query", [b"after=\xff", b"after=%FF", "after=%FF", "&".join(["a=1"] * (FIELDS_MAX + 1))]
)
def test_a_query_that_is_no_text_or_too_long_is_malformed(raw_query: bytes | str) -> None:
    """A query with bytes beyond ASCII, broken UTF-8 or too many parameters is malformed."""
    assert refusal(raw_query).code == "malformed_request"


def test_a_call_without_parameters_says_so() -> None:
    """If a call without parameters refuses a parameter, the problem says that the allowed parameters are "none"."""
    with refuses("unknown_option"):
        parse_parameters((), "a=1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", EARLIEST),
        ("latest", LATEST),
        ("0", OffsetExpression(OffsetOrigin.NUMBER, 0)),
        ("9223372036854775807", OffsetExpression(OffsetOrigin.NUMBER, 2**63 - 1)),
        ("9223372036854775808", None),
        ("-10", OffsetExpression(OffsetOrigin.BEFORE_END, 10)),
        ("-0", OffsetExpression(OffsetOrigin.BEFORE_END, 0)),
        ("--1", None),
        ("Earliest", None),
        ("1e3", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_an_offset_is_a_number_an_end_or_records_before_the_end(
    text: str, expected: OffsetExpression | None
) -> None:
    """An offset is a number, `earliest`, `latest`, a count of records before the end, or None for any other text."""
    assert parse_offset(text) == expected


def test_readers_insist_on_the_type_of_the_parameter() -> None:
    """Reading a parameter as the wrong type fails an assertion."""
    values = QueryValues({"a": "text", "b": 1})

    for read in (values.integer, values.flag, values.offset, values.names):
        with raises(AssertionError, "a"):
            read("a")
    with raises(AssertionError, "b"):
        values.text("b")


@given(st.binary(max_size=100) | st.text("limit=&%afftopicsoffset,-0123456789", max_size=100))
def test_no_query_raises_anything_but_a_problem(raw_query: bytes | str) -> None:
    """A query of random text is parsed to values or refused with a problem of the catalogue."""
    status = 200
    try:
        parse_parameters(PARAMETERS, raw_query)
    except ProblemError as problem:
        status = problem.status

    assert status in (200, 400, 422)


def test_the_defaults_of_produce_and_fetch_are_those_of_the_contract() -> None:
    """Produce and fetch have the contract's defaults, for example acks=all, 30 s, earliest, 1 MiB and utf8."""
    produce = parse_query(route("produce_partition"), b"")
    fetch = parse_query(route("fetch_partition"), b"")

    assert (produce.text("acks"), produce.integer("timeout_ms")) == ("all", 30_000)
    assert fetch.offset("offset") == OffsetExpression(OffsetOrigin.EARLIEST)
    assert (fetch.integer("max_bytes"), fetch.integer("max_wait_ms")) == (1 << 20, 500)
    assert (fetch.text("isolation"), fetch.text("encoding")) == ("read_uncommitted", "utf8")


@pytest.mark.parametrize("name", ["produce_topic", "produce_partition", "produce"])
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_produce_call_takes_acks_and_a_timeout(name: str, acks: str) -> None:
    """Every produce call has acks and a timeout as query parameters, even for frames."""
    values = parse_query(route(name), f"acks={acks}&timeout_ms=0")

    assert (values.text("acks"), values.integer("timeout_ms")) == (acks, 0)


@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: entry.name)
def test_no_call_ignores_a_parameter(entry: Route) -> None:
    """An unknown query parameter is refused by every call, without its value, which may be a token."""
    with pytest.raises(ProblemError) as refused:
        parse_query(entry, "colour=red")

    assert refused.value.code == "unknown_option"
    assert "red" not in f"{refused.value.detail} {refused.value.data}"


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
