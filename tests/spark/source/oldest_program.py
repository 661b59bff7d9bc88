"""A program that reads, writes and runs bundled pipelines in one session of the PySpark that runs the program.

`python oldest_program.py BOOTSTRAP INPUT FOLDER` prints one JSON object with the version and the results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from pyspark import __version__
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from fairlead.blocking import Admin, Producer
from fairlead_spark import GroupProgress
from fairlead_spark.jobs import Job
from fairlead_spark.jobs.running import JobRun
from fairlead_spark.pipelines import find

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SECONDS_MAX = 60


class Program:
    """One topic and the steps that read and write it."""

    def __init__(self, bootstrap: str, source: str, folder: str) -> None:
        self.bootstrap = bootstrap
        self.source = source
        self.folder = folder
        session = SparkSession.builder.master("local[2]").config("spark.driver.memory", "1g")
        session = session.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
        session = session.config("spark.driver.bindAddress", "127.0.0.1")
        self.spark = session.config("spark.local.dir", folder).getOrCreate()
        self.spark.sparkContext.setLogLevel("ERROR")

    def count(self) -> int:
        """Read the topic as a batch, and return the number of records."""
        frame = self.spark.read.format("fairlead").options(bootstrap=self.bootstrap, subscribe=self.source)
        return frame.load().count()

    def copy(self, **options: str) -> StreamingQuery:
        """Copy the new records into another topic."""
        rows = self._rows(maxOffsetsPerTrigger="30", **options).select("key", "value")
        writer = rows.writeStream.queryName("copy").format("fairlead").option("bootstrap", self.bootstrap)
        return self._done(writer.option("topic", f"{self.source}-copy"), "copy")

    def table(self) -> int:
        """Write the topic to a Delta table, and return the number of rows of the table."""
        table = f"{self.folder}/table"
        self._done(self._rows().writeStream.format("fairlead-delta").option("path", table), "table")
        return DeltaTable(table).to_pyarrow_table().num_rows

    def mirrored(self) -> int:
        """Run a bundled pipeline, and return the number of records that it has read."""
        options = {
            "bootstrap": self.bootstrap,
            "target": self.bootstrap,
            "prefix": "m-",
            "topics": self.source,
        }
        job = Job(pipeline=find("mirror"), options=options, checkpoint=f"{self.folder}/mirror", once=True)
        return JobRun(self.spark, job, lambda _: None).run().counts.records

    def values(self, topic: str) -> list[str]:
        """Return the values of a topic's records."""
        frame = self.spark.read.format("fairlead").options(bootstrap=self.bootstrap, subscribe=topic).load()
        return sorted(row.value.decode() for row in frame.collect())

    def _rows(self, **options: str) -> DataFrame:
        stream = self.spark.readStream.format("fairlead").option("bootstrap", self.bootstrap)
        return stream.options(subscribe=self.source, startingOffsets="earliest", **options).load()

    def _done(self, writer: DataStreamWriter, checkpoint: str) -> StreamingQuery:
        writer = writer.option("checkpointLocation", f"{self.folder}/checkpoint-{checkpoint}")
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query


def published(bootstrap: str, group: str, topic: str, total: int) -> int:
    """Wait until the committed offsets of a group in a topic have the expected sum, and return the sum.

    Spark calls query listeners after the query has ended.
    """
    deadline = time.monotonic() + SECONDS_MAX
    with Admin(bootstrap) as admin:
        while True:
            offsets = admin.group_offsets(group)
            found = sum(offset.offset for place, offset in offsets.items() if place.topic == topic)
            if found == total or time.monotonic() > deadline:
                return found


def main(bootstrap: str, source: str, folder: str) -> None:
    """Run all steps of the program once."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    program = Program(bootstrap, source, folder)
    told: dict[str, object] = {"version": __version__, "count": program.count()}
    progress = GroupProgress(bootstrap, "copy-job", query="copy")
    program.spark.streams.addListener(progress)
    told["triggers"] = sum(1 for trigger in program.copy().recentProgress if trigger.numInputRows)
    told["table"], told["mirrored"] = program.table(), program.mirrored()
    told["mirrored_to"] = published(bootstrap, "job-mirror", source, 100)
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for number in range(100, 110):
            producer.send(source, b"%03d" % number, partition=0).result()
        admin.delete_records(source, 0, before=producer.send(source, b"110", partition=0).result().offset - 2)
    try:
        program.copy()
    except StreamingQueryException as failure:
        told["failure"] = str(failure)
    program.copy(failOnDataLoss="false")
    told["copied_to"] = published(bootstrap, "copy-job", source, 111)
    progress.close()
    told["values"], told["mirror"] = program.values(f"{source}-copy"), program.values(f"m-{source}")
    program.spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")


main(*sys.argv[1:])
