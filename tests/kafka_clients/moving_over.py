"""A move of programs from Kafka to brokers with a Kafka listener, with MirrorMaker 2, under load.

    python tests/kafka_clients/moving_over.py [--seconds 20]

The program starts Apache Kafka and three brokers with etcd. A producer and a member of a group run against Kafka while
MirrorMaker 2 copies the topic and the group's offsets. Then the producer stops, MirrorMaker copies the remaining
records, and producer and member start again with the brokers' addresses. The JSON report contains the number of
acknowledged records, of records that the group never read, which must be 0, and of records that it read more than once:
MirrorMaker translates offsets only for some records, so the group begins a little before its last commit.
`make prove PROVE=kafka-move` records the report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parents[1]
for part in ("plugins", "plugins/brokers", "plugins/programs", "faults", "checker", "etcd", "chaos"):
    sys.path.insert(0, str(TESTS / part))

import structlog
from broker_failures import LibrdkafkaProducer
from client_programs import cache
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from java_clients import BENCHMARKS, fetched
from peers.brokers import KAFKA_VERSION, KafkaPeer, fetch_jars, fetch_kafka

from chaos_cluster import chaos_cluster
from waiting import pause_blocking, until

TOPIC: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 4
SECONDS_MAX: Final = 180.0
MIRROR: Final = """
clusters = kafka, fairlead
kafka.bootstrap.servers = {source}
fairlead.bootstrap.servers = {target}
kafka->fairlead.enabled = true
fairlead->kafka.enabled = false
topics = {topic}
groups = {group}
replication.policy.class = org.apache.kafka.connect.mirror.IdentityReplicationPolicy
sync.group.offsets.enabled = true
sync.group.offsets.interval.seconds = 1
emit.checkpoints.interval.seconds = 1
refresh.topics.interval.seconds = 2
refresh.groups.interval.seconds = 2
offset.lag.max = 10
sync.topic.acls.enabled = false
replication.factor = 3
kafka.offset.storage.replication.factor = 1
kafka.config.storage.replication.factor = 1
kafka.status.storage.replication.factor = 1
kafka.offset-syncs.topic.replication.factor = 1
offset-syncs.topic.replication.factor = 1
checkpoints.topic.replication.factor = 3
heartbeats.topic.replication.factor = 3
fairlead.producer.acks = all
"""


def mirror_jars() -> str:
    """Return the class path of MirrorMaker 2, after downloading missing jars."""
    definition = Path(__file__).parent / "java/connect-mirror.xml"
    jars = fetched(lambda: fetch_jars(definition, cache() / f"connect-mirror-{KAFKA_VERSION}"))
    return f"{BENCHMARKS / 'peers/kafka'}:{jars}/*"


class Member:
    """A member of the group in a thread, which commits what it has read."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe([TOPIC])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._ending.is_set():
            messages = [each for each in self._consumer.consume(500, 0.2) if each.error() is None]
            self.values += [(each.value() or b"").decode() for each in messages]
            if messages:
                self._consumer.commit(asynchronous=False)
        self._consumer.close()

    def stop(self) -> None:
        """Leave the group and end the thread."""
        self._ending.set()
        self._thread.join()


