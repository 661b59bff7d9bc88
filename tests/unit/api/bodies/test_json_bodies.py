"""JSON bodies become typed requests, or are refused with the path of the error."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_api.bodies.json_bodies import (
    Request,
    decode_json,
    decode_kept_json,
    decode_request,
    nested_too_deeply,
)
from fairlead_api.bodies.json_slices import DEPTH_MAX, OBJECTS_MAX
from fairlead_api.problems import ProblemError
from refusals import missing, refuses


class Gear(StrEnum):
    """The allowed values of a field."""

    FIRST = "first"
    REVERSE = "reverse"


class Wheel(Request, frozen=True, kw_only=True):
    """A struct inside another struct."""

    size: int
    width: int | None = None


class Car(Request, frozen=True, kw_only=True):
    """A struct with every kind of position that can occur in a path."""

    name: str
    wheels: list[Wheel] = []  # noqa: RUF012 - msgspec copies an empty default
    by_place: dict[str, Wheel] = {}  # noqa: RUF012
    spare: Wheel | None = None
    options: dict[str, str | int | float | bool | None] = {}  # noqa: RUF012
    sizes: tuple[int, ...] = ()
    pair: tuple[str, Wheel] | None = None


class Order(Request, frozen=True, kw_only=True):
    """Fields with a set of allowed values, alone and in a union."""

    gear: Gear | None = None
    paints: list[Literal["red", "blue"] | Wheel] = []  # noqa: RUF012


def refusal(body: bytes) -> ProblemError:
    """Return the problem of a body that is not a valid `Car`."""
    with pytest.raises(ProblemError) as refused:
        decode_request(Car, body)
    return refused.value


def depth(value: object) -> int:
    """Return the nesting depth, found by a walk over the parsed value, for comparison with the scan."""
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 0


def test_a_good_body_becomes_the_request() -> None:
    """A valid body becomes the typed request; absent fields have their defaults."""
    car = decode_request(Car, b'{"name": "beetle", "wheels": [{"size": 15}], "options": {"roof": null}}')

    assert car == Car(name="beetle", wheels=[Wheel(size=15)], options={"roof": None})


def test_a_body_may_be_a_view() -> None:
    """A body may be a memoryview of a larger buffer."""
    assert decode_request(Car, memoryview(b'..{"name":"a"}')[2:]).name == "a"


@pytest.mark.parametrize(
    ("body", "parameter", "value", "allowed"),
    [
        (b'{"name": 1}', "$.name", 1, "str"),
        (b'{"name": null}', "$.name", None, "str"),
        (b'{"name": [1]}', "$.name", "an array", "str"),
        (b'{"name": "a", "wheels": [{"size": 1}, {"size": "x"}]}', "$.wheels[1].size", "x", "int"),
        (b'{"name": "a", "wheels": {}}', "$.wheels", "an object", "array"),
        (b'{"name": "a", "by_place": {"left": {"size": 1}, "right": 7}}', "$.by_place.right", 7, "object"),
        (b'{"name": "a", "by_place": {"left": {"size": true}}}', "$.by_place.left.size", True, "int"),
        (b'{"name": "a", "spare": {"size": 1.5}}', "$.spare.size", 1.5, "int"),
        (
            b'{"name": "a", "options": {"x": 1, "y": {"z": 1}}}',
            "$.options.y",
            "an object",
            "bool | int | float | str | null",
        ),
        (b'{"name": "a", "sizes": [1, "2"]}', "$.sizes[1]", "2", "int"),
        (
            b'{"name": "a", "by_place": {"left": {"size": 1}, "right": {"size": 1, "width": "x"}}}',
            "$.by_place.right.width",
            "x",
            "int | null",
        ),
        (b'{"name": "a", "pair": ["x", {"size": "x"}]}', "$.pair[1].size", "x", "int"),
        (b'{"name": "a", "sizes": 36893488147419103232}', "$.sizes", "an integer of 66 bits", "array"),
        (b"[]", "$", "an array", "object"),
        (b"7", "$", 7, "object"),
    ],
)
def test_a_wrong_type_is_refused_with_path_value_and_what_is_allowed(
    body: bytes, parameter: str, value: object, allowed: str
) -> None:
    """A value of a wrong type is refused, and the problem names its path, the quoted value and the allowed type."""
    problem = refusal(body)

    assert problem.code == "malformed_request"
    assert problem.data == {"parameter": parameter, "value": value, "allowed": allowed}
    assert parameter in problem.detail


@pytest.mark.parametrize(
    ("body", "parameter", "value", "allowed"),
    [
        (b'{"gear": "fifth"}', "$.gear", "fifth", ["first", "reverse"]),
        (b'{"paints": ["red", "green"]}', "$.paints[1]", "green", ["blue", "red"]),
        (b'{"gear": "it\'s"}', "$.gear", "it's", ["first", "reverse"]),
    ],
)
def test_a_wrong_choice_is_refused_with_those_that_are_allowed(
    body: bytes, parameter: str, value: str, allowed: list[str]
) -> None:
    """A value that is not one of the choices is refused, and the problem names its path, the value and the choices."""
    with pytest.raises(ProblemError) as refused:
        decode_request(Order, body)
    problem = refused.value

    assert problem.code == "malformed_request"
    assert problem.data == {"parameter": parameter, "value": value, "allowed": allowed}
    assert missing(problem.detail, parameter, *allowed) == []


def test_a_missing_field_is_named() -> None:
    """The detail of the problem names a missing field with its path."""
    problem = refusal(b'{"name": "a", "wheels": [{}]}')

    assert problem.code == "malformed_request"
    assert problem.detail == "Object missing required field `size` at $.wheels[0]"
    assert problem.data == {"parameter": "$.wheels[0]"}


@pytest.mark.parametrize(
    ("body", "parameter", "allowed"),
    [
        (
            b'{"label": 1, "name": "a"}',
            "$.label",
            ["name", "wheels", "by_place", "spare", "options", "sizes", "pair"],
        ),
        (b'{"name": "a", "wheels": [{"size": 1, "colour": 2}]}', "$.wheels[0].colour", ["size", "width"]),
        (b'{"name": "a", "by_place": {"left": {"colour": 2}}}', "$.by_place[...].colour", ["size", "width"]),
        (b'{"name": "a", "pair": ["x", {"colour": 2}]}', "$.pair[1].colour", ["size", "width"]),
        (b'{"name": "a", "spare": {"colour": 2}}', "$.spare.colour", ["size", "width"]),
    ],
)
def test_an_unknown_field_is_refused_by_name(body: bytes, parameter: str, allowed: list[str]) -> None:
    """An unknown field is refused, and the problem names the field and lists the allowed fields of the object."""
    problem = refusal(body)

    assert problem.code == "unknown_option"
    assert problem.data == {"parameter": parameter, "allowed": allowed}
    assert all(name in problem.detail for name in allowed)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b'{"name": "a",}',
        b'{"name": "a"} x',
        b'{"name": NaN}',
        b'{"name": "a", "options": {"x": Infinity}}',
        b'{"name": "\xff"}',
        b'"\xff"',
        b'{"name": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        b"'a'",
        b"[" + b"1" * 5000 + b"]",
        b'{"name": "a", "sizes": [' + b"1" * 5000 + b"]}",
        b'[7, "\xff"]',
        b'{"name": 7, "sizes": [',
    ],
)
def test_what_is_no_json_is_malformed(body: bytes) -> None:
    """A body with broken syntax, broken UTF-8, lone surrogates, NaN or unbounded numbers is malformed."""
    assert refusal(body).code == "malformed_request"


@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "a", "name": "b"}',
        b'{"name": "a", "wheels": [{"size": 1, "size": 1}]}',
        b'{"name": "a", "options": {"n\\u0061me": 1, "name": 2}}',
    ],
)
def test_a_repeated_key_is_refused_by_name_in_admin_bodies(body: bytes) -> None:
    """A repeated key in an admin body is refused at any depth and in any spelling, and the problem names the key."""
    problem = refusal(body)

    assert problem.code == "malformed_request"
    assert "is repeated" in problem.detail
    assert problem.data["parameter"] in ("name", "size")


def test_what_is_kept_as_it_came_is_utf_8() -> None:
    """A value that is kept as raw JSON must be valid UTF-8, because it may become a record."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

    assert decode_kept_json(decoder, memoryview('{"a": "é"}'.encode()))["a"] == msgspec.Raw('"é"'.encode())
    with refuses("malformed_request"):
        decode_kept_json(decoder, b'{"a": "\xff"}')


