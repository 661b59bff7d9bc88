"""The brokers' configuration file, and classification of the keys in a Cluster's `config`.

The catalogue in `fairlead_api` determines how a key is applied. The plan sets dynamic keys through the brokers' API.
Keys that brokers read only at startup are written to the file. Keys that are neither dynamic nor read at startup are
refused and omitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from fairlead_api.configuration import (
    FEATURE_LEVEL_KEY,
    KEYS,
    SECURITY_MODE_KEY,
    TOKENS_VALID_AFTER_KEY,
    ConfigKey,
    ConfigScope,
    stored_value,
    unknown_key,
)
from fairlead_api.problems import ProblemError
from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import coordination_name
from fairlead_operator.render.inputs import RenderInputs
from fairlead_operator.render.security import file_settings

SET_ELSEWHERE: Final = {
    FEATURE_LEVEL_KEY: "the field `formatVersion`",
    SECURITY_MODE_KEY: "the field `security.mode`",
    TOKENS_VALID_AFTER_KEY: "a call to the brokers with a new token",
}
"""Keys of the cluster that a Cluster's `config` must not contain, each with the field or call that sets it.

The operator does not reset these keys: a reset would open a closed cluster, and a feature level cannot be reset.
"""
CONFIG_KEYS: Final = tuple(
    key.name
    for key in KEYS.values()
    if key.name not in SET_ELSEWHERE
    and (ConfigScope.CLUSTER if key.dynamic else ConfigScope.BROKER) in key.scopes
)
"""Keys that a Cluster's `config` can have: dynamic keys of the cluster, and keys that brokers read at startup."""


@dataclass(frozen=True, slots=True)
class ConfigSplit:
    """The keys of a Cluster's `config`, each in exactly one field, with values in the stored form."""

    dynamic: Mapping[str, str] = field(default_factory=dict)
    """Dynamic keys, which are set on the running cluster."""
    restart: Mapping[str, str] = field(default_factory=dict)
    """Keys that brokers read only at startup."""
    forbidden: Mapping[str, str] = field(default_factory=dict)
    """Refused keys, each with the reason as a sentence."""


def split_config(config: Mapping[str, str]) -> ConfigSplit:
    """Split `config` by how each key is applied, ordered by key.

    An unknown or invalid key does not affect the other keys.
    """
    dynamic: dict[str, str] = {}
    restart: dict[str, str] = {}
    forbidden: dict[str, str] = {}
    for name, value in sorted(config.items()):
        key = KEYS.get(name)
        if key is None:
            forbidden[name] = unknown_key(name, CONFIG_KEYS)
            continue
        if name in SET_ELSEWHERE:
            forbidden[name] = f"configuration key {name} is set by {SET_ELSEWHERE[name]}"
            continue
        at_start = not key.dynamic
        try:
            stored = stored_value(name, value, ConfigScope.BROKER if at_start else ConfigScope.CLUSTER)
        except ProblemError as problem:
            forbidden[name] = _why(key, problem)
            continue
        (restart if at_start else dynamic)[name] = stored
    return ConfigSplit(dynamic, restart, forbidden)


def broker_file(cluster: Cluster, inputs: RenderInputs) -> str:
    """Return the configuration file that all brokers of a Cluster read, as YAML."""
    settings: dict[str, Any] = {"cluster": coordination_name(cluster.namespace, cluster.name)}
    restart = split_config(cluster.spec.config).restart
    if restart:
        settings["config_values"] = dict(restart)
    if inputs.transport is not None:
        settings |= file_settings(cluster, inputs.transport)
    if inputs.advertised:
        settings["advertise_each"] = {
            str(broker): inputs.advertised[broker] for broker in sorted(inputs.advertised)
        }
    return yaml.safe_dump(settings, sort_keys=True, default_flow_style=False)


def forbidden_text(forbidden: Mapping[str, str]) -> str:
    """Return the reasons for all refused keys, followed once by the allowed keys if a key is unknown."""
    reasons = list(forbidden.values())
    if forbidden.keys() - KEYS.keys():
        reasons.append(f"allowed are {', '.join(CONFIG_KEYS)}")
    return "; ".join(reasons)


def _why(key: ConfigKey, problem: ProblemError) -> str:
    if key.scopes == (ConfigScope.BROKER,) and key.dynamic:
        return f"configuration key {key.name} is set by the operator itself, on one broker at a time"
    return problem.detail
