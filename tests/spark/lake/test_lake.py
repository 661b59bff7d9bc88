"""Tests of topics in Delta tables, written by a real Spark: other readers, exactly-once writes, and clean-up."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.errors import PySparkException

from fairlead.blocking import Admin, Producer
from fairlead_spark.pipelines import find
from refusals import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Each test waits for real queries on a possibly busy machine.
pytestmark = pytest.mark.timeout(600)
PROGRAM = Path(__file__).parents[1] / "lake_program.py"
DAYS = [datetime(2026, 11, 21, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2026, 11, 22, tzinfo=UTC)]


def produce(bootstrap: str, topic: str, numbers: range) -> None:
    """Send numbers as text, half of them before and half of them after midnight."""
    with Producer(bootstrap) as producer:
        for number in numbers:
            headers = [("number", b"%d" % number)]
            producer.send(
                topic, b"v%d" % number, key=b"k%d" % (number % 7), headers=headers, timestamp=DAYS[number % 2]
            )
        producer.flush()


def unlisted(table: Path) -> list[str]:
    """Return the Parquet files of a folder that the Delta table does not list."""
    listed = {Path(path).name for path in DeltaTable(table).file_uris()}
    return [
        path.name
        for path in table.rglob("*.parquet*")
        if path.name not in listed and "_delta_log" not in path.parts
    ]


def test_a_topic_becomes_a_table_that_others_read(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """After two runs Spark, pyarrow and DuckDB read every record once, in the partition of its day."""
    table, options = (
        tmp_path / "table",
        {"bootstrap": bootstrap, "topics": topic, "text": "true", "headers": "true"},
    )
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=3)
    queries = []
    for numbers in (range(200), range(200, 300)):
        produce(bootstrap, topic, numbers)
        query = find("topic_to_delta").start(
            spark, options | {"path": str(table)}, checkpoint=str(tmp_path / "checkpoint"), once=True
        )
        assert query.awaitTermination(400), "the query takes too long"
        queries.append(query)
    delta = DeltaTable(table)
    by_spark = spark.read.option("basePath", str(table)).parquet(*delta.file_uris()).collect()
    by_arrow = delta.to_pyarrow_table().to_pylist()
    dataset = delta.to_pyarrow_dataset()
    by_duckdb = duckdb.sql("SELECT value, date, headers[1].value FROM dataset").fetchall()
    expected = {(f"v{number}", DAYS[number % 2].date(), b"%d" % number) for number in range(300)}

    assert len(by_spark) == len(by_arrow) == len(by_duckdb) == 300
    assert {(row.value, row.date, bytes(row.headers[0].value)) for row in by_spark} == expected
    assert {(row["value"], row["date"], row["headers"][0]["value"]) for row in by_arrow} == expected
    assert set(by_duckdb) == expected
    assert {row["timestamp"] for row in by_arrow} == set(DAYS)
    assert delta.metadata().partition_columns == ["date"]
    assert delta.transaction_version(str(queries[0].id)) == queries[1].lastProgress.batchId
    assert dataset.count_rows() == 300
    assert delta.to_pyarrow_table(filters=[("date", "=", date(2026, 11, 22))]).num_rows == 150


@pytest.mark.scenario
@pytest.mark.timeout(900)
def test_a_driver_killed_between_both_commits_writes_the_batch_once(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """After the driver is killed, the batch is in the table and not in the checkpoint.

    The next driver runs the batch again, and the table contains the batch once.
    """
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    source = {
        "bootstrap": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "100",
    }
    produce(bootstrap, topic, range(350))
    settings = {
        "folder": str(tmp_path),
        "source": source,
        "checkpoint": str(checkpoint),
        "table": str(table),
        "last_batch": 1,
    }
    died = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(settings)], check=False, capture_output=True, timeout=500
    )
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]

    assert died.returncode != 0
    assert DeltaTable(table).transaction_version(query_id) == 1, died.stderr.decode()
    assert sorted(path.name for path in (checkpoint / "commits").glob("[0-9]*")) == ["0"]

    rows = spark.readStream.format("fairlead").options(**source).load()
    writer = rows.writeStream.format("fairlead-delta").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start(str(table))
    assert query.awaitTermination(400), "the query takes too long"
    values = sorted(DeltaTable(table).to_pyarrow_table()["value"].to_pylist())

    assert str(query.id) == query_id
    assert values == sorted(b"v%d" % number for number in range(350))
    assert DeltaTable(table).transaction_version(query_id) == 3
    assert unlisted(table) == []


def test_a_write_that_fails_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A record that fails late in a task leaves no table and no file, not even from the other task."""
    rows = spark.range(0, 200_000, 1, 2).selectExpr(
        "id", "IF(id = 199990, raise_error('broken'), 'x') AS text"
    )
    with raises(PySparkException, "broken"):
        rows.write.format("fairlead-delta").mode("append").save(str(tmp_path / "table"))

    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_partition_that_readers_refuse_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The refusal of a date that readers cannot represent names the column and the value.

    If the refused dates are replaced by null, all rows are written.
    """
    rows = (
        spark.range(3).selectExpr("id", "make_date(CAST(2026 + 10000 * id AS INT), 5, 5) AS day").coalesce(1)
    )
    known = rows.selectExpr("id", "CAST(day AS STRING) AS text", "IF(year(day) <= 9999, day, NULL) AS day")
    for table, frame in (("refused", rows), ("taken", known)):
        writer = frame.write.format("fairlead-delta").mode("append").option("partitionBy", "day")
        if table == "taken":
            writer.save(str(tmp_path / table))
            continue
        with raises(PySparkException, "12026-05-05"):
            writer.save(str(tmp_path / table))

    assert not DeltaTable.is_deltatable(str(tmp_path / "refused"))
    assert [path for path in tmp_path.rglob("*.parquet") if "refused" in path.parts] == []
    assert DeltaTable(tmp_path / "taken").to_pyarrow_table().sort_by("id").to_pydict() == {
        "id": [0, 1, 2],
        "text": ["2026-05-05", "+12026-05-05", "+22026-05-05"],
        "day": [date(2026, 5, 5), None, None],
    }


def test_bytes_that_are_no_text_do_not_stop_the_pipeline(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Readers get U+FFFD in values that are not UTF-8; other records are unchanged, up to the greatest timestamp."""
    table, last = tmp_path / "table", datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1, config={"message.timestamp.after.max.ms": 2**63 - 1})
    with Producer(bootstrap) as producer:
        for value, timestamp in ((b"before", DAYS[0]), (b"a\xff\xfe", DAYS[1]), (b"after", last)):
            producer.send(topic, value, timestamp=timestamp)
    options = {"bootstrap": bootstrap, "topics": topic, "path": str(table), "text": "true"}

    query = find("topic_to_delta").start(spark, options, checkpoint=str(tmp_path / "checkpoint"), once=True)
    assert query.awaitTermination(400), "the query takes too long"

    dataset = DeltaTable(table).to_pyarrow_dataset()
    read = duckdb.sql("SELECT value, date FROM dataset ORDER BY date").fetchall()
    assert read == [("before", DAYS[0].date()), ("a\ufffd\ufffd", DAYS[1].date()), ("after", last.date())]
    assert dataset.count_rows() == 3


