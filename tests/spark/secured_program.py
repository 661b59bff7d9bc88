"""A program on Spark that reads and writes as a caller with a token.

Its arguments are the addresses, the files of the authority and of the token, and a folder. It prints plans and errors,
so that the test can search them for the token, which is in the variable TOKEN.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_session import CONF, QUICK_WORKERS

ROWS = 100


def main(bootstrap: str, ca_file: str, token_file: str, folder: str) -> None:
    """Write by file, read by file and by token in a batch and a stream, and provoke errors."""
    token = os.environ.pop("TOKEN")
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ.update(QUICK_WORKERS)
    os.environ["PYTHONPATH"] += f"{os.pathsep}{inherited}"
    Path(folder, "events").mkdir()
    builder = SparkSession.builder.master("local[2]").appName("secured")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    builder = (
        builder.config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.dir", f"file://{folder}/events")
    )
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    by_file = {"bootstrap": bootstrap, "caFile": ca_file, "tokenFile": token_file}
    by_token = {"bootstrap": bootstrap, "caFile": ca_file, "token": token}
    rows = spark.range(0, ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("fairlead").mode("append").options(**by_file, topic="flights").save()
    rows.write.format("fairlead").mode("append").options(**by_token, topic="flights").save()
    for options in (by_file, by_token):
        read = spark.read.format("fairlead").options(**options, subscribe="flights").load()
        read.explain(extended=True)
        assert read.count() == 2 * ROWS
    stream = spark.readStream.format("fairlead").options(
        **by_token, subscribe="flights", startingOffsets="earliest"
    )
    query = (
        stream.option("groupId", "flights")
        .load()
        .writeStream.format("memory")
        .queryName("seen")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    print(query.lastProgress)  # noqa: T201 - the test reads it
    assert spark.sql("SELECT count(*) FROM seen").first()[0] == 2 * ROWS
    for wrong in (
        {**by_token, "subscribe": "other"},
        {**by_token, "tokenFile": token_file, "subscribe": "flights"},
        {**by_token, "subscribed": "flights"},
        {"bootstrap": bootstrap, "caFile": ca_file, "token": f"{token}x", "subscribe": "flights"},
        {"bootstrap": bootstrap, "caFile": ca_file, "subscribe": "flights"},
    ):
        try:
            spark.read.format("fairlead").options(**wrong).load().count()
        except Exception as error:  # noqa: BLE001 - every error is searched for the token
            print(error)  # noqa: T201 - the test reads it
        else:
            raise AssertionError(sorted(wrong))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
