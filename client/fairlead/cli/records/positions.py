"""Parsing of the range of `consume -o`: its first and last position.

`start` and `end` (or `earliest` and `latest`, as in the SDK and `group reset`), `N` (an offset), `-N` (the last N
records of each partition), `@time`, `@time:time`; a time is RFC 3339 or milliseconds since 1970. The module performs no
I/O: `consume` resolves the range to offsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from fairlead.cli.session import UsageError
from fairlead.timestamps import datetime_of
from fairlead_api.problems import ProblemError
from fairlead_api.timestamps import parse_timestamp_us

DIGITS_MAX: Final = 100
"""Maximum number of digits in a number: more than any offset has, but below Python's limit for integers."""
ALLOWED = "start (or earliest), end (or latest), an offset, -N for the last N, @time or @time:time"


class PositionError(UsageError):
    """A position is invalid; the message names the position and the allowed values."""


@dataclass(frozen=True, slots=True)
class Position:
    """First or last position of a range: a kind and, if the kind requires it, a number."""

    kind: Literal["earliest", "latest", "offset", "last", "time"]
    number: int = 0


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Range of records to read; without `stop`, the range has no end."""

    start: Position
    stop: Position | None = None


def read_range(text: str) -> ReadRange:
    """Return the range that `text` describes.

    Raises:
        PositionError: `text` is invalid.
    """
    if text in ("start", "earliest"):
        return ReadRange(Position("earliest"))
    if text in ("end", "latest"):
        return ReadRange(Position("latest"))
    if text.startswith("@"):
        return _time_range(text)
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > DIGITS_MAX:
        msg = f"-o {text!r} is not a position; allowed: {ALLOWED}"
        raise PositionError(msg)
    return ReadRange(Position("last" if text.startswith("-") else "offset", int(digits)))


def _time_range(text: str) -> ReadRange:
    whole = _time(text[1:])
    if whole is not None:
        return ReadRange(whole)
    # Times in RFC 3339 contain colons, so the separator is the first colon with a valid time on either side.
    for at, letter in enumerate(text):
        if letter == ":":
            first, second = _time(text[1:at]), _time(text[at + 1 :])
            if first is not None and second is not None:
                return _forward(text, first, second)
    msg = f"-o {text!r} is not a time; a time is RFC 3339 (2013-01-01T00:00:00Z) or milliseconds"
    raise PositionError(msg)


def _forward(text: str, first: Position, second: Position) -> ReadRange:
    if second.number < first.number:
        msg = f"-o {text!r} ends before it begins; write the earlier time first"
        raise PositionError(msg)
    return ReadRange(first, second)


def moment(text: str) -> datetime:
    """Return the time that `text` contains in RFC 3339 or as milliseconds since 1970.

    Raises:
        PositionError: `text` is invalid.
    """
    found = _time(text)
    if found is None:
        msg = f"{text!r} is not a time; a time is RFC 3339 (2013-01-01T00:00:00Z) or milliseconds"
        raise PositionError(msg)
    return datetime_of(found.number)


def _time(text: str) -> Position | None:
    try:
        return Position("time", parse_timestamp_us(int(text) if text.isdigit() else text, "time"))
    except (ProblemError, ValueError):
        return None
