from __future__ import annotations

import json

import pytest

listener = pytest.importorskip("pyspark.sql.streaming.listener", reason="progress needs the extra spark")

from fairlead import TopicPartition  # noqa: E402 - needs pyspark
from fairlead_spark.planning.offsets import PartitionOffset, StreamOffsets, TopicOffsets  # noqa: E402 - needs pyspark
from fairlead_spark.progress import end_offsets  # noqa: E402 - needs pyspark


def source(end: object) -> object:
    """Return Spark's progress of a source with the given end."""
    text = end if end is None else json.dumps(end)
    return listener.SourceProgress("a source", None, text, None, 0, 0.0, 0.0, {})


def test_ends_of_our_sources_are_found_among_others() -> None:
    """Offsets of several Fairlead sources are merged, and other sources are ignored."""
    flights = StreamOffsets(
        {"flights": TopicOffsets("id", {0: PartitionOffset(7, 1), 3: PartitionOffset(9)})}
    )
    clicks = StreamOffsets({"clicks": TopicOffsets("", {1: PartitionOffset(0)})})
    others = [None, 42, {"logOffset": 3}, {"topics": [], "v": 1}, {"topics": {"t": {"0": 1}}}]

    found = end_offsets([source(flights.to_dict()), *map(source, others), source(clicks.to_dict())])

    assert found == {
        TopicPartition("flights", 0): 7,
        TopicPartition("flights", 3): 9,
        TopicPartition("clicks", 1): 0,
    }


def test_a_partition_that_is_read_twice_counts_as_far_as_both_have_read() -> None:
    """If two sources read the same partition, the lower of their offsets is used."""
    behind, ahead = (
        StreamOffsets({"flights": TopicOffsets("id", {0: PartitionOffset(offset), 1: PartitionOffset(5)})})
        for offset in (3, 9)
    )

    for sources in ([behind, ahead], [ahead, behind]):
        found = end_offsets([source(each.to_dict()) for each in sources])
        assert found == {TopicPartition("flights", 0): 3, TopicPartition("flights", 1): 5}
