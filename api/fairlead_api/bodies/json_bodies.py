"""Decoding of JSON bodies to typed requests, or to a problem that names the invalid position.

All JSON from callers is decoded by this module: by `decode_request` for admin calls and metadata of frames, by
`decode_json` for record bodies with their own decoders, and by `decode_slices` for large record bodies. This module
must not depend on any particular request. The file is long because it contains every refusal of JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

import msgspec
from msgspec import UNSET, inspect

from fairlead_api.bodies.json_slices import (
    DEPTH_MAX,
    OBJECTS_MAX,
    WHOLE_BYTES_MAX,
    WINDOW_BYTES,
    Division,
    divided,
    too_deep,
    too_many_objects,
)
from fairlead_api.excerpts import INTEGER_MAX, INTEGER_MIN, excerpt, shortened, shown
from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlead_api.problems.definitions import JSON

T = TypeVar("T")

_STRING: Final = re.compile(rb'"[^"]*"')
_ONE_BRACKET: Final = bytes.maketrans(b"{}", b"[]")
_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_PLACE: Final = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>.*)`)?", re.DOTALL)
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)
_WRONG_CHOICE: Final = "Invalid enum value "
_EXPECTED: Final = re.compile(r"Expected (?P<allowed>.*?)(?:, got `(?P<got>.*)`)?", re.DOTALL)
_JSON_TYPE_NAMES: Final = {
    str: "str",
    int: "int",
    float: "float",
    bool: "bool",
    type(None): "null",
    list: "array",
    dict: "object",
}
_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|(\[\.\.\.\])")
_BYTE: Final = re.compile(r"\(byte (\d+)\)")
_FIRST_INDEX: Final = re.compile(r"\$\[(\d+)\]")
_NUMBERS: Final = bytes(
    ord("0") if byte in b"0123456789" else ord("e") if byte in b"eE" else ord(" ") for byte in range(256)
)
_SLOW_EXPONENT: Final = b"e00"
_SLOW_DIGITS: Final = b"0" * 20


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON object of a request; unknown fields are refused, and the problem names the field."""


def decode_request(type_: type[T], body: bytes | memoryview, *, unique_keys: bool = True) -> T:
    """Return a body as a request of this type.

    Raises `malformed_request` with the path, the value and the allowed values, and `unknown_option` for an unknown
    field. A repeated key in an object is refused unless `unique_keys` is false: on the hot path, the last value of the
    key is used.
    """
    request = decode_json(_decoder(type_), body)
    if unique_keys:
        _refuse_repeated_keys(bytes(body))
    return request


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    """Decode a body; the last value of a repeated key is used. Raises the problems of `decode_request`."""
    _check_structure(body)
    return _decoded(decoder, body)


