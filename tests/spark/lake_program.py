"""A query into a Delta table whose driver is killed between the table's commit and Spark's commit.

`python lake_program.py SETTINGS_JSON` runs the query with the real sink. After the commit of the batch that the
settings name, the sink sends SIGKILL to the JVM of the driver.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from fairlead_spark.lake.writers import LakeStreamWriter
from pyspark_fairlead_delta import DefaultSource
from spark_session import running_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


def deadly_sink(driver: int, last_batch: int) -> type[DefaultSource]:
    """Return a sink that kills the process `driver` after the table has the batch."""

    class DeadlyWriter(LakeStreamWriter):
        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            if batchId == last_batch:
                os.kill(driver, signal.SIGKILL)

    class DeadlySink(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "deadly-delta"

        def streamWriter(self, schema: StructType, overwrite: bool) -> LakeStreamWriter:  # noqa: N802
            made = super().streamWriter(schema, overwrite)
            return DeadlyWriter(made.options, made.columns, made.overwrite)

    return DeadlySink


def main(settings: dict[str, Any]) -> None:
    """Run until the driver is killed."""
    with running_session(settings["folder"]) as spark:
        run(spark, settings)


def run(spark: SparkSession, settings: dict[str, Any]) -> None:
    """Write batches of a hundred records until the driver is killed."""
    gateway: Any = spark.sparkContext._jvm
    spark.dataSource.register(
        deadly_sink(gateway.java.lang.ProcessHandle.current().pid(), settings["last_batch"])
    )
    rows = spark.readStream.format("fairlead").options(**settings["source"]).load()
    writer = rows.writeStream.format("deadly-delta").option("checkpointLocation", settings["checkpoint"])
    while True:
        # On a busy machine Spark may fail the query because a Python worker starts too late.
        with suppress(StreamingQueryException):
            writer.trigger(availableNow=True).start(settings["table"]).awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
