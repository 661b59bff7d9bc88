"""Brokers are restarted and killed while Kafka producers write: acknowledged records are stored exactly once.

    python tests/kafka_clients/broker_failures.py [--rounds 3]

The program runs three brokers with etcd, and one idempotent producer at a time: librdkafka, and Kafka's Java client in
VerifiableProducer. While each producer writes, every broker is restarted gracefully, one after another, and then the
leader of a partition is killed with SIGKILL, several times. The JSON report contains, for each producer and fault, the
number of acknowledged records, the numbers of lost and repeated records, which must be 0, and the longest time without
an acknowledgement. `make prove PROVE=kafka-failures` records the report.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

TESTS: Final = Path(__file__).parents[1]
for part in ("plugins", "plugins/brokers", "plugins/programs", "faults", "checker", "etcd", "chaos"):
    sys.path.insert(0, str(TESTS / part))

import structlog
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from java_clients import newest_jars

from chaos_cluster import ChaosCluster, Node, call, chaos_cluster, http_client
from waiting import until

PARTITIONS: Final = 4
REPLICAS: Final = 3
RECORDS_PER_SECOND: Final = 500
SETTLED_RECORDS: Final = 500
"""Number of records that must be acknowledged before a fault and after it."""
SECONDS_MAX: Final = 120.0


@dataclass(slots=True)
class Acknowledged:
    """Records that a producer has acknowledged; a producer appends from a separate thread."""

    records: list[tuple[int, int, str]] = field(default_factory=list)
    """Partition, offset and value of each record."""
    at: list[float] = field(default_factory=list)
    """Time of each acknowledgement, in seconds."""
    errors: list[str] = field(default_factory=list)
    """Messages of records that the producer gave up."""

    def add(self, partition: int, offset: int, value: str) -> None:
        """Add a record that was acknowledged now."""
        self.records.append((partition, offset, value))
        self.at.append(time.monotonic())

    @property
    def longest_pause_seconds(self) -> float:
        """Return the longest time between two acknowledgements."""
        return max(later - earlier for earlier, later in zip(self.at, self.at[1:], strict=False))


class RunningProducer(Protocol):
    """A producer that sends until it is stopped."""

    acknowledged: Acknowledged

    def stop(self) -> None:
        """Wait for the acknowledgements of all records, and end the producer."""
        ...


class LibrdkafkaProducer:
    """An idempotent producer of librdkafka in a thread."""

    name: Final = "librdkafka"

    def __init__(self, bootstrap: str, topic: str, prefix: str = "") -> None:
        self.acknowledged = Acknowledged()
        self._topic = topic
        self._prefix = prefix
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 120_000}
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        number, begun = 0, time.monotonic()
        while not self._ending.is_set():
            while number < (time.monotonic() - begun) * RECORDS_PER_SECOND:
                self._producer.produce(self._topic, f"{self._prefix}{number}", on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.acknowledged.errors.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.acknowledged.add(partition, offset, value.decode())

    def stop(self) -> None:
        """Wait for the acknowledgements of all records, and end the thread."""
        self._ending.set()
        self._thread.join()
        assert self._producer.flush(SECONDS_MAX) == 0, "records were neither acknowledged nor given up"


class JavaProducer:
    """Kafka's VerifiableProducer with an idempotent producer that retries."""

    name: Final = "Java"

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged = Acknowledged()
        self._settings = tempfile.NamedTemporaryFile("w", suffix=".properties")  # noqa: SIM115 - deleted in `stop`
        self._settings.write("retries=2147483647\nenable.idempotence=true\n")
        self._settings.flush()
        command = ["java", "-Xmx256m", "-cp", newest_jars(), "org.apache.kafka.tools.VerifiableProducer"]
        command += [
            "--bootstrap-server",
            bootstrap,
            "--topic",
            topic,
            "--command-config",
            self._settings.name,
        ]
        command += ["--throughput", str(RECORDS_PER_SECOND), "--acks", "-1"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("name") == "producer_send_success":
                self.acknowledged.add(event["partition"], event["offset"], event["value"])
            elif event.get("name") == "producer_send_error":
                self.acknowledged.errors.append(event["message"])

    def stop(self) -> None:
        """End the program, which waits for the acknowledgements of its records."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(SECONDS_MAX)
        self._thread.join()
        self._settings.close()


PRODUCERS: Final = (LibrdkafkaProducer, JavaProducer)
Fault = Callable[[ChaosCluster, str, int], Awaitable[None]]


async def restart_brokers(cluster: ChaosCluster, topic: str, rounds: int) -> None:
    """Stop and start each broker, one at a time; continue once all replicas are in sync."""
    del rounds
    for node in cluster.nodes:
        assert await cluster.stop(node) == [0], f"{node.name} did not stop gracefully"
        await cluster.start(node)
        await in_sync(cluster, topic)


async def kill_leaders(cluster: ChaosCluster, topic: str, rounds: int) -> None:
    """Kill the leader of partition 0 several times, and start it when the partition has another leader."""
    for _ in range(rounds):
        killed = await leader(cluster, topic)
        await cluster.kill(killed)
        await cluster.wait_for_partitions(
            topic, lambda each, old=killed: each.leader not in {None, old.number}
        )
        await cluster.start(killed)
        await in_sync(cluster, topic)


FAULTS: Final[dict[str, Fault]] = {"rolling restart": restart_brokers, "leader killed": kill_leaders}


async def leader(cluster: ChaosCluster, topic: str) -> Node:
    """Return the leader of partition 0."""
    found = await cluster.wait_for_partitions(topic, lambda each: each.leader is not None)
    number = found[0].leader
    assert number is not None
    return cluster.node(int(number))


async def in_sync(cluster: ChaosCluster, topic: str) -> None:
    """Wait until all replicas of the topic are in sync."""
    await cluster.wait_for_partitions(
        topic, lambda each: each.leader is not None and len(each.isr) == REPLICAS
    )


async def run_fault(cluster: ChaosCluster, kind: type[Any], fault_name: str, rounds: int) -> dict[str, Any]:
    """Run a fault while a producer writes; compare acknowledged and stored records, and return the figures."""
    topic = f"{kind.name}-{fault_name.replace(' ', '-')}"
    body = {
        "name": topic,
        "partitions": PARTITIONS,
        "replication_factor": REPLICAS,
        "config": {"min.insync.replicas": 2},
    }
    async with http_client() as client:
        answer = await call(client, "POST", f"{cluster.urls[0]}/v1/topics", body)
    assert answer.status == 201, answer.body
    await in_sync(cluster, topic)
    producer: RunningProducer = await asyncio.to_thread(kind, cluster.kafka_bootstrap, topic)
    try:
        await acknowledged(producer, SETTLED_RECORDS)
        begun = time.monotonic()
        await FAULTS[fault_name](cluster, topic, rounds)
        seconds = time.monotonic() - begun
        await acknowledged(producer, len(producer.acknowledged.records) + SETTLED_RECORDS)
    finally:
        await asyncio.to_thread(producer.stop)
    stored = await asyncio.to_thread(stored_records, cluster.kafka_bootstrap, topic)
    known = producer.acknowledged
    times = Counter(value for _, _, value in stored)
    return {
        "producer": kind.name,
        "fault": fault_name,
        "faults": len(cluster.nodes) if fault_name == "rolling restart" else rounds,
        "seconds": round(seconds, 1),
        "acknowledged": len(known.records),
        "stored": len(stored),
        "lost": len(set(known.records) - set(stored)),
        "repeated": sum(count - 1 for count in times.values()),
        "given_up": len(known.errors),
        "longest_pause_seconds": round(known.longest_pause_seconds, 2),
        "messages": sorted(set(known.errors))[:3],
    }


async def acknowledged(producer: RunningProducer, count: int) -> None:
    """Wait until a producer has acknowledged a number of records."""
    await until(lambda: len(producer.acknowledged.records) >= count, SECONDS_MAX)


def stored_records(bootstrap: str, topic: str) -> list[tuple[int, int, str]]:
    """Return partition, offset and value of every stored record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found, ended = [], set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"{len(ended)} of {PARTITIONS} partitions were read to their ends"
        for message in consumer.consume(10_000, 0.5):
            error = message.error()
            if error is None:
                found.append((message.partition(), message.offset(), (message.value() or b"").decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    consumer.close()
    return found


def is_kept(figures: dict[str, Any]) -> bool:
    """Return whether no acknowledged record is lost and no record is stored twice."""
    return not (figures["lost"] or figures["repeated"] or figures["given_up"])


async def run_all(rounds: int) -> list[dict[str, Any]]:
    """Run every fault with every producer; return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        async with chaos_cluster(Path(folder), relayed=False, kafka=True) as cluster:
            figures = []
            for kind in PRODUCERS:
                for fault in FAULTS:
                    figures.append(await run_fault(cluster, kind, fault, rounds))
                    print(figures[-1], file=sys.stderr, flush=True)
            return figures


def main(arguments: list[str]) -> int:
    """Run the program; return 0 if no record was lost, repeated or given up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="kills of a leader under each producer")
    options = parser.parse_args(arguments)
    # Standard output contains the report alone.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures = asyncio.run(run_all(options.rounds))
    print(json.dumps({"brokers": 3, "records_per_second": RECORDS_PER_SECOND, "runs": figures}, indent=2))
    return int(not all(map(is_kept, figures)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
