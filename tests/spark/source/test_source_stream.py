from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from fairlead.blocking import Admin, Producer
from refusals import raises
from source_records import NOON

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


def run(
    spark: SparkSession, bootstrap: str, topic: str, checkpoint: Path, seen: list[Row], **options: str
) -> StreamingQuery:
    """Run a query up to the end of the topic, and add its records to `seen`."""

    def keep(frame: DataFrame, batch: int) -> None:
        """Store the records of one trigger."""
        del batch
        seen.extend(frame.collect())

    begin = {} if "startingTimestamp" in options else {"startingOffsets": "earliest"}
    stream = spark.readStream.format("fairlead").options(
        bootstrap=bootstrap, subscribePattern=f"{topic}.*", **begin, **options
    )
    query = (
        stream.load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_query_continues_from_its_checkpoint_with_its_progress(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Triggers respect the limit, a restart neither repeats nor loses records, and new matching topics are read."""
    seen: list[Row] = []
    with Producer(bootstrap) as producer:
        for number in range(50):
            producer.send(topic, b"%d" % number)
        producer.flush()
        first = run(spark, bootstrap, topic, tmp_path, seen, maxOffsetsPerTrigger="20")
        producer.send(f"{topic}-more", b"50").result()
        second = run(spark, bootstrap, topic, tmp_path, seen, groupId=f"job-{topic}")

    triggers = [progress for progress in first.recentProgress if progress.numInputRows]
    source = triggers[-1].sources[0]
    written = (tmp_path / "offsets" / "0").read_text().splitlines()[-1]
    assert [progress.numInputRows for progress in triggers] == [20, 20, 10]
    assert sorted(int(row.value) for row in seen) == list(range(51))
    assert json.loads(written)["topics"][topic]["offsets"]["0"][0] == 20
    assert json.dumps(json.loads(written), sort_keys=True) == written
    assert json.loads(source.endOffset)["topics"][topic]["offsets"]["0"][0] == 50
    assert json.loads(source.latestOffset)["topics"][topic]["offsets"]["0"][0] == 50
    assert sum(progress.numInputRows for progress in second.recentProgress) == 1


@pytest.mark.scenario
def test_retention_that_overtakes_a_query_ends_it_or_is_passed(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """By default a query whose next records were deleted fails with an error that contains the offsets.

    With failOnDataLoss=false, the query continues from the same checkpoint after the deleted records.
    """
    seen: list[Row] = []
    with Producer(bootstrap) as producer, Admin(bootstrap) as admin:
        producer.send(topic, b"0").result()
        run(spark, bootstrap, topic, tmp_path, seen)
        for number in range(1, 20):
            producer.send(topic, b"%d" % number)
        producer.flush()
        admin.delete_records(topic, 0, before=15)

        with raises(StreamingQueryException, f"{topic}-0", 15):
            run(spark, bootstrap, topic, tmp_path, seen)
        run(spark, bootstrap, topic, tmp_path, seen, failOnDataLoss="false")

    assert [int(row.value) for row in seen] == [0, 15, 16, 17, 18, 19]


@pytest.mark.scenario
def test_a_stream_begins_at_a_time_and_has_headers(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A stream with `startingTimestamp` reads the records from that time on, each with its headers or null.

    Records that are appended later are read regardless of their time.
    """
    seen: list[Row] = []
    options = {
        "startingTimestamp": str(int((NOON + timedelta(seconds=4)).timestamp() * 1000)),
        "includeHeaders": "true",
    }
    with Producer(bootstrap) as producer:
        for number in range(10):
            headers = [("number", b"%d" % number), ("none", None)] if number % 2 else []
            producer.send(topic, b"%d" % number, headers=headers, timestamp=NOON + timedelta(seconds=number))
        producer.flush()
        run(spark, bootstrap, topic, tmp_path, seen, **options)
        producer.send(topic, b"10", timestamp=NOON).result()
        run(spark, bootstrap, topic, tmp_path, seen, **options)

    assert [int(row.value) for row in seen] == list(range(4, 11))
    assert [row.headers for row in seen if int(row.value) % 2 == 0] == [None] * 4
    assert [[(name, value) for name, value in row.headers] for row in seen if int(row.value) % 2] == [
        [("number", b"%d" % number), ("none", None)] for number in (5, 7, 9)
    ]


@pytest.mark.scenario
def test_an_end_of_a_stream_is_refused_by_its_option_alone(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """The refusal of an end option names the given option, and Spark adds no error of its own."""
    with Producer(bootstrap) as producer:
        producer.send(topic, b"0").result()

    with raises(StreamingQueryException, "endingTimestamp") as refused:
        run(spark, bootstrap, topic, tmp_path, [], endingTimestamp="1")

    assert "another exception occurred" not in str(refused.value)
