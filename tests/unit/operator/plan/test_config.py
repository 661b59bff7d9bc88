"""Dynamic configuration: only what differs is altered, and what left the spec is reset."""

from __future__ import annotations

from fairlead_operator.plan.cluster import changes
from plan_kit import answer


def test_only_what_differs_is_altered() -> None:
    """A key that is set to what is wanted is not written again; an equal default is still set."""
    entries = answer([0], config={"num.partitions": "6", "retention.bytes": "100"}).config
    wanted = {"num.partitions": "6", "retention.bytes": "200", "retention.ms": "604800000"}

    assert changes(wanted, entries) == {"retention.bytes": "200", "retention.ms": "604800000"}


def test_what_is_not_wanted_is_reset() -> None:
    """Also what somebody set by hand: the resource is the source."""
    entries = answer([0], config={"num.partitions": "6"}).config

    assert changes({}, entries) == {"num.partitions": None}


def test_keys_that_the_brokers_do_not_know_are_left_out() -> None:
    """An older release has fewer keys; the rest is applied."""
    assert changes({"key.of.tomorrow": "1"}, answer([0]).config) == {}
