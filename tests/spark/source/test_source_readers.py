"""Tests of how the readers plan and read, called as Spark's workers call them, but without Spark."""

from __future__ import annotations

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    IsNotNull,
    LessThan,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from fairlead.blocking import Admin, Producer
from fairlead.errors import FairleadError, TopicNotFoundError, UnreachableError
from fairlead_spark.option_values import OptionError
from fairlead_spark.options import ReadOptions
from fairlead_spark.planning.losses import DataLoss, LossKind
from fairlead_spark.planning.offsets import PartitionOffset, StreamOffsets, TopicOffsets
from fairlead_spark.planning.ranges import OffsetRange
from fairlead_spark.source.arrow_rows import BATCH_BYTES_MAX, schema_of
from fairlead_spark.source.pushdown import PushdownReader
from fairlead_spark.source.readers import BatchReader, StreamReader, TaskRanges, read_task
from refusals import raises
from source_records import NOON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader


def batch(bootstrap: str, **options: str) -> BatchReader:
    """Return a batch reader as a worker receives it."""
    return pickle.loads(pickle.dumps(BatchReader(ReadOptions.parse({"bootstrap": bootstrap} | options))))


def stream(bootstrap: str, **options: str) -> StreamReader:
    """Return a stream reader as a worker receives it."""
    return pickle.loads(pickle.dumps(StreamReader(ReadOptions.parse({"bootstrap": bootstrap} | options))))


def rows(
    reader: DataSourceReader | DataSourceStreamReader, tasks: Iterable[InputPartition]
) -> list[dict[str, object]]:
    """Return the records of these tasks."""
    return [
        row
        for task in tasks
        for part in reader.read(pickle.loads(pickle.dumps(task)))
        for row in part.to_pylist()
    ]


def send(bootstrap: str, topic: str, *values: bytes, partition: int = 0) -> None:
    """Store records in one partition."""
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value, partition=partition)
        producer.flush()


def of(failure: DataLoss) -> list[tuple[LossKind, str, int | None]]:
    """Return the kind, topic and partition of each loss."""
    return [(loss.kind, loss.topic, loss.partition) for loss in failure.losses]


def milliseconds(seconds: int) -> str:
    """Return the time of a record of `hundred`, truncated to a millisecond and therefore before the record."""
    return str(int((NOON + timedelta(seconds=seconds)).timestamp() * 1000))


@pytest.mark.parametrize(
    ("options", "first", "last", "tasks"),
    [
        ({"startingOffsets": '{"hundred": {"0": 15}}'}, 15, 99, 1),
        ({"endingOffsets": '{"hundred": {"0": 15}}', "minPartitions": "5"}, 0, 14, 5),
        ({"startingTimestamp": milliseconds(31), "endingTimestamp": milliseconds(52)}, 31, 51, 1),
        ({"endingTimestamp": milliseconds(1000)}, 0, 99, 1),
        ({"startingOffsetsByTimestamp": f'{{"hundred": {{"0": {milliseconds(31)}}}}}'}, 31, 99, 1),
        ({"maxRecordsPerPartition": "30"}, 0, 99, 4),
    ],
)
def test_a_range_is_read_exactly(
    bootstrap: str, hundred: str, options: dict[str, str], first: int, last: int, tasks: int
) -> None:
    """Offsets and times bound a read exactly, even inside stored batches, however the read is split into tasks."""
    reader = batch(bootstrap, assign=f'{{"{hundred}": [0]}}', columns="offset,value", **options)

    planned = reader.partitions()
    found = rows(reader, planned)

    assert len(planned) == tasks
    assert [(row["offset"], row["value"]) for row in found] == [
        (number, b"%d" % number) for number in range(first, last + 1)
    ]


