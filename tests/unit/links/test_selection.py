"""The topics that a link mirrors, and why others are blocked."""

from __future__ import annotations

import pytest

from fairlead_api.identifiers import TimestampUs, TopicId
from fairlead_broker.links.selection import (
    BlockReason,
    LocalTopics,
    SourceTopic,
    blocked,
    is_chosen,
    is_recreated,
)
from fairlead_broker.registry.link_records import NamePatterns
from fairlead_broker.registry.records import MirrorOf, MirrorState

OURS, THEIRS, WON, GONE, NEW = (TopicId(name) for name in ("ours", "theirs", "won", "gone", "new"))
LOCAL = LocalTopics(
    "west",
    {"orders", "east.flights", "was"},
    {OURS, THEIRS, WON},
    mirrored={THEIRS},
    promoted={WON},
    deleted={GONE},
)


@pytest.mark.parametrize(
    ("topic", "name", "reason"),
    [
        (SourceTopic("flights", THEIRS), "east.flights", None),
        (SourceTopic("trips", NEW), "east.trips", None),
        (SourceTopic("trips", NEW, ("west", "north")), "east.trips", BlockReason.CYCLE),
        (SourceTopic("was", WON), "was", BlockReason.PROMOTED),
        (SourceTopic("orders", OURS), "east.orders", BlockReason.ID_TAKEN),
        (SourceTopic("orders", NEW), "orders", BlockReason.NAME_TAKEN),
        (SourceTopic("old", GONE), "old", BlockReason.DELETED_HERE),
    ],
)
def test_a_topic_is_mirrored_unless_a_reason_blocks_it(
    topic: SourceTopic, name: str, reason: BlockReason | None
) -> None:
    """A cluster has a topic id at most once, and gets no topic back that has already passed through it."""
    assert blocked(topic, name, LOCAL) is reason


@pytest.mark.parametrize(
    ("changes", "is_replaced"),
    [
        ({}, True),
        ({"link": "north"}, False),
        ({"source_name": "trips"}, False),
        ({"state": MirrorState.HANDING_OVER}, False),
        ({"state": MirrorState.PROMOTING}, False),
    ],
)
def test_a_recreated_topic_replaces_only_its_own_mirror(changes: dict[str, str], is_replaced: bool) -> None:
    """A mirror of another link or topic, or with a promotion that has begun, is never replaced."""
    fields = {"link": "east", "source_name": "flights", "state": MirrorState.MIRRORING, **changes}
    mirror = MirrorOf(source_cluster_id="e", lineage=("e",), since_us=TimestampUs(1), **fields)  # type: ignore[arg-type]

    assert is_recreated(SourceTopic("flights", NEW), mirror, "east") is is_replaced
    assert not is_recreated(SourceTopic("flights", NEW), None, "east")


def test_patterns_choose_names() -> None:
    """A topic is mirrored if a pattern includes and none excludes its name; internal names need their own pattern."""
    patterns = NamePatterns(include=("orders-*", "trips"), exclude=("orders-test",))

    assert [
        name for name in ("orders-1", "orders-test", "trips", "trips-1") if is_chosen(patterns, name)
    ] == [
        "orders-1",
        "trips",
    ]
    assert not is_chosen(NamePatterns(include=("*",)), "__audit")
