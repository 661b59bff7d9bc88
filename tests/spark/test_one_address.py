"""Spark's source and sink, with a driver and executors that reach three brokers through a single address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cluster_kit import Cluster
from fairlead.blocking import Admin
from fairlead.blocking.loop_thread import LoopThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UNREACHABLE = f"{'x' * 64}.invalid:9520"
"""Advertised host name with a label longer than DNS allows, so that no lookup leaves the machine."""
ROWS = 300


@pytest.fixture
def one_address(tmp_path: Path) -> Iterator[str]:
    """Yield the address of one of three brokers, all of which advertise an unreachable address."""
    thread = LoopThread("hidden brokers")
    thread.start()
    cluster = thread.run(Cluster.open(tmp_path))
    try:
        thread.run(cluster.start(1, 2, 3, advertise=UNREACHABLE))
        yield f"http://{cluster.brokers[1].addresses.data}"
    finally:
        thread.run(cluster.close())
        thread.stop()


def test_one_address_is_enough_for_source_and_sink(spark: SparkSession, one_address: str, topic: str) -> None:
    """Every row that the sink writes through one address is read by the source through the same address."""
    options = {"bootstrap": one_address, "oneAddress": "true"}
    with Admin(one_address, one_address=True) as admin:
        admin.create_topic(topic, partitions=3, replication_factor=3)
    rows = spark.range(0, ROWS, numPartitions=2).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id % 3 AS INT) AS partition"
    )
    rows.write.format("fairlead").mode("append").options(**options, topic=topic).save()
    read = spark.read.format("fairlead").options(**options, subscribe=topic).load()
    found = read.selectExpr("CAST(CAST(value AS STRING) AS INT) AS number", "partition").collect()

    assert sorted(row.number for row in found) == list(range(ROWS))
    assert {(row.number % 3, row.partition) for row in found} == {(0, 0), (1, 1), (2, 2)}
