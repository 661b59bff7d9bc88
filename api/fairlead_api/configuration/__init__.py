"""Configuration of topics, brokers and the cluster: validation, stored form and effective value of each key.

The broker checks values with this module before it stores them, and builds the `TopicConfig` of a log with it; the SDK
and the CLI use the entry types. This module must not depend on where values are stored. Values that are not
supported yet are refused and never stored, since users would expect an accepted value to have an effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from fairlead_api.configuration.keys import (
    CLUSTER_KEYS,
    KEYS,
    LONG_MAX,
    MIB,
    THROTTLED_RATE_KEY,
    TOPIC_KEYS,
    ConfigKey,
    ConfigScope,
    ConfigType,
)
from fairlead_api.excerpts import excerpt, shown
from fairlead_api.problems import ProblemError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "AUDIT_TOPIC_KEY",
    "CLUSTER_KEYS",
    "FEATURE_LEVEL_KEY",
    "ISR_MODE",
    "KEYS",
    "QUORUM_MODE",
    "QUORUM_WRITE_KEY",
    "REPLICATION_MODE_KEY",
    "SECURITY_MODE_KEY",
    "SECURITY_PREFIXES",
    "THROTTLED_RATE_KEY",
    "TOKENS_VALID_AFTER_KEY",
    "TOPIC_KEYS",
    "ConfigEntry",
    "ConfigInput",
    "ConfigKey",
    "ConfigScope",
    "ConfigSource",
    "ConfigType",
    "ConfigValue",
    "Durability",
    "TimestampType",
    "TopicConfig",
    "effective_config",
    "effective_topic_config",
    "merge_patch",
    "parse_value",
    "stored_value",
    "unknown_key",
]

ConfigValue = bool | int | float | str
"""Checked value of a key."""
ConfigInput = str | int | float | bool | None
"""Value of a key in a request; null means the default."""

AUDIT_TOPIC_KEY: Final = "audit.topic.enable"
ISR_MODE: Final = "isr"
QUORUM_MODE: Final = "quorum"
REPLICATION_MODE_KEY: Final = "replication.mode"
QUORUM_WRITE_KEY: Final = "quorum.write"
_UNUSED: Final = {
    ISR_MODE: frozenset({QUORUM_WRITE_KEY}),
    QUORUM_MODE: frozenset({"min.insync.replicas", "unclean.leader.election.enable"}),
}
"""Keys that a replication mode does not use."""
FEATURE_LEVEL_KEY: Final = "feature.level"
"""Key whose value is stored in the cluster's record instead of the cluster's configuration, and can only be raised."""
SECURITY_MODE_KEY: Final = "security.mode"
SECURITY_PREFIXES: Final = ("security.", "tokens.", "audit.")
"""Prefixes of the keys whose change also requires permission to alter `security`."""
TOKENS_VALID_AFTER_KEY: Final = "tokens.valid.after"

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,9})?")
_NAME_COMPARED: Final = 100
"""Number of characters of an unknown key that are compared with existing keys; the longest key has 39 characters."""


class Durability(StrEnum):
    """State in which a record is considered stored and may be acknowledged."""

    SYNCED = "synced"
    REPLICATED = "replicated"


class TimestampType(StrEnum):
    """Source of a record's timestamp."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class ConfigSource(StrEnum):
    """Source of an effective value, in order of precedence."""

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"
    DEFAULT = "default"
    UNUSED = "unused"
    """The replication mode of the topic does not use the key."""