@pytest.mark.parametrize("number", ["1e999", "-1E+309", "NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("body", ['{"a": [0.5, %s]}', '{"a": "1e999", "b": %s}', '{"a": %s, "b": '])
def test_a_number_that_json_cannot_have_is_named(number: str, body: str) -> None:
    """A number that JSON does not allow is named in the refusal, even in raw JSON."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    text = (body % number).encode()

    for decode in (lambda: decode_kept_json(decoder, text), lambda: decode_request(dict[str, object], text)):
        with refuses("malformed_request", number) as refused:
            decode()
        assert refused.value.data["value"] == number


def test_a_number_of_any_digits_is_one() -> None:
    """A number is kept as raw JSON if it is within the range of a double, regardless of its number of digits."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])

    for number in ("12345678901234567890.5", "1e308", "1e-999", "9" * 400):
        assert bytes(decode_kept_json(decoder, f'{{"a": {number}}}'.encode())["a"]) == number.encode()


def test_what_is_kept_nests_no_deeper_than_other_bodies() -> None:
    """Raw JSON has the same depth limit as other bodies; the limit is checked before decoding."""
    body = b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1)
    with refuses("malformed_request") as refused:
        decode_kept_json(msgspec.json.Decoder(list[msgspec.Raw]), body)
    assert refused.value.data["allowed"] == DEPTH_MAX


def test_a_long_number_is_named_by_its_beginning() -> None:
    """The refusal of a long number shows its first 80 characters."""
    body = b"[" + b"9" * 1000 + b".5]"
    with refuses("malformed_request", "9" * 80 + "...") as refused:
        decode_kept_json(msgspec.json.Decoder(list[msgspec.Raw]), body)
    assert len(str(refused.value.data["value"])) <= 83


def test_the_last_of_repeated_keys_wins_where_the_caller_says_so() -> None:
    """The last value of a repeated key is used if the caller turns off the check for repeated keys."""
    assert decode_request(Car, b'{"name": "a", "name": "b"}', unique_keys=False).name == "b"


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"a":'])
def test_a_body_deeper_than_the_limit_is_refused_unread(opening: bytes) -> None:
    """A body nested beyond the limit is refused before parsing, whether its brackets are closed or not."""
    closed = (
        opening * 100 + b"1" + bytes(reversed(opening.translate(bytes.maketrans(b"[{", b"]}"), b'":a'))) * 100
    )

    assert "deeper than 32 levels" in refusal(closed).detail
    assert refusal(opening * 20_000).code == "malformed_request"


def test_a_body_with_too_many_objects_is_refused_unread() -> None:
    """A body with too many objects and arrays is refused before parsing, without counting brackets in strings."""
    decoder = msgspec.json.Decoder(list[msgspec.Raw])
    within = b'["' + b"[" * OBJECTS_MAX + b'",' + b",".join([b"{}"] * (OBJECTS_MAX - 1)) + b"]"
    with pytest.raises(ProblemError) as refused:
        decode_json(decoder, b"[" + b",".join([b"{}"] * OBJECTS_MAX) + b"]")

    assert (refused.value.code, refused.value.data) == ("malformed_request", {"allowed": OBJECTS_MAX})
    assert len(decode_json(decoder, within)) == OBJECTS_MAX


@pytest.mark.parametrize("levels", [DEPTH_MAX, DEPTH_MAX + 1])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('{"[{":', "}")])
def test_the_limit_is_exact(levels: int, opening: str, closing: str) -> None:
    """A body with 32 levels of nesting is accepted, and one with 33 is refused; brackets in strings are not counted."""
    body = (opening * levels + '"]}[{"' + closing * levels).encode()

    assert nested_too_deeply(body) is (levels > DEPTH_MAX)


@given(
    st.recursive(
        st.text('[]{}"\\ab', max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text('{["\\', max_size=2), inner, max_size=3)
        ),
        max_leaves=60,
    ),
    st.integers(0, 40),
)
def test_the_scan_agrees_with_a_walk(value: object, wrapped: int) -> None:
    """The scan finds the same depth as a walk over the parsed value, for any characters in strings and keys."""
    for _ in range(wrapped):
        value = [value, "]"]

    assert nested_too_deeply(json.dumps(value).encode()) is (depth(value) > DEPTH_MAX)


@given(st.binary(max_size=200) | st.text('[]{}"\\:,1a ', max_size=200).map(str.encode))
def test_no_body_raises_anything_but_a_problem(body: bytes) -> None:
    """A body of random bytes is decoded to a request or refused with a problem of the catalogue."""
    outcome: object = Car
    try:
        assert isinstance(decode_request(Car, body), Car)
    except ProblemError as problem:
        outcome = problem.status

    assert outcome in (Car, 400, 422)
