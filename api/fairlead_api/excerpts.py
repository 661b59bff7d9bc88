"""Quoting of values from requests in problems: short, in ASCII, and always valid JSON.

A hostile value must neither lengthen an answer or a log line nor add control or look-alike characters. An integer
beyond 64 bits must not prevent the problem from being encoded. Every problem that contains a value of the request uses
this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairlead_api.problems.definitions import JSON

CHARACTERS_MAX: Final = 80
INTEGER_MAX: Final = 2**63 - 1
INTEGER_MIN: Final = -(2**63)


def shortened(text: str) -> str:
    """Return the text, truncated to 80 characters."""
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}..."


def shown(value: object) -> str:
    """Return a value of a request for the detail of a problem: quoted if text, in ASCII, truncated if long.

    Values never appear in Python's notation: null, true and false are written as in JSON.
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
    """Return a value of a request as data of a problem: text is truncated, arrays and objects are summarised."""
    if isinstance(value, str):
        return shortened(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    return shown(value)


def _number_text(value: object) -> str:
    """Return a number as text, or its size in bits if it exceeds 64 bits: Python refuses to format huge integers."""
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
