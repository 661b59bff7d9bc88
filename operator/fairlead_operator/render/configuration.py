"""The brokers' configuration file, and which keys of a Cluster's `config` go where.

By the one catalogue in `fairlead_api`: what can change while brokers run is set through their API by the plan; what is
read at the start alone stands in the file; the rest is refused and left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from fairlead_api.configuration import KEYS, ConfigKey, ConfigScope, stored_value
from fairlead_api.problems import ProblemError
from fairlead_api.resources.cluster import Cluster
from fairlead_operator.naming import coordination_name
from fairlead_operator.render.inputs import RenderInputs


@dataclass(frozen=True, slots=True)
class ConfigSplit:
    """A Cluster's `config`, each key in exactly one part, with values in the stored form."""

    dynamic: Mapping[str, str] = field(default_factory=dict)
    """Set on the running cluster."""
    restart: Mapping[str, str] = field(default_factory=dict)
    """Read by brokers when they start."""
    forbidden: Mapping[str, str] = field(default_factory=dict)
    """Left out, each with the sentence that says why."""


def split_config(config: Mapping[str, str]) -> ConfigSplit:
    """Return where each key goes, in the order of the keys. A key that is unknown or wrong never stops the others."""
    dynamic: dict[str, str] = {}
    restart: dict[str, str] = {}
    forbidden: dict[str, str] = {}
    for name, value in sorted(config.items()):
        key = KEYS.get(name)
        at_start = key is not None and not key.dynamic
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
    if inputs.advertised:
        settings["advertise_each"] = {
            str(broker): inputs.advertised[broker] for broker in sorted(inputs.advertised)
        }
    return yaml.safe_dump(settings, sort_keys=True, default_flow_style=False)


def _why(key: ConfigKey | None, problem: ProblemError) -> str:
    if key is not None and key.scopes == (ConfigScope.BROKER,) and key.dynamic:
        return f"configuration key {key.name} is set by the operator itself, on one broker at a time"
    return problem.detail
