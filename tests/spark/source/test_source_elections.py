"""Tests of queries with offsets beyond the end of a log that a real unclean election truncated."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from cluster_kit import Cluster
from fairlead.blocking import Producer
from fairlead.blocking.loop_thread import LoopThread
from fairlead_spark.options import ReadOptions
from fairlead_spark.planning.losses import DataLoss, LossKind
from fairlead_spark.source.readers import StreamReader
from refusals import raises

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, Row, SparkSession

    from fairlead_api.identifiers import BrokerId, TopicId

TOPIC = "flights"
SETTINGS = {"unclean.leader.election.delay.ms": 500}
"""Short delay of unclean elections, because no replica with the whole log returns in these tests."""


@dataclass
class LostLog:
    """A partition on three brokers: all have the first record, and one broker has five more records and loses them."""

    thread: LoopThread
    cluster: Cluster
    topic_id: TopicId
    addresses: dict[int, str] = field(default_factory=dict)

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all brokers, which stay the same after a restart."""
        return ",".join(self.addresses.values())

    def send(self, *numbers: int) -> None:
        """Append records."""
        with Producer(self.bootstrap) as producer:
            for number in numbers:
                producer.send(TOPIC, b"%d" % number).result()

    def grow(self) -> BrokerId:
        """Append up to offset 6, with only the first record on the followers, and return the leader."""
        leader = self.cluster.leader(self.topic_id)
        assert leader is not None
        self.send(1)
        self.thread.run(self.cluster.copied(self.topic_id, 1))
        for other in self.addresses.keys() - {leader}:
            self.thread.run(self.cluster.stop(other))
        self.thread.run(self.cluster.in_sync(self.topic_id, leader))
        self.send(10, 11, 12, 13, 14)
        return leader

    def lose(self, leader: BrokerId) -> None:
        """Elect a broker that has only the first record."""
        self.thread.run(self.cluster.stop(leader))
        for other in self.addresses.keys() - {leader}:
            listen = self.addresses[other].removeprefix("http://")
            self.thread.run(self.cluster.start(other, listen=listen))
        self.thread.run(self.cluster.led(TOPIC, self.topic_id))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LostLog]:
    """Yield an empty partition on three brokers, which run in a separate thread."""
    with loop_thread() as thread:
        cluster = thread.run(Cluster.open(tmp_path))
        try:
            thread.run(cluster.start(0, 1, 2))
            thread.run(cluster.controller.alter_cluster_config(SETTINGS))
            topic_id = thread.run(
                cluster.topic(TOPIC, min_insync_replicas=1, unclean_leader_election_enable=True)
            )
            addresses = {number: f"http://{each.addresses.data}" for number, each in cluster.brokers.items()}
            yield LostLog(thread, cluster, topic_id, addresses)
        finally:
            thread.run(cluster.close())


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    """Yield an event loop in a thread."""
    thread = LoopThread("brokers")
    thread.start()
    try:
        yield thread
    finally:
        thread.stop()


def reader_of(log: LostLog, *, fails: bool, **others: str) -> StreamReader:
    """Return a stream reader that is called as Spark calls it."""
    options = {"bootstrap": log.bootstrap, "subscribe": TOPIC, "startingOffsets": "earliest"} | others
    return StreamReader(
        ReadOptions.parse(options | {"failOnDataLoss": str(fails), "columns": "offset,value"})
    )


def read(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[int, bytes]]:
    """Return the records of one trigger."""
    return [
        (row["offset"], row["value"])
        for task in reader.partitions(start, end)
        for part in reader.read(task)
        for row in part.to_pylist()
    ]


def of(failure: DataLoss) -> list[tuple[LossKind, str, int | None]]:
    """Return the kind, topic and partition of each loss."""
    return [(loss.kind, loss.topic, loss.partition) for loss in failure.losses]


@pytest.mark.scenario
def test_a_log_that_ends_before_a_checkpoint_fails_the_query(
    spark: SparkSession, log: LostLog, tmp_path: Path
) -> None:
    """By default, the query ends with an error that contains the offsets.

    With failOnDataLoss=false, the query continues from the log end.
    """
    seen: list[Row] = []
    run = runner(spark, log, tmp_path / "checkpoint", seen)

    leader = log.grow()
    run("true")
    log.lose(leader)
    with raises(StreamingQueryException, DataLoss.__name__):
        run("true")
    run("false")
    log.send(20, 21)
    run("true")

    assert [int(row.value) for row in seen] == [1, 10, 11, 12, 13, 14, 20, 21]
    assert [row.offset for row in seen] == [0, 1, 2, 3, 4, 5, 1, 2]


