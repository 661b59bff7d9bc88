"""The jobs `from_kafka` and `compare_kafka`, run by the command line between Apache Kafka and a broker.

The jobs run in the environment of the oldest supported PySpark, for which Kafka's connector is published. Maven
downloads Kafka and the connector into the user's cache, so the test is a scenario. The commands are those of
docs/how-to/kafka-move.md, with other addresses.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from client_programs import cache
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPlace
from confluent_kafka.admin import AdminClient, NewTopic
from java_clients import fetched
from peers.brokers import KafkaPeer, fetch_kafka
from peers.spark_driver import CONNECTOR as CONNECTOR_VERSION
from peers.spark_driver import fetch_connector

from checkout import ROOT
from fairlead.blocking import Admin, Consumer
from fairlead.errors import TopicNotFoundError
from fairlead_spark.pipelines.kafka_cluster import CONNECTOR
from figures import keep_figures
from page_kit import blocks
from quick_java import LIGHT_VARIABLES
from spark_session import QUICK_WORKERS
from waiting import pause_blocking

PAGE = (ROOT / "docs/how-to/kafka-move.md").read_text(encoding="utf-8")
OLDEST = ROOT / ".venv" / "spark-oldest" / "bin"
PARTITIONS = 3
RECORDS = 3000
SECONDS_MAX = 300
CONFIG = {"retention.ms": "-1"}
"""Configuration of the topic in Kafka. The records are old, and would expire with the default."""
GROUPS = {"kafka-billing": {0: 500, 1: 7, 2: 1000}, "kafka-audit": {0: 1, 2: 0}}
"""Committed offsets in Kafka by group and partition."""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaPeer]:
    """Yield a node of Apache Kafka."""
    jars = fetched(lambda: fetch_kafka(cache()))
    node = KafkaPeer.start(tmp_path, jars)
    try:
        yield node
    finally:
        node.stop()


class Jobs:
    """The commands of the page, with other addresses, another topic and downloaded jars."""

    def __init__(self, kafka: str, bootstrap: str, topic: str, folder: Path) -> None:
        jars = ",".join(map(str, fetched(lambda: fetch_connector(cache()))))
        self._folder = folder
        self._environment = {**os.environ, **QUICK_WORKERS, **LIGHT_VARIABLES}
        self._environment |= {"PYSPARK_PYTHON": str(OLDEST / "python"), "FAIRLEAD_BOOTSTRAP": bootstrap}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        instead = {"topics=orders": f"topics={topic}", "kafka=kafka-1:9092": f"kafka={kafka}"}
        instead[f"spark.jars.packages={CONNECTOR}:{CONNECTOR_VERSION}"] = f"spark.jars={jars}"
        self._commands = {
            words[3]: [instead.get(word, word) for word in words[1:]]
            for block in blocks(PAGE, "sh")
            for words in (shlex.split(block.text),)
        }
        for words in self._commands.values():
            assert {*instead.values()} <= {*words}

    def start(self, name: str, *more: str) -> subprocess.Popen[str]:
        """Start a job in a process group of its own, with its standard error in a file."""
        words = [*self._commands[name], "--master", "local[2]", "--conf", "spark.driver.memory=600m"]
        with (self._folder / "stderr").open("w") as errors:
            return subprocess.Popen(
                [str(OLDEST / "fairlead"), *words, *more, "--output", "json"],
                cwd=self._folder,
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def run(self, name: str, *more: str, code: int = 0) -> dict[str, int]:
        """Run a job to its end; return the printed figures."""
        job = self.start(name, *more)
        try:
            printed, _ = job.communicate(timeout=SECONDS_MAX)
        finally:
            kill(job)
        assert job.returncode == code, (self._folder / "stderr").read_text()[-4000:]
        figures: dict[str, int] = json.loads(printed)
        return figures


def kill(job: subprocess.Popen[str]) -> None:
    """Kill the processes of a job that still run."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.communicate()


