"""Dynamic configuration: only differing keys are altered, and keys that were removed from the spec are reset."""

from __future__ import annotations

from fairlead_operator.plan.cluster import changes
from plan_kit import answer


def test_only_what_differs_is_altered() -> None:
    """A key with the desired value is not written again; a key that equals its default is set explicitly."""
    entries = answer([0], config={"num.partitions": "6", "retention.bytes": "100"}).config
    wanted = {"num.partitions": "6", "retention.bytes": "200", "retention.ms": "604800000"}

    assert changes(wanted, entries) == {"retention.bytes": "200", "retention.ms": "604800000"}


def test_what_is_not_wanted_is_reset() -> None:
    """A key that the Cluster does not name is reset, even if a user set it."""
    entries = answer([0], config={"num.partitions": "6"}).config

    assert changes({}, entries) == {"num.partitions": None}


def test_keys_that_the_brokers_do_not_know_are_left_out() -> None:
    """Keys that an older broker release does not support are skipped, and the other keys are applied."""
    assert changes({"key.of.tomorrow": "1"}, answer([0]).config) == {}


def test_keys_that_calls_set_are_kept() -> None:
    """The feature level and the security mode are set by calls, so they are changed only if the spec names them."""
    entries = answer([0], config={"feature.level": "2", "security.mode": "enforce"}).config

    assert changes({}, entries) == {}
    assert changes({"security.mode": "open"}, entries) == {"security.mode": "open"}
