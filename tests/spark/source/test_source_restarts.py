from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_under_writes import TOPIC, Counted, create_topic, in_sync, running, writing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.etcd


@pytest.mark.scenario
def test_a_query_goes_on_while_brokers_are_killed_and_restarted(spark: SparkSession, tmp_path: Path) -> None:
    """A query continues and neither loses nor repeats records while a leader is killed and every broker restarts."""
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
