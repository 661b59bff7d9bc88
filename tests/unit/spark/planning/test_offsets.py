from __future__ import annotations

import json

import pytest

from fairlead_spark.planning.offsets import (
    OffsetsFormatError,
    PartitionOffset,
    StreamOffsets,
    TopicOffsets,
    begin_of,
    first_end,
)

TEXT = '{"topics": {"a": {"id": "A", "offsets": {"2": [7, 1], "10": [5, -1]}}, "b": {"id": "", "offsets": {}}}, "v": 1}'


def offsets() -> StreamOffsets:
    """Return the offsets in `TEXT`, built in a different order."""
    return StreamOffsets(
        {
            "b": TopicOffsets("", {}),
            "a": TopicOffsets("A", {10: PartitionOffset(5), 2: PartitionOffset(7, 1)}),
        }
    )


def test_equal_offsets_are_equal_text() -> None:
    """Equal offsets have equal text, with sorted names and partitions."""
    text = json.dumps(offsets().to_dict())

    assert text == TEXT


def test_offsets_come_back_from_text_and_from_parsed_json() -> None:
    """Offsets are restored from text and from parsed JSON."""
    read = [StreamOffsets.from_json(TEXT), StreamOffsets.from_json(json.loads(TEXT))]

    assert read == [offsets(), offsets()]


def test_end_offsets_are_those_of_a_group() -> None:
    """The end offsets are the offsets that a group commits: the next offset of each partition."""
    ends = offsets().end_offsets()

    assert ends == {"a": {2: 7, 10: 5}, "b": {}}


def test_one_partition_is_found_or_not() -> None:
    """An unknown topic or partition has no offset."""
    found = [offsets().get("a", 2), offsets().get("a", 3), offsets().get("c", 0)]

    assert found == [PartitionOffset(7, 1), None, None]


def test_epochs_are_those_that_leaders_vouched_for() -> None:
    """Leader epochs are returned only for the same topic id and for offsets with a known epoch."""
    found = [offsets().epochs("A", "a"), offsets().epochs("B", "a"), offsets().epochs("A", "c")]

    assert found == [{2: 1}, {}, {}]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "no JSON"),
        ("[]", "list in place of an object"),
        ('{"v": 2, "topics": {}}', "version 2"),
        ("{}", "version None"),
        ('{"v": 1}', "topics is None"),
        ('{"v": 1, "topics": {"a": 3}}', "topics.a is 3"),
        ('{"v": 1, "topics": {"a": {"id": 3, "offsets": {}}}}', "topics.a.id is 3"),
        ('{"v": 1, "topics": {"a": {"id": "A"}}}', "topics.a.offsets is None"),
        ('{"v": 1, "topics": {"a": {"id": "A", "offsets": {"x": [1, 1]}}}}', "the partition 'x'"),
        ('{"v": 1, "topics": {"a": {"id": "A", "offsets": {"0": 1}}}}', "topics.a.offsets.0 is 1"),
        ('{"v": 1, "topics": {"a": {"id": "A", "offsets": {"0": [true, 1]}}}}', "[True, 1]"),
    ],
)
def test_other_documents_are_refused_by_what_is_wrong(document: str, words: str) -> None:
    """The error for another document says what was found, and the error for an invalid entry names its path."""
    with pytest.raises(OffsetsFormatError) as refused:
        StreamOffsets.from_json(document)

    assert words in str(refused.value)


def test_the_first_trigger_reads_from_where_it_first_began() -> None:
    """A repeated first trigger uses the start offsets of its first attempt, which are stored with its end offsets."""
    first = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(1000)})}, initial=True)
    later = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(1010)})}, initial=True)
    seen = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(1003)})})
    kept = StreamOffsets.from_json(json.dumps(first_end(first, seen).to_dict()))
    asked_again = StreamOffsets.from_json(json.dumps(later.to_dict()))

    assert begin_of(asked_again, kept).end_offsets() == {"a": {0: 1000}}
    assert kept.end_offsets() == {"a": {0: 1003}}


def test_only_the_first_trigger_knows_its_beginning() -> None:
    """The start offsets of the first trigger are stored with the end offsets until a later trigger has new records."""
    begin = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(5)})}, initial=True)
    end = first_end(begin, StreamOffsets(begin.topics))
    moved = StreamOffsets({"a": TopicOffsets("A", {0: PartitionOffset(6)})})

    assert first_end(end, StreamOffsets(end.topics)).to_dict() == end.to_dict()
    assert first_end(end, moved) == moved
    assert begin_of(end, moved) == end
