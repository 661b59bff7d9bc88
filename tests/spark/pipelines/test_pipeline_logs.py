"""Tests of the pipeline that counts logs in windows, on one broker and, unchanged, on three brokers with etcd."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from fairlead.blocking import Admin, Consumer, Producer
from fairlead_spark.pipelines import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The time limit of the first test includes the starts of Spark and of etcd.
pytestmark = pytest.mark.timeout(900)
START = datetime(2026, 11, 22, 8, tzinfo=UTC)
SOURCES = ("web-1", "web-2", "worker")
NO_NUMBER = "field value is not a finite number"
RUBBISH = {
    b"rubbish": "no JSON object with the fields",
    b'{"source": "web-1", "level": "info"}': "no field at",
    b'{"source": "web-1", "at": "2026-11-22T08:00:00Z"}': "neither level nor metric",
    b'{"source": "web-1", "at": "2026-11-22T08:00:00Z", "metric": "load"}': "a metric without the field value",
    # The first time is outside of all windows of Spark, and the second time is in milliseconds.
    b'{"source": "web-1", "at": 9223372036854, "level": "info"}': "field at is not in the years 1 to 9999",
    b'{"source": "web-1", "at": 1763798400000, "level": "info"}': "field at is not in the years 1 to 9999",
    # Values that Python and pandas write for missing numbers. Any of these values would become the sum of its window.
    b'{"source": "web-1", "at": "2026-11-22T08:00:00Z", "metric": "load", "value": NaN}': NO_NUMBER,
    b'{"source": "web-1", "at": "2026-11-22T08:00:00Z", "metric": "load", "value": "-Infinity"}': NO_NUMBER,
    b'{"source": "web-1", "at": "2026-11-22T08:00:00Z", "metric": "load", "value": 1e999}': NO_NUMBER,
}
Window = tuple[str, str | None, str | None, str]


def entries_of(source: str) -> list[dict[str, Any]]:
    """Return ten minutes of log entries and measurements of a program, out of order by less than a minute."""
    entries = []
    for number in range(120):
        at = START + timedelta(seconds=5 * number - 40 * (number % 2))
        entry: dict[str, Any] = {"source": source, "at": at.isoformat(), "message": f"number {number}"}
        if number % 4 == 3:
            entries.append(entry | {"metric": "load", "value": number / 4})
        else:
            entries.append(entry | {"level": ("info", "ERROR", "error")[number % 3]})
    return entries


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    """Send values in order to one partition that the program chooses."""
    with Producer(bootstrap) as producer:
        for value in values:
            producer.send(topic, value)
        producer.flush()


def consume(bootstrap: str, topic: str) -> list[Any]:
    """Read every record of a topic."""
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic=topic)
        return list(consumer.records(until=consumer.end_offsets()))


def expected_windows() -> dict[Window, dict[str, Any]]:
    """Compute the expected counts in windows of two minutes."""
    found: dict[Window, list[float | None]] = {}
    for entry in (entry for source in SOURCES for entry in entries_of(source)):
        at = datetime.fromisoformat(entry["at"])
        start = at.replace(minute=at.minute - at.minute % 2, second=0)
        level = entry["level"].lower() if "level" in entry else None
        key = (entry["source"], level, entry.get("metric"), start.strftime("%Y-%m-%dT%H:%M:%SZ"))
        found.setdefault(key, []).append(entry.get("value"))
    return {
        key: {
            "records": len(values),
            "mean": sum(values) / len(values) if key[2] else None,
            "least": min(values) if key[2] else None,
            "greatest": max(values) if key[2] else None,
        }
        for key, values in found.items()
    }


@pytest.mark.parametrize(
    "cluster", ["bootstrap", pytest.param("three_on_etcd", marks=[pytest.mark.etcd, pytest.mark.scenario])]
)
def test_logs_of_many_programs_are_counted(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each window is written once with the right numbers, even across a restart, and without an entry that is too late.

    A record that is not an entry becomes a dead letter with its reason.
    """
    bootstrap = request.getfixturevalue(cluster)
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=3)
    options = {"bootstrap": bootstrap, "input": topic, "output": f"{topic}-windows", "window": "2 minutes"}
    with ThreadPoolExecutor(len(SOURCES)) as pool:
        sent = [[json.dumps(entry).encode() for entry in entries_of(source)] for source in SOURCES]
        list(pool.map(lambda values: produce(bootstrap, topic, values), sent))
    produce(bootstrap, topic, list(RUBBISH))
    # A later entry that closes all earlier windows.
    last = {"source": "clock", "at": (START + timedelta(hours=9)).isoformat(), "level": "info"}
    late = {"source": "clock", "at": (START - timedelta(hours=9)).isoformat(), "level": "info"}
    counts, dropped = [], []
    for values in ([], [json.dumps(each).encode() for each in (last, late)]):
        produce(bootstrap, topic, values)
        query = find("logs").start(spark, options, checkpoint=str(tmp_path / "checkpoint"), once=True)
        assert query.awaitTermination(400), "the query takes too long"
        metrics = [progress.observedMetrics.get("input") for progress in query.recentProgress]
        counts.append(sum(row["dead_letters"] for row in metrics if row is not None))
        states = [state for progress in query.recentProgress for state in progress.stateOperators]
        dropped.append(sum(state.numRowsDroppedByWatermark for state in states))
    windows = [json.loads(record.value) for record in consume(bootstrap, f"{topic}-windows")]
    letters = consume(bootstrap, f"{topic}.dead-letters")
    numbers = {
        (row["source"], row["level"], row["metric"], row["window_start"]): {
            name: row[name] for name in ("records", "mean", "least", "greatest")
        }
        for row in windows
    }
    reasons = {record.value: dict(record.headers or ())["dead-letter.reason"].decode() for record in letters}

    assert numbers == expected_windows()
    assert len(windows) == len(numbers)
    assert {value: RUBBISH[value] in reason for value, reason in reasons.items()} == dict.fromkeys(
        RUBBISH, True
    )
    assert len(letters) == len(RUBBISH)
    assert counts == [len(RUBBISH), 0]
    assert dropped == [0, 1]


@pytest.mark.scenario
@pytest.mark.etcd
def test_a_table_is_written_from_three_brokers(
    spark: SparkSession, three_on_etcd: str, topic: str, tmp_path: Path
) -> None:
    """The pipeline writes the same Delta table from three brokers as from one broker."""
    bootstrap, table = three_on_etcd, str(tmp_path / "table")
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=6)
    produce(bootstrap, topic, [b"v%d" % number for number in range(500)])
    query = find("topic_to_delta").start(
        spark,
        {"bootstrap": bootstrap, "topics": topic, "path": table},
        checkpoint=f"{tmp_path}/checkpoint",
        once=True,
    )
    assert query.awaitTermination(400), "the query takes too long"
    values = sorted(DeltaTable(table).to_pyarrow_table()["value"].to_pylist())

    assert values == sorted(b"v%d" % number for number in range(500))