def test_filters_narrow_a_read(bootstrap: str, hundred: str) -> None:
    """Offset filters decide exactly which records are read, and Spark need not apply them again.

    Time filters only decide where a read begins, and Spark applies them again.
    """
    options = {"bootstrap": bootstrap, "subscribe": hundred, "columns": "offset", "minPartitions": "100"}
    reader = PushdownReader(ReadOptions.parse(options))
    late: Filter = GreaterThan(("timestamp",), NOON + timedelta(seconds=57))
    filters = [
        IsNotNull(("offset",)),
        GreaterThanOrEqual(("offset",), 20),
        LessThan(("offset",), 60),
        late,
        IsNotNull(("value",)),
    ]

    left = list(reader.pushFilters(filters))
    tasks = reader.partitions()

    assert left == [late, IsNotNull(("value",))]
    assert len(tasks) == 3
    assert [row["offset"] for row in rows(reader, tasks)] == [57, 58, 59]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"subscribe": "no-such-topic"}, TopicNotFoundError, ["no-such-topic"]),
        ({"startingOffsets": '{"hundred": {"0": 101}}'}, OptionError, ["hundred-0", "101", "100"]),
        ({"startingOffsets": '{"hundred": {"7": 1}}'}, OptionError, ["hundred-0"]),
        (
            {"startingOffsets": '{"hundred": {"0": 1, "7": 1}}'},
            OptionError,
            ["hundred-7"],
        ),
        ({"subscribe": "", "assign": '{"hundred": [3]}'}, OptionError, ["hundred-3"]),
        (
            {"startingTimestamp": milliseconds(9), "endingTimestamp": milliseconds(5)},
            OptionError,
            ["endingOffsets", "hundred-0"],
        ),
        (
            {"startingTimestamp": milliseconds(1000)},
            OptionError,
            ["startingTimestamp", "hundred-0", "Strategy"],
        ),
        (
            {"bootstrap": "http://127.0.0.1:9", "retryTimeout": "500ms"},
            UnreachableError,
            ["http://127.0.0.1:9"],
        ),
    ],
)
def test_wrong_options_are_refused_when_a_read_is_planned(
    bootstrap: str, hundred: str, options: dict[str, str], error: type[Exception], words: list[str]
) -> None:
    """Planning a read refuses a wrong option with the allowed values, and fails in time without a cluster."""
    given = {name: value for name, value in ({"subscribe": hundred} | options).items() if value}
    with pytest.raises(error) as refused:
        batch(given.pop("bootstrap", bootstrap), **given).partitions()

    assert all(word in str(refused.value) for word in words)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of warnings, without the audit log of the broker, which runs in this process."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_old_plan_reports_what_it_leaves_out(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark reuses the plan of a view: planning logs a warning, and later queries log the records that they miss.

    A read with a given end misses no records, and each query of a catalog table gets a separate plan.
    """
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
    send(bootstrap, topic, *[b"x"] * 20)
    reader = batch(bootstrap, subscribe=topic, columns="offset", minPartitions="2")
    bounded = batch(bootstrap, subscribe=topic, columns="offset", endingOffsets=f'{{"{topic}": {{"0": 20}}}}')
    options = ReadOptions.parse({"bootstrap": bootstrap, "subscribe": topic, "columns": "offset"})
    BatchReader(options, of_table=True).partitions()
    ended = bounded.partitions()
    unplanned = warned(caplog)
    tasks = reader.partitions()
    planned = warned(caplog)
    send(bootstrap, topic, *[b"x"] * 5)
    counts = [
        sum(batch.num_rows for task in some for batch in read_task(options, task, query))
        for some, query in ((tasks, "7"), (ended, "7"), (tasks, "7"), (ended, "8"))
    ]
    early = warned(caplog)
    counts += [sum(batch.num_rows for task in tasks for batch in read_task(options, task, "8"))]

    assert counts == [20] * 5
    assert (unplanned, len(planned), early) == ([], 1, planned)
    assert warned(caplog)[1].startswith(f"5 newer records of {topic} ")


def test_a_trigger_waits_for_its_records(bootstrap: str, topic: str) -> None:
    """Only the first trigger and `availableNow` read fewer records than minOffsetsPerTrigger."""
    send(bootstrap, topic, b"0")
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "3"}
    reader = stream(bootstrap, **options)
    first = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    send(bootstrap, topic, b"1", b"2")
    waiting = reader.latestOffset(first, ReadAllAvailable())
    send(bootstrap, topic, b"3")
    second = reader.latestOffset(first, ReadAllAvailable())
    send(bootstrap, topic, b"4")
    last = stream(bootstrap, **options)
    last.prepareForTriggerAvailableNow()

    assert waiting == first
    assert [StreamOffsets.from_json(end).end_offsets()[topic] for end in (first, second)] == [{0: 1}, {0: 4}]
    assert last.latestOffset(second, ReadAllAvailable()) != second


def test_the_first_trigger_begins_where_its_end_was_looked_for(bootstrap: str, topic: str) -> None:
    """Records that arrive between Spark's two requests for the beginning of the read are not skipped."""
    send(bootstrap, topic, b"before")
    reader = stream(bootstrap, subscribe=topic, startingOffsets="latest", columns="value")
    start = reader.initialOffset()
    send(bootstrap, topic, b"first", b"second")
    end = reader.latestOffset(start, ReadAllAvailable())
    send(bootstrap, topic, b"third")
    again = stream(bootstrap, subscribe=topic, startingOffsets="latest", columns="value")

    read = rows(again, again.partitions(again.initialOffset(), end))
    following = again.latestOffset(end, ReadAllAvailable())

    assert read == [{"value": b"first"}, {"value": b"second"}]
    assert rows(again, again.partitions(end, following)) == [{"value": b"third"}]


