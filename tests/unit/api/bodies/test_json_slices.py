"""Parsing a large JSON body in slices has the same result as parsing it whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.bodies.cloud_events import parse_event, parse_event_batch, parse_event_slices
from fairlead_api.bodies.json_bodies import ArrayDecoders, decode_json, decode_slices
from fairlead_api.bodies.json_records import (
    Encoding,
    RecordColumns,
    parse_record_lines,
    parse_record_slices,
    parse_records,
)
from fairlead_api.bodies.json_slices import (
    DEPTH_MAX,
    OBJECTS_MAX,
    RECORD_BYTES_MAX,
    RECORD_PARTS_MAX,
    SURROUNDING_BYTES_MAX,
)
from fairlead_api.problems import ProblemError

PLAIN = msgspec.json.Decoder(list[Any])
RECORDS = msgspec.json.Decoder(
    msgspec.defstruct("Body", [("records", list[Any])], forbid_unknown_fields=True)
)

TEXTS = st.text('[]{}"\\,: aé', max_size=6)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=12,
)
EDITS = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([b"", *map(bytes, zip(b'[]{}",:\\ 1', strict=False))]))
)


def in_slices(body: bytes, window_bytes: int, *, plain: bool) -> list[Any] | str:
    """Return the elements of a body that is parsed in slices, or the code of the problem."""
    decoders = ArrayDecoders(PLAIN, PLAIN) if plain else ArrayDecoders(PLAIN, RECORDS, "records")
    try:
        return [element for elements in decode_slices(decoders, body, window_bytes) for element in elements]
    except ProblemError as problem:
        return problem.code


def at_once(body: bytes, *, plain: bool) -> list[Any] | str:
    """Return the elements of a body that is parsed whole, or the code of the problem."""
    try:
        return decode_json(PLAIN, body) if plain else decode_json(RECORDS, body).records
    except ProblemError as problem:
        return problem.code


@given(st.lists(VALUES, max_size=8), EDITS, st.integers(1, 40), st.booleans())
def test_slices_have_the_elements_of_the_body(
    values: list[Any], edits: list[tuple[int, bytes]], window_bytes: int, plain: bool
) -> None:
    """A body is accepted in slices if and only if it is accepted whole, and has the same elements."""
    body = msgspec.json.encode(values if plain else {"records": values})
    for place, edit in edits[:3]:
        body = body[:place] + edit + body[place + 1 :]
    whole, sliced = at_once(body, plain=plain), in_slices(body, window_bytes, plain=plain)

    if isinstance(whole, str):
        assert isinstance(sliced, str), body
    else:
        assert sliced == whole, body


@pytest.mark.parametrize("window_bytes", range(1, 7))
@pytest.mark.parametrize("body", [b"[1,]", b"[,1]", b"[1,,2]", b'{"records":[1,]}', b"]", b"[1]]", b"[1"])
def test_no_slice_hides_a_missing_element(body: bytes, window_bytes: int) -> None:
    """A missing element beside a comma, or an unbalanced bracket, is refused wherever a slice ends."""
    assert in_slices(body, window_bytes, plain=body[:1] != b"{") == "malformed_request"


def test_a_small_body_is_one_slice() -> None:
    """A small body has one slice, even if the body is an empty array."""
    assert [each.values for each in parse_record_slices(b'[{"value":"a"}]')] == [[b"a"]]
    assert [each.values for each in parse_event_slices(b"[]")] == [[]]


def joined(slices: list[RecordColumns]) -> RecordColumns:
    """Return the columns of all slices."""
    return RecordColumns(
        keys=[key for each in slices for key in each.keys],
        values=[value for each in slices for value in each.values],
        timestamps_us=[time for each in slices for time in each.timestamps_us],
        headers=[headers for each in slices for headers in each.headers],
    )


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize("form", [b"[%b]", b' {"records": [%b]} ', b'{"records": [{}], "records": [%b]}'])
def test_a_large_body_has_the_records_of_its_text(encoding: Encoding, form: bytes) -> None:
    """Parsing a large body in slices returns the same records as parsing it whole, in every encoding.

    One record of the tested body is larger than a window of the parser.
    """
    record = b'{"key":"YWI=","value":"YWJj","headers":[["a","b"]],"timestamp":%d}'
    records = [record % number for number in range(3000)]
    records[1500] = b'{"value":"%b"}' % (b"YWJj" * 100_000)
    body = form % b",\n".join(records)
    if b"{}" in form:
        with pytest.raises(ProblemError):
            list(parse_record_slices(body, encoding))
        body = body.replace(b"[{}]", b"[]")
    slices = list(parse_record_slices(body, encoding))

    assert len(slices) > 3
    assert joined(slices) == parse_records(body, encoding)


def test_a_large_batch_of_events_has_the_events_of_its_text() -> None:
    """Parsing a large batch of events in slices returns the same events as parsing it whole."""
    event = b'{"specversion":"1.0","id":"%d","source":"s","type":"t","data":{"a":[1,2]}}'
    body = b"[%b]" % b",".join(event % number for number in range(5000))
    slices = list(parse_event_slices(body))

    assert len(slices) > 3
    assert joined(slices) == parse_event_batch(body)


LARGE = {
    b"RECORDS": b'{"value":"%b"},' % (b"v" * 100) * 3000,
    b"LONG": b"v" * RECORD_BYTES_MAX,
    b"HEADERS": b",".join([b'["a","b"]'] * RECORD_PARTS_MAX),
    b"SPACES": b" " * SURROUNDING_BYTES_MAX,
    b"OBJECTS": b"{}," * OBJECTS_MAX,
    b"DEEP": b"[" * 32 + b"]" * 32,
}


@pytest.mark.parametrize(
    ("body", "code", "data"),
    [
        (b'{"records":[RECORDS{"value":5}]}', "malformed_request", {"parameter": "$.records[3000].value"}),
        (b'[RECORDS{"value":"x","other":1}]', "unknown_option", {"parameter": "$[3000].other"}),
        (b'[RECORDS{"value":"x","timestamp":"now"}]', "malformed_request", {}),
        (b'[RECORDS{"value":{"base64":"?"}}]', "invalid_record", {"record": 3000}),
        (b'[RECORDS{"value":"x","headers":[["a",{"base64":"?"}]]}]', "invalid_record", {"record": 3000}),
        (b"[RECORDS]", "malformed_request", {}),
        (b"[RECORDS,{}]", "malformed_request", {}),
        (b"[RECORDS", "malformed_request", {}),
        (b'[RECORDS{"value":"\xff"}]', "malformed_request", {}),
        (b'[RECORDS{"value":"a"}]]', "malformed_request", {}),
        (b'{"records":[RECORDS{"value":"a"}],"other":[]}', "unknown_option", {"parameter": "$.other"}),
        (b'[RECORDS{"value":"LONG"}]', "body_too_large", {"limit_bytes": RECORD_BYTES_MAX}),
        (b'[RECORDS{"value":"a","headers":[HEADERS]}]', "malformed_request", {"allowed": RECORD_PARTS_MAX}),
        (b'[RECORDS{"value":"a"}]SPACES', "malformed_request", {"allowed": SURROUNDING_BYTES_MAX}),
        (b'[RECORDS{"value":"a","headers":DEEP}]', "malformed_request", {"allowed": DEPTH_MAX}),
        (b"[RECORDSOBJECTS{}]", "malformed_request", {"allowed": OBJECTS_MAX}),
    ],
)
def test_a_refusal_names_the_place_in_the_body(body: bytes, code: str, data: dict[str, object]) -> None:
    """The refusal of a record in a late slice contains the record's path and number in the whole body."""
    for mark, text in LARGE.items():
        body = body.replace(mark, text)
    with pytest.raises(ProblemError) as refused:
        list(parse_record_slices(body))

    assert refused.value.code == code
    assert data.items() <= refused.value.data.items()


def test_a_syntax_error_is_named_by_its_byte() -> None:
    """The refusal of invalid JSON in a slice, or after the array, names the position in the whole body."""
    for body in (b'[RECORDS{"value":"a";}]', b'{"records":[RECORDS{"value":"a"}];}'):
        text = body.replace(b"RECORDS", LARGE[b"RECORDS"])
        with pytest.raises(ProblemError) as refused:
            list(parse_record_slices(text))

        assert f"(byte {text.index(b';')})" in refused.value.detail


def test_a_record_by_itself_has_the_limits_of_a_record_in_an_array() -> None:
    """A record on a separate line, or in an event, has the same limits as a record in an array."""
    large = b'{"value":"%b"}' % (b"v" * RECORD_BYTES_MAX)
    with pytest.raises(ProblemError) as line:
        parse_record_lines([(1, b'{"value":"a"}'), (2, large)])
    with pytest.raises(ProblemError) as event:
        parse_event(b"{%b}" % b",".join(b'"a%d":1' % number for number in range(RECORD_PARTS_MAX + 1)))

    assert (line.value.code, line.value.data["line"]) == ("body_too_large", 2)
    assert event.value.data["allowed"] == RECORD_PARTS_MAX
