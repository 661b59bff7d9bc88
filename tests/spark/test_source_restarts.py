from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from chaos_cluster import ChaosCluster, chaos_cluster, pause
from fairlead.blocking import Admin, Producer
from fairlead.blocking.loop_thread import LoopThread
from fairlead.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fairlead_api.bodies.metadata import PartitionMetadata

TOPIC = "flights"
SECONDS_MAX = 180.0
pytestmark = pytest.mark.etcd


class Counted:
    """Received values, with a method that waits for more."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.values: Counter[int] = Counter()

    def add(self, values: list[int]) -> None:
        """Add values."""
        with self._changed:
            self.values.update(values)
            self._changed.notify_all()

    def wait(self, met: Callable[[Counter[int]], bool], what: str) -> None:
        """Wait until the values satisfy the condition, or fail after the time limit."""
        with self._changed:
            assert self._changed.wait_for(lambda: met(self.values), SECONDS_MAX), what


@contextmanager
def running(folder: Path) -> Iterator[tuple[LoopThread, ChaosCluster]]:
    """Run three brokers and an etcd as processes that can be killed and restarted."""
    thread, stack = LoopThread("brokers"), AsyncExitStack()
    thread.start()
    try:
        yield thread, thread.run(stack.enter_async_context(chaos_cluster(folder)))
    finally:
        thread.run(stack.aclose())
        thread.stop()


@contextmanager
def beside(work: Callable[[], None], ended: threading.Event) -> Iterator[None]:
    """Run work in a thread until the block ends; the end of the block sets the event that the work checks."""
    thread = threading.Thread(target=work, name=work.__name__)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def writing(bootstrap: str, acknowledged: Counted) -> Iterator[None]:
    """Write numbers continuously, and count acknowledged numbers."""
    ended = threading.Event()

    def write() -> None:
        """Send a hundred numbers at a time."""
        with Producer(bootstrap) as producer:
            for first in itertools.count(0, 100):
                numbers = list(range(first, first + 100))
                deliveries = [producer.send(TOPIC, b"%d" % number) for number in numbers]
                for delivery in deliveries:
                    delivery.result()
                acknowledged.add(numbers)
                if ended.wait(0.3):
                    return

    with beside(write, ended):
        yield


def create_topic(thread: LoopThread, bootstrap: str) -> None:
    """Create the topic when all three brokers are registered."""
    with Admin(bootstrap) as admin:
        while True:
            try:
                admin.create_topic(
                    TOPIC, partitions=3, replication_factor=3, config={"min.insync.replicas": 2}
                )
            except InvalidConfigError:
                thread.run(pause(0.5))
            else:
                return


def in_sync(partition: PartitionMetadata) -> bool:
    """Return whether a partition has its leader and all replicas in sync."""
    return partition.leader is not None and len(partition.isr) == 3


@pytest.mark.scenario
def test_a_query_goes_on_while_brokers_are_killed_and_restarted(spark: SparkSession, tmp_path: Path) -> None:
    """A query neither fails nor loses nor repeats records while a leader is killed and every broker restarts."""
    written, read = Counted(), Counted()

    def keep(frame: DataFrame, batch: int) -> None:
        """Store the records of one trigger."""
        del batch
        read.add([int(row.value) for row in frame.select("value").collect()])

    with running(tmp_path / "cluster") as (thread, cluster):
        bootstrap = ",".join(cluster.urls)
        create_topic(thread, bootstrap)
        stream = spark.readStream.format("fairlead").options(
            bootstrap=bootstrap, subscribe=TOPIC, startingOffsets="earliest", minPartitions="2"
        )
        sink = stream.load().writeStream.foreachBatch(keep).trigger(processingTime="1 second")
        query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with writing(bootstrap, written):
            read.wait(lambda values: len(values) >= 100, "nothing was read before any fault")
            leader = cluster.node(thread.run(cluster.partitions(TOPIC))[0].leader or 0)
            thread.run(cluster.kill(leader))
            before = max(written.values)
            read.wait(lambda values: max(values) > before + 100, "nothing new after a leader was killed")
            thread.run(cluster.start(leader))
            for node in cluster.nodes:
                thread.run(cluster.wait_for_partitions(TOPIC, in_sync))
                thread.run(cluster.stop(node))
                thread.run(cluster.start(node))
        read.wait(lambda values: values.keys() >= written.values.keys(), "not everything was read")
        failure, active = query.exception(), query.isActive
        query.stop()

    assert failure is None
    assert active
    assert max(read.values.values()) == 1
    assert read.values.keys() == written.values.keys()
