"""Parsing of Kubernetes quantities such as `10Gi`, `500m`, `1e9`.

The schema accepts the quantities that the API server's `isQuantity` accepts; this module converts quantities to numbers
that can be compared.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Final

from fairlead_api.resources.schema_rules import Rule, RuleReason, kubernetes

_QUANTITY: Final = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<power>[+-]?[0-9]{1,3}))?"
)
_BINARY: Final = {f"{letter}i": Fraction(1024) ** power for power, letter in enumerate("KMGTPE", 1)}
_DECIMAL: Final = {"n": -3, "u": -2, "m": -1, "k": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
QUANTITY_LENGTH_MAX: Final = 32

NOT_A_SIZE: Final = Rule(
    "isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))",
    "must be a quantity above zero, such as 500Mi or 10Gi",
)
NO_SHRINKING: Final = Rule(
    "!isQuantity(self) || !isQuantity(oldSelf) || quantity(self).compareTo(quantity(oldSelf)) >= 0",
    "storage cannot be decreased: a volume can only be enlarged",
    reason=RuleReason.FORBIDDEN,
)

Size = Annotated[str, kubernetes(NOT_A_SIZE, NO_SHRINKING, maxLength=QUANTITY_LENGTH_MAX)]
"""Size of storage, which can only be increased."""

Rate = Annotated[str, kubernetes(NOT_A_SIZE, maxLength=QUANTITY_LENGTH_MAX)]
"""Number of bytes per second, which can be increased and decreased."""

AmountOfResource = Annotated[
    int | str,
    kubernetes(
        Rule("isQuantity(string(self))", "must be a quantity, such as 500m, 2 or 4Gi"),
        maxLength=QUANTITY_LENGTH_MAX,
    ),
]
"""Request or limit of a container for processor or memory, as an integer or text."""


def quantity(text: str | int) -> Fraction:
    """Return the exact value of a quantity. Raises `ValueError` for an invalid quantity."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        problem = f"{text!r} is not a quantity such as 500m, 2 or 4Gi"
        raise ValueError(problem)
    number, suffix, power = Fraction(match["number"]), match["suffix"], match["power"]
    if power:
        return number * Fraction(10) ** int(power)
    if not suffix:
        return number
    return number * (_BINARY[suffix] if suffix in _BINARY else Fraction(1000) ** _DECIMAL[suffix])
