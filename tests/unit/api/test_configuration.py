"""Validation, storage and resolution of configuration."""

from __future__ import annotations

from dataclasses import fields

import pytest

from fairlead_api.configuration import (
    TOPIC_KEYS,
    ConfigEntry,
    ConfigInput,
    ConfigScope,
    ConfigSource,
    Durability,
    TimestampType,
    TopicConfig,
    effective_config,
    effective_topic_config,
    merge_patch,
    parse_value,
    stored_value,
)
from fairlead_api.problems import ProblemError
from refusals import missing, refuses

SUPPORTED = sorted(TOPIC_KEYS)


@pytest.mark.parametrize(
    ("name", "value", "parsed", "stored"),
    [
        ("segment.bytes", 1 << 20, 1 << 20, "1048576"),
        ("segment.bytes", "1048576", 1 << 20, "1048576"),
        ("segment.ms", "007", 7, "7"),
        ("flush.ms", 2**63 - 1, 2**63 - 1, "9223372036854775807"),
        ("durability", "replicated", Durability.REPLICATED, "replicated"),
        ("message.timestamp.type", "LogAppendTime", TimestampType.LOG_APPEND_TIME, "LogAppendTime"),
        ("compression.type", "zstd", "zstd", "zstd"),
        ("cleanup.policy", "delete", "delete", "delete"),
        ("cleanup.policy", "compact,delete", "compact,delete", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0.25", 0.25, "0.25"),
        ("min.cleanable.dirty.ratio", 1, 1.0, "1.0"),
        ("unclean.leader.election.enable", False, False, "false"),
        ("unclean.leader.election.enable", "true", True, "true"),
    ],
)
def test_a_value_is_typed_and_stored_in_one_form(
    name: str, value: ConfigInput, parsed: object, stored: str
) -> None:
    """A configuration value is stored as the same text, whether it was given as a JSON number or as text."""
    result = parse_value(name, value)

    assert result == parsed
    assert type(result) is type(parsed)
    assert stored_value(name, value) == stored


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("segment.bytes", 1_048_575, "an integer from 1048576 to 2147483647"),
        ("segment.bytes", 2**31, "an integer from 1048576 to 2147483647"),
        ("segment.ms", 0, "an integer from 1 to 9223372036854775807"),
        ("segment.ms", 10**30, "an integer from 1 to 9223372036854775807"),
        ("segment.ms", "10" * 20, "an integer from 1 to 9223372036854775807"),
        ("segment.ms", "1e3", "an integer from 1 to 9223372036854775807"),
        ("segment.ms", " 1", "an integer from 1 to 9223372036854775807"),
        ("segment.ms", "", "an integer from 1 to 9223372036854775807"),
        ("segment.ms", "\u0661", "an integer from 1 to 9223372036854775807"),
        ("segment.ms", True, "an integer from 1 to 9223372036854775807"),
        ("segment.ms", 1.0, "an integer from 1 to 9223372036854775807"),
        ("segment.ms", None, "an integer from 1 to 9223372036854775807"),
        ("durability", "SYNCED", "one of synced, replicated"),
        ("durability", 1, "one of synced, replicated"),
        ("durability", None, "one of synced, replicated"),
        ("unclean.leader.election.enable", "False", "one of true, false"),
        ("unclean.leader.election.enable", 0, "one of true, false"),
        ("max.message.bytes", 64 * 2**20 + 1, "an integer from 0 to 67108864"),
    ],
)
def test_a_wrong_value_is_refused_with_key_value_and_what_is_allowed(
    name: str, value: ConfigInput, allowed: str
) -> None:
    """An invalid value is refused with the key, the value and the allowed values, but not as unsupported."""
    with pytest.raises(ProblemError) as refused:
        parse_value(name, value)

    assert refused.value.code == "invalid_config"
    assert refused.value.data["key"] == name
    assert refused.value.data["allowed"] == allowed
    assert name in refused.value.detail
    assert allowed in refused.value.detail
    assert "supported" not in refused.value.detail


def test_what_is_not_built_is_refused_as_not_supported_yet() -> None:
    """A value that is not supported yet is refused as such."""
    with refuses("invalid_config") as refused:
        merge_patch({}, {"compression.type": "gzip"})

    assert refused.value.data["key"] == "compression.type"


@pytest.mark.parametrize(
    ("scope", "name", "value", "expected"),
    [
        (ConfigScope.BROKER, "auto.create.topics.enable", True, True),
        (ConfigScope.CLUSTER, "auto.create.topics.enable", "false", False),
        (ConfigScope.BROKER, "log.retention.check.interval.ms", "100", 100),
        (ConfigScope.CLUSTER, "num.partitions", 3, 3),
        (ConfigScope.CLUSTER, "default.replication.factor", "3", 3),
        (ConfigScope.CLUSTER, "durability", "replicated", Durability.REPLICATED),
        (ConfigScope.BROKER, "segment.ms", "5", 5),
        (ConfigScope.CLUSTER, "retention.ms", -1, -1),
    ],
)
def test_brokers_and_the_cluster_have_keys_of_their_own_and_those_of_topics(
    scope: ConfigScope, name: str, value: ConfigInput, expected: object
) -> None:
    """Brokers and the cluster have their own keys, and can set topic keys as defaults for their topics."""
    assert parse_value(name, value, scope) == expected


