"""How a value that a caller sent is quoted in a problem: short, in ASCII, and always valid JSON.

A hostile value must not bloat an answer or a log line, nor hide control characters and look-alikes in it, and
an integer beyond 64 bits must not make the problem itself impossible to encode. Used wherever a refusal names
what was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fairlead_api.problems.definitions import JSON

CHARACTERS_MAX: Final = 80
INTEGER_MAX: Final = 2**63 - 1
INTEGER_MIN: Final = -(2**63)


def shortened(text: str) -> str:
    """Return the text, cut after 80 characters."""
    return text if len(text) <= CHARACTERS_MAX else f"{text[:CHARACTERS_MAX]}..."


def shown(value: object) -> str:
    """Return a value of a request for the detail of a problem: text in quotes, all in ASCII, cut where long.

    Names of Python never show: null, true and false read as in JSON.
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
    """Return a value of a request as data of a problem: text cut, others described."""
    if isinstance(value, str):
        return shortened(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    return shown(value)


def _number_text(value: object) -> str:
    """Write a number; Python refuses to write one of more than 4,300 digits, so tell only its size."""
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