def runner(spark: SparkSession, log: LostLog, checkpoint: Path, seen: list[Row]) -> Callable[[str], None]:
    """Return a function that runs the query up to the log end and raises its error."""

    def keep(frame: DataFrame, batch: int) -> None:
        """Store the records of one trigger."""
        del batch
        seen.extend(frame.select("offset", "value").orderBy("offset").collect())

    def run(fails: str) -> None:
        """Run the query once."""
        stream = spark.readStream.format("fairlead").options(
            bootstrap=log.bootstrap, subscribe=TOPIC, startingOffsets="earliest", failOnDataLoss=fails
        )
        writer = stream.load().writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    return run


@pytest.mark.scenario
def test_a_log_rewritten_past_a_query_is_distinguished_from_growth(log: LostLog) -> None:
    """The leader epochs show where the logs diverge; the query fails, or reads the new log from that offset on."""
    strict, lenient = reader_of(log, fails=True), reader_of(log, fails=False)
    leader = log.grow()
    place = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    log.lose(leader)
    log.send(*range(20, 28))

    end = strict.latestOffset(place, ReadAllAvailable())
    with pytest.raises(DataLoss) as told:
        read(strict, place, end)
    found = read(lenient, place, end)

    assert of(told.value) == [(LossKind.LOG_TRUNCATED, TOPIC, 0)]
    assert found == [(offset, b"%d" % (19 + offset)) for offset in range(1, 9)]


@pytest.mark.scenario
def test_rewritten_records_of_a_cut_log_are_read(log: LostLog) -> None:
    """With failOnDataLoss=false, a query continues at the divergence, not at the new log's end, and skips no record."""
    lenient = reader_of(log, fails=False)
    leader = log.grow()
    place = lenient.latestOffset(lenient.initialOffset(), ReadAllAvailable())
    log.lose(leader)
    log.send(20, 21)

    back = lenient.latestOffset(place, ReadAllAvailable())
    end = lenient.latestOffset(back, ReadAllAvailable())

    assert read(lenient, place, back) == []
    assert read(lenient, back, end) == [(1, b"20"), (2, b"21")]


@pytest.mark.scenario
def test_a_log_that_loses_its_end_under_a_task_is_reported(log: LostLog) -> None:
    """A task that reads after the election fails with an error that names the offsets, or skips the lost records."""
    strict, lenient = reader_of(log, fails=True), reader_of(log, fails=False)
    leader = log.grow()
    start = {"topics": {TOPIC: {"id": str(log.topic_id), "offsets": {"0": [4, -1]}}}, "v": 1}
    end = strict.latestOffset(strict.initialOffset(), ReadAllAvailable())
    log.lose(leader)

    with pytest.raises(DataLoss) as told:
        read(strict, start, end)

    assert of(told.value) == [(LossKind.LOG_TRUNCATED, TOPIC, 0)]
    assert read(lenient, start, end) == []


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.scenario), 8])
def test_a_trigger_planned_before_an_election_reads_nothing_twice(log: LostLog, count: int) -> None:
    """The trigger after an election goes back to the divergence, whether the new log is shorter or longer."""
    lenient = reader_of(log, fails=False)
    leader = log.grow()
    place = lenient.latestOffset(lenient.initialOffset(), ReadMaxRows(4))
    ends = [place, lenient.latestOffset(place, ReadAllAvailable())]
    log.lose(leader)
    log.send(*range(20, 20 + count))

    found = read(lenient, *ends)
    for _ in range(2):
        ends.append(lenient.latestOffset(ends[-1], ReadAllAvailable()))
        found += read(lenient, *ends[-2:])

    assert found == [(1 + number, b"%d" % (20 + number)) for number in range(count)]


@pytest.mark.scenario
def test_a_log_that_ends_within_a_trigger_is_reported(log: LostLog) -> None:
    """A task at the end of a truncated log gets no error from fetches; it requests the log end and reports the loss."""
    strict, lenient = (reader_of(log, fails=fails, retryTimeout="2s") for fails in (True, False))
    leader = log.grow()
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    log.lose(leader)

    with pytest.raises(DataLoss) as told:
        read(strict, start, end)

    assert of(told.value) == [(LossKind.LOG_TRUNCATED, TOPIC, 0)]
    assert read(lenient, start, end) == [(0, b"1")]
