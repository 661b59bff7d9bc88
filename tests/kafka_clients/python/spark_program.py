"""Runs Spark's own Kafka connector: a batch write, a batch read, and a streaming query that copies a topic.

Usage: spark_program.py BOOTSTRAP TOPIC GROUP COUNT, with the connector's jars, separated by commas, in the environment
variable CONNECTOR_JARS. The program prints one line for each step, and exits with 1 on an error.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main(bootstrap: str, topic: str, group: str, count: int) -> None:
    """Write, read and copy `count` records, twice."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", os.environ["CONNECTOR_JARS"])
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    options = {"kafka.bootstrap.servers": bootstrap}

    def write(first: int) -> None:
        rows = spark.range(first, first + count).selectExpr(
            "concat('key-', id) AS key",
            "concat('value of ', id) AS value",
            "array(named_struct('key', 'id', 'value', CAST(string(id) AS BINARY))) AS headers",
        )
        rows.write.format("kafka").options(**options, topic=topic, includeHeaders="true").save()

    def read(name: str) -> list[tuple[str, str, str]]:
        reader = spark.read.format("kafka").options(**options, subscribe=name, includeHeaders="true")
        return records(reader.option("startingOffsets", "earliest").load())

    def expected(stop: int) -> list[tuple[str, str, str]]:
        return sorted((f"key-{number}", f"value of {number}", str(number)) for number in range(stop))

    write(0)
    print("batch write, with headers")
    assert read(topic) == expected(count), "the records are different"
    print("batch read, with headers")

    copy = f"{topic}-copy"
    with tempfile.TemporaryDirectory() as folder:

        def copy_new() -> None:
            stream = spark.readStream.format("kafka").options(
                **options,
                subscribe=topic,
                startingOffsets="earliest",
                includeHeaders="true",
                groupIdPrefix=group,
            )
            writer = stream.load().select("key", "value", "headers").writeStream.format("kafka")
            writer = writer.options(**options, topic=copy, includeHeaders="true")
            query = writer.option("checkpointLocation", str(Path(folder) / "checkpoint")).trigger(
                availableNow=True
            )
            query.start().awaitTermination()

        copy_new()
        write(count)
        copy_new()
    assert read(copy) == expected(2 * count), "the records of the copy are different"
    print("streaming read and write, which continues at its checkpoint")
    spark.stop()


def records(frame: DataFrame) -> list[tuple[str, str, str]]:
    """Return key, value and header of each record, in order of the keys' numbers."""
    rows = frame.selectExpr(
        "string(key) AS key", "string(value) AS value", "string(headers[0].value) AS header"
    )
    return sorted((row.key, row.value, row.header) for row in rows.collect())


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
