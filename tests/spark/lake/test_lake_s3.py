"""Tests of the lake sink on a real S3 server: tables, races of two drivers, and a query of Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fairlead.blocking import Producer
from fairlead_spark.lake.columns import columns_of
from fairlead_spark.lake.commits import BatchCommit, Outcome, sweep
from fairlead_spark.lake.files import DataFile, TaskFiles
from fairlead_spark.lake.options import LakeOptions
from fairlead_spark.lake.storage import file_system
from fairlead_spark.pipelines import find
from s3_server import S3Server, running_s3

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

# The time limit of the first test includes the build of the server.
pytestmark = pytest.mark.timeout(900)
SCHEMA = pa.schema([("number", pa.int64()), ("day", pa.string())])
COLUMNS = columns_of(
    {"type": "struct", "fields": [{"name": "number", "type": "long"}, {"name": "day", "type": "string"}]},
    ["day"],
)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run an S3 server with the bucket `lake`."""
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


def options_of(s3: S3Server, table: str) -> LakeOptions:
    """Return the options of a table that is partitioned by day."""
    return LakeOptions.parse(
        {"path": f"s3://lake/{table}", "partitionBy": "day"}
        | {f"storage.{name}": value for name, value in s3.options.items()}
    )


def task_files(options: LakeOptions, numbers: range, name: str) -> list[DataFile]:
    """Write a file as a task does."""
    system = file_system(options.path, options.storage_options)
    with TaskFiles(system, SCHEMA, ["day"], name, "zstd") as files:
        files.write(
            pa.record_batch([pa.array(list(numbers)), pa.array(["mon"] * len(numbers))], schema=SCHEMA)
        )
        return files.finish()


def numbers_in(options: LakeOptions) -> list[int]:
    """Return the numbers in a table."""
    table = DeltaTable(options.path, storage_options=options.storage_options)
    return sorted(table.to_pyarrow_table()["number"].to_pylist())


def objects_of(s3: S3Server, table: str) -> list[str]:
    """Return the names of the Parquet objects of a table."""
    return sorted(path.name for path in (s3.folder / table).rglob("*.parquet"))


def test_two_drivers_on_one_store_commit_each_batch_once(s3: S3Server) -> None:
    """The conditional writes of the store decide which of two drivers commits a batch.

    The files of the driver whose commit was refused are deleted from the store.
    """
    options, together = options_of(s3, "races"), Barrier(2)

    def drive(driver: int) -> list[Outcome]:
        outcomes = []
        for batch in range(8):
            files = task_files(options, range(batch, batch + 1), f"{driver}-{batch}")
            together.wait()
            outcomes.append(BatchCommit(options, COLUMNS, files, ("query", batch), 1_000).run())
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        both = list(zip(*pool.map(drive, (0, 1)), strict=True))

    assert numbers_in(options) == list(range(8))
    assert all(sorted(one.value for one in pair) == ["committed", "repeated"] for pair in both)
    assert len(objects_of(s3, "races")) == 8


def test_a_failed_task_and_killed_ones_leave_no_object(s3: S3Server) -> None:
    """Files of a failed task are deleted at once, and files of a killed task after the commit."""
    options = options_of(s3, "failures")
    system = file_system(options.path, options.storage_options)
    left = task_files(options, range(3), "part-q-7-killed")
    files = task_files(options, range(3), "part-q-7-done")
    with (  # noqa: PT012 - the write fails in the middle
        pytest.raises(ZeroDivisionError),
        TaskFiles(system, SCHEMA, ["day"], "part-q-7-failed", "zstd") as failing,
    ):
        failing.write(pa.record_batch([pa.array([1]), pa.array(["mon"])], schema=SCHEMA))
        1 / 0  # noqa: B018
    BatchCommit(options, COLUMNS, files, ("q", 7), 1_000).run()
    swept = sweep(options, ["day=mon"], "part-q-7-", keep=[file.path for file in files])

    assert swept
    assert all(file.path.startswith("day=mon/part-q-7-killed") for file in left)
    assert objects_of(s3, "failures") == [Path(file.path).name for file in files]
    assert numbers_in(options) == [0, 1, 2]


@pytest.mark.scenario
def test_a_topic_becomes_a_table_in_a_bucket(
    spark: SparkSession, s3: S3Server, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The pipeline writes to the store with its own options, and other readers read each record once."""
    with Producer(bootstrap) as producer:
        for number in range(250):
            producer.send(topic, b"v%d" % number)
        producer.flush()
    given = {
        "bootstrap": bootstrap,
        "topics": topic,
        "path": "s3://lake/topic",
        "text": "true",
        "maxOffsetsPerTrigger": "100",
        "storage": ",".join(f"{name}={value}" for name, value in s3.options.items()),
    }
    query = find("topic_to_delta").start(spark, given, checkpoint=str(tmp_path / "checkpoint"), once=True)
    assert query.awaitTermination(400), "the query takes too long"
    delta = DeltaTable("s3://lake/topic", storage_options=s3.options)
    dataset = delta.to_pyarrow_dataset()

    assert delta.transaction_version(str(query.id)) == 2
    assert sorted(delta.to_pyarrow_table()["value"].to_pylist()) == sorted(
        f"v{number}" for number in range(250)
    )
    assert duckdb.sql('SELECT count(*), count(DISTINCT "offset") FROM dataset').fetchall() == [(250, 250)]
    assert dataset.count_rows() == 250
