from __future__ import annotations

from collections.abc import Callable

import pytest

from fairlead_spark.planning.columns import COLUMNS, DEFAULT, ddl_of
from fairlead_spark.planning.positions import (
    Assign,
    AtTime,
    EachPartition,
    Edge,
    PositionError,
    Subscribe,
    SubscribePattern,
    parse_assign,
    parse_pattern,
    parse_position,
    parse_times,
    parse_topics,
)


def test_topics_are_a_list_by_comma() -> None:
    """Topics are separated by commas and keep their order, without spaces and duplicates."""
    assert parse_topics(" b, a ,,b") == Subscribe(("b", "a"))
    assert str(parse_topics("b,a")) == "b, a"


def test_a_pattern_matches_whole_names() -> None:
    """A pattern matches whole topic names."""
    pattern = parse_pattern("flights-.*")

    assert [name for name in ("flights-1", "old-flights-1", "flights") if pattern.matches(name)] == [
        "flights-1"
    ]
    assert pattern == SubscribePattern("flights-.*")
    assert str(pattern) == "topics like flights-.*"


def test_assigned_partitions_are_sorted_and_once() -> None:
    """Assigned partitions are sorted and unique."""
    assigned = parse_assign('{"b": [1, 0, 1], "a": [2]}')

    assert assigned == Assign({"a": (2,), "b": (0, 1)})
    assert str(assigned) == "a-2, b-0, b-1"


def test_positions_are_edges_or_offsets() -> None:
    """A position is an end of the log or offsets, where -2 means the earliest and -1 the latest, as in Kafka."""
    assert parse_position(" Earliest ") is Edge.EARLIEST
    assert parse_position("latest") is Edge.LATEST
    assert parse_position('{"a": {"0": 5, "1": -1, "2": -2}}') == EachPartition(
        {("a", 0): 5, ("a", 1): Edge.LATEST, ("a", 2): Edge.EARLIEST}
    )


def test_times_are_given_for_each_partition() -> None:
    """A time is a position of one partition, in milliseconds since 1970."""
    assert parse_times('{"a": {"0": 0, "1": 5}}') == EachPartition({("a", 0): AtTime(0), ("a", 1): AtTime(5)})


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_topics, " , ", "names no topic"),
        (parse_pattern, "(", "is not a regular expression"),
        (parse_assign, "{", "is not JSON"),
        (parse_assign, "[1]", "is [1], which is not a JSON object"),
        (parse_assign, "{}", "names no partition"),
        (parse_assign, '{"a": []}', "has [] for a, which is not a list of partitions"),
        (parse_assign, '{"a": 1}', "has 1 for a, which is not a list of partitions"),
        (parse_assign, '{"a": [-1]}', "has -1 for a, which is not a partition"),
        (parse_assign, '{"a": [true]}', "has true for a, which is not a partition"),
        (parse_position, "yesterday", "is 'yesterday'"),
        (parse_position, '{"a": 5}', "has 5 for a"),
        (parse_position, '{"a": {"x": 5}}', "has the partition 'x' of a"),
        (parse_position, '{"a": {"0": -3}}', "has -3 for a-0"),
        (parse_position, '{"a": {"0": "5"}}', 'has "5" for a-0'),
        (parse_times, "{}", "names no partition"),
        (parse_times, '{"a": {"0": -1}}', "has -1 for a-0"),
        (parse_times, '{"a": {"0": 253402300800000}}', "has 253402300800000 for a-0"),
    ],
)
def test_text_that_means_nothing_is_refused(parse: Callable[[str], object], text: str, words: str) -> None:
    """The refusal of invalid positions states the reason."""
    with pytest.raises(PositionError) as refused:
        parse(text)

    assert words in str(refused.value)


def test_columns_are_described_once() -> None:
    """The schema has the columns in the given order, and headers only if they are requested."""
    assert ddl_of(["offset", "headers"]) == (
        "`offset` BIGINT, `headers` ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    assert [column.name for column in COLUMNS] == [*DEFAULT, "headers"]
