"""Positions and partitions of `group reset`."""

from __future__ import annotations

import pytest

from fairlead.cli.verbs.group import ResetTargetError, reset_target, reset_topics
from fairlead_api.bodies.group_requests import ResetPartition, ResetTarget
from refusals import raises


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("@1000", ResetTarget(timestamp=1000)),
        ("@2013-01-01T00:00:00Z", ResetTarget(timestamp="2013-01-01T00:00:00Z")),
        ("10m", ResetTarget(duration="10m")),
        ("250ms", ResetTarget(duration="250ms")),
        ("+100", ResetTarget(shift=100)),
        ("-100", ResetTarget(shift=-100)),
        ("0", ResetTarget(offset=0)),
        ("42", ResetTarget(offset=42)),
    ],
)
def test_each_form_names_its_position(text: str, expected: object) -> None:
    """Ends, times, durations, shifts and offsets are distinguished by the form of the position."""
    assert reset_target(text) == expected


@pytest.mark.parametrize("text", ["", "end", "@", "@yesterday", "1.5", "10 m", "+", "--5", "٣"])
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    """A position in an unknown form is refused, and the error quotes it."""
    with raises(ResetTargetError, "--to"):
        reset_target(text)


def test_topics_and_partitions_are_named_once() -> None:
    """A repeated topic or partition is selected once, and all topics are selected by default."""
    chosen = reset_topics(["orders", "readings:2,0", "readings:0", "orders"])

    assert chosen == [
        "orders",
        ResetPartition(topic="readings", partition=2),
        ResetPartition(topic="readings", partition=0),
    ]
    assert reset_topics([]) is None


@pytest.mark.parametrize("text", ["", "no/slash", "orders:", "orders:x", "orders:-1", "orders:0,", ":1"])
def test_a_topic_that_cannot_be_is_refused(text: str) -> None:
    """An invalid topic name or partition is refused, and the error quotes it."""
    with raises(ResetTargetError, "--topic"):
        reset_topics([text])
