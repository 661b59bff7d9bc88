"""CloudEvents in all three modes become the same records; the problem of a malformed event names the event."""

from __future__ import annotations

import msgspec
import pytest

from fairlead_api.bodies.cloud_events import parse_event, parse_event_batch, parse_event_headers
from fairlead_api.problems import ProblemError
from refusals import refuses

REQUIRED = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order.made"}
IN_HEADERS = {f"ce-{name}": text for name, text in REQUIRED.items()}


def event(**members: object) -> bytes:
    """Return a structured event without the members that are None."""
    return msgspec.json.encode(
        {name: value for name, value in {**REQUIRED, **members}.items() if value != ...}
    )


def test_the_three_modes_make_one_record() -> None:
    """An event of any mode becomes the same record: attributes as headers, data as value, partition key as key."""
    more = {"time": "2026-01-01T00:00:00Z", "partitionkey": "anna", "datacontenttype": "application/json"}
    structured = parse_event(event(**more, data={"books": 1}))
    batch = parse_event_batch(b"[" + event(**more, data={"books": 1}) + b"]")
    headers = {**IN_HEADERS, "ce-time": more["time"], "ce-partitionkey": "anna", "accept": "*/*"}
    binary = parse_event_headers(headers, "application/json", b'{"books":1}')

    assert structured == batch
    assert structured.values == binary.values == [b'{"books":1}']
    assert structured.keys == binary.keys == [b"anna"]
    assert structured.timestamps_us == binary.timestamps_us == [1_767_225_600_000_000]
    [told], [as_told] = structured.headers, binary.headers
    assert told is not None
    assert as_told is not None
    assert sorted(told) == sorted(as_told)
    assert dict(told)["content-type"] == b"application/json"
    assert dict(told)["ce_source"] == b"/shop"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, None),
        ({"data": None}, None),
        ({"data": "text"}, b'"text"'),
        ({"data": "text", "datacontenttype": "application/vnd.shop+json; charset=utf-8"}, b'"text"'),
        ({"data": "text", "datacontenttype": "text/plain"}, b"text"),
        ({"data": 1.5, "datacontenttype": "text/plain"}, b"1.5"),
        ({"data_base64": "AAE="}, b"\0\1"),
        ({"data": None, "data_base64": "AAE="}, b"\0\1"),
        ({"data": 1, "data_base64": None}, b"1"),
        ({"data": [1, 2]}, b"[1,2]"),
    ],
)
def test_data(members: dict[str, object], expected: bytes | None) -> None:
    """Event data is kept as JSON text, as other text, or as decoded base64; an event without data has no value."""
    assert parse_event(event(**members)).values == [expected]


def test_extensions_in_their_canonical_text() -> None:
    """Extension attributes of any type, such as booleans, become their canonical text.

    Attributes with the value null are omitted.
    """
    [headers] = parse_event(event(sampled=True, dropped=False, level=3, nothing=None)).headers

    assert headers is not None
    assert {name: text for name, text in headers if name not in {f"ce_{each}" for each in REQUIRED}} == {
        "ce_sampled": b"true",
        "ce_dropped": b"false",
        "ce_level": b"3",
    }


def test_a_binary_event_without_a_body_or_a_type() -> None:
    """A binary event without a body has no value.

    Attributes in headers are percent-decoded and may be quoted.
    """
    record = parse_event_headers({**IN_HEADERS, "ce-subject": '"na%C3%AFve%20%22x%22"'}, "", b"")

    assert record.values == [None]
    assert dict(record.headers[0] or ())["ce_subject"] == 'naïve "x"'.encode()


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"[]", "malformed_request", "object"),
        (b"{", "malformed_request", "JSON"),
        (event(id=...), "invalid_record", "'id' of event 0 is missing"),
        (event(source=""), "invalid_record", "'source' of event 0"),
        (event(specversion="0.3"), "invalid_record", "'0.3' is not allowed; allowed: 1.0"),
        (event(Type="x"), "invalid_record", "'Type' of event 0"),
        (event(extra={"a": 1}), "invalid_record", "'extra' of event 0"),
        (event(data=1, data_base64="AA=="), "invalid_record", "not both"),
        (event(data_base64="?"), "invalid_record", "base64"),
        (event(data_base64="é"), "invalid_record", "base64"),
        (event(data_base64=7), "invalid_record", "base64"),
        (event(time="noon"), "malformed_request", "time of event 0"),
        (event(extra="?").replace(b"?", b"\xff"), "malformed_request", "not valid JSON"),
        (event(data="?").replace(b"?", b"\xff"), "malformed_request", "not valid JSON"),
        (
            event(data="?", datacontenttype="text/plain").replace(b"?", b"\xff"),
            "malformed_request",
            "not valid JSON",
        ),
        (event(data_base64="?").replace(b"?", b"\xff"), "malformed_request", "not valid JSON"),
    ],
)
def test_what_is_no_event(body: bytes, code: str, words: str) -> None:
    """A malformed event is refused, and the refusal names its number and the attribute."""
    with pytest.raises(ProblemError) as refused:
        parse_event(body)

    assert refused.value.code == code
    assert words in refused.value.detail


def test_the_event_of_a_batch_is_named() -> None:
    """The refusal of a batch of events names the malformed event by its position, from 0."""
    with refuses("invalid_record", "'id'", 1):
        parse_event_batch(b"[" + event() + b"," + event(id=...) + b"]")
    with refuses("malformed_request"):
        parse_event_batch(b"[" + event() + b"," + event(id="?").replace(b"?", b"\xff") + b"]")
    with refuses("invalid_record", "percent-encoded"):
        parse_event_headers({**IN_HEADERS, "ce-subject": "%FF"}, "", b"")
    assert len(parse_event_batch(b"[]")) == 0


@pytest.mark.parametrize(
    ("sent", "subject"),
    [
        ('say "hi"', 'say "hi"'),
        ('"', '"'),
        ('"say \\"hi\\" \\\\"', 'say "hi" \\'),
        ('"a" and "b"', '"a" and "b"'),
        ("gr\u00c3\u00b6\u00c3\u009fe", "gr\u00f6\u00dfe"),
    ],
)
def test_attributes_in_headers_stay_what_they_are(sent: str, subject: str) -> None:
    """Quotes are removed from an attribute in a header only if the whole attribute is quoted.

    Raw UTF-8 in an attribute is accepted.
    """
    record = parse_event_headers({**IN_HEADERS, "ce-subject": sent}, "text/plain;x=\u00c3\u00b6", b"")

    assert ("ce_subject", subject.encode()) in record.headers[0]
    assert ("content-type", "text/plain;x=\u00f6".encode()) in record.headers[0]


def test_a_content_type_that_is_no_utf_8() -> None:
    """A content type that is not UTF-8 is refused, and the problem names the header, as for an attribute."""
    with refuses("invalid_record", "datacontenttype"):
        parse_event_headers(IN_HEADERS, "text/\u00ff", b"")