def fill(bootstrap: str, topic: str) -> None:
    """Write records of every kind, of which the records of an aborted transaction must not be copied."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=CONFIG)])[topic].result(30)
    producer = KafkaProducer({"bootstrap.servers": bootstrap, "transactional.id": "orders"})
    producer.init_transactions(30)
    for first in range(0, RECORDS, 500):
        producer.begin_transaction()
        for number in range(first, first + 500):
            producer.produce(
                topic,
                None if number % 11 == 0 else b"v%d" % number,
                key=None if number % 5 == 0 else b"k%d" % (number % 17),
                partition=number % PARTITIONS,
                timestamp=1_700_000_000_000 + number,
                headers=[("n", b"%d" % number), ("n", None)] if number % 3 else None,
            )
        producer.commit_transaction(30)
        producer.begin_transaction()
        producer.produce(topic, b"aborted", partition=0)
        producer.abort_transaction(30)
    for group, offsets in GROUPS.items():
        consumer = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": group})
        places = [KafkaPlace(topic, partition, offset) for partition, offset in offsets.items()]
        commit(consumer, places)
        consumer.close()


def commit(consumer: KafkaConsumer, places: list[KafkaPlace]) -> None:
    """Commit offsets; repeat the request while the node loads its group coordinator."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            consumer.commit(offsets=places, asynchronous=False)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            pause_blocking(0.2)
        else:
            return


def stored_in(admin: Admin, topic: str) -> int:
    """Return the number of records in a topic; 0 before the job has created the topic."""
    try:
        return sum(admin.offsets(topic, partition).high_watermark for partition in range(PARTITIONS))
    except TopicNotFoundError:
        return 0


def logs(bootstrap: str, topic: str) -> dict[int, dict[int, tuple[int, bytes | None]]]:
    """Return the offset in Kafka and the value of each record, by partition and offset."""
    found: dict[int, dict[int, tuple[int, bytes | None]]] = defaultdict(dict)
    with Consumer(bootstrap) as consumer:
        consumer.assign(topic=topic)
        for batch in consumer.batches(until=consumer.end_offsets()):
            for record in batch:
                name, value = record.headers[-1]
                assert name == "kafka-offset"
                assert value is not None
                found[batch.partition][record.offset] = int(value), record.value
    return found


@pytest.mark.scenario
@pytest.mark.timeout(4 * SECONDS_MAX)
def test_a_topic_of_kafka_is_copied_compared_and_its_groups_continue(
    kafka: KafkaPeer, bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """A killed copy continues from its checkpoint, no record is missing or changed, and groups skip no record."""
    fill(kafka.bootstrap, topic)
    jobs = Jobs(kafka.bootstrap, bootstrap, topic, tmp_path)
    killed = jobs.start("from-kafka", "--option", "maxOffsetsPerTrigger=300")
    try:
        with Admin(bootstrap) as admin:
            while stored_in(admin, topic) < 300:
                assert killed.poll() is None, (tmp_path / "stderr").read_text()[-4000:]
                pause_blocking(0.1)
    finally:
        kill(killed)
    jobs.run("from-kafka", "--once")
    compared = jobs.run("compare-kafka")
    producer = KafkaProducer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"late", partition=1)
    assert producer.flush(30) == 0
    late = jobs.run("compare-kafka", code=1)

    log = logs(bootstrap, topic)
    values = {value for records in log.values() for _, value in records.values()}
    with (tmp_path / "offsets.csv").open() as file:
        rows = list(csv.DictReader(file))
    told = {
        (row["group"], int(row["partition"])): (int(row["kafka_offset"]), int(row["offset"])) for row in rows
    }
    expected = {
        (group, partition): (
            offset,
            min(here for here, (there, _) in log[partition].items() if there >= offset),
        )
        for group, offsets_of_group in GROUPS.items()
        for partition, offset in offsets_of_group.items()
    }
    with Admin(bootstrap) as admin:
        committed = {
            (group, place.partition): offset.offset
            for group in GROUPS
            for place, offset in admin.group_offsets(group).items()
        }
        retention = admin.describe_topic(topic).config["retention.ms"].value

    stored = sum(map(len, log.values()))
    keep_figures(compared)
    assert compared["records"] == compared["copied"] == RECORDS
    assert compared["missing"] == compared["changed"] == compared["not_copied_yet"] == 0
    assert compared["repeated"] == stored - RECORDS
    assert compared["translated_offsets"] == len(expected)
    assert values == {None, *(b"v%d" % number for number in range(RECORDS) if number % 11)}
    assert str(retention) == CONFIG["retention.ms"]
    assert told == expected
    assert committed == {place: here for place, (_, here) in expected.items()}
    assert (late["records"], late["not_copied_yet"], late["missing"]) == (RECORDS + 1, 1, 0)
