"""Definition of query parameters: their types, values and limits.

Routes define their parameters with `QueryParameter`. Only the broker parses queries, and it refuses every other
parameter. This module must not depend on any particular route.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never


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
    parameters that must not be combined with this parameter.
    """

    name: str
    kind: ParameterKind
    explanation: str
    default: QueryValue = None
    minimum: int = 0
    maximum: int = 2**63 - 1
    choices: tuple[str, ...] = ()
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