def decode_kept_json(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    """Decode like `decode_json`, with a decoder that keeps values as text (`msgspec.Raw`).

    The decoder checks only the structure of values that it keeps as text. The function also parses the whole body, so
    that text that is not UTF-8, or a number beyond the range of a double, is not stored in a record that consumers
    could not parse as JSON.
    """
    _check_structure(body)
    _parsed(_anything(body), body)
    return _decoded(decoder, body)


@dataclass(frozen=True, slots=True)
class ArrayDecoders(Generic[T]):
    """Decoders of a body whose array of records is parsed in slices."""

    elements: msgspec.json.Decoder[list[T]]
    """Decoder of the array of records."""
    body: msgspec.json.Decoder[object]
    """Decoder of the whole body: `elements` if the body is an array, else a decoder of an object with an array field.
    """
    field: str = ""
    """Name of the field that contains the array; empty if the body itself is the array."""
    kept: bool = False
    """Whether the decoders keep values as text."""


def decode_slices(
    decoders: ArrayDecoders[T], body: bytes, window_bytes: int = WINDOW_BYTES
) -> Iterator[list[T]]:
    """Yield the elements of the array of a body in slices, none of which holds the interpreter lock for long.

    The last value of a repeated field is used. Raises the problems of `decode_json`, and the problems of `divided`.
    """
    yield from decode_divided(decoders, body, window_bytes)[1]


def decode_divided(
    decoders: ArrayDecoders[T], body: bytes, window_bytes: int = WINDOW_BYTES
) -> tuple[object, Iterator[list[T]]]:
    """Return the decoded body with its array emptied, and the elements of the array in slices (see `decode_slices`)."""
    division = divided(body, 2 if decoders.field else 1, window_bytes)
    frame = _decoded(decoders.body, division.frame, _Origin(division.place_in_body))
    return frame, _elements(decoders, body, division)


def _elements(decoders: ArrayDecoders[T], body: bytes, division: Division) -> Iterator[list[T]]:
    path = f"$.{decoders.field}" if decoders.field else "$"
    counts = Counter(each.array for each in division.slices)
    array, number = 0, 0
    for each in division.slices:
        if each.array != array:
            array, number = each.array, 0
        text = each.text(body)
        origin = _Origin((each.start - 1).__add__, path, number)
        if decoders.kept:
            _parsed(_anything(text), text, origin)
        elements = _decoded(decoders.elements, text, origin)
        if not elements and counts[array] > 1:
            raise ProblemError(
                "malformed_request",
                f"the body is not valid JSON: an element of an array is missing (byte {each.stop})",
            )
        number += len(elements)
        if array == division.slices[-1].array:
            yield elements


def check_record(body: bytes) -> None:
    """Refuse the text of a record that is too complex to be parsed in one call. Raises the problems of `divided`."""
    if len(body) > WHOLE_BYTES_MAX:
        divided(body, 0)


def is_value(text: bytes) -> bool:
    """Return whether a text is JSON that a parser may parse in one call, as is required of records in bodies."""
    try:
        check_record(text)
        _anything(text).decode(text)
    except (ProblemError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def number_beyond(text: bytes | memoryview) -> str | None:
    """Return the first number in a refused text that JSON does not allow, truncated if long; None if all are allowed.

    JSON has neither NaN nor infinity. A number such as 1e999 is valid JSON, but every parser that uses doubles reads
    the number as infinity.
    """
    found: list[str] = []

    def to_float(number: str) -> float:
        value = float(number)
        if math.isinf(value):
            found.append(number)
        return value

    # A syntax error is ignored: either it comes after a number that was found, or the caller reports the error of the
    # parser that refused the text.
    with suppress(ValueError, RecursionError):
        json.loads(str(text, "utf-8"), parse_float=to_float, parse_constant=found.append)
    return shortened(found[0]) if found else None


def nested_too_deeply(body: bytes) -> bool:
    """Return whether a JSON text nests arrays and objects deeper than 32 levels, without parsing the text.

    The function keeps only the brackets outside strings, converts them to one kind, and removes the innermost pairs
    level by level. If brackets remain after 32 levels, the text nests deeper. The parser detects unmatched brackets.
    The cost is a few passes over the body in C, regardless of its contents.
    """
    return body.count(b"[") + body.count(b"{") > DEPTH_MAX and _is_deep(_brackets(body))


def _brackets(body: bytes) -> bytes:
    """Return the brackets outside strings, converted to one kind."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Whether a quote opens or closes a string depends only on parity, so removing two adjacent quotes does not affect
    # the other quotes.
    skeleton = body.translate(_ONE_BRACKET, _NOT_STRUCTURE).replace(b'""', b"")
    return _STRING.sub(b"", skeleton)


def _is_deep(skeleton: bytes) -> bool:
    for _ in range(DEPTH_MAX):
        shallower = skeleton.replace(b"[]", b"")
        if len(shallower) == len(skeleton):
            return False
        skeleton = shallower
    return b"[]" in skeleton


def _decoder(type_: type[T]) -> msgspec.json.Decoder[T]:
    decoder = _DECODERS.get(type_)
    if decoder is None:
        decoder = _DECODERS[type_] = msgspec.json.Decoder(type_)
    return cast("msgspec.json.Decoder[T]", decoder)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


_ANYTHING: Final[msgspec.json.Decoder[object]] = msgspec.json.Decoder(object)
"""Decoder of any JSON value; input that the decoder refuses, such as a number of 5,000 digits, is refused as invalid
JSON."""
_ANYTHING_SLOW: Final[msgspec.json.Decoder[object]] = msgspec.json.Decoder(object, float_hook=_finite)
"""Decoder of any JSON value that lets Python convert the floats. For most numbers, this decoder takes ten times as long
as msgspec's own conversion."""


def _anything(body: bytes | memoryview) -> msgspec.json.Decoder[object]:
    """Return a decoder for any JSON value, chosen so that the numbers in the body are decoded quickly.

    For a number with an exponent of two digits, or with 20 digits, the fast decoder takes up to ten microseconds. A
    body of 1 MiB with such numbers would hold the interpreter lock for a second.
    """
    numbers = bytes(body).translate(_NUMBERS, b".+-")
    return _ANYTHING_SLOW if _SLOW_EXPONENT in numbers or _SLOW_DIGITS in numbers else _ANYTHING


_DECODERS: Final[dict[object, msgspec.json.Decoder[object]]] = {}
"""Cached decoders by request type, because creating a decoder takes longer than decoding a small request."""


def _check_structure(body: bytes | memoryview) -> None:
    """Raise `malformed_request` for a body that nests too deeply or has too many objects, before the body is parsed."""
    text = bytes(body)
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return
    brackets = _brackets(text)
    count = brackets.count(b"[")
    if count > OBJECTS_MAX:
        raise too_many_objects(count)
    if _is_deep(brackets):
        raise too_deep()


@dataclass(frozen=True, slots=True)
class _Origin:
    """Place of a decoded text in the body of the request."""

    place_in_body: Callable[[int], int]
    path: str = "$"
    """Path of the array whose elements the text contains."""
    first: int = 0
    """Index, in the array of the body, of the first element of the text."""

    def moved(self, path: str) -> str:
        """Convert a path within the decoded text to the path within the request body."""
        return _FIRST_INDEX.sub(lambda match: f"{self.path}[{int(match[1]) + self.first}]", path, count=1)

    def message(self, message: str) -> str:
        """Return a message of the parser with the position in the body."""
        return _BYTE.sub(lambda match: f"(byte {self.place_in_body(int(match[1]))})", message)


_WHOLE: Final = _Origin(int)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes | memoryview, origin: _Origin = _WHOLE) -> T:
    """Decode a body whose nesting and size have been checked."""
    try:
        return _parsed(decoder, body, origin)
    except msgspec.ValidationError as error:
        # The value of a large body is not searched, because parsing the body again would hold the interpreter lock.
        value = _parsed(_anything(body), body, origin) if len(body) <= WHOLE_BYTES_MAX else UNSET
        raise _refusal(decoder.type, value, str(error), origin) from error


def _parsed(decoder: msgspec.json.Decoder[T], body: bytes | memoryview, origin: _Origin = _WHOLE) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        anything = decoder is _ANYTHING or decoder is _ANYTHING_SLOW
        if isinstance(error, msgspec.ValidationError) and not anything:
            raise
        what = origin.message(str(error)) if body else "the body is empty"
        data: dict[str, JSON] = {}
        if len(body) <= WHOLE_BYTES_MAX and (number := number_beyond(body)) is not None:
            what, data = f"{number} is not a number that JSON allows", {"value": number}
        raise ProblemError("malformed_request", f"the body is not valid JSON: {what}", data=data) from error
    except RecursionError as error:
        raise too_deep() from error


def _refuse_repeated_keys(body: bytes) -> None:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        if len(names) != len(set(names)):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ProblemError(
                "malformed_request",
                f"field {shown(repeated)} is repeated in one object; it may occur only once",
                data={"parameter": excerpt(repeated)},
            )
        return dict(pairs)

    json.loads(body, object_pairs_hook=unique)


def _refusal(type_: object, body: object, message: str, origin: _Origin) -> ProblemError:
    """Return a problem for an error message of msgspec, with the value and the allowed values.

    `body` is UNSET if the values in the body are unknown.
    """
    place = _PLACE.fullmatch(message)
    assert place is not None, message
    what, steps = place["what"], _STEP.findall(place["path"] or "$")
    path = origin.moved(place["path"] or "$")
    unknown = _UNKNOWN_FIELD.fullmatch(what)
    if unknown is not None:
        allowed = _fields_at(type_, steps)
        return ProblemError(
            "unknown_option",
            f"field {shown(unknown['name'])} at {path} is unknown; allowed are {', '.join(allowed)}",
            data={"parameter": excerpt(f"{path}.{unknown['name']}"), "allowed": allowed},
        )
    if what.startswith(_WRONG_CHOICE):
        return _wrong_choice(what, path, _choices_at(type_, steps))
    expected = _EXPECTED.fullmatch(what)
    if expected is None or body is UNSET:
        return ProblemError("malformed_request", f"{what} at {path}", data={"parameter": shortened(path)})
    # msgspec does not name the key of an invalid value in a mapping, so the first value of the refused type is
    # reported.
    exact, value = next(
        (place for place in _values_at(body, "$", steps) if expected["got"] in (None, _kind(place[1]))),
        (place["path"] or "$", body),
    )
    exact = shortened(origin.moved(exact))
    return ProblemError(
        "malformed_request",
        f"{what} at {exact}, the value is {shown(value)}",
        data={
            "parameter": exact,
            "value": excerpt(value),
            "allowed": expected["allowed"].replace("`", ""),
        },
    )


def _wrong_choice(what: str, path: str, allowed: list[str]) -> ProblemError:
    return ProblemError(
        "malformed_request",
        f"{what} at {shortened(path)}; allowed are {', '.join(allowed)}",
        data={
            "parameter": shortened(path),
            "value": shortened(what.removeprefix(_WRONG_CHOICE)[1:-1]),
            "allowed": allowed,
        },
    )


def _kind(value: object) -> str:
    """Return msgspec's name for the type of a JSON value; an integer beyond 64 bits is treated as a float."""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not INTEGER_MIN <= value <= 2 * INTEGER_MAX + 1
    ):
        return "float"
    return _JSON_TYPE_NAMES[type(value)]


