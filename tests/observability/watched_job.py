"""A program with a streaming query that counts records by window, and whose metrics Prometheus can scrape.

    python watched_job.py BOOTSTRAP TOPIC GROUP PORT FOLDER

The settings are those of docs/how-to/observability.md. The program runs until it is terminated.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, window

from fairlead_spark import GroupProgress

SERVLET = "spark.metrics.conf.*.sink.prometheusServlet"
CONF = {
    "spark.ui.enabled": "true",
    "spark.ui.prometheus.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "true",
    "spark.metrics.namespace": "fairlead",
    f"{SERVLET}.class": "org.apache.spark.metrics.sink.PrometheusServlet",
    f"{SERVLET}.path": "/metrics/prometheus",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}


def main(bootstrap: str, topic: str, group: str, port: str, folder: str) -> None:
    """Run the query."""
    builder = SparkSession.builder.master("local[2]").appName("flight-windows")
    for name, value in {
        **CONF,
        "spark.ui.port": port,
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.streams.addListener(GroupProgress(bootstrap, group))
    records = (
        spark.readStream.format("fairlead")
        .option("bootstrap", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    counted = (
        records.withWatermark("timestamp", "10 seconds")
        .groupBy(window("timestamp", "5 seconds"))
        .agg(count("*"))
    )
    writer = counted.writeStream.outputMode("update").format("noop").queryName("flight_windows")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(processingTime="5 seconds")
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