@pytest.mark.parametrize(
    ("scope", "name", "value", "named"),
    [
        (ConfigScope.BROKER, "num.partitions", 3, "broker cluster"),
        (ConfigScope.BROKER, "durability", "synced", "broker topic cluster"),
        (ConfigScope.TOPIC, "num.partitions", 3, "topic cluster"),
        (ConfigScope.BROKER, "auto.create.topics.enable", "yes", "true false"),
        (ConfigScope.BROKER, "quorum.write", 3, "quorum.write"),
        (ConfigScope.CLUSTER, "no.such.key", 3, "no.such.key"),
    ],
)
def test_what_does_nothing_in_a_scope_is_refused(
    scope: ConfigScope, name: str, value: ConfigInput, named: str
) -> None:
    """A key of a different scope is refused when it is set or reset, and the refusal names its scope."""
    with refuses("invalid_config", *named.split()):
        merge_patch({}, {name: value}, scope)


def test_a_broker_shows_what_holds_there() -> None:
    """A broker's own value of a key takes precedence over the cluster's value and the default.

    The configuration of a broker omits keys of other scopes.
    """
    entries = effective_config(
        ConfigScope.BROKER,
        {
            ConfigScope.BROKER: {"segment.ms": 5, "durability": "replicated"},
            ConfigScope.CLUSTER: {"segment.ms": "7", "flush.ms": "7", "num.partitions": "3"},
        },
    )

    assert entries["segment.ms"] == ConfigEntry("5", ConfigSource.BROKER)
    assert entries["flush.ms"] == ConfigEntry("7", ConfigSource.CLUSTER)
    assert entries["auto.create.topics.enable"] == ConfigEntry("false", ConfigSource.DEFAULT)
    assert entries.keys().isdisjoint({"num.partitions", "durability", "quorum.write"})


def test_the_cluster_shows_the_rule_where_a_default_follows_from_something() -> None:
    """The cluster's configuration shows the rule of a computed default instead of a value."""
    unset = effective_config(ConfigScope.CLUSTER, {ConfigScope.CLUSTER: {}})
    entries = effective_config(ConfigScope.CLUSTER, {ConfigScope.CLUSTER: {"default.replication.factor": 2}})

    assert unset["default.replication.factor"] == ConfigEntry("min(3, brokers)", ConfigSource.DEFAULT)
    assert entries["default.replication.factor"] == ConfigEntry("2", ConfigSource.CLUSTER)
    assert unset["num.partitions"] == ConfigEntry("1", ConfigSource.DEFAULT)


def test_a_brokers_value_of_a_key_that_all_must_agree_on_does_not_count() -> None:
    """For a key on which all brokers must agree, a value stored for a single broker is ignored."""
    config, entries = effective_topic_config({}, {"durability": "replicated"}, {})

    assert config.durability is Durability.SYNCED
    assert entries["durability"].source is ConfigSource.DEFAULT


def test_a_topic_has_no_keys_of_the_cluster() -> None:
    """A topic cannot set a key that belongs to brokers and the cluster."""
    with refuses("invalid_config"):
        parse_value("auto.create.topics.enable", True)


def test_an_unknown_key_is_refused_with_the_list_of_keys() -> None:
    """An unknown key is refused with a list of the allowed keys, and a long name is truncated in the answer."""
    with pytest.raises(ProblemError) as refused:
        parse_value("segment.byte", 1)
    with pytest.raises(ProblemError) as hostile:
        merge_patch({}, {"\n" * 100_000: None})

    assert refused.value.data["allowed"] == SUPPORTED
    assert missing(refused.value.detail, "'segment.byte'", "segment.bytes") == []
    assert "nearest" not in hostile.value.detail
    assert len(str(hostile.value.to_document())) < 2000


def test_null_for_all_of_a_configuration_resets_every_key() -> None:
    """As in a merge patch, a null configuration resets every key, and an absent configuration changes nothing."""
    assert merge_patch({"retention.ms": "5", "durability": "synced"}, None) == {}
    assert merge_patch({"retention.ms": "5"}, {}) == {"retention.ms": "5"}


def test_a_merge_patch_sets_changes_and_resets() -> None:
    """A merge patch sets, replaces and resets keys, keeps all other keys, and leaves the given mapping unchanged."""
    stored = {"segment.ms": "5", "durability": "replicated"}
    merged = merge_patch(
        stored, {"segment.ms": None, "flush.ms": 7, "durability": "synced", "quorum.write": None}
    )

    assert merged == {"durability": "synced", "flush.ms": "7"}
    assert stored == {"segment.ms": "5", "durability": "replicated"}


