"""Definition of query parameters, and parsing of a query to typed values.

Routes define their parameters with `QueryParameter`; the broker parses queries with `parse_parameters`. An unknown,
repeated or malformed parameter is never ignored: the query is refused, and the problem names the parameter. This module
must not depend on any particular route.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, assert_never
from urllib.parse import parse_qsl

from fairlead_api.excerpts import excerpt, shown
from fairlead_api.identifiers import check_topic_name
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FIELDS_MAX: Final = 64
"""Maximum number of parameters in a query: more than any call accepts, but too few to fill the memory."""
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_FLAGS: Final = {"true": True, "false": False}


class ParameterKind(StrEnum):
    """Type of a query parameter."""

    INTEGER = "integer"
    CHOICE = "choice"
    FLAG = "flag"
    OFFSET = "offset"
    """A number, `earliest`, `latest`, or `-n` for n records before the end."""
    TIMESTAMP = "timestamp"
    """Milliseconds or RFC 3339, parsed to microseconds."""
    TOPIC_NAMES = "topic names"
    """Names separated by commas."""
    TEXT = "text"


class OffsetOrigin(StrEnum):
    """Position to which an offset expression refers."""

    NUMBER = "number"
    EARLIEST = "earliest"
    LATEST = "latest"
    BEFORE_END = "before end"


@dataclass(frozen=True, slots=True)
class OffsetExpression:
    """Offset expression in a request; `number` is the offset itself or the number of records before the end, else 0."""

    origin: OffsetOrigin
    number: int = 0


EARLIEST: Final = OffsetExpression(OffsetOrigin.EARLIEST)
LATEST: Final = OffsetExpression(OffsetOrigin.LATEST)

QueryValue = int | bool | str | tuple[str, ...] | OffsetExpression | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter:
    """Definition of a query parameter.

    `default` is the typed value of an absent parameter; None if a call interprets the absence itself. `excludes` names
    parameters that must not be combined with this parameter. `choices_later` are values that are not supported yet.
    """

    name: str
    kind: ParameterKind
    explanation: str
    default: QueryValue = None
    minimum: int = 0
    maximum: int = 2**63 - 1
    choices: tuple[str, ...] = ()
    choices_later: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    unit: str = ""

    @property
    def allowed(self) -> str:
        """Description of the values that the parameter allows."""
        match self.kind:
            case ParameterKind.INTEGER:
                return f"an integer from {self.minimum} to {self.maximum}"
            case ParameterKind.CHOICE:
                return "one of " + ", ".join(self.choices)
            case ParameterKind.FLAG:
                return "true or false"
            case ParameterKind.OFFSET:
                return "a number, earliest, latest, or -n for n records before the end"
            case ParameterKind.TIMESTAMP:
                return "milliseconds since 1970 or RFC 3339"
            case ParameterKind.TOPIC_NAMES:
                return "topic names separated by commas"
            case ParameterKind.TEXT:
                return f"text of at most {self.maximum} characters"
            case _:
                assert_never(self.kind)


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
            raise _malformed(name, text, "is repeated; allowed is once", "once")
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
    if text in parameter.choices_later:
        raise ProblemError(
            "invalid_config",
            f"parameter {parameter.name}={shown(text)} is not supported yet; supported is {parameter.allowed}",
            data={"key": parameter.name, "value": text, "allowed": parameter.allowed},
        )
    value = _read(parameter, text)
    if value is None:
        raise _malformed(
            parameter.name, text, f"is not allowed; allowed is {parameter.allowed}", parameter.allowed
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
    """Return the problem of a name; the value may be a token that was sent in the wrong place (rule A1)."""
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