def test_a_read_that_gets_nothing_ends_in_time(bootstrap: str, hundred: str) -> None:
    """When a log does not reach the planned end and each fetch returns nothing, the task still fails in time."""
    reader = batch(bootstrap, subscribe=hundred, retryTimeout="2s", columns="value")
    (task,) = reader.partitions()
    assert isinstance(task, TaskRanges)
    (whole,) = task.ranges
    beyond = TaskRanges((replace(whole, start=90, stop=200),))

    with raises((UnreachableError, DataLoss), "hundred-0"):
        rows(reader, [beyond])


def test_batches_have_one_schema_and_a_size_that_spark_likes(bootstrap: str, topic: str) -> None:
    """Small stored batches are joined, large ones are split, and all have the types of the first batch."""
    with Producer(bootstrap, batch_bytes=20_000) as producer:
        for number in range(20_000):
            producer.send(topic, b"%0100d" % number, partition=0)
        producer.flush()
        producer.send_batch(topic, pa.table({"value": [b"x" * 100_000] * 100}), partition=0)
        producer.flush()
    reader = batch(bootstrap, subscribe=topic, columns="value,topic,offset,headers")

    parts = [part for task in reader.partitions() for part in reader.read(task)]

    assert [offset for part in parts for offset in part["offset"].to_pylist()] == list(range(20_100))
    assert {part.schema for part in parts} == {schema_of(("value", "topic", "offset", "headers"))}
    assert max(part.nbytes for part in parts) <= BATCH_BYTES_MAX + 100_100
    assert sum(part.nbytes for part in parts) / len(parts) > 500_000


