"""Changes to the cluster's feature level, requested by the key `feature.level` of a configuration patch.

`configs` uses this module for patches of the cluster's configuration. Only this request raises the level, and only if
every registered broker supports the new level. The level is never lowered. The transaction does not detect a broker
that registers at the same time: that broker stops by itself when its mirror shows the level.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fairlead_api.configuration import FEATURE_LEVEL_KEY, ConfigInput, ConfigScope, parse_value
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Compare, Put, unchanged_since

NAMED_MAX: Final = 20
"""Maximum number of brokers that a refusal names."""
COMPACTION_LEVEL: Final = 2
"""First feature level with compacted topics."""
CLEANUP_POLICY: Final = "cleanup.policy"


def taken_out(
    patch: Mapping[str, ConfigInput] | None,
) -> tuple[int | None, Mapping[str, ConfigInput] | None]:
    """Return the feature level that a patch requests, or None, and the patch without it. Raises `invalid_config`."""
    if patch is None or FEATURE_LEVEL_KEY not in patch:
        return None, patch
    level = parse_value(FEATURE_LEVEL_KEY, patch[FEATURE_LEVEL_KEY], ConfigScope.CLUSTER)
    assert isinstance(level, int), "the key is a number"
    return level, {name: value for name, value in patch.items() if name != FEATURE_LEVEL_KEY}


def check_compaction(metadata: ClusterMetadata, config: Mapping[str, str]) -> None:
    """Raise `not_possible_now` for a compacted topic while a broker of an older release may have a replica of it."""
    level = 1 if metadata.cluster is None else metadata.cluster.value.feature_level
    if "compact" in config.get(CLEANUP_POLICY, "") and level < COMPACTION_LEVEL:
        raise ProblemError(
            "not_possible_now",
            f"{CLEANUP_POLICY}={config[CLEANUP_POLICY]} needs feature level {COMPACTION_LEVEL}, the cluster is at "
            f"{level}; raise it with: fairlead cluster config -c {FEATURE_LEVEL_KEY}={COMPACTION_LEVEL}",
        )


def raised_level(metadata: ClusterMetadata, level: int | None) -> tuple[tuple[Compare, ...], tuple[Put, ...]]:
    """Return the compares and the writes that raise the cluster to a level; none if it has already been reached.

    Raises `not_possible_now` for a lower level than the cluster's, and for a level that a registered broker does not
    support.
    """
    found = metadata.cluster
    if level is None or found is None or level == found.value.feature_level:
        return (), ()
    if level < found.value.feature_level:
        detail = (
            f"the cluster is at feature level {found.value.feature_level}, which cannot be lowered to {level}"
        )
        raise ProblemError("not_possible_now", detail)
    older = {
        broker: each.value.feature_level
        for broker, each in sorted(metadata.brokers.items())
        if each.value.feature_level < level
    }
    if older:
        named = ", ".join(
            f"broker {broker} supports {known}" for broker, known in list(older.items())[:NAMED_MAX]
        )
        raise ProblemError(
            "not_possible_now",
            f"feature level {level} needs a newer release on {len(older)} of {len(metadata.brokers)} brokers: {named}",
            data={"broker": next(iter(older))},
        )
    key = metadata.keys.cluster
    record = msgspec.structs.replace(found.value, feature_level=level)
    return (unchanged_since(key, found.mod_revision),), (Put(key, encode(record)),)
