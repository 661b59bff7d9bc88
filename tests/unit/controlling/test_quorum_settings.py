"""The configuration of topics with a write quorum: which settings are fixed, refused or taken from the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_broker.controlling.quorum_settings import check_quorum, check_unchanged, fixed_at_creation
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import ClusterRecord, ConfigRecord
from refusals import refuses

QUORUM = {"replication.mode": "quorum"}


class Metadata:
    """The cluster's record and configuration."""

    def __init__(self, level: int, **values: Any) -> None:
        record = ClusterRecord(cluster_id="c", feature_level=level, created_us=0)  # type: ignore[arg-type]
        self.cluster = Versioned(record, 1, 1)  # type: ignore[arg-type]
        config = ConfigRecord(values={name.replace("_", "."): value for name, value in values.items()})
        self.cluster_config = Versioned(config, 1, 1) if values else None  # type: ignore[arg-type]


def test_a_quorum_needs_its_feature_level() -> None:
    """A topic with a quorum is refused until the cluster has the feature level that quorums need."""
    with refuses("not_possible_now"):
        fixed_at_creation(Metadata(2), QUORUM)  # type: ignore[arg-type]

    assert fixed_at_creation(Metadata(3), QUORUM) == QUORUM  # type: ignore[arg-type]
    assert fixed_at_creation(Metadata(2), {}) == {}  # type: ignore[arg-type]


def test_a_new_topic_keeps_the_mode_of_the_cluster() -> None:
    """A topic keeps its initial replication mode and durability, even if the cluster's configuration changes."""
    metadata: Any = Metadata(3, replication_mode="quorum", durability="replicated")
    isr: Any = Metadata(3, durability="replicated")

    assert fixed_at_creation(metadata, {}) == {**QUORUM, "durability": "replicated"}
    assert fixed_at_creation(metadata, {"durability": "synced"})["durability"] == "synced"
    assert fixed_at_creation(metadata, {"replication.mode": "isr"}) == {"replication.mode": "isr"}
    assert fixed_at_creation(isr, {}) == {}


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"quorum.write": "2"}, "quorum.write"),
        ({**QUORUM, "quorum.write": "1"}, "quorum.write"),
        ({**QUORUM, "quorum.write": "4"}, "quorum.write"),
        ({**QUORUM, "min.insync.replicas": "2"}, "min.insync.replicas"),
        ({**QUORUM, "unclean.leader.election.enable": "true"}, "unclean.leader.election.enable"),
    ],
)
def test_contradictions_are_refused(config: dict[str, str], key: str) -> None:
    """The refusal of a key of the other mode, or of a quorum below a majority or above all replicas, names the key."""
    with refuses("invalid_config") as refused:
        check_quorum("flights", config, 3)

    assert refused.value.data["key"] == key


def test_what_fits_is_accepted() -> None:
    """A quorum from a majority to all replicas is accepted, and so is `false` for unclean elections."""
    check_quorum("flights", {**QUORUM, "quorum.write": "3"}, 3)
    check_quorum("flights", {**QUORUM, "unclean.leader.election.enable": "false"}, 3)
    check_quorum("flights", {**QUORUM, "quorum.write": "1"}, 1)
    check_quorum("flights", {"min.insync.replicas": "2"}, 3)


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ({}, QUORUM, "replication.mode"),
        (QUORUM, {}, "replication.mode"),
        (QUORUM, {**QUORUM, "durability": "replicated"}, "durability"),
        ({}, {"replication.mode": "isr", "durability": "replicated"}, None),
        (QUORUM, {**QUORUM, "quorum.write": "3"}, None),
    ],
)
def test_the_mode_is_fixed(before: dict[str, str], after: dict[str, str], key: str | None) -> None:
    """The replication mode never changes, nor does the durability of a topic with a quorum."""
    if key is None:
        check_unchanged("flights", before, after)
        return
    with refuses("invalid_config") as refused:
        check_unchanged("flights", before, after)

    assert refused.value.data["key"] == key
