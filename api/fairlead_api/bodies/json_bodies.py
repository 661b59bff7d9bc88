"""Decoding of JSON bodies to typed requests, or to a problem that names the invalid position.

All JSON from callers is decoded by this module: by `decode_request` for admin calls and metadata of frames, and by
`decode_json` for record bodies with their own decoders. This module must not depend on any particular request.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, cast

import msgspec
from msgspec import inspect

from fairlead_api.excerpts import INTEGER_MAX, INTEGER_MIN, excerpt, shortened, shown
from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlead_api.problems.definitions import JSON

DEPTH_MAX: Final = 32
"""Maximum nesting depth; deeper bodies are refused before parsing. No request of the contract nests deeper than five
levels."""

OBJECTS_MAX: Final = 1 << 19
"""Maximum number of objects and arrays in a body; each object or array takes as few as three bytes of text but at least
60 bytes when parsed."""

T = TypeVar("T")

_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
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
    """Decode a body with `decoder`; a repeated key has its last value. Raises the problems of `decode_request`."""
    _check_structure(body)
    return _decoded(decoder, body)


def decode_kept_json(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    """Decode like `decode_json`, with a decoder that keeps values as text (`msgspec.Raw`).

    The decoder checks only the structure of values that it keeps as text. The function therefore also parses the whole
    body. Otherwise text that is not UTF-8, or a number beyond the range of a double, would be stored in a record that
    consumers could not parse as JSON.
    """
    _check_structure(body)
    _parsed(_ANYTHING, body)
    return _decoded(decoder, body)


def number_beyond(text: bytes | memoryview) -> str | None:
    """Return the first number in a refused text that JSON does not allow, truncated if long; None if there is none.

    JSON has no NaN and no infinity. A number such as 1e999 is valid JSON, but every parser that uses doubles reads the
    number as infinity.
    """
    found: list[str] = []

    def to_float(number: str) -> float:
        value = float(number)
        if math.isinf(value):
            found.append(number)
        return value

    # An error is ignored: if a number was found, the error comes after it; if not, the caller reports the error of the
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
        body = _ESCAPE.sub(b"", body)
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


_ANYTHING: Final[msgspec.json.Decoder[object]] = msgspec.json.Decoder(object)
"""Decoder of any JSON value; input that the decoder refuses, such as a number of 5,000 digits, is refused as invalid
JSON."""
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
        raise ProblemError(
            "malformed_request",
            f"the body has {count} objects and arrays; allowed: {OBJECTS_MAX}, send it in several requests",
            data={"allowed": OBJECTS_MAX},
        )
    if _is_deep(brackets):
        raise _too_deep()


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    """Decode a body whose nesting and size have been checked."""
    try:
        return _parsed(decoder, body)
    except msgspec.ValidationError as error:
        raise _refusal(decoder.type, _parsed(_ANYTHING, body), str(error)) from error


def _parsed(decoder: msgspec.json.Decoder[T], body: bytes | memoryview) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, msgspec.ValidationError) and decoder is not _ANYTHING:
            raise
        what = str(error) if body else "the body is empty"
        data: dict[str, JSON] = {}
        if (number := number_beyond(body)) is not None:
            what, data = f"{number} is not a number that JSON allows", {"value": number}
        raise ProblemError("malformed_request", f"the body is not valid JSON: {what}", data=data) from error
    except RecursionError as error:
        raise _too_deep() from error


def _too_deep() -> ProblemError:
    return ProblemError(
        "malformed_request", f"the body nests deeper than {DEPTH_MAX} levels", data={"allowed": DEPTH_MAX}
    )


def _refuse_repeated_keys(body: bytes) -> None:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        names = [name for name, _ in pairs]
        if len(names) != len(set(names)):
            repeated = next(name for name in names if names.count(name) > 1)
            raise ProblemError(
                "malformed_request",
                f"field {shown(repeated)} is repeated in one object; allowed is once",
                data={"parameter": excerpt(repeated)},
            )
        return dict(pairs)

    json.loads(body, object_pairs_hook=unique)


def _refusal(type_: object, body: object, message: str) -> ProblemError:
    """Return a problem for an error message of msgspec, with the value and the allowed values."""
    place = _PLACE.fullmatch(message)
    assert place is not None, message
    what, path = place["what"], place["path"] or "$"
    steps = _STEP.findall(path)
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
    if expected is None:
        return ProblemError("malformed_request", f"{what} at {path}", data={"parameter": shortened(path)})
    # msgspec does not name the key of an invalid value in a mapping, so the first value of the refused type is
    # reported.
    exact, value = next(
        (place for place in _values_at(body, "$", steps) if expected["got"] in (None, _kind(place[1]))),
        (path, body),
    )
    return ProblemError(
        "malformed_request",
        f"{what} at {shortened(exact)}, the value is {shown(value)}",
        data={
            "parameter": shortened(exact),
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
    """Return msgspec's name for the type of a JSON value; an integer beyond 64 bits counts as a float."""
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
