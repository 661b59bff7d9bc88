"""A program of streaming queries from one topic into files, a topic and a Delta table; tests kill it at any moment.

`python query_program.py SETTINGS_JSON` prints one JSON line for each event. A failed query is restarted from its
checkpoint. With `"finish": true`, every query reads to the end of the topic and the program exits.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    # The log shows the stack of a slow worker if the queries stop making progress.
    "spark.python.worker.tracebackDumpIntervalSeconds": "100",
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark keeps every committed entry readable for `query_judge.py`.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
    "spark.sql.streaming.fileSink.log.deletion": "false",
    "spark.sql.streaming.stopTimeout": "30s",
}
RECORDS_A_TRIGGER: Final = 3000


def say(event: str, **facts: object) -> None:
    """Print one event as a JSON line."""
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main(settings: dict[str, Any]) -> None:
    """Run until the process is killed, or up to the end of the topic."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("killed queries").master("local[2,4]")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    say("session")
    if settings["finish"]:
        queries = {sink: start(spark, settings, sink) for sink in settings["sinks"]}
        for sink, query in queries.items():
            query.awaitTermination()
            say("finished", sink=sink)
        return
    run(spark, settings)


def run(spark: SparkSession, settings: dict[str, Any]) -> None:
    """Run every query, and restart failed queries."""
    queries = {sink: start(spark, settings, sink) for sink in settings["sinks"]}
    ready: set[str] = set()
    while True:
        try:
            spark.streams.awaitAnyTermination(timeout=1)
        except StreamingQueryException as failed:
            spark.streams.resetTerminated()
            say("failed", reason=str(failed)[:4000])
        for sink, query in queries.items():
            if not query.isActive:
                say("restarted", sink=sink)
                queries[sink] = start(spark, settings, sink)
            progress = query.lastProgress
            if sink not in ready and progress is not None and progress.numInputRows:
                ready.add(sink)
                say("reading", sink=sink, batch=progress.batchId)


def start(spark: SparkSession, settings: dict[str, Any], sink: str) -> StreamingQuery:
    """Start the query of one sink from its checkpoint."""
    rows = (
        spark.readStream.format("fairlead")
        .option("bootstrap", settings["bootstrap"])
        .option("subscribe", settings["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(RECORDS_A_TRIGGER))
        .load()
    )
    writer = into(rows, sink, settings).option(
        "checkpointLocation", f"{settings['folder']}/checkpoints/{sink}"
    )
    if settings["finish"]:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def into(rows: DataFrame, sink: str, settings: dict[str, Any]) -> DataStreamWriter:
    """Return the writer of one sink."""
    folder = Path(settings["folder"])
    if sink in ("topic", "once"):
        writer = rows.select("key", "value").writeStream.format("fairlead")
        writer = writer.option("bootstrap", settings.get("sink_bootstrap", settings["bootstrap"]))
        if sink == "topic":
            return writer.option("topic", settings["copy"])
        # A short timeout, since readers of committed records wait until the records of killed tasks are aborted.
        writer = writer.option("exactlyOnce", "true").option("transactionTimeout", "20s")
        return writer.option("topic", settings["once"]).option("oneAddress", "true")
    places = rows.selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
    kind = {"files": "parquet", "lake": "fairlead-delta"}[sink]
    return places.writeStream.format(kind).option("path", str(folder / sink))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
