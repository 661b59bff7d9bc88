"""Measured work inside Spark: one session with both connectors, which executes one request per line.

The program runs in the environment of the oldest supported PySpark, for which Kafka's connector was built. Each line of
standard input is a JSON object with `do` and its arguments. Each request is answered with one line of JSON, which is
`{"error": ...}` for a failure. The program ends at the end of its input. `spark_driver` starts the program, which does
not import other benchmark modules.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import count, window

from fairlead_spark.jobs.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

CORES = 2
RANDOM = secrets.token_bytes(1 << 16)
QUERY_SECONDS_MAX = 600.0
PROGRESS_SECONDS = 0.2


def session(jars: str) -> SparkSession:
    """Return a session on two cores with the settings of `fairlead job run`; both connectors use the same heap."""
    settings = {
        "spark.jars": jars,
        "spark.driver.memory": "3g",
        # docs/how-to/spark.md recommends this setting for short records; Kafka's sink has no similar setting.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    return spark_session("fairlead-bench", master=f"local[{CORES}]", conf=settings)


class Work:
    """Work that can be requested; a `source` is a format with its options."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def _frame(self, source: dict[str, Any]) -> DataFrame:
        return self._spark.read.format(source["format"]).options(**source["options"]).load()

    def _made(self, records: int, value_bytes: int) -> DataFrame:
        """Return cheap values, which are substrings of random bytes, in as many partitions as there are cores.

        If rows were read from Parquet files instead, reading would be half of Spark's work when Fairlead's sink is
        measured.
        """
        start = f"cast(id * 7919 % {len(RANDOM) - value_bytes} as int) + 1"
        value = f"substring(X'{RANDOM.hex()}', {start}, {value_bytes}) AS value"
        return self._spark.range(0, records, 1, CORES).selectExpr(value)

    def count(self, source: dict[str, Any]) -> dict[str, float]:
        """Return the number of records and of value bytes, which are used to compare two sources."""
        row = self._frame(source).selectExpr("count(*) AS records", "sum(length(value)) AS bytes").first()
        assert row is not None
        return {"records": row["records"], "value_bytes": row["bytes"]}

    def read(self, source: dict[str, Any]) -> dict[str, float]:
        """Read every column of every record and discard the rows; the time includes schema and planning."""
        started = time.perf_counter()
        self._frame(source).write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - started}

    def write(self, rows: dict[str, Any], sink: dict[str, Any]) -> dict[str, float]:
        """Write the values of a source, or values that Spark creates, to a sink."""
        frame = self._made(**rows["made"]) if "made" in rows else self._frame(rows).select("value")
        started = time.perf_counter()
        frame.write.format(sink["format"]).options(**sink["options"]).mode("append").save()
        return {"seconds": time.perf_counter() - started}

    def windows(self, source: dict[str, Any]) -> dict[str, float]:
        """Count all available records in windows; the limit of the source determines the number of triggers."""
        frame = self._spark.readStream.format(source["format"]).options(**source["options"]).load()
        counted = frame.groupBy(window("timestamp", "1 minute")).agg(count("*").alias("records"))
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-checkpoint-") as checkpoint:
            writer = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
            query = writer.option("checkpointLocation", checkpoint).start()
            query.awaitTermination(QUERY_SECONDS_MAX)
            progress = _progress(query)
        busy = [each for each in progress if each["numInputRows"]]
        seconds = sum(each["durationMs"]["triggerExecution"] for each in busy) / 1000
        return {
            "records": sum(each["numInputRows"] for each in busy),
            "triggers": len(busy),
            "seconds": seconds,
        }

    def triggers(self, source: dict[str, Any], warm: int, measured: int) -> dict[str, Any]:
        """Return the milliseconds of each trigger of a stream whose triggers read only a few records each."""
        frame = self._spark.readStream.format(source["format"]).options(**source["options"]).load()
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-checkpoint-") as checkpoint:
            writer = frame.writeStream.format("noop").trigger(processingTime="0 seconds")
            query = writer.option("checkpointLocation", checkpoint).start()
            deadline = time.monotonic() + QUERY_SECONDS_MAX
            while len(busy := _busy(query)) < warm + measured and time.monotonic() < deadline:
                time.sleep(PROGRESS_SECONDS)
            query.stop()
        taken = [each["durationMs"]["triggerExecution"] for each in busy[warm : warm + measured]]
        assert len(taken) == measured, f"{len(taken)} of {measured} triggers had something to read"
        parts = sorted({part for each in busy for part in each["durationMs"]})
        means = {
            part: sum(each["durationMs"].get(part, 0) for each in busy[warm:]) / len(busy[warm:])
            for part in parts
        }
        return {
            "milliseconds": taken,
            "mean_of_parts": {part: round(mean, 1) for part, mean in means.items()},
        }


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    if (failure := query.exception()) is not None:
        raise failure
    return [json.loads(each.json) for each in query.recentProgress]


def _busy(query: StreamingQuery) -> list[dict[str, Any]]:
    return [each for each in _progress(query) if each["numInputRows"]]


def main() -> None:
    """Answer the requests line by line."""
    # Output of the JVM is redirected to standard error, so that standard output contains only the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spark = session(sys.argv[1])
    work = Work(spark)
    tasks: dict[str, Callable[..., dict[str, Any]]] = {
        name: getattr(work, name) for name in ("count", "read", "write", "windows", "triggers")
    }
    print(json.dumps({"ready": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            answer = tasks[arguments.pop("do")](**arguments)
        except Exception:  # noqa: BLE001 - the answer reports the error, and the requesting process stops the run
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
