"""Values of Spark options as text: truth values, numbers and durations, and the error of an invalid value.

The parsers of read, write and lake options use this module, which must depend neither on a particular option nor on
Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead.errors import SettingError
from fairlead.settings import seconds_of

TRUTHS: Final = {"true": True, "false": False}

HIDDEN: Final = "(hidden)"
"""Placeholder for the value of an unknown option in an error, since the value may be a secret."""
MISSING: Final = "(missing)"
"""Placeholder for the value in an error about a required option that is not given."""


class OptionError(ValueError):
    """An option is invalid; the error contains the name, the value and the allowed values of the option."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(name, value, allowed)

    def __str__(self) -> str:
        if self.value == MISSING:
            return f"option {self.name} is missing; allowed: {self.allowed}"
        what = self.name if self.value == HIDDEN else f"{self.name}={self.value!r}"
        return f"option {what} is not allowed; allowed: {self.allowed}"


def take_bool(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the value of a boolean option."""
    text = options.get(name)
    if text is None:
        return default
    if text.strip().lower() not in TRUTHS:
        raise OptionError(name, text, "true or false")
    return TRUTHS[text.strip().lower()]


def take_number(options: Mapping[str, str], name: str, *, least: int = 1) -> int | None:
    """Return a whole number; None if the option is not set."""
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < least:
        raise OptionError(name, text, f"a whole number, {least} or more")
    return int(text)


def take_seconds(options: Mapping[str, str], name: str, *, default: float) -> float:
    """Return a duration in seconds."""
    text = options.get(name)
    if text is None:
        return default
    try:
        return seconds_of(text, name)
    except SettingError as error:
        raise OptionError(name, text, error.allowed) from None