class ConfigEntry(msgspec.Struct, frozen=True):
    """Effective value of a key, as text, and its source."""

    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Typed values of all keys of a topic; field names are the keys with underscores instead of dots.

    The default values are those of the catalogue for a topic with one or two replicas.
    """

    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_index_bytes: int = 10 * MIB
    index_interval_bytes: int = 4096
    max_message_bytes: int = 8 * MIB
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    min_insync_replicas: int = 1
    durability: Durability = Durability.SYNCED
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    replication_mode: str = ISR_MODE
    quorum_write: int = 1
    cleanup_policy: str = "delete"
    unclean_leader_election_enable: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    delete_retention_ms: int = 86_400_000

    @property
    def has_quorum(self) -> bool:
        """Whether a write quorum commits records, instead of a set of in-sync replicas."""
        return self.replication_mode == QUORUM_MODE

    @property
    def compacts(self) -> bool:
        """Whether the log keeps the newest record of each key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size removes old segments."""
        return "delete" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Age at which the active segment is closed, so that it can expire or be cleaned."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms


_ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "message.timestamp.type": TimestampType,
    "durability": Durability,
}


def parse_value(name: str, value: ConfigInput, scope: ConfigScope = ConfigScope.TOPIC) -> ConfigValue:
    """Return the typed value of a key that is set in a scope.

    Brokers and the cluster have their own keys, and can also set topic keys as defaults for topics. Raises
    `invalid_config` with key, value and allowed values for an unknown key, a key of another scope, a value of the wrong
    type, a value out of range, null, and a value that is not supported yet.
    """
    return _parsed(_known_key(name, scope), value)


def stored_value(name: str, value: ConfigInput, scope: ConfigScope = ConfigScope.TOPIC) -> str:
    """Return the canonical text of a value for storing, as in Kafka. Raises the problems of `parse_value`."""
    return _text(parse_value(name, value, scope))


def unknown_key(name: str, allowed: Iterable[str]) -> str:
    """Return the refusal of an unknown key, with the nearest allowed key if one is similar."""
    nearest = get_close_matches(name[:_NAME_COMPARED], tuple(allowed), 1)
    hint = f"; the nearest is {nearest[0]}" if nearest else ""
    return f"configuration key {shown(name)} is unknown{hint}"


def merge_patch(
    stored: Mapping[str, str],
    patch: Mapping[str, ConfigInput] | None,
    scope: ConfigScope = ConfigScope.TOPIC,
) -> dict[str, str]:
    """Return the stored configuration after a JSON merge patch.

    Null as a value resets a key to its default, and null as the patch resets all keys. The whole patch is checked
    before any value is changed. Raises the problems of `parse_value`, and a problem for a key that is read only when a
    broker starts. The function also builds the configuration of a new topic, from an empty configuration.
    """
    if patch is None:
        return {}
    merged = dict(stored)
    for name, value in patch.items():
        if not _known_key(name, scope).dynamic:
            detail = (
                f"configuration key {name} is read when a broker starts: set it in the broker's own settings "
                "(config_values) and restart the broker"
            )
            raise ProblemError("invalid_config", detail, data={"key": name})
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = stored_value(name, value, scope)
    _check_lags(merged)
    return merged


def _check_lags(values: Mapping[str, str]) -> None:
    """Raise `invalid_config` if the maximum compaction lag is below the minimum compaction lag."""
    least, most = (
        int(values.get(name) or KEYS[name].default or 0)
        for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    if most < least:
        raise ProblemError(
            "invalid_config",
            f"max.compaction.lag.ms={most} is below min.compaction.lag.ms={least}",
            data={"key": "max.compaction.lag.ms"},
        )


TOPIC_CONFIGS_KEPT_MAX: Final = 256
"""Maximum number of cached effective configurations, a few KB each."""


def effective_topic_config(
    topic: Mapping[str, ConfigInput],
    broker: Mapping[str, ConfigInput],
    cluster: Mapping[str, ConfigInput],
    *,
    replication_factor: int = 1,
) -> tuple[TopicConfig, dict[str, ConfigEntry]]:
    """Return the effective configuration of a topic, typed and as entries with their source.

    The order of precedence is topic, broker, cluster, default. Keys that this release does not support are omitted,
    even if a newer release has stored them.
    """
    config, entries = _effective_topic_config(
        _frozen(topic), _frozen(broker), _frozen(cluster), replication_factor
    )
    return config, dict(entries)


_Layer: TypeAlias = tuple[tuple[str, str, ConfigInput], ...]
"""Names, types and values of a mapping; the type distinguishes the equal values 1 and true."""


def _frozen(layer: Mapping[str, ConfigInput]) -> _Layer:
    return tuple((name, type(value).__name__, value) for name, value in layer.items())


@lru_cache(maxsize=TOPIC_CONFIGS_KEPT_MAX)
def _effective_topic_config(
    topic: _Layer, broker: _Layer, cluster: _Layer, replication_factor: int
) -> tuple[TopicConfig, dict[str, ConfigEntry]]:
    """Return the effective configuration; most topics of a cluster share a few configurations."""
    layers = {
        scope: {name: value for name, _, value in layer}
        for scope, layer in (
            (ConfigScope.TOPIC, topic),
            (ConfigScope.BROKER, broker),
            (ConfigScope.CLUSTER, cluster),
        )
    }
    entries: dict[str, ConfigEntry] = {}
    fields: dict[str, ConfigValue] = {}
    for name, key in TOPIC_KEYS.items():
        value, source = _nearest(key, layers)
        parsed = _parsed(key, _default(key, replication_factor) if value is None else value)
        entries[name] = ConfigEntry(_text(parsed), source)
        fields[name.replace(".", "_")] = parsed
    config = msgspec.convert(fields, TopicConfig)
    for name in _UNUSED[config.replication_mode]:
        entries[name] = ConfigEntry(entries[name].value, ConfigSource.UNUSED)
    if not config.has_quorum:
        # Clients of releases without this replication mode know neither the key nor its source.
        del entries[QUORUM_WRITE_KEY]
    return config, entries


def effective_config(
    scope: ConfigScope, layers: Mapping[ConfigScope, Mapping[str, ConfigInput]]
) -> dict[str, ConfigEntry]:
    """Return every key that can be set in a scope (broker or cluster), with its value and the value's source.

    For a default that depends on other settings, the value is a description of the rule.
    """
    entries: dict[str, ConfigEntry] = {}
    for name, key in KEYS.items():
        if scope not in key.scopes:
            continue
        value, source = _nearest(key, layers)
        if value is None and key.default is None:
            entries[name] = ConfigEntry(key.default_rule, source)
        else:
            entries[name] = ConfigEntry(_text(_parsed(key, key.default if value is None else value)), source)
    return entries


def _nearest(
    key: ConfigKey, layers: Mapping[ConfigScope, Mapping[str, ConfigInput]]
) -> tuple[ConfigInput, ConfigSource]:
    """Return the value that is set with the highest precedence, and its source; None if only the default applies."""
    for scope in ConfigScope:
        layer = layers.get(scope)
        if layer is not None and scope in key.scopes and layer.get(key.name) is not None:
            return layer[key.name], ConfigSource(scope.value)
    return None, ConfigSource.DEFAULT


def _text(value: ConfigValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(key: ConfigKey, value: ConfigInput) -> ConfigValue:
    if key.choices:
        return _choice(key, value)
    number = _double(value) if key.type is ConfigType.DOUBLE else _integer(value)
    assert key.minimum is not None, key.name
    assert key.maximum is not None, key.name
    if number is None or not key.minimum <= number <= key.maximum:
        raise _refused(key, value, f"is not allowed; expected {key.allowed}")
    return number


def _default(key: ConfigKey, replication_factor: int) -> str:
    """Return the default of a key. Two defaults depend on the number of replicas."""
    if key.default is not None:
        return key.default
    if key.name == QUORUM_WRITE_KEY:
        return str(replication_factor // 2 + 1)
    return str(max(1, replication_factor - 1))


def _known_key(name: str, scope: ConfigScope) -> ConfigKey:
    key = KEYS.get(name)
    if key is not None and scope in key.scopes:
        return key
    allowed = [key.name for key in KEYS.values() if scope in key.scopes]
    if key is None:
        what = unknown_key(name, allowed)
    else:
        what = f"configuration key {name} cannot be set on a {scope}, only on a {' or '.join(key.scopes)}"
    raise ProblemError(
        "invalid_config",
        f"{what}; allowed are {', '.join(allowed)}",
        data={"key": excerpt(name), "allowed": allowed},
    )


def _choice(key: ConfigKey, value: ConfigInput) -> ConfigValue:
    boolean = key.type is ConfigType.BOOLEAN
    text = str(value).lower() if boolean and isinstance(value, bool) else value
    if text in key.choices_supported:
        assert isinstance(text, str)
        named = _ENUMS.get(key.name)
        return text == "true" if boolean else named(text) if named else text
    if text in key.choices:
        raise _refused(key, value, f"is not supported yet; expected {key.allowed}")
    raise _refused(key, value, f"is not allowed; expected {key.allowed}")


def _integer(value: ConfigInput) -> int | None:
    """Return an integer from JSON or text; None for any other value, including true and false."""
    if isinstance(value, str):
        return int(value) if _INTEGER.fullmatch(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _double(value: ConfigInput) -> float | None:
    """Return a finite number from JSON or text; None for any other value."""
    if isinstance(value, str):
        return float(value) if _DECIMAL.fullmatch(value) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _refused(key: ConfigKey, value: ConfigInput, why: str) -> ProblemError:
    return ProblemError(
        "invalid_config",
        f"configuration {key.name}={shown(value)} {why}",
        data={"key": key.name, "value": excerpt(value), "allowed": key.allowed},
    )
