"""Parts of `make bench` for compacted topics: Fairlead's cleaner and Kafka's, rebuilt tables, writes during cleaning.

Both sides store the same records (keys of 16 to 40 bytes, values of 100 bytes, a tenth of the keys distinct, in random
order) in a topic whose records are too young to be cleaned. Then the topic's `min.compaction.lag.ms` is lowered, and
the time until the whole log is cleaned is measured, with the processor time of the broker and its child process. A
final record makes Kafka close the previous segment, since Kafka closes a segment only when it appends a record. The
brokers run one after the other, so that the disk has to hold only one of the logs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pairing import Pairs, table
from peers.awake import awake_processors
from peers.brokers import FairleadPeer, KafkaPeer, PeerProcess, alone, both_peers, cpu_seconds, fetch_kafka

from fairlead import Admin, Producer, Table
from fairlead_api.batch.header import Codec

CODECS = ("none", "lz4", "zstd")
VALUE = bytes(range(100))
HELD = 2**62
"""Value of `min.compaction.lag.ms`, in milliseconds, that prevents all cleaning."""
SEGMENT_BYTES = 64 << 20
PART_RECORDS = 100_000
"""Number of records that are prepared together."""
LARGE_FACTOR = 14
"""Number by which the requested number of records is multiplied for a large log: 5,000,000 records become 10 GB."""
CLEANED_RATIO_MIN = 1.5
REBUILD_RATIO_MIN = 3.0
LATENCY_RATIO_MAX = 1.3
CLEANED_TOPICS = 2
"""Number of topics that are cleaned one after the other in a round of the measurement."""
CLEANED_SECONDS_MAX = 1800.0
LOOK_SECONDS = 0.1
SLICE_SECONDS = 0.25
"""Duration of each slice of a round in which writes are measured, with the round running or paused."""
WARMING_WRITES = 200
"""Number of writes before the measurement."""
TOPIC = "table"
COMPACTED: dict[str, str | int] = {
    "cleanup.policy": "compact",
    "segment.bytes": SEGMENT_BYTES,
    "min.compaction.lag.ms": HELD,
    "min.cleanable.dirty.ratio": "0.01",
}
"""Configuration of the cleaned topic. With the default dirty ratio, the last part of a large log would stay dirty."""


@dataclass(frozen=True, slots=True)
class KeyedRecords:
    """Records of which a tenth of the keys are distinct, in random order, the same in every run."""

    count: int

    def key_columns(self) -> Iterator[pa.BinaryArray]:
        """Yield the keys in parts."""
        rng = random.Random(25)
        drawn = np.random.default_rng(25)
        distinct = [b"%032x" % rng.getrandbits(128) for _ in range(max(1, self.count // 10))]
        names = pa.array(
            (key[: 16 + number % 17] + b"x" * (number % 8) for number, key in enumerate(distinct)),
            pa.binary(),
        )
        for start in range(0, self.count, PART_RECORDS):
            yield names.take(drawn.integers(0, len(names), min(PART_RECORDS, self.count - start)))

    async def write(self, producer: Producer, topic: str) -> None:
        """Write all records to a topic."""
        for keys in self.key_columns():
            values = pa.array([VALUE] * len(keys), pa.binary())
            for delivery in await producer.send_batch(topic, pa.table({"key": keys, "value": values})):
                await delivery


def cleaning(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure each codec on both sides in turn, for the requested number of rounds."""
    return _cleaned(KeyedRecords(options.records), options.pairs, options, folder)


