"""A Spark program that reads and writes with tokens of callers, on an executor in a separate process.

The argument of the program is a JSON object of settings. The program prints plans and errors, so that the test can
search them for the tokens. The driver's own token is in the environment, and the executor's in the setting
`spark.executorEnv.FAIRLEAD_TOKEN_FILE`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from fairlead.blocking import Admin
from spark_session import CONF

ROWS: Final = 100
SEEN_SECONDS_MAX: Final = 200.0
"""Time limit within which a running stream must read the written records."""


def session(settings: dict[str, Any]) -> SparkSession:
    """Start a session with one executor, whose events Spark writes into a file."""
    folder = settings["folder"]
    Path(folder, "events").mkdir()
    builder = SparkSession.builder.master("local-cluster[1,2,1024]").appName("secured")
    conf = CONF | {
        "spark.executor.memory": "1g",
        "spark.executorEnv.FAIRLEAD_TOKEN_FILE": settings["executor_file"],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("INFO")
    return spark


class Program:
    """Reads and writes of one Spark session with tokens."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.spark = session(settings)
        self.own = {"bootstrap": settings["bootstrap"], "caFile": settings["ca_file"]}
        self.by_file = {**self.own, "tokenFile": settings["token_file"]}
        self.by_token = {**self.own, "token": settings["token"]}
        self.written = 0

    def write(self, options: dict[str, str]) -> None:
        """Write further records."""
        rows = self.spark.range(0, ROWS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("fairlead").mode("append").options(**options, topic="flights").save()
        self.written += ROWS

    def batches(self) -> None:
        """Write and read with a token from each source."""
        for options in (self.own, self.by_file, self.by_token):
            self.write(options)
            read = self.spark.read.format("fairlead").options(**options, subscribe="flights").load()
            read.explain(extended=True)
            assert read.count() == self.written, options.keys()

    def stream(self, options: dict[str, str]) -> DataFrame:
        """Return a stream of the topic from its beginning."""
        reader = self.spark.readStream.format("fairlead").options(**options, subscribe="flights")
        return reader.option("startingOffsets", "earliest").option("groupId", "flights").load()

    def finished_stream(self) -> None:
        """Read all records in a stream that ends; the option `token` contains the token itself."""
        writer = self.stream(self.by_token).writeStream.format("memory").queryName("ended")
        writer = writer.option("checkpointLocation", f"{self.settings['folder']}/ended")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        query.explain(extended=True)
        print(query.lastProgress)  # noqa: T201 - the test searches the output
        assert self.spark.table("ended").count() == self.written

    def rotated_stream(self) -> None:
        """Read with a token file while its token is replaced and the first token is revoked."""
        writer = self.stream(self.by_file).writeStream.format("memory").queryName("running")
        writer = writer.option("checkpointLocation", f"{self.settings['folder']}/running")
        query = writer.trigger(processingTime="1 second").start()
        self.wait_for_all("running")
        with Admin(
            self.settings["bootstrap"],
            ca_file=self.settings["ca_file"],
            token_file=self.settings["admin_file"],
        ) as admin:
            following = admin.create_token("user:ann").token
            Path(self.settings["token_file"]).write_text(following)
            assert admin.revoke_token(self.settings["token"].split("_")[1])
        self.write(self.by_file)
        self.wait_for_all("running")
        query.stop()
        assert query.exception() is None

    def wait_for_all(self, table: str) -> None:
        """Wait until a running stream has read the written records."""
        end = time.monotonic() + SEEN_SECONDS_MAX
        while self.spark.table(table).count() != self.written:
            assert time.monotonic() < end, "the stream does not read what was written"

    def errors(self) -> None:
        """Print the errors of reads that are refused."""
        wrong = (
            {**self.by_token, "subscribe": "other"},
            {**self.by_token, "tokenFile": self.settings["token_file"], "subscribe": "flights"},
            {**self.by_token, "subscribed": "flights"},
            {**self.own, "token": f"{self.settings['token']}x", "subscribe": "flights"},
        )
        for options in wrong:
            try:
                self.spark.read.format("fairlead").options(**options).load().count()
            except Exception as error:  # noqa: BLE001 - every error is searched for the token
                print(error)  # noqa: T201 - the test searches it
            else:
                raise AssertionError(sorted(options))


def main() -> None:
    """Run all reads and writes in one session."""
    settings = json.loads(sys.stdin.read())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    program = Program(settings)
    program.batches()
    program.finished_stream()
    program.errors()
    program.rotated_stream()
    program.spark.stop()


if __name__ == "__main__":
    main()