def test_the_nearest_value_wins_and_names_its_source() -> None:
    """A key's value comes from the topic, broker, cluster or default, in this order, and the entry names the source."""
    config, entries = effective_topic_config(
        {"segment.ms": "1"},
        {"segment.ms": "2", "flush.ms": "2"},
        {"segment.ms": "3", "flush.ms": "3", "durability": "replicated"},
    )

    assert (config.segment_ms, config.flush_ms, config.durability) == (1, 2, Durability.REPLICATED)
    assert entries["segment.ms"] == ConfigEntry("1", ConfigSource.TOPIC)
    assert entries["flush.ms"] == ConfigEntry("2", ConfigSource.BROKER)
    assert entries["durability"] == ConfigEntry("replicated", ConfigSource.CLUSTER)
    assert entries["segment.bytes"] == ConfigEntry("1073741824", ConfigSource.DEFAULT)


def test_a_topic_shows_every_supported_key_and_no_other() -> None:
    """A topic without a write quorum shows every supported key except quorum.write, and no key of a later release."""
    _, entries = effective_topic_config({"from.the.future": "x"}, {}, {})

    assert sorted(entries) == [name for name in SUPPORTED if name != "quorum.write"]


@pytest.mark.parametrize(("replication_factor", "expected"), [(1, 1), (2, 2), (3, 2), (5, 3)])
def test_the_write_quorum_is_a_majority(replication_factor: int, expected: int) -> None:
    """The default of quorum.write is a majority of the replicas, and keys of the other mode are shown as unused."""
    config, entries = effective_topic_config(
        {"replication.mode": "quorum"}, {}, {}, replication_factor=replication_factor
    )

    assert (config.has_quorum, config.quorum_write) == (True, expected)
    assert entries["quorum.write"] == ConfigEntry(str(expected), ConfigSource.DEFAULT)
    assert entries["min.insync.replicas"].source is ConfigSource.UNUSED
    assert entries["unclean.leader.election.enable"].source is ConfigSource.UNUSED
    assert sorted(entries) == SUPPORTED


@pytest.mark.parametrize(("replication_factor", "expected"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_min_insync_replicas_follows_the_replication_factor(replication_factor: int, expected: int) -> None:
    """The default of min.insync.replicas is one less than the number of replicas, but at least one.

    An explicit value of min.insync.replicas overrides the default.
    """
    by_default, entries = effective_topic_config({}, {}, {}, replication_factor=replication_factor)
    by_topic, _ = effective_topic_config({"min.insync.replicas": 7}, {}, {}, replication_factor=3)

    assert by_default.min_insync_replicas == expected
    assert entries["min.insync.replicas"] == ConfigEntry(str(expected), ConfigSource.DEFAULT)
    assert by_topic.min_insync_replicas == 7


def test_the_defaults_of_the_typed_form_are_those_of_the_catalogue() -> None:
    """The typed configuration of a topic has a field for every supported key, with the catalogue's default."""
    config, _ = effective_topic_config({}, {}, {})

    assert config == TopicConfig()
    assert sorted(field.name.replace("_", ".") for field in fields(TopicConfig)) == SUPPORTED
    assert isinstance(config.durability, Durability)
    assert isinstance(config.message_timestamp_type, TimestampType)


@pytest.mark.parametrize("value", [8, None])
def test_no_call_changes_what_is_read_at_the_start(value: int | None) -> None:
    """A key that is read only when a broker starts is refused, because a call could not change its effect."""
    with pytest.raises(ProblemError) as refused:
        merge_patch({}, {"num.io.threads": value}, ConfigScope.BROKER)

    assert refused.value.code == "invalid_config"
    assert missing(refused.value.detail, "num.io.threads") == []


@pytest.mark.parametrize(
    ("patch", "refused"),
    [
        ({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4}, True),
        ({"min.compaction.lag.ms": 5, "max.compaction.lag.ms": 5}, False),
        ({"max.compaction.lag.ms": 4}, False),
    ],
)
def test_a_record_may_be_cleaned_before_it_has_to_be(patch: dict[str, int], refused: bool) -> None:
    """The maximum compaction lag of a topic may not be smaller than its minimum compaction lag."""
    if refused:
        with refuses("invalid_config"):
            merge_patch({}, patch)
    else:
        assert merge_patch({}, patch).keys() == patch.keys()


@pytest.mark.parametrize(
    ("policy", "compacts", "deletes", "roll_ms"),
    [("delete", False, True, 9), ("compact", True, False, 7), ("compact,delete", True, True, 7)],
)
def test_a_policy_compacts_deletes_or_both(policy: str, compacts: bool, deletes: bool, roll_ms: int) -> None:
    """The policies delete and compact may be combined; a compacted topic closes its last segment early enough."""
    config = TopicConfig(cleanup_policy=policy, segment_ms=9, max_compaction_lag_ms=7)

    assert (config.compacts, config.deletes, config.roll_ms) == (compacts, deletes, roll_ms)
