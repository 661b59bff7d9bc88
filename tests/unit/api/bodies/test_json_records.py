"""Records as JSON, in requests and in answers."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.bodies.json_records import (
    Encoding,
    FetchedColumns,
    JsonFetchAnswer,
    RecordColumns,
    fetched_records,
    parse_record_lines,
    parse_records,
)
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import format_timestamp
from refusals import refuses

ALL_BYTES = bytes(range(256))


def refusal(body: bytes, encoding: Encoding = Encoding.UTF8) -> ProblemError:
    """Return the problem of an invalid body of records."""
    with pytest.raises(ProblemError) as refused:
        parse_records(body, encoding)
    return refused.value


def columns(*values: bytes | None, timestamp_us: int = 0) -> FetchedColumns:
    """Return a fetched batch with the given values, without keys and headers."""
    count = len(values)
    return FetchedColumns(range(count), [timestamp_us] * count, [None] * count, values, [None] * count)


@pytest.mark.parametrize(
    "body",
    [
        b'{"records": [{"value": "a"}, {"value": "b"}]}',
        b' \n[{"value": "a"}, {"value": "b"}]',
        b" " * 100 + b'[{"value": "a"}, {"value": "b"}]',
    ],
)
def test_records_come_as_an_object_or_a_plain_array(body: bytes) -> None:
    """Records are read from an object with `records` and from a plain array."""
    records = parse_records(body)

    assert records.values == [b"a", b"b"]
    assert len(records) == 2


def test_every_member_of_a_record_becomes_a_column() -> None:
    """Key, value, headers and timestamp of a record become columns, in which null and empty values stay distinct."""
    records = parse_records(
        b"""[
            {"key": "k", "value": "v\\u00e9", "timestamp": 1500, "headers": [["a", "1"], ["a", null], ["b", ""]]},
            {"key": "", "value": "", "timestamp": "1970-01-01T00:00:02Z", "headers": []},
            {"key": null, "value": null, "headers": null, "timestamp": null},
            {"value": {"base64": "/wA="}, "key": {"base64": ""}, "headers": [["x", {"base64": "/w=="}]]}
        ]"""
    )

    assert records == RecordColumns(
        keys=[b"k", b"", None, b""],
        values=["vé".encode(), b"", None, b"\xff\x00"],
        timestamps_us=[1_500_000, 2_000_000, None, None],
        headers=[[("a", b"1"), ("a", None), ("b", b"")], None, None, [("x", b"\xff")]],
    )


def test_with_json_keys_and_values_are_any_json_kept_as_text() -> None:
    """With the `json` encoding, a key or value is any JSON value, stored as text.

    A null key means no key, and a null value a tombstone.
    """
    body = b'{"records": [{"key": 7, "value": {"a": [1,  2]}}, {"value": null, "headers": [["h", "x"]]}]}'
    records = parse_records(body, Encoding.JSON)
    plain = parse_records(b'[{"value": "text", "timestamp": 1}]', Encoding.JSON)

    assert records.keys == [b"7", None]
    assert records.values == [b'{"a": [1,  2]}', None]
    assert records.headers == [None, [("h", b"x")]]
    assert (plain.values, plain.timestamps_us) == ([b'"text"'], [1000])


def test_with_base64_keys_and_values_are_bytes() -> None:
    """With the `base64` encoding, a key or value is base64, as plain text or in an object; null stays null."""
    text = base64.b64encode(ALL_BYTES).decode()
    body = msgspec.json.encode([{"key": "", "value": text}, {"key": None, "value": {"base64": text}}])
    records = parse_records(body, Encoding.BASE64)

    assert records.values == [ALL_BYTES, ALL_BYTES]
    assert records.keys == [b"", None]


def test_the_last_of_repeated_keys_wins() -> None:
    """The last value of a repeated key is used, because record bodies are not searched for repeated keys."""
    assert parse_records(b'[{"value": "a", "value": "b"}]').values == [b"b"]


def test_a_body_without_records_is_no_error_here() -> None:
    """The parser accepts a body without records, since the call decides whether to refuse it."""
    assert len(parse_records(b"[]")) == 0


@pytest.mark.parametrize(
    ("body", "encoding", "code", "part"),
    [
        (b'[{"key": "k"}]', Encoding.UTF8, "malformed_request", "missing required field `value` at $[0]"),
        (b'{"records": [{"value": 1}]}', Encoding.UTF8, "malformed_request", "$.records[0].value"),
        (b'{"records": {}}', Encoding.UTF8, "malformed_request", "$.records"),
        (b'{"record": []}', Encoding.UTF8, "unknown_option", "allowed are records"),
        (b'[{"value": "a", "payload": 1}]', Encoding.UTF8, "unknown_option", "'payload'"),
        (b'[{"value": {"base46": ""}}]', Encoding.UTF8, "unknown_option", "allowed are base64"),
        (b'[{"value": "a", "headers": {"a": "b"}}]', Encoding.UTF8, "malformed_request", "$[0].headers"),
        (b'[{"value": "a", "headers": [["a"]]}]', Encoding.UTF8, "malformed_request", "$[0].headers[0]"),
        (
            b'[{"value": "a", "headers": [[null, "a"]]}]',
            Encoding.UTF8,
            "malformed_request",
            "$[0].headers[0][0]",
        ),
        (
            b'[{"value": "a"}, {"value": "b", "timestamp": "x"}]',
            Encoding.UTF8,
            "malformed_request",
            "record 1",
        ),
        (b'[{"value": "a", "timestamp": 1.5}]', Encoding.JSON, "malformed_request", "$[0].timestamp"),
        (b'[{"value": "a", "timestamp": true}]', Encoding.JSON, "malformed_request", "$[0].timestamp"),
        (b'[{"value": [}]', Encoding.JSON, "malformed_request", "not valid JSON"),
        (b'[{"value": "AA=="}, {"value": "*"}]', Encoding.BASE64, "invalid_record", "value '*' of record 1"),
        (b'[{"value": "AAA"}]', Encoding.BASE64, "invalid_record", "record 0"),
        ('[{"value": "é"}]'.encode(), Encoding.BASE64, "invalid_record", "of record 0 is not base64"),
        (b'[{"key": {"base64": "*"}, "value": ""}]', Encoding.UTF8, "invalid_record", "key '*' of record 0"),
        (
            b'[{"value": "", "headers": [["a", {"base64": "*"}]]}]',
            Encoding.UTF8,
            "invalid_record",
            "record 0",
        ),
        (b"[" * 100 + b"]" * 100, Encoding.JSON, "malformed_request", "deeper than 32"),
    ],
)
def test_a_bad_record_is_refused_with_its_place(
    body: bytes, encoding: Encoding, code: str, part: str
) -> None:
    """An invalid record is refused with its position and field, and no other record of the body is returned."""
    problem = refusal(body, encoding)

    assert problem.code == code
    assert part in problem.detail


def test_a_fetched_record_has_every_member() -> None:
    """A fetched record has partition, offset, timestamp, key, value and headers, under the names of the contract."""
    batch = FetchedColumns([41, 42], [0, 1], [b"k", None], [b"v", None], [[("h", b"x"), ("n", None)], None])
    answer = JsonFetchAnswer(
        records=fetched_records(3, batch), next_offset=43, high_watermark=43, log_start_offset=0
    )

    assert msgspec.json.decode(msgspec.json.encode(answer)) == {
        "records": [
            {
                "partition": 3,
                "offset": 41,
                "timestamp": "1970-01-01T00:00:00.000000Z",
                "key": "k",
                "value": "v",
                "headers": [["h", "x"], ["n", None]],
            },
            {
                "partition": 3,
                "offset": 42,
                "timestamp": "1970-01-01T00:00:00.000001Z",
                "key": None,
                "value": None,
                "headers": [],
            },
        ],
        "next_offset": 43,
        "high_watermark": 43,
        "log_start_offset": 0,
    }


@pytest.mark.parametrize(
    ("encoding", "payload", "expected"),
    [
        (Encoding.UTF8, "é".encode(), "é"),
        (Encoding.UTF8, b"\xff\x00", {"base64": "/wA="}),
        (Encoding.UTF8, b"", ""),
        (Encoding.JSON, b'{"a": [1,  2]}', {"a": [1, 2]}),
        (Encoding.JSON, b"null", None),
        (Encoding.JSON, b"plain text", {"base64": "cGxhaW4gdGV4dA=="}),
        (Encoding.JSON, b"", {"base64": ""}),
        (Encoding.JSON, b'"\xff"', {"base64": "Iv8i"}),
        (Encoding.JSON, b"NaN", {"base64": "TmFO"}),
        (Encoding.BASE64, ALL_BYTES, base64.b64encode(ALL_BYTES).decode()),
        (Encoding.UTF8, None, None),
        (Encoding.JSON, None, None),
        (Encoding.BASE64, None, None),
    ],
)
def test_the_encoding_decides_how_bytes_stand_in_the_answer(
    encoding: Encoding, payload: bytes | None, expected: object
) -> None:
    """Bytes that the encoding cannot represent are wrapped in base64, so that an answer is always valid JSON."""
    [record] = fetched_records(0, columns(payload), encoding)

    assert msgspec.json.decode(msgspec.json.encode(record))["value"] == expected


def test_json_of_several_lines_comes_on_one() -> None:
    """A JSON value of several lines is returned on one line, because a line break would end its line or event."""
    [record] = fetched_records(0, columns(b'{\n  "a": [1.10,\r\n\n"b\\n"]\n}\n'), Encoding.JSON)
    text = msgspec.json.encode(record)

    assert b"\n" not in text
    assert b"\r" not in text
    assert b"1.10" in text
    assert msgspec.json.decode(text)["value"] == {"a": [1.1, "b\n"]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"records": [{"value": "\xff"}]}',
        b'[{"value": 1, "key": {"\xff": 1}}]',
        b'[{"value": {"a": ["\xc3"]}}]',
    ],
)
def test_json_that_is_no_utf_8_is_refused(body: bytes) -> None:
    """JSON that is not UTF-8 is also refused with the `json` encoding, in a body and in a line."""
    assert refusal(body, Encoding.JSON).code == "malformed_request"
    with refuses("malformed_request", 7):
        parse_record_lines([(7, b'{"value": "\xff"}')], Encoding.JSON)


def test_json_that_no_reader_could_have_is_refused() -> None:
    """JSON with numbers or strings that no reader would accept is refused by the produce call."""
    for value in ("1e999", '{"a": NaN}', '"\\ud800"'):
        line = f'{{"value": {value}}}'.encode()
        assert refusal(b"[" + line + b"]", Encoding.JSON).code == "malformed_request"
        with refuses("malformed_request", 7):
            parse_record_lines([(7, line)], Encoding.JSON)


def test_json_too_deep_for_a_parser_comes_wrapped() -> None:
    """A stored JSON value that is nested too deeply for a parser is wrapped in base64."""
    deep = b"[" * 100_000 + b"]" * 100_000
    [record] = fetched_records(0, columns(deep), Encoding.JSON)

    assert msgspec.json.decode(msgspec.json.encode(record))["value"] == {
        "base64": base64.b64encode(deep).decode()
    }


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_times_of_a_batch_are_those_of_each_record(timestamps_us: list[int]) -> None:
    """The timestamps of a batch are formatted to the same text as each timestamp on its own."""
    nothing = [None] * len(timestamps_us)
    batch = FetchedColumns(range(len(timestamps_us)), timestamps_us, nothing, nothing, nothing)

    assert [record.timestamp for record in fetched_records(0, batch)] == list(
        map(format_timestamp, timestamps_us)
    )


@given(
    st.lists(st.tuples(st.binary() | st.none(), st.binary() | st.none())), st.sampled_from(["utf8", "base64"])
)
def test_what_was_fetched_can_be_produced_again(
    records: list[tuple[bytes | None, bytes | None]], name: str
) -> None:
    """Fetched keys and values of any bytes can be produced again, with utf8 and with base64."""
    keys, values = [key for key, _ in records], [value for _, value in records]
    batch = FetchedColumns(range(len(records)), [0] * len(records), keys, values, [None] * len(records))
    fetched = fetched_records(0, batch, Encoding(name))
    body = msgspec.json.encode([{"key": record.key, "value": record.value} for record in fetched])
    again = parse_records(body, Encoding(name))

    assert (again.keys, again.values) == (keys, values)


@pytest.mark.parametrize("name", ["utf8", "json", "base64"])
def test_lines_are_records_each(name: str) -> None:
    """Records in lines become the same columns as records in an array, with every encoding."""
    lines = [b'{"key":"YQ==","value":"YWI="}', b'{"value":null,"headers":[["h","x"]],"timestamp":7}']
    together = parse_records(b"[" + b",".join(lines) + b"]", Encoding(name))

    assert parse_record_lines([(3, lines[0]), (5, lines[1])], Encoding(name)) == together
    assert len(parse_record_lines([], Encoding(name))) == 0


@pytest.mark.parametrize(
    ("encoding", "line", "code"),
    [
        ("utf8", b'{"value":', "malformed_request"),
        ("utf8", b"[" * 40, "malformed_request"),
        ("utf8", b'{"value":"a"},{"value":"b"}', "malformed_request"),
        ("json", b'{"key":1}', "malformed_request"),
        ("utf8", b'{"value":"a","ttl":1}', "unknown_option"),
        ("base64", b'{"value":"?"}', "invalid_record"),
        ("utf8", b'{"value":"a","headers":[["h",{"base64":"?"}]]}', "invalid_record"),
    ],
)
def test_a_wrong_line_is_named(encoding: str, line: bytes, code: str) -> None:
    """The problem of a malformed line has the line's number in its detail and its data."""
    with refuses(code, 9) as refused:
        parse_record_lines([(7, b'{"value":"aaaa"}'), (9, line)], Encoding(encoding))

    assert refused.value.data["line"] == 9


def test_a_time_that_is_none_refuses_the_lines() -> None:
    """An invalid timestamp in a line is refused, and the refusal names the line."""
    with refuses("malformed_request", 4, 0):
        parse_record_lines([(1, b'{"value":"a"}'), (4, b'{"value":"a","timestamp":"noon"}')])
