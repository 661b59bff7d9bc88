"""The catalogue of keys, held against the design's list and Kafka's defaults."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fairlead_api.configuration.keys import (
    CLUSTER_KEYS,
    KEYS,
    TOPIC_KEYS,
    ConfigKey,
    ConfigScope,
    ConfigType,
)

LONG_MAX = 9223372036854775807

# Kafka 4.3's defaults, but for the exceptions that the design names.
DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "durability": "synced",
    "file.delete.delay.ms": "60000",
    "flush.messages": str(LONG_MAX),
    "flush.ms": str(LONG_MAX),
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": str(LONG_MAX),
    "max.message.bytes": "8388608",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": None,
    "quorum.write": None,
    "replication.mode": "isr",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
NOT_SUPPORTED_YET = {
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "quorum.write",
}


def test_the_keys_of_a_topic_have_the_defaults_of_the_design() -> None:
    """Every key stands there with its default, in order of the names."""
    assert {name: key.default for name, key in TOPIC_KEYS.items()} == DEFAULTS
    assert list(TOPIC_KEYS) == sorted(TOPIC_KEYS)


def test_what_is_not_built_is_marked_so() -> None:
    """Compaction and quorum keys are known and not supported."""
    assert {name for name, key in KEYS.items() if not key.supported} == NOT_SUPPORTED_YET


def test_all_brokers_read_the_same_of_what_stands_in_a_partitions_record() -> None:
    """Such keys cannot be set for one broker: two leaders in turn would mean two things."""
    assert {name for name, key in TOPIC_KEYS.items() if ConfigScope.BROKER not in key.scopes} == {
        "durability",
        "min.insync.replicas",
        "quorum.write",
        "replication.mode",
        "unclean.leader.election.enable",
    }


def test_the_cluster_has_the_defaults_of_the_design() -> None:
    """Topics are not created by accident, and the replication factor follows the number of brokers."""
    assert {name: key.default for name, key in CLUSTER_KEYS.items()} == {
        "auto.create.topics.enable": "false",
        "auto.leader.rebalance.enable": "true",
        "broker.session.timeout.ms": "6000",
        "cordoned": "false",
        "default.replication.factor": None,
        "draining": "false",
        "leader.imbalance.check.interval.seconds": "300",
        "leader.imbalance.per.broker.percentage": "10",
        "log.retention.check.interval.ms": "300000",
        "max.connections": "0",
        "num.io.threads": "4",
        "num.partitions": "1",
        "num.recovery.threads.per.data.dir": "4",
        "offsets.retention.minutes": "10080",
        "replica.lag.time.max.ms": "30000",
        "unclean.leader.election.delay.ms": "10000",
    }
    assert CLUSTER_KEYS["default.replication.factor"].default_rule == "min(3, brokers)"
    assert TOPIC_KEYS["min.insync.replicas"].default_rule == "max(1, replication factor - 1)"


@pytest.mark.parametrize("key", KEYS.values(), ids=lambda key: key.name)
def test_every_key_is_complete(key: ConfigKey) -> None:
    """A key has a sentence, a default or its rule, and bounds or choices that hold its default."""
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
        ("replication.mode", "one of isr"),
        ("auto.create.topics.enable", "one of true, false"),
        ("segment.ms", f"an integer from 1 to {LONG_MAX}"),
        ("min.cleanable.dirty.ratio", "a number from 0 to 1"),
    ],
)
def test_what_is_allowed_reads_as_words(name: str, allowed: str) -> None:
    """Choices that are not built are not offered."""
    assert KEYS[name].allowed == allowed