def large_cleaning(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure each codec once on both sides, with a log whose keys do not fit into the memory of one round."""
    return _cleaned(KeyedRecords(options.records * LARGE_FACTOR), 1, options, folder)


def _cleaned(
    records: KeyedRecords, pairs: int, options: argparse.Namespace, folder: Path
) -> dict[str, object]:
    jars = fetch_kafka(options.cache)
    results: list[Pairs] = []
    stored: dict[str, int] = {}
    for codec in CODECS:
        rounds: list[tuple[Cleaned, Cleaned]] = []
        for number in range(pairs):
            place = folder / f"{codec}-{number}"
            place.mkdir()
            rounds.append(
                (_fairlead_cleaned(place, records, codec), _kafka_cleaned(place, jars, records, codec))
            )
        stored[codec] = rounds[0][0].stored_bytes
        for what, unit, target in (
            ("cleaned log", "MB/s", CLEANED_RATIO_MIN),
            ("records a processor second", "records/s", None),
        ):
            ours, theirs = (
                tuple(each[side].rates(records.count)[what] for each in rounds) for side in (0, 1)
            )
            results.append(Pairs(f"{what}, {codec}, {records.count:,} records", unit, ours, theirs, target))
    print(table(results))
    cases = [each.document() for each in results]
    return {"records": records.count, "stored_bytes": stored, "cases": cases}


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Outcome of the cleaning of a log."""

    stored_bytes: int
    """Size of the log before the cleaning."""
    seconds: float
    processor_seconds: float

    def rates(self, records: int) -> dict[str, float]:
        """Return the stored bytes cleaned per second, and the records cleaned per second of processor time."""
        return {
            "cleaned log": self.stored_bytes / self.seconds / 1e6,
            "records a processor second": records / max(self.processor_seconds, 1e-3),
        }


def _fairlead_cleaned(folder: Path, records: KeyedRecords, codec: str) -> Cleaned:
    settings = folder / "broker.yaml"
    settings.write_text("config_values: {log.cleaner.backoff.ms: 50}\n", encoding="ascii")
    peer = FairleadPeer.start(folder, "--config", str(settings))
    try:
        return asyncio.run(_fairlead(peer, records, codec))
    finally:
        peer.stop()


def _kafka_cleaned(folder: Path, jars: Path, records: KeyedRecords, codec: str) -> Cleaned:
    peer = KafkaPeer.start(folder, jars, settings={"log.cleaner.backoff.ms": "50"})
    try:
        return _kafka(peer, records, codec)
    finally:
        peer.stop()


async def _fairlead(peer: FairleadPeer, records: KeyedRecords, codec: str) -> Cleaned:
    async with Admin(peer.url) as admin:
        topic = await admin.create_topic(TOPIC, config=COMPACTED)
        async with Producer(
            peer.url, compression=Codec[codec.upper()], batch_bytes=500_000, linger_ms=10
        ) as producer:
            await records.write(producer, TOPIC)
            # The last segment is never cleaned, so `segment.ms` makes the next append close it.
            await admin.alter_topic(TOPIC, config={"segment.ms": 1})
            await producer.send_and_wait(TOPIC, VALUE, b"last")
        os.sync()
        stored = _log_bytes(peer, f"{topic.topic_id}/0")
        begun, used = time.monotonic(), _processor_seconds(peer)
        await admin.alter_topic(TOPIC, config={"min.compaction.lag.ms": 0})
        while not await _is_cleaned(admin, TOPIC, records.count):
            _check_time(begun)
            await asyncio.sleep(LOOK_SECONDS)
        return Cleaned(stored, time.monotonic() - begun, _processor_seconds(peer) - used)


async def _is_cleaned(admin: Admin, topic: str, end_offset: int) -> bool:
    [replica] = (await admin.describe_cleaning(topic, 0)).replicas
    return (replica.cleaned_offset or 0) >= end_offset


def _kafka(peer: KafkaPeer, records: KeyedRecords, codec: str) -> Cleaned:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    config = {key: str(value) for key, value in COMPACTED.items()}
    [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values()
    made.result()
    producer = KafkaProducer(
        {
            "bootstrap.servers": peer.bootstrap,
            "compression.type": codec,
            "batch.size": 500_000,
            "linger.ms": 10,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for part in records.key_columns():
        _produce(producer, part.to_pylist())
    producer.flush()
    _alter(admin, "segment.ms", "1")
    producer.produce(TOPIC, VALUE, b"last")
    producer.flush()
    os.sync()
    stored = _log_bytes(peer, f"{TOPIC}-0")
    begun, used = time.monotonic(), _processor_seconds(peer)
    _alter(admin, "min.compaction.lag.ms", "0")
    while _kafka_cleaned_offset(peer) < records.count:
        _check_time(begun)
        time.sleep(LOOK_SECONDS)
    return Cleaned(stored, time.monotonic() - begun, _processor_seconds(peer) - used)


def _produce(producer: KafkaProducer, keys: Iterable[bytes]) -> None:
    """Write a record for each key."""
    for key in keys:
        while True:
            try:
                producer.produce(TOPIC, VALUE, key)
            except BufferError:
                producer.poll(LOOK_SECONDS)
                continue
            break


def _kafka_cleaned_offset(peer: KafkaPeer) -> int:
    """Return the offset below which Kafka has cleaned the topic, from the file in which its cleaner records it."""
    [file] = peer.data.rglob("cleaner-offset-checkpoint")
    for line in file.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{TOPIC} 0 "):
            return int(line.rpartition(" ")[2])
    return 0


def _check_time(begun: float) -> None:
    """Raise TimeoutError if a cleaning takes too long."""
    if time.monotonic() - begun > CLEANED_SECONDS_MAX:
        raise TimeoutError(f"the log is not cleaned after {CLEANED_SECONDS_MAX} s")


def _alter(admin: AdminClient, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result()


def _log_bytes(peer: PeerProcess, folder: str) -> int:
    """Return the total size of a partition's segments, excluding new and replaced segments."""
    nbytes = 0
    for file in peer.data.rglob(f"{folder}/*.log"):
        # A segment may be replaced after it was found.
        with suppress(FileNotFoundError):
            nbytes += file.stat().st_size
    return nbytes


def _processor_seconds(peer: PeerProcess) -> float:
    """Return the processor seconds that a broker and its child processes have used."""
    return sum(cpu_seconds(pid) for pid in (peer.process.pid, *_children(peer)))


def _children(peer: PeerProcess) -> list[int]:
    """Return the process ids of a broker's child processes."""
    pid = peer.process.pid
    return [
        int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    ]


def rebuild(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure how fast a table of distinct keys is rebuilt: by `Table`, and by a loop with confluent-kafka."""
    jars = fetch_kafka(options.cache)
    count = options.records
    with both_peers(folder, jars) as (fairlead, kafka):
        alone(fairlead, (fairlead, kafka))
        asyncio.run(_fill_fairlead(fairlead, count))
        alone(kafka, (fairlead, kafka))
        _fill_kafka(kafka, count)
        ours, theirs = [], []
        for _ in range(options.pairs):
            alone(fairlead, (fairlead, kafka))
            ours.append(count / asyncio.run(_rebuilt(fairlead, count)))
            alone(kafka, (fairlead, kafka))
            theirs.append(count / _polled(kafka, count))
    pair = Pairs(
        f"rebuild of a table of {count:,} keys", "keys/s", tuple(ours), tuple(theirs), REBUILD_RATIO_MIN
    )
    print(table([pair]))
    return {"keys": count, "cases": [pair.document()]}


def _distinct_keys(count: int) -> Iterator[bytes]:
    """Yield distinct keys, the same in every run.

    The keys are not kept in a list: Python's garbage collector would search the list during the measurement.
    """
    rng = random.Random(25)
    return (b"%024x" % rng.getrandbits(96) for _ in range(count))


async def _fill_fairlead(peer: FairleadPeer, count: int) -> None:
    async with Admin(peer.url) as admin, Producer(peer.url, batch_bytes=500_000, linger_ms=10) as producer:
        await admin.create_topic(TOPIC, config={"cleanup.policy": "compact"})
        for key in _distinct_keys(count):
            await producer.send(TOPIC, VALUE, key)


def _fill_kafka(peer: KafkaPeer, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact"})]).values()
    made.result()
    producer = KafkaProducer({"bootstrap.servers": peer.bootstrap, "batch.size": 500_000, "linger.ms": 10})
    _produce(producer, _distinct_keys(count))
    producer.flush()


async def _rebuilt(peer: FairleadPeer, count: int) -> float:
    begun = time.monotonic()
    async with Table(peer.url, TOPIC) as rebuilt:
        await rebuilt.caught_up()
        seconds = time.monotonic() - begun
        assert len(rebuilt) == count, f"{len(rebuilt)} keys of {count}"
    return seconds


def _polled(peer: KafkaPeer, count: int) -> float:
    """Read a topic into a dictionary with `consume`, which is faster than `poll`."""
    found: dict[bytes, bytes] = {}
    begun = time.monotonic()
    consumer = KafkaConsumer(
        {"bootstrap.servers": peer.bootstrap, "group.id": "rebuild", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while len(found) < count:
        for message in consumer.consume(10_000, 1.0):
            found[message.key()] = message.value()
    seconds = time.monotonic() - begun
    consumer.close()
    return seconds


def producers_while_cleaning(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure the latency of synced writes while the cleaner runs at full speed, and without cleaning."""
    records = KeyedRecords(options.records)
    settings = folder / "broker.yaml"
    settings.write_text("config_values: {log.cleaner.backoff.ms: 50}\n", encoding="ascii")
    peer = FairleadPeer.start(folder, "--config", str(settings))
    try:
        with awake_processors():
            rounds = [asyncio.run(_latencies(peer, records, number)) for number in range(options.pairs)]
    finally:
        peer.stop()
    pairs = []
    for percentile, target in ((50, None), (99, LATENCY_RATIO_MAX)):
        busy, idle = (
            tuple(1e6 * quantiles(each[side], n=100)[percentile - 1] for each in rounds) for side in (0, 1)
        )
        case = (
            f"synced write beside the cleaner, p{percentile}, compared with no cleaning (in the column peer)"
        )
        pairs.append(Pairs(case, "µs", busy, idle, target, at_least=False))
    print(table(pairs))
    writes = [len(each[0]) for each in rounds]
    return {"records": records.count, "writes": writes, "cases": [pair.document() for pair in pairs]}


async def _latencies(
    peer: FairleadPeer, records: KeyedRecords, number: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of writes while a round runs, and of writes while the round is paused.

    Short slices alternate within each round, since the load from other programs on the machine changes within seconds,
    and since old segments and dirty pages then exist in both kinds of slices.
    """
    names = [f"table-{number}-{index}" for index in range(CLEANED_TOPICS)]
    async with Admin(peer.url) as admin, Producer(peer.url, batch_bytes=500_000, linger_ms=10) as producer:
        for name in names:
            await admin.create_topic(name, config=COMPACTED)
            await records.write(producer, name)
            await admin.alter_topic(name, config={"segment.ms": 1})
            await producer.send_and_wait(name, VALUE, b"last")
        writes = f"writes-{number}"
        await admin.create_topic(writes)
        os.sync()
        busy, idle = list[float](), list[float]()
        async with Producer(peer.url, linger_ms=0) as single:
            for _ in range(WARMING_WRITES):
                await _write(single, writes, [])
            for name in names:
                await admin.alter_topic(name, config={"min.compaction.lag.ms": 0})
                begun, child = time.monotonic(), await _cleaning_child(peer)
                while not await _is_cleaned(admin, name, records.count):
                    _check_time(begun)
                    await _write_for(SLICE_SECONDS, single, writes, busy)
                    os.kill(child, signal.SIGSTOP)
                    await _write_for(SLICE_SECONDS, single, writes, idle)
                    os.kill(child, signal.SIGCONT)
        for name in (*names, writes):
            await admin.delete_topic(name)
    return busy, idle


async def _cleaning_child(peer: FairleadPeer) -> int:
    """Return the process id of the cleaner's child process, once it runs."""
    until = time.monotonic() + CLEANED_SECONDS_MAX
    while time.monotonic() < until:
        if children := _children(peer):
            return children[0]
        await asyncio.sleep(LOOK_SECONDS)
    raise TimeoutError("no round has begun")


async def _write_for(slice_seconds: float, producer: Producer, topic: str, seconds: list[float]) -> None:
    until = time.monotonic() + slice_seconds
    while time.monotonic() < until:
        await _write(producer, topic, seconds)


async def _write(producer: Producer, topic: str, seconds: list[float]) -> None:
    begun = time.monotonic()
    await producer.send_and_wait(topic, VALUE)
    seconds.append(time.monotonic() - begun)
    # The pause limits the rate of the writes, as in a program that the broker does not slow down.
    await asyncio.sleep(0.002)