def test_frames_in_batches_are_appended_replaced_and_repeated(spark: SparkSession, tmp_path: Path) -> None:
    """A batch write appends or overwrites in one commit; a write with txnAppId and txnVersion is stored once."""
    table = str(tmp_path / "table")
    rows = spark.range(10).selectExpr("id", "CAST(id % 3 AS STRING) AS third")
    partitioned = rows.write.format("fairlead-delta").option("partitionBy", "third")
    partitioned.mode("append").save(table)
    for _ in range(2):
        partitioned.mode("append").option("txnAppId", "load").option("txnVersion", "7").save(table)
    twice = DeltaTable(table).to_pyarrow_table().num_rows
    rows.limit(4).write.format("fairlead-delta").option("partitionBy", "third").mode("overwrite").save(table)

    assert twice == 20
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == [0, 1, 2, 3]
    assert [one["operation"] for one in reversed(DeltaTable(table).history())] == [
        "CREATE TABLE",
        *["WRITE"] * 3,
    ]


def test_a_frame_that_does_not_fit_the_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Rows whose type differs from the table's are refused, naming the column; table and files are unchanged."""
    table = str(tmp_path / "table")
    spark.range(5).write.format("fairlead-delta").mode("append").save(table)
    with raises(PySparkException, "id", "string", "long"):
        spark.range(5).selectExpr("CAST(id AS STRING) AS id").write.format("fairlead-delta").mode(
            "append"
        ).save(table)
    with raises(PySparkException, "fairlead-delta"):
        spark.read.format("fairlead-delta").load(table)
    with raises(PySparkException, "compressoin"):
        spark.range(5).write.format("fairlead-delta").mode("append").option("compressoin", "zstd").save(table)

    assert DeltaTable(table).version() == 1
    assert unlisted(Path(table)) == []


def test_writes_add_columns_and_leave_columns_of_other_writers_null(
    spark: SparkSession, bootstrap: str, hundred: str, tmp_path: Path
) -> None:
    """With mergeSchema, new columns of a batch and of a stream are null in older rows."""
    table = str(tmp_path / "table")
    batch = spark.sql("SELECT -2L AS offset").write.format("fairlead-delta").mode("append")
    batch.save(table)
    added = spark.sql("SELECT -1L AS offset, 'theirs' AS other").write.format("fairlead-delta").mode("append")
    with raises(PySparkException, "other", "mergeSchema"):
        added.save(table)
    added.option("mergeSchema", "true").save(table)
    source = {"bootstrap": bootstrap, "subscribe": hundred, "startingOffsets": "earliest"}
    rows = spark.readStream.format("fairlead").options(**source).load().selectExpr("offset", "'ours' AS text")
    stream = rows.writeStream.format("fairlead-delta").trigger(availableNow=True)
    stream = stream.option("mergeSchema", "true").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.start(table)
    assert query.awaitTermination(400), "the query takes too long"
    found = DeltaTable(table).to_pyarrow_table().sort_by("offset")

    assert found["offset"].to_pylist() == [*range(-2, 100)]
    assert found["other"].to_pylist() == [None, "theirs", *[None] * 100]
    assert found["text"].to_pylist() == [None, None, *["ours"] * 100]
