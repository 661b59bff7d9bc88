"""Tests of a worker's producers: successive tasks share them, processes do not, and a failure closes them."""

from __future__ import annotations

import gc
import os
import time
from multiprocessing import get_context

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from fairlead import testing
from fairlead.blocking import Admin, Consumer, Producer
from fairlead.errors import ClosedError, PartitionNotFoundError, SettingError
from fairlead_spark.sink.columns import SinkColumns
from fairlead_spark.sink.producers import borrowed_producer, close_idle
from fairlead_spark.sink.task import WriteError, write_task
from fairlead_spark.sink.write_options import WriteOptions
from fairlead_spark.sink.writers import batch_writer
from refusals import raises

SECONDS_MAX = 60


def options_of(bootstrap: str, timeout: str = "30s", **more: str) -> WriteOptions:
    """Return the options of a write."""
    return WriteOptions.parse({"bootstrap": bootstrap, "deliveryTimeout": timeout, **more})


def send(options: WriteOptions, topic: str, value: bytes) -> int:
    """Send a record as a task does, and return the identity of the producer."""
    with borrowed_producer(options) as producer:
        producer.send(topic, value)
        producer.flush()
        return id(producer)


def values_in(bootstrap: str, topic: str) -> list[bytes | None]:
    """Return the values in a topic."""
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic=topic)
        return [record.value for record in consumer.records(until=consumer.end_offsets())]


def send_in_worker(options: WriteOptions, topic: str, value: bytes) -> int:
    """Send two records as two tasks of one worker, and return the process id."""
    assert send(options, topic, value) == send(options, topic, value)
    return os.getpid()


def frozen_after_a_task(options: WriteOptions, columns: SinkColumns, rows: pa.RecordBatch) -> int:
    """Write in a worker, and return the number of objects that its garbage collector ignores."""
    write_task(options, columns, iter([rows]))
    return gc.get_freeze_count()


def frozen_after_planning() -> tuple[int, int]:
    """Plan a write and commit it, and return the number of objects that the collector ignores after each step."""
    writer = batch_writer(
        {"topic": "flights"}, StructType([StructField("value", BinaryType())]), overwrite=False
    )
    planned = gc.get_freeze_count()
    writer.commit([])
    return planned, gc.get_freeze_count()


def test_one_task_after_the_other_has_the_same_producer(bootstrap: str, topic: str) -> None:
    """A producer that a task has returned is used by the next task.

    Two concurrent tasks have separate producers, and so have tasks with different options.
    """
    options = options_of(bootstrap)
    first = send(options, topic, b"0")
    with borrowed_producer(options) as mine, borrowed_producer(options) as other:
        lent = id(mine)
        assert mine is not other
    again = send(options, topic, b"1")
    different = send(options_of(bootstrap, "31s"), topic, b"2")

    assert first == lent
    assert again in {id(mine), id(other)}
    assert different not in {id(mine), id(other)}
    assert sorted(value or b"" for value in values_in(bootstrap, topic)) == [b"0", b"1", b"2"]


def test_a_write_to_another_topic_has_the_same_producer(bootstrap: str, topic: str) -> None:
    """A producer depends only on connection and identity options, so it can write to every topic."""
    with Admin(bootstrap) as admin:
        admin.create_topic(f"{topic}-2", partitions=3)
    lent = [send(options_of(bootstrap, topic=name), name, b"1") for name in (topic, f"{topic}-2", topic)]

    assert len(set(lent)) == 1
    assert values_in(bootstrap, f"{topic}-2") == [b"1"]
    assert values_in(bootstrap, topic) == [b"1", b"1"]


def test_a_partition_that_a_topic_has_grown_is_written_at_once(bootstrap: str, topic: str) -> None:
    """A producer from an earlier task knows fewer partitions, and refreshes its metadata before a task fails."""
    columns = SinkColumns(record=(("value", "value"),), partition="partition", topic=None)
    options = options_of(bootstrap, topic=topic)
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1)
        write_task(
            options,
            columns,
            iter([pa.record_batch({"value": [b"1"], "partition": pa.array([0], pa.int32())})]),
        )
        admin.alter_topic(topic, partitions=3)
    rows = pa.record_batch({"value": [b"2", b"3"], "partition": pa.array([0, 2], pa.int32())})

    assert write_task(options, columns, iter([rows])).records == 2
    assert sorted(value or b"" for value in values_in(bootstrap, topic)) == [b"1", b"2", b"3"]
    with pytest.raises(WriteError) as refused:
        write_task(
            options,
            columns,
            iter([pa.record_batch({"value": [b"4"], "partition": pa.array([3], pa.int32())})]),
        )
    assert isinstance(refused.value.__cause__, PartitionNotFoundError)


