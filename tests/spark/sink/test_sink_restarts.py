"""Test of a query that writes with the sink while a leader is killed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_under_writes import TOPIC, Counted, beside, create_topic, in_sync, running, writing
from fairlead import testing
from fairlead.blocking import Consumer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.etcd


@contextmanager
def following(bootstrap: str, found: Counted) -> Iterator[None]:
    """Count the records of a topic as they arrive."""
    ended = threading.Event()

    def follow() -> None:
        """Read from the beginning of the topic."""
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic=TOPIC)
            while not ended.is_set():
                batch = consumer.next_batch(timeout="500ms")
                if batch is not None:
                    found.add([int(record.value or b"") for record in batch])

    with beside(follow, ended):
        yield


@pytest.mark.scenario
def test_a_query_writes_on_while_a_leader_is_killed(
    spark: SparkSession, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Every record is written at least once, and without failed tasks no record is written twice."""
    written, copied = Counted(), Counted()

    with testing.running_cluster() as source, running(tmp_path / "cluster") as (thread, cluster):
        target = ",".join(cluster.urls)
        create_topic(thread, target)
        with writing(source, written), following(target, copied):
            written.wait(lambda values: len(values) >= 100, "nothing was written")
            stream = spark.readStream.format("fairlead").option("bootstrap", source)
            rows = stream.options(subscribe=TOPIC, startingOffsets="earliest").load().select("key", "value")
            sink = rows.writeStream.format("fairlead").option("bootstrap", target).option("topic", TOPIC)
            sink = sink.option("checkpointLocation", str(tmp_path / "checkpoint"))
            query = sink.trigger(processingTime="200 milliseconds").start()
            copied.wait(lambda values: len(values) >= 100, "nothing was copied before any fault")
            leader = cluster.node(thread.run(cluster.partitions(TOPIC))[0].leader or 0)
            thread.run(cluster.kill(leader))
            before = max(written.values)
            copied.wait(lambda values: max(values) > before + 100, "nothing new after a leader was killed")
            thread.run(cluster.start(leader))
            thread.run(cluster.wait_for_partitions(TOPIC, in_sync))
            after = max(written.values)
            copied.wait(lambda values: max(values) > after, "nothing new after it was back")
            failure, active = query.exception(), query.isActive
        with following(target, again := Counted()):
            again.wait(lambda values: values.keys() >= written.values.keys(), "not everything was copied")
        query.stop()
        with Consumer(target) as consumer:
            consumer.assign(topic=TOPIC)
            end = sum(consumer.end_offsets().values())

    repeated = end - len(again.values)
    record_property("repeated", repeated)
    assert failure is None
    assert active
    assert again.values.keys() == written.values.keys()
    assert repeated == 0
