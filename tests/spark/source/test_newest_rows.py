"""The newest row of each key of a compacted topic, compared with a dictionary of all records."""

from __future__ import annotations

import contextlib
import io
import random
from typing import TYPE_CHECKING

import pytest

from fairlead.blocking import Admin, Producer
from fairlead_spark import latest_by_key
from fairlead_spark.option_values import OptionError
from waiting import pause_blocking

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_newest_row_of_each_key_is_that_of_a_dictionary(
    spark: SparkSession, bootstrap: str, topic: str
) -> None:
    """The newest row of each key is the same before and after cleaning, with and without deleted keys.

    Spark computes the rows: tasks reduce their rows before the exchange.
    """
    rng, newest = random.Random(25), {}
    with Admin(bootstrap) as admin:
        admin.create_topic(
            topic, partitions=3, config={"cleanup.policy": "compact", "segment.bytes": 1 << 20}
        )
    with Producer(bootstrap) as producer:
        sent = []
        for number in range(2_000):
            key, value = b"k%d" % rng.randrange(100), None if rng.random() < 0.1 else b"v%d" % number
            sent.append((key, value, producer.send(topic, value, key=key)))
        for key, value, record in sent:
            stored = record.result()
            newest[key] = (stored.partition, stored.offset, value)
    rows = spark.read.format("fairlead").options(bootstrap=bootstrap, subscribe=topic, includeHeaders="true")

    def found(*, deleted: bool) -> dict[bytes, tuple[int, int, bytes | None]]:
        """Return the newest rows by key."""
        table = latest_by_key(rows.load(), deleted=deleted).toArrow().to_pylist()
        result = {row["key"]: (row["partition"], row["offset"], row["value"]) for row in table}
        assert len(table) == len(result)
        return result

    before = found(deleted=True)
    with Admin(bootstrap) as admin:
        for partition in range(3):
            admin.clean_partition(topic, partition)
        while any(
            replica.requested_offset is not None
            for partition in range(3)
            for replica in admin.describe_cleaning(topic, partition).replicas
        ):
            pause_blocking(0.05)
    left = rows.load().count()

    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        latest_by_key(rows.load()).explain()
    final, exchange, partial = (
        plan.getvalue().find(node)
        for node in ("functions=[max_by(", "Exchange hashpartitioning(topic", "functions=[partial_max_by(")
    )

    assert before == newest
    assert left < 2_000
    assert 0 <= final < exchange < partial
    assert found(deleted=True) == newest
    assert found(deleted=False) == {key: each for key, each in newest.items() if each[2] is not None}
    assert latest_by_key(rows.load()).columns == rows.load().columns
    with pytest.raises(OptionError) as refused:
        latest_by_key(rows.option("columns", "key,value,headers").load())

    assert (refused.value.name, refused.value.value) == ("columns", "key,value,headers")
