from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead_spark.planning.ranges import OffsetRange
from fairlead_spark.planning.tasks import TASK_ROWS_MIN, TaskCount, share_out


def ranges(*sizes: int) -> list[OffsetRange]:
    """Return partitions of one topic with the given numbers of records, from offset 100 on."""
    return [OffsetRange("a", "A", index, 100, 100 + size) for index, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "count", "tasks"),
    [
        pytest.param([TASK_ROWS_MIN] * 8, TaskCount(4), 4, id="as many as cores"),
        pytest.param([TASK_ROWS_MIN] * 3, TaskCount(4), 3, id="at most as many as partitions"),
        pytest.param([10] * 8, TaskCount(4), 1, id="one for few records"),
        pytest.param([10] * 8, TaskCount(4, at_least=6), 6, id="at least as many as asked for"),
        pytest.param([TASK_ROWS_MIN] * 8, TaskCount(4, at_most=2), 2, id="at most as many as asked for"),
        pytest.param([3], TaskCount(4, at_least=6), 3, id="never more than records"),
    ],
)
def test_tasks_are_few(sizes: list[int], count: TaskCount, tasks: int) -> None:
    """The number of tasks is limited by the cores, the records and the user's limits."""
    assert len(share_out(ranges(*sizes), count)) == tasks


def test_nothing_to_read_is_no_task() -> None:
    """A read without records has no task."""
    assert share_out([], TaskCount(4, at_least=2)) == []


def test_large_partitions_do_not_stand_behind_one_another() -> None:
    """The largest partition has a separate task if the other partitions together are not larger."""
    shares = share_out(ranges(60_000, 20_000, 20_000, 20_000), TaskCount(2))

    assert sorted([part.partition for part in share] for share in shares) == [[0], [1, 2, 3]]


def test_a_partition_is_cut_where_there_are_fewer_than_tasks() -> None:
    """Partitions are split into adjacent pieces if there are fewer partitions than tasks."""
    shares = share_out(ranges(90, 10), TaskCount(1, at_least=4))

    assert sorted((part.partition, part.start, part.stop) for share in shares for part in share) == [
        (0, 100, 130),
        (0, 130, 160),
        (0, 160, 190),
        (1, 100, 110),
    ]


def test_partitions_share_a_task_up_to_its_limit() -> None:
    """If the records of a task are limited, partitions share a task until the next partition would exceed the limit."""
    shares = share_out(ranges(200, 300, 100), TaskCount(1, rows_max=500))

    assert [[(part.partition, part.size) for part in share] for share in shares] == [
        [(0, 200), (1, 300)],
        [(2, 100)],
    ]


@example(sizes=[5], cores=1, at_least=4, at_most=None, rows_max=500)
@given(
    sizes=st.lists(st.integers(1, 50_000), min_size=1, max_size=12),
    cores=st.integers(1, 16),
    at_least=st.none() | st.integers(1, 40),
    at_most=st.none() | st.integers(1, 40),
    rows_max=st.none() | st.integers(500, 60_000),
)
def test_every_record_is_in_one_task(
    sizes: list[int], cores: int, at_least: int | None, at_most: int | None, rows_max: int | None
) -> None:
    """The pieces of all tasks cover each partition once, and no task is empty, too large, or has a partition twice."""
    rows_max = None if at_most is not None else rows_max
    count = TaskCount(cores, at_least, at_most, rows_max)
    shares = share_out(ranges(*sizes), count)

    pieces = sorted((part.partition, part.start, part.stop) for share in shares for part in share)
    joined: dict[int, int] = {}
    for partition, start, stop in pieces:
        assert joined.get(partition, 100) == start
        joined[partition] = stop
    assert joined == {index: 100 + size for index, size in enumerate(sizes)}
    assert all(shares)
    assert at_most is None or len(shares) <= at_most
    assert rows_max is None or max(sum(piece.size for piece in share) for share in shares) <= rows_max
    assert at_most is not None or len(shares) >= min(count.of(ranges(*sizes)), sum(sizes))
    assert all(len({piece.partition for piece in share}) == len(share) for share in shares)