@contextmanager
def mirror(folder: Path, source: str, target: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run MirrorMaker 2 from one cluster to another until the end of the block."""
    properties = folder / "mirror.properties"
    properties.write_text(MIRROR.format(source=source, target=target, topic=TOPIC, group=GROUP))
    command = ["java", "-Xmx512m", "-cp", mirror_jars(), "org.apache.kafka.connect.mirror.MirrorMaker"]
    with (folder / "mirror.log").open("wb") as log:
        process = subprocess.Popen([*command, str(properties)], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ends(bootstrap: str) -> list[int]:
    """Return the number of records in each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return [consumer.get_watermark_offsets(place, 10)[1] for place in places]
    finally:
        consumer.close()


def committed(bootstrap: str) -> int:
    """Return the sum of the group's committed offsets."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        places = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        return sum(max(each.offset, 0) for each in consumer.committed(places, 10))
    finally:
        consumer.close()


def wait(met: Any, what: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for a condition; raise `RuntimeError` with the end of MirrorMaker's log."""
    deadline = time.monotonic() + SECONDS_MAX
    while not met():
        if time.monotonic() > deadline or process.poll() is not None:
            message = f"{what}: {(folder / 'mirror.log').read_text()[-2000:]}"
            raise RuntimeError(message)
        pause_blocking(0.5)


def move(folder: Path, kafka: str, fairlead: str, seconds: float) -> dict[str, Any]:
    """Move a producer and a group from Kafka to the brokers; return the figures."""
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    with mirror(folder, kafka, fairlead) as process:
        producer, member = LibrdkafkaProducer(kafka, TOPIC), Member(kafka)
        try:
            wait(lambda: sum_of_copied(fairlead) > 0, "nothing was copied", process, folder)
            wait(lambda: committed(fairlead) > 0, "no group offset was copied", process, folder)
            loaded = time.monotonic() + seconds
            wait(lambda: time.monotonic() > loaded, "the load ended", process, folder)
        finally:
            member.stop()
            producer.stop()
        begun = time.monotonic()
        wait(lambda: ends(fairlead) == ends(kafka), "the rest was not copied", process, folder)
        read = committed(kafka)
        wait(lambda: committed(fairlead) >= read - 10 * PARTITIONS - 1000, "offsets lag", process, folder)
        seconds_stopped = time.monotonic() - begun
        translated = committed(fairlead)
    newer, successor = LibrdkafkaProducer(fairlead, TOPIC, prefix="new-"), Member(fairlead)
    try:
        asyncio.run(until(lambda: len(newer.acknowledged.records) >= 1000, SECONDS_MAX))
    finally:
        newer.stop()
    wanted = {value for each in (producer, newer) for _, _, value in each.acknowledged.records}
    with suppress(TimeoutError):
        asyncio.run(until(lambda: wanted <= {*member.values, *successor.values}, 60))
    successor.stop()
    times = Counter([*member.values, *successor.values])
    moved = {value for _, _, value in producer.acknowledged.records}
    return {
        "acknowledged_by_kafka": len(producer.acknowledged.records),
        "acknowledged_by_fairlead": len(newer.acknowledged.records),
        "given_up": len(producer.acknowledged.errors) + len(newer.acknowledged.errors),
        "read_from_kafka": len(set(member.values)),
        "group_offset_in_kafka": read,
        "group_offset_translated": translated,
        "never_read": len(wanted - set(times)),
        "read_more_than_once": sum(count > 1 for value, count in times.items() if value in moved),
        "new_records_read_more_than_once": sum(
            count > 1 for value, count in times.items() if value not in moved
        ),
        "seconds_without_producer": round(seconds_stopped, 1),
    }


def sum_of_copied(fairlead: str) -> int:
    """Return the number of copied records; 0 before MirrorMaker has created the topic."""
    found = AdminClient({"bootstrap.servers": fairlead}).list_topics(timeout=10)
    if TOPIC not in found.topics or len(found.topics[TOPIC].partitions) < PARTITIONS:
        return 0
    return sum(ends(fairlead))


async def run(seconds: float) -> dict[str, Any]:
    """Start both systems and move the programs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jars = fetched(lambda: fetch_kafka(cache()))
        kafka = await asyncio.to_thread(KafkaPeer.start, folder, jars)
        try:
            async with chaos_cluster(folder / "cluster", relayed=False, kafka=True) as cluster:
                return await asyncio.to_thread(
                    move, folder, kafka.bootstrap, cluster.kafka_bootstrap, seconds
                )
        finally:
            await asyncio.to_thread(kafka.stop)


def main(arguments: list[str]) -> int:
    """Run the program; return 0 if the group has read every acknowledged record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="seconds of load while records are copied")
    options = parser.parse_args(arguments)
    # Standard output contains the report alone.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures = asyncio.run(run(options.seconds))
    print(json.dumps(figures, indent=2))
    return int(bool(figures["never_read"] or figures["given_up"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
