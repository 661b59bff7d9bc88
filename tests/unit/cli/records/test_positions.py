"""Start and end positions of `consume -o`."""

from __future__ import annotations

import pytest

from fairlead.cli.records.positions import Position, PositionError, ReadRange, read_range
from refusals import raises

SECOND_US = 1_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", ReadRange(Position("earliest"))),
        ("end", ReadRange(Position("latest"))),
        ("earliest", ReadRange(Position("earliest"))),
        ("latest", ReadRange(Position("latest"))),
        ("0", ReadRange(Position("offset", 0))),
        ("42", ReadRange(Position("offset", 42))),
        ("-5", ReadRange(Position("last", 5))),
        ("@1000", ReadRange(Position("time", SECOND_US))),
        ("@1970-01-01T00:00:01Z", ReadRange(Position("time", SECOND_US))),
        ("@1000:2000", ReadRange(Position("time", SECOND_US), Position("time", 2 * SECOND_US))),
        (
            "@1970-01-01T00:00:01Z:1970-01-01T00:00:02Z",
            ReadRange(Position("time", SECOND_US), Position("time", 2 * SECOND_US)),
        ),
    ],
)
def test_each_form_names_its_range(text: str, expected: ReadRange) -> None:
    """Offsets, counts from the end, times and pairs of times are accepted."""
    assert read_range(text) == expected


@pytest.mark.parametrize(
    "text", ["", "beginning", "--5", "1.5", "@", "@yesterday", "@1:", "-", "٣", "9" * 5_000]
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    """A position in an unknown form is refused, and the error quotes it."""
    with raises(PositionError, "-o"):
        read_range(text)


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    """A range whose end precedes its start is refused, because nothing would be printed."""
    with raises(PositionError, "-o", "'@2000:1000'"):
        read_range("@2000:1000")