def test_workers_that_one_daemon_forks_have_producers_of_their_own(bootstrap: str, topic: str) -> None:
    """Workers that are forked like Spark's workers have their own producers, which the tasks of one worker share."""
    options = options_of(bootstrap)
    with get_context("forkserver").Pool(2, maxtasksperchild=1) as workers:
        calls = [workers.apply_async(send_in_worker, (options, topic, b"%d" % number)) for number in range(2)]
        processes = {call.get(SECONDS_MAX) for call in calls}

    assert len(processes) == 2
    assert os.getpid() not in processes
    assert sorted(value or b"" for value in values_in(bootstrap, topic)) == [b"0", b"0", b"1", b"1"]


def test_a_fork_does_not_use_the_producers_of_its_parent(bootstrap: str, topic: str) -> None:
    """A child of a process with producers fails at once when it writes, and the parent's producer continues to work."""
    options = options_of(bootstrap)
    before = send(options, topic, b"parent")
    with get_context("fork").Pool(1) as child, raises(SettingError, "fork"):
        child.apply_async(send, (options, topic, b"child")).get(SECONDS_MAX)

    assert send(options, topic, b"parent again") == before
    assert set(values_in(bootstrap, topic)) == {b"parent", b"parent again"}


def test_an_unused_producer_is_closed_at_the_end(bootstrap: str, topic: str) -> None:
    """An unused producer is closed, and the next task opens a new producer."""
    options = options_of(bootstrap, "32s")
    with borrowed_producer(options) as producer:
        pass
    close_idle()

    with pytest.raises(ClosedError):
        producer.send(topic, b"late")
    with borrowed_producer(options) as other:
        assert other is not producer


def test_a_producer_whose_task_failed_is_closed(bootstrap: str, topic: str) -> None:
    """A missing partition fails the task and closes its producer, and the next task has a new producer."""
    options = options_of(bootstrap, "33s")
    send(options, topic, b"first")
    with borrowed_producer(options) as producer:
        pass
    rows = pa.record_batch(
        {"value": [b"nowhere"], "topic": [topic], "partition": pa.array([999], pa.int32())}
    )
    with pytest.raises(WriteError) as refused:
        write_task(options, SinkColumns((("value", "value"),), "partition", "topic"), iter([rows]))

    assert isinstance(refused.value.__cause__, PartitionNotFoundError)
    with pytest.raises(ClosedError):
        producer.send(topic, b"late")
    assert send(options, topic, b"second") != id(producer)
    assert sorted(value or b"" for value in values_in(bootstrap, topic)) == [b"first", b"second"]


def test_batches_fit_a_topic_with_a_lower_limit(bootstrap: str, topic: str) -> None:
    """Rows are sent in batches that fit the smaller limit of the topic; a single row over the limit fails the task."""
    values = [b"%0100d" % number for number in range(20_000)]
    columns = SinkColumns((("value", "value"),), None, None)
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, config={"max.message.bytes": 100_000})

    options = WriteOptions.parse({"bootstrap": bootstrap, "topic": topic})
    written = write_task(options, columns, iter([pa.record_batch({"value": values})]))
    assert written.records == len(values)
    with raises(WriteError, 100000):
        write_task(options, columns, iter([pa.record_batch({"value": [b"x" * 100_000]})]))

    assert sorted(value or b"" for value in values_in(bootstrap, topic)) == values


def test_a_worker_is_prepared_once(bootstrap: str, topic: str) -> None:
    """Objects that were loaded before the first task are exempt from garbage collection (`gc.freeze`).

    The second task of a worker exempts no further objects from garbage collection.
    """
    options, columns = options_of(bootstrap), SinkColumns((("value", "value"),), None, "topic")
    rows = pa.record_batch({"value": [b"one"], "topic": [topic]})
    with get_context("forkserver").Pool(1) as worker:
        first = worker.apply_async(frozen_after_a_task, (options, columns, rows)).get(SECONDS_MAX)
        second = worker.apply_async(frozen_after_a_task, (options, columns, rows)).get(SECONDS_MAX)

    assert first > 10_000
    assert second <= first


def test_planning_and_commits_leave_no_garbage_collector_at_work() -> None:
    """Planning exempts the loaded objects from garbage collection, and a commit does not exempt any more objects."""
    with get_context("forkserver").Pool(1) as worker:
        planned, committed = worker.apply_async(frozen_after_planning).get(SECONDS_MAX)

    assert planned > 10_000
    assert committed == planned


def test_a_failure_does_not_wait_for_undeliverable_records() -> None:
    """A task fails long before the delivery timeout when the cluster is unavailable, and its producer is closed."""
    lent: list[Producer] = []
    began = time.monotonic()
    with testing.running_cluster() as bootstrap:
        options = options_of(bootstrap, "10m")
        send(options, "flights", b"first")
    with pytest.raises(PartitionNotFoundError), borrowed_producer(options) as producer:  # noqa: PT012 - fails half-way
        lent.append(producer)
        producer.send("flights", b"under way")
        producer.send("flights", b"nowhere", partition=999).result()

    assert time.monotonic() - began < SECONDS_MAX
    with pytest.raises(ClosedError):
        lent[0].send("flights", b"late")
