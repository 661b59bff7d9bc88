from __future__ import annotations

from fractions import Fraction

import pytest

from fairlead_api.resources.quantities import quantity
from refusals import raises


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        (2, 2),
        ("500m", Fraction(1, 2)),
        ("1k", 1000),
        ("10Gi", 10 * 2**30),
        ("1.5Ki", 1536),
        (".5G", 500_000_000),
        ("7.", 7),
        ("3n", Fraction(3, 10**9)),
        ("2u", Fraction(2, 10**6)),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("25E-1", Fraction(5, 2)),
        ("-1Mi", -(2**20)),
        ("+1T", 10**12),
    ],
)
def test_a_quantity_is_the_number_that_kubernetes_reads(text: str | int, number: Fraction) -> None:
    """A quantity with a binary or decimal suffix, a power of ten or a sign is read exactly as Kubernetes reads it."""
    assert quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "Gi", "10GiB", "1,5", "ten", "1 Gi", "1K", "0x10", "1e", "--1", "1e9999999999"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    """A quantity that Kubernetes refuses, or whose exponent is too large to store, is refused."""
    with raises(ValueError):
        quantity(text)


def test_units_compare_as_numbers() -> None:
    """Quantities in different units are equal if they represent the same number."""
    assert quantity("10Gi") == quantity("10240Mi")
    assert quantity("1Gi") > quantity("1G")
