"""Tests of each pipeline on one broker with embedded coordination and, unchanged, on three brokers with etcd."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from fairlead.blocking import Admin, Consumer, Producer
from fairlead.settings import KIB, MIB
from fairlead_spark.jobs import Job
from fairlead_spark.jobs.running import JobRun, JobSummary
from fairlead_spark.pipelines import find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2013, 6, 1, tzinfo=UTC)
LARGE_BYTES = 12 * MIB
"""Size of a record that is larger than the default limit of a created topic."""
CARRIERS = ("UA", "AA", "B6")
# The time limit of the first test includes the starts of Spark and of etcd.
pytestmark = pytest.mark.timeout(600)
further = [pytest.mark.etcd, pytest.mark.scenario]
each_cluster = pytest.mark.parametrize("cluster", ["bootstrap", pytest.param("three_on_etcd", marks=further)])


@pytest.mark.scenario
@each_cluster
def test_flights_in_windows(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Flights within the watermark are in their windows, later flights are counted, and others become dead letters."""
    address, output = request.getfixturevalue(cluster), f"{topic}-windows"
    flights = shuffled(
        [flight(CARRIERS[n % 3], START + timedelta(seconds=5 * n), n % 7) for n in range(1200)]
    )
    rubbish = [b"rubbish", b'{"carrier": "UA"}', b'{"carrier": "UA", "time_hour": "yesterday"}']
    options = {"input": topic, "output": output, "window": "1 minute", "watermark": "1 minute"}
    with Admin(address) as admin:
        admin.create_topic(topic, partitions=3)

    def go_on(values: Sequence[bytes]) -> JobSummary:
        send(address, topic, values)
        return run(spark, address, "flight_windows", options, tmp_path / "checkpoint")

    # Records are at most 30 seconds out of order in the topic, and the restart happens in the middle.
    first = go_on([*flights[:800], *rubbish])
    # Each of three carriers has a late flight in a separate window, which the first run has written.
    late = [flight(carrier, START + timedelta(minutes=number), 1) for number, carrier in enumerate(CARRIERS)]
    second = go_on([*flights[800:], *late, flight("UA", START + timedelta(hours=9), 0)])

    expected = in_windows([json.loads(value) for value in flights])
    written = [json.loads(value) for _, _, value, _, _ in rows(address, output)]
    keyed = {
        (row["carrier"], datetime.fromisoformat(row["window_start"])): (
            row["flights"],
            row["delayed"],
            row["minutes"],
        )
        for row in written
    }
    letters = rows(address, f"{topic}.dead-letters")
    origins = {
        value: {name.removeprefix("dead-letter."): told.decode() for name, told in headers}
        for *_, value, headers, _ in letters
    }
    with Admin(address) as admin:
        lag = admin.group_lag("job-flight_windows")

    assert keyed == expected
    assert len(written) == len(expected)
    assert (first.counts.dead_letters, second.counts.dead_letters) == (3, 0)
    assert (first.counts.late, second.counts.late) == (0, 3)
    assert (first.counts.records, second.counts.records) == (800 + 3, 400 + 4)
    assert first.query_id == second.query_id
    assert origins.keys() == set(rubbish)
    assert origins[rubbish[1]]["reason"] == "no field time_hour"
    assert {told["topic"] for told in origins.values()} == {topic}
    assert {told["pipeline"] for told in origins.values()} == {"flight_windows"}
    assert all(told["offset"].isdecimal() for told in origins.values())
    assert [place.lag_records for place in lag.lag if place.topic == topic] == [0, 0, 0]