def _values_at(value: object, path: str, steps: list[tuple[str, str, str]]) -> Iterator[tuple[str, object]]:
    """Yield the values at a path of a msgspec error, each with its exact path. A step `[...]` matches all keys."""
    if not steps:
        yield path, value
        return
    (name, index, _), rest = steps[0], steps[1:]
    if index:
        assert isinstance(value, list), path
        yield from _values_at(value[int(index)], f"{path}[{index}]", rest)
    else:
        assert isinstance(value, dict), path
        for key in (name,) if name else value:
            # Values before the invalid value are valid and may lack an optional field.
            if key in value:
                yield from _values_at(value[key], f"{path}.{key}", rest)


def _fields_at(type_: object, steps: list[tuple[str, str, str]]) -> list[str]:
    """Return the names of the fields of all structs that are allowed at the path."""
    structs = [struct for place in _places_at(type_, steps) for struct in _structs(place)]
    return [field.encode_name for struct in structs for field in struct.fields]


def _choices_at(type_: object, steps: list[tuple[str, str, str]]) -> list[str]:
    """Return the enum and literal values that are allowed at the path."""
    options = [option for place in _places_at(type_, steps) for option in _options(place)]
    enums = [option.cls for option in options if isinstance(option, inspect.EnumType)]
    literals = [option.values for option in options if isinstance(option, inspect.LiteralType)]
    members = [str(member.value) for each in enums for member in each]
    return [*members, *(str(value) for values in literals for value in values)]


def _places_at(type_: object, steps: list[tuple[str, str, str]]) -> list[inspect.Type]:
    """Return the types that are allowed at a path of a msgspec error."""
    places = [inspect.type_info(type_)]
    for name, _, _ in steps:
        places = [inner for place in places for inner in _inside(place, name)]
    return places


def _inside(place: inspect.Type, name: str) -> list[inspect.Type]:
    if isinstance(place, inspect.UnionType):
        return [inner for option in place.types for inner in _inside(option, name)]
    if isinstance(place, inspect.ListType | inspect.VarTupleType):
        return [place.item_type]
    if isinstance(place, inspect.TupleType):
        return list(place.item_types)
    if isinstance(place, inspect.DictType):
        return [place.value_type]
    return [field.type for struct in _structs(place) for field in struct.fields if field.encode_name == name]


def _structs(place: inspect.Type) -> list[inspect.StructType]:
    return [option for option in _options(place) if isinstance(option, inspect.StructType)]


def _options(place: inspect.Type) -> tuple[inspect.Type, ...]:
    return place.types if isinstance(place, inspect.UnionType) else (place,)