def test_the_task_that_spark_makes_of_nothing_reads_nothing(bootstrap: str, topic: str) -> None:
    """An empty topic has no planned tasks, and the task that Spark creates instead is empty."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
    reader = batch(bootstrap, subscribe=topic)

    assert reader.partitions() == []
    assert rows(reader, [InputPartition(None)]) == []


def test_triggers_follow_one_another_without_gap_or_overlap(bootstrap: str, topic: str) -> None:
    """Limits are shared among the available records, and new partitions are read from their beginning.

    Without new records, the text of the offsets does not change.
    """
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        send(bootstrap, topic, *[b"a%d" % number for number in range(30)])
        send(bootstrap, topic, *[b"b%d" % number for number in range(10)], partition=1)
        reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="20")
        place = reader.initialOffset()
        seen: list[object] = []
        ends = []
        for _ in range(4):
            end = reader.latestOffset(place, reader.getDefaultReadLimit())
            seen += [row["value"] for row in rows(reader, reader.partitions(place, end))]
            ends.append(end)
            place = end
        admin.alter_topic(topic, partitions=3)
        send(bootstrap, topic, b"c0", partition=2)
        grown = reader.latestOffset(place, ReadAllAvailable())
        new = rows(reader, reader.partitions(place, grown))

    assert sorted(map(str, seen)) == sorted(
        [str(b"a%d" % number) for number in range(30)] + [str(b"b%d" % number) for number in range(10)]
    )
    assert ends[1:] == [ends[1]] * 3
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    assert reader.reportLatestOffset() == grown
    assert [(row["partition"], row["offset"], row["value"]) for row in new] == [(2, 0, b"c0")]


def test_available_now_ends_where_it_began_to(bootstrap: str, topic: str) -> None:
    """Records that are appended after the start of the query are not read, regardless of the limit."""
    send(bootstrap, topic, b"1", b"2", b"3")
    reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest")
    place = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    send(bootstrap, topic, b"4")

    end = reader.latestOffset(place, ReadAllAvailable())
    first = [row["value"] for row in rows(reader, reader.partitions(place, end))]
    again = reader.latestOffset(end, ReadAllAvailable())

    assert first == [b"1", b"2", b"3"]
    assert again == end


@pytest.mark.parametrize("fails", [True, False])
def test_records_deleted_before_they_were_read_are_a_loss(bootstrap: str, topic: str, fails: bool) -> None:
    """If retention deletes unread records, the query fails and names the offsets, or continues at the log start."""
    send(bootstrap, topic, *[b"%d" % number for number in range(10)])
    reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(fails))
    place = reader.initialOffset()
    end = reader.latestOffset(place, ReadAllAvailable())
    with Admin(bootstrap) as admin:
        admin.delete_records(topic, 0, before=6)
    tasks = reader.partitions(place, end)

    if fails:
        with pytest.raises(DataLoss) as lost:
            rows(reader, tasks)
        assert of(lost.value) == [(LossKind.LOG_START, topic, 0)]
        assert "failOnDataLoss=false" in str(lost.value)
    else:
        assert [row["offset"] for row in rows(reader, tasks)] == [6, 7, 8, 9]


@pytest.mark.parametrize("fails", [True, False])
def test_a_limited_trigger_begins_where_the_log_does(bootstrap: str, topic: str, fails: bool) -> None:
    """Expired records fail a query before Spark stores an end, or use up neither a limit nor extra triggers."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=2)
        send(bootstrap, topic, *[b"%d" % number for number in range(100)])
        send(bootstrap, topic, *[b"%d" % number for number in range(10)], partition=1)
        reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(fails))
        place = reader.initialOffset()
        admin.delete_records(topic, 0, before=90)

    if fails:
        with pytest.raises(DataLoss) as lost:
            reader.latestOffset(place, ReadMaxRows(8))
        assert of(lost.value) == [(LossKind.LOG_START, topic, 0)]
    else:
        read = []
        for _ in range(3):
            end = reader.latestOffset(place, ReadMaxRows(8))
            read.append(
                sorted(
                    (row["partition"], row["offset"]) for row in rows(reader, reader.partitions(place, end))
                )
            )
            place = end
        assert [len(trigger) for trigger in read] == [8, 8, 4]
        assert sorted(each for trigger in read for each in trigger) == [
            *((0, offset) for offset in range(90, 100)),
            *((1, offset) for offset in range(10)),
        ]


def test_a_topic_that_is_deleted_under_a_limit_ends_no_query(bootstrap: str, topic: str) -> None:
    """If a topic is deleted after a trigger has requested the log ends, the trigger ignores all log starts.

    The next trigger reports the deletion.
    """
    gone = OffsetRange(f"{topic}-gone", "an id", 0, 0, 9)
    send(bootstrap, topic, b"1")
    reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest")
    known = StreamOffsets.from_json(reader.initialOffset()).topics[topic]
    there = OffsetRange(topic, known.topic_id, 0, 0, 1)

    assert reader._view.beginnings([there]).end_offsets() == {topic: {0: 0}}
    assert reader._view.beginnings([there, gone]) == StreamOffsets()


