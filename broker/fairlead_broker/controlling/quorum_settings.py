"""Checks of the configuration of topics with a write quorum, and the settings that are fixed when a topic is created.

`topics` calls this module for new and for changed topics.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlead_api.configuration import (
    FEATURE_LEVEL_KEY,
    ISR_MODE,
    QUORUM_MODE,
    QUORUM_WRITE_KEY,
    REPLICATION_MODE_KEY,
)
from fairlead_api.problems import ProblemError
from fairlead_api.versions import QUORUM_LEVEL
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.registry.quorum import majority
from fairlead_broker.registry.records import config_texts

DURABILITY_KEY = "durability"
_OF_ISR = {
    "min.insync.replicas": f"{QUORUM_WRITE_KEY} states how many replicas must store a record",
    "unclean.leader.election.enable": "an operator decides about each election in which records may be lost",
}
"""Keys that topics with a quorum cannot use, each with the reason."""


def fixed_at_creation(metadata: ClusterMetadata, config: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration of a new topic, including the cluster's settings that the topic keeps permanently.

    Only topics with a quorum keep such settings. Raises `not_possible_now` below the feature level that supports
    quorums.
    """
    found = metadata.cluster_config
    cluster = {} if found is None else config_texts(found.value.values)
    if config.get(REPLICATION_MODE_KEY, cluster.get(REPLICATION_MODE_KEY, ISR_MODE)) != QUORUM_MODE:
        return dict(config)
    level = 1 if metadata.cluster is None else metadata.cluster.value.feature_level
    if level < QUORUM_LEVEL:
        raise ProblemError(
            "not_possible_now",
            f"{REPLICATION_MODE_KEY}={QUORUM_MODE} needs feature level {QUORUM_LEVEL}, the cluster is at {level}; "
            f"raise it with: fairlead cluster config -c {FEATURE_LEVEL_KEY}={QUORUM_LEVEL}",
        )
    fixed = {**config, REPLICATION_MODE_KEY: QUORUM_MODE}
    if DURABILITY_KEY in cluster:
        fixed.setdefault(DURABILITY_KEY, cluster[DURABILITY_KEY])
    return fixed


def check_quorum(name: str, config: Mapping[str, str], replication_factor: int) -> None:
    """Raise `invalid_config` if a topic's configuration contradicts its replication mode."""
    write = config.get(QUORUM_WRITE_KEY)
    if config.get(REPLICATION_MODE_KEY, ISR_MODE) != QUORUM_MODE:
        if write is not None:
            raise _refused(
                QUORUM_WRITE_KEY,
                f"topic {name} has {REPLICATION_MODE_KEY}={ISR_MODE}, for which {QUORUM_WRITE_KEY} has no meaning",
            )
        return
    for key, reason in _OF_ISR.items():
        if config.get(key, "false") != "false":
            raise _refused(key, f"topic {name} has {REPLICATION_MODE_KEY}={QUORUM_MODE}, where {reason}")
    least = majority(replication_factor)
    if write is not None and not least <= int(write) <= replication_factor:
        raise _refused(
            QUORUM_WRITE_KEY,
            f"topic {name} has {replication_factor} replicas, so {QUORUM_WRITE_KEY}={write} is not allowed; expected "
            f"{least} to {replication_factor}: with a smaller write quorum, an election could miss an acknowledged "
            "record",
            allowed=f"{least} to {replication_factor}",
        )


def check_unchanged(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise `invalid_config` if a change touches a setting that is fixed when a topic is created."""
    mode = before.get(REPLICATION_MODE_KEY, ISR_MODE)
    fixed = (REPLICATION_MODE_KEY, DURABILITY_KEY) if mode == QUORUM_MODE else (REPLICATION_MODE_KEY,)
    for key in fixed:
        default = ISR_MODE if key == REPLICATION_MODE_KEY else None
        if before.get(key, default) != after.get(key, default):
            detail = f"{key} of topic {name} is {before.get(key, 'the default')} and fixed at creation"
            raise _refused(key, detail)


def _refused(key: str, detail: str, allowed: str | None = None) -> ProblemError:
    return ProblemError(
        "invalid_config", detail, data={"key": key} if allowed is None else {"key": key, "allowed": allowed}
    )
