"""Committed offsets in memory: changed only after a write, in records of 64 partitions."""

from __future__ import annotations

from fairlead_api.identifiers import Offset, TimestampUs, TopicId
from fairlead_broker.registry.group_records import OffsetEntry, OffsetsRecord
from fairlead_broker.runtime.groups.offsets import CommittedOffsets

A, B = TopicId("a"), TopicId("b")


def entry(partition: int, offset: int) -> OffsetEntry:
    """Return an offset entry."""
    return OffsetEntry(partition=partition, offset=Offset(offset), committed_us=TimestampUs(offset))


def test_a_change_makes_whole_records_and_is_taken_over_when_it_stands() -> None:
    """A change rewrites the whole records that contain its partitions, and is visible only after it is written."""
    offsets = CommittedOffsets({(A, 0): OffsetsRecord(entries=(entry(1, 5), entry(63, 6)))})
    changed = offsets.changed({(A, 2): entry(2, 7), (A, 64): entry(64, 8), (B, 0): entry(0, 9)})

    assert changed == {
        (A, 0): OffsetsRecord(entries=(entry(1, 5), entry(2, 7), entry(63, 6))),
        (A, 1): OffsetsRecord(entries=(entry(64, 8),)),
        (B, 0): OffsetsRecord(entries=(entry(0, 9),)),
    }
    assert offsets.get(A, 2) is None
    offsets.take(changed)
    assert offsets.get(A, 2) == entry(2, 7)
    assert offsets.get(A, 64) == entry(64, 8)
    assert [(topic, each.partition) for topic, each in offsets.items()] == [
        (A, 1),
        (A, 2),
        (A, 63),
        (A, 64),
        (B, 0),
    ]


def test_offsets_that_go_take_their_record_with_the_last_one() -> None:
    """A stored record is deleted with its last committed offset."""
    offsets = CommittedOffsets({(A, 0): OffsetsRecord(entries=(entry(1, 5), entry(2, 6)))})
    one_left = offsets.changed({(A, 1): None, (B, 3): None})
    assert one_left == {(A, 0): OffsetsRecord(entries=(entry(2, 6),)), (B, 0): None}
    offsets.take(one_left)
    assert offsets.matching(lambda topic, each: (topic, each.offset) == (A, 6)) == [(A, 2)]
    offsets.take(offsets.changed({(A, 2): None}))

    assert not offsets
    assert offsets.get(A, 2) is None


def test_fields_of_a_later_release_stay_in_their_record() -> None:
    """A commit preserves fields that a later release has added to the record."""
    offsets = CommittedOffsets({(A, 0): OffsetsRecord(entries=(entry(1, 5),), unknown={"later": 1})})
    changed = offsets.changed({(A, 1): entry(1, 6)})[A, 0]

    assert changed is not None
    assert changed.unknown == {"later": 1}