def test_no_leader_of_the_past_says_where_a_log_ends(bootstrap: str, topic: str) -> None:
    """After a newer leader epoch, a query ignores answers of older leaders, even if they arrive for a long time."""
    send(bootstrap, topic, b"1", b"2")
    reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest", retryTimeout="1s")
    offsets = StreamOffsets.from_json(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    known = offsets.topics[topic]
    ahead = {0: PartitionOffset(1, known.partitions[0].epoch + 1)}
    seen = StreamOffsets({topic: TopicOffsets(known.topic_id, ahead)})
    another = StreamOffsets({topic: TopicOffsets("another", ahead)})

    with raises(FairleadError, "epoch"):
        reader.latestOffset(seen.to_dict(), ReadAllAvailable())
    with pytest.raises(DataLoss) as lost:
        reader.latestOffset(another.to_dict(), ReadAllAvailable())

    assert of(lost.value) == [(LossKind.TOPIC_RECREATED, topic, None)]


def test_an_end_before_the_query_moves_it_only_by_an_election(bootstrap: str, topic: str) -> None:
    """If the same leader reports an earlier log end, the query fails, or waits at its offset and repeats no record."""
    send(bootstrap, topic, b"1", b"2")
    strict, lenient = (
        stream(bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(fails))
        for fails in (True, False)
    )
    first = StreamOffsets.from_json(strict.latestOffset(strict.initialOffset(), ReadAllAvailable()))
    known = first.topics[topic]
    beyond = TopicOffsets(known.topic_id, {0: PartitionOffset(9, known.partitions[0].epoch)})
    place = StreamOffsets({topic: beyond}).to_dict()

    # Both readers wait for the log to grow again, so they run at the same time.
    with ThreadPoolExecutor(2) as pool:
        told, end = (
            pool.submit(reader.latestOffset, place, ReadAllAvailable()) for reader in (strict, lenient)
        )
        with pytest.raises(DataLoss) as lost:
            told.result()

    assert of(lost.value) == [(LossKind.LOG_TRUNCATED, topic, 0)]
    assert end.result() == place


@pytest.mark.parametrize("fails", [True, False])
def test_a_recreated_topic_is_distinguished_from_growth(bootstrap: str, topic: str, fails: bool) -> None:
    """A different topic with the same name causes an error with both ids, or the query begins again."""
    with Admin(bootstrap) as admin:
        first = admin.create_topic(topic, partitions=1).topic_id
        send(bootstrap, topic, b"old", b"old")
        reader = stream(bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(fails))
        begin = reader.initialOffset()
        place = reader.latestOffset(begin, ReadAllAvailable())
        old = reader.partitions(begin, place)
        admin.delete_topic(topic)
        second = admin.create_topic(topic, partitions=1).topic_id
    send(bootstrap, topic, b"new", b"new", b"new")

    if fails:
        with raises(DataLoss, first, second) as noted:
            reader.latestOffset(place, ReadAllAvailable())
        with pytest.raises(DataLoss) as lost:
            rows(reader, old)
        assert of(noted.value) == [(LossKind.TOPIC_RECREATED, topic, None)]
        assert [kind for kind, *_ in of(lost.value)] == [LossKind.TOPIC_RECREATED]
    else:
        end = reader.latestOffset(place, ReadAllAvailable())
        found = rows(reader, reader.partitions(place, end))
        assert [(row["offset"], row["value"]) for row in found] == [(0, b"new"), (1, b"new"), (2, b"new")]
        assert rows(reader, old) == []


@pytest.mark.scenario
@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_is_gone_is_a_loss(bootstrap: str, topic: str, fails: bool) -> None:
    """A deleted topic ends the query, or the query continues without it and reads a new topic of that name."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        send(bootstrap, topic, b"old")
        reader = stream(
            bootstrap, subscribePattern=topic, startingOffsets="earliest", failOnDataLoss=str(fails)
        )
        place = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        admin.delete_topic(topic)

        if fails:
            with pytest.raises(DataLoss) as lost:
                reader.latestOffset(place, ReadAllAvailable())
            assert of(lost.value) == [(LossKind.TOPIC_GONE, topic, None)]
        else:
            gone = reader.latestOffset(place, ReadAllAvailable())
            admin.create_topic(topic, partitions=1)
            send(bootstrap, topic, b"new")
            back = reader.latestOffset(gone, ReadAllAvailable())
            assert gone == {"topics": {}, "v": 1}
            assert [row["value"] for row in rows(reader, reader.partitions(gone, back))] == [b"new"]
