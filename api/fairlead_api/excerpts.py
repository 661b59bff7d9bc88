"""Quoting of a caller's values in problems: short, in ASCII, and always valid JSON.

A hostile value must not make an answer or a log line long, or hide control characters and look-alikes in the text. An
integer beyond 64 bits must not make the problem impossible to encode. Used by every refusal that contains a value of
the request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairlead_api.problems.definitions import JSON

CHARACTERS_MAX: Final = 80
INTEGER_MAX: Final = 2**63 - 1
INTEGER_MIN: Final = -(2**63)


def shortened(text: str) -> str:
    """Return the text, truncated after 80 characters."""
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}..."


def shown(value: object) -> str:
    """Return a value of a request for the detail of a problem: quoted if text, in ASCII, truncated if long.

    Python names never appear: null, true and false are written as in JSON.
    """
    if isinstance(value, str):
        return ascii(shortened(value))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    return shortened(_number_text(value))


def excerpt(value: object) -> JSON:
    """Return a value of a request as data of a problem: text truncated, arrays and objects described in words."""
    if isinstance(value, str):
        return shortened(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    return shown(value)


def _number_text(value: object) -> str:
    """Return a number as text, or its size in bits beyond 64 bits; Python formats no number above 4,300 digits."""
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
