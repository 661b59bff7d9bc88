"""The rules of the catalogue of configuration keys.

Names, defaults and allowed values are tested in tests/contract.
"""

from __future__ import annotations

from decimal import Decimal

import pytest

from fairlead_api.configuration.keys import (
    KEYS,
    TOPIC_KEYS,
    ConfigKey,
    ConfigScope,
    ConfigType,
)


def test_the_keys_of_a_topic_are_sorted() -> None:
    """Keys of a topic are sorted by name, as in pages and answers."""
    assert list(TOPIC_KEYS) == sorted(TOPIC_KEYS)


def test_all_brokers_read_the_same_of_what_stands_in_a_partitions_record() -> None:
    """A key that is part of the partition record cannot be set on one broker, because all leaders must agree on it."""
    assert {name for name, key in TOPIC_KEYS.items() if ConfigScope.BROKER not in key.scopes} == {
        "durability",
        "min.insync.replicas",
        "quorum.write",
        "replication.mode",
        "unclean.leader.election.enable",
    }


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_key_is_complete(key: ConfigKey) -> None:
    """A key has a description, a default or a rule that computes it, and limits that include the default."""
    assert key.explanation.endswith(".")
    assert (key.default is None) == bool(key.default_rule)
    assert (ConfigScope.CLUSTER in key.scopes) == (key.dynamic and key.name not in {"cordoned", "draining"})
    assert (ConfigScope.TOPIC in key.scopes) == (key.name in TOPIC_KEYS)
    if key.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
        assert key.minimum is not None
        assert key.maximum is not None
        assert key.default is None or key.minimum <= Decimal(key.default) <= key.maximum
    else:
        assert key.default in key.choices_supported
        assert set(key.choices_supported) <= set(key.choices)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("durability", "one of synced, replicated"),
        ("replication.mode", "one of isr, quorum"),
        ("auto.create.topics.enable", "one of true, false"),
        ("segment.ms", "an integer from 1 to 9223372036854775807"),
        ("min.cleanable.dirty.ratio", "a number from 0 to 1"),
    ],
)
def test_what_is_allowed_reads_as_words(name: str, allowed: str) -> None:
    """The allowed values of a key are described in words, without choices that are not supported."""
    assert KEYS[name].allowed == allowed
