"""A program that runs a batch and a stream on Spark, to list the classes that they load for `quick_java.py`."""

from __future__ import annotations

import tempfile
from typing import Final

from pyspark.sql import SparkSession

CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def main() -> None:
    """Run once; the function returns after the JVM has exited and written its archive."""
    builder = SparkSession.builder.master("local[2]").appName("classes")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="fairlead-classes-") as folder:
        spark.range(1000).selectExpr("id", "id % 7 AS rest").write.parquet(f"{folder}/numbers")
        numbers = spark.readStream.schema("id LONG, rest LONG").parquet(f"{folder}/numbers")
        timed = numbers.selectExpr("timestamp_seconds(id) AS time", "rest").withWatermark("time", "1 minute")
        counts = timed.groupBy("time", "rest").count().writeStream.format("parquet")
        counts = counts.option("checkpointLocation", f"{folder}/checkpoint").option("path", f"{folder}/out")
        counts.trigger(availableNow=True).start().awaitTermination()
    process = spark.sparkContext._gateway.proc
    spark.stop()
    # The gateway exits at the end of its standard input.
    process.stdin.close()
    process.wait()


main()