@pytest.mark.scenario
@each_cluster
def test_sessions_of_users(
    spark: SparkSession, cluster: str, topic: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Clicks of a user form one session until a pause that is longer than the gap."""
    address, chance = request.getfixturevalue(cluster), Random(4)
    clicks = []
    for user in range(20):
        at = START + timedelta(seconds=user)
        for _ in range(chance.randrange(5, 40)):
            at += timedelta(minutes=chance.choice([1, 2, 5, 45]))
            clicks.append({"user": f"u{user}", "page": f"/{chance.randrange(9)}", "at": at.isoformat()})
    clicks.sort(key=operator.itemgetter("at"))
    # This click ends all earlier sessions, and its own session stays open.
    clicks.append({"user": "last", "page": "/", "at": (START + timedelta(days=9)).isoformat()})
    options = {"input": topic, "output": f"{topic}-sessions", "gap": "30 minutes"}

    unusable = [{"user": "u1"}, {"user": "u1", "at": 9223372036854}]
    send(address, topic, [json.dumps(click).encode() for click in [*clicks, *unusable]])
    summary = run(spark, address, "sessions", options, tmp_path / "checkpoint")

    told = [json.loads(value) for _, _, value, _, _ in rows(address, f"{topic}-sessions")]
    found = Counter(
        (row["user"], row["first"], row["last"], row["clicks"], row["entry"], row["exit"]) for row in told
    )
    assert found == Counter(by_hand(clicks[:-1], timedelta(minutes=30)))
    assert summary.counts.dead_letters == len(unusable)
    assert summary.counts.records == len(clicks) + len(unusable)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("bootstrap", "bootstrap"),
        pytest.param("bootstrap", "three_on_etcd", marks=further),
        pytest.param("three_on_etcd", "bootstrap", marks=further),
    ],
)
def test_mirror(
    spark: SparkSession,
    source: str,
    target: str,
    topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Copies have the key, value, headers, timestamp, partition and order of the records, even after a restart."""
    address, other, more = request.getfixturevalue(source), request.getfixturevalue(target), f"{topic}-more"
    with Admin(address) as admin:
        admin.create_topic(topic, partitions=4)
        admin.create_topic(more, partitions=1)
    options = {"topics": f"{topic},{more}", "target": other, "prefix": "copy-"}

    def fill(first: int) -> None:
        with Producer(address) as producer:
            for number in range(first, first + 300):
                key = None if number % 5 == 0 else b"k%d" % (number % 17)
                headers = [("n", b"%d" % number), ("n", b"")] if number % 3 else None
                at = START + timedelta(milliseconds=number)
                value = None if number % 11 == 0 else b"v%d" % number
                producer.send(topic, value, key=key, headers=headers, timestamp=at)
                producer.send(more, b"m%d" % number)
            producer.flush()

    fill(0)
    first = run(spark, address, "mirror", options, tmp_path / "checkpoint")
    fill(300)
    second = run(spark, address, "mirror", options, tmp_path / "checkpoint")

    assert rows(other, f"copy-{topic}") == rows(address, topic)
    assert rows(other, f"copy-{more}") == rows(address, more)
    assert first.counts.records == second.counts.records == 600


@pytest.mark.scenario
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_large_record_that_does_not_parse_stops_no_pipeline(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, codec: str
) -> None:
    """A record that fits its topic also fits the topic of dead letters and the copy of a mirror."""
    with Admin(bootstrap) as admin:
        admin.create_topic(topic, partitions=1, config={"max.message.bytes": LARGE_BYTES + KIB})
    with Producer(bootstrap, compression=codec, batch_bytes=LARGE_BYTES) as producer:
        producer.send(topic, b"x" * LARGE_BYTES)
        producer.flush()

    windows = {"input": topic, "output": f"{topic}-windows"}
    counted = run(spark, bootstrap, "flight_windows", windows, tmp_path / "windows")
    copies = {"topics": topic, "target": bootstrap, "prefix": "copy-"}
    mirrored = run(spark, bootstrap, "mirror", copies, tmp_path / "mirror")
    letters = [value for _, _, value, _, _ in rows(bootstrap, f"{topic}.dead-letters")]
    copied = [value for _, _, value, _, _ in rows(bootstrap, f"copy-{topic}")]

    assert counted.counts.dead_letters == mirrored.counts.records == 1
    assert [len(value) for value in letters] == [len(value) for value in copied] == [LARGE_BYTES]


def run(
    spark: SparkSession, address: str, pipeline: str, options: Mapping[str, str], checkpoint: Path
) -> JobSummary:
    """Run the pipeline on all available records."""
    told: list[str] = []
    job = Job(
        pipeline=find(pipeline),
        options={**options, "bootstrap": address},
        checkpoint=str(checkpoint),
        once=True,
    )
    return JobRun(spark, job, told.append).run()


def send(address: str, topic: str, values: Sequence[bytes]) -> None:
    """Write values to a topic."""
    with Producer(address) as producer:
        for value in values:
            producer.send(topic, value, key=b"a")
        producer.flush()


Row = tuple[int, bytes | None, Any, list[tuple[str, bytes]], datetime]


def rows(address: str, topic: str) -> list[Row]:
    """Return every record of a topic ordered by partition and offset: partition, key, value, headers, time."""
    found: list[tuple[int, int, Row]] = []
    with Consumer(address) as consumer:
        consumer.assign(topic=topic)
        for batch in consumer.batches(until=consumer.end_offsets()):
            found += [
                (
                    record.partition,
                    record.offset,
                    (
                        record.partition,
                        record.key,
                        record.value,
                        list(record.headers or ()),
                        record.timestamp,
                    ),
                )
                for record in batch
            ]
    return [row for _, _, row in sorted(found, key=operator.itemgetter(0, 1))]


def flight(carrier: str, at: datetime, delay: int) -> bytes:
    """Return the record of a flight; every seventh flight was cancelled and has no delay."""
    told = {"carrier": carrier, "dep_delay": delay or None, "time_hour": at.isoformat(), "origin": "JFK"}
    return json.dumps(told).encode()


def shuffled(flights: Sequence[bytes]) -> list[bytes]:
    """Move a fifth of the flights back by up to six flights, which are 30 seconds of event time."""
    chance = Random(3)
    places = [
        number + (chance.randrange(1, 7) if chance.random() < 0.2 else 0.0) for number in range(len(flights))
    ]
    return [flights[number] for number in sorted(range(len(flights)), key=places.__getitem__)]


def in_windows(flights: Sequence[Mapping[str, Any]]) -> dict[tuple[str, datetime], tuple[int, int, float]]:
    """Count flights, known delays and minutes of delay by carrier and minute."""
    sums: dict[tuple[str, datetime], tuple[int, int, float]] = {}
    for each in flights:
        key = (each["carrier"], datetime.fromisoformat(each["time_hour"]).replace(second=0))
        count, delayed, minutes = sums.get(key, (0, 0, 0.0))
        delay = each["dep_delay"]
        sums[key] = (count + 1, delayed + (delay is not None), minutes + (delay or 0))
    return sums


def by_hand(
    clicks: Sequence[Mapping[str, str]], gap: timedelta
) -> Iterator[tuple[str, str, str, int, str, str]]:
    """Compute sessions from clicks in order of time."""
    for user in {click["user"] for click in clicks}:
        session: list[Mapping[str, str]] = []
        for click in [*(each for each in clicks if each["user"] == user), None]:
            if session and (
                click is None
                or datetime.fromisoformat(click["at"]) - datetime.fromisoformat(session[-1]["at"]) > gap
            ):
                first, last = (each["at"].replace("+00:00", "Z") for each in (session[0], session[-1]))
                yield user, first, last, len(session), session[0]["page"], session[-1]["page"]
                session = []
            if click is not None:
                session.append(click)
