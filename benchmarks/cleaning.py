"""Parts of `make bench` for compacted topics: the cleaner and Kafka's, rebuilt tables, writes during cleaning.

Both sides store the same records (keys of 16 to 40 bytes, values of 100 bytes, a tenth of the keys distinct, in random
order) in a topic whose records are too young to be cleaned. Then the topic's `min.compaction.lag.ms` is lowered, and
the time until the log has shrunk is measured, with the processor time of the broker and its child process. A final
record makes Kafka close the previous segment, since Kafka closes segments only when it appends.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles

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
from peers.brokers import FairleadPeer, KafkaPeer, PeerProcess, alone, both_peers, cpu_seconds, fetch_kafka

from fairlead import Admin, Producer, Table
from fairlead_api.batch.header import Codec

CODECS = ("none", "lz4", "zstd")
VALUE = bytes(range(100))
HELD = 2**62
"""Value of `min.compaction.lag.ms` in milliseconds with which no record is cleaned."""
SEGMENT_BYTES = 64 << 20
SHRUNK = 0.2
"""Share of the stored bytes at which a log counts as cleaned: a tenth of the keys are distinct, and the remaining
batches compress less well.
"""
CLEANED_RATIO_MIN = 1.5
REBUILD_RATIO_MIN = 3.0
LATENCY_RATIO_MAX = 1.3
CLEANED_TOPICS = 8
"""Number of topics that are cleaned one after the other while writes are measured, until the last topic has shrunk."""
IDLE_WRITES = 3000
CLEANED_SECONDS_MAX = 900.0
LOOK_SECONDS = 0.05
TOPIC = "table"


def keys_of(records: int) -> list[bytes]:
    """Return the key of each record, the same in every run."""
    rng = random.Random(25)
    distinct = [b"%032x" % rng.getrandbits(128) for _ in range(max(1, records // 10))]
    keys = [key[: 16 + index % 17] + b"x" * (index % 8) for index, key in enumerate(distinct)] * 10
    rng.shuffle(keys)
    return keys


def cleaning(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure each codec on both sides in turn, for the requested number of rounds."""
    jars = fetch_kafka(options.cache)
    keys = keys_of(options.records // 5)
    results: list[Pairs] = []
    for codec in CODECS:
        rounds = [_round(folder / f"{codec}-{number}", jars, keys, codec) for number in range(options.pairs)]
        for what, unit, target in (
            ("cleaned log", "MB/s", CLEANED_RATIO_MIN),
            ("records a processor second", "records/s", None),
        ):
            ours, theirs = (tuple(each[side][what] for each in rounds) for side in (0, 1))
            results.append(Pairs(f"{what}, {codec}", unit, ours, theirs, target))
    print(table(results))
    return {"records": len(keys), "cases": [each.document() for each in results]}


def _round(
    folder: Path, jars: Path, keys: list[bytes], codec: str
) -> tuple[dict[str, float], dict[str, float]]:
    folder.mkdir()
    settings = folder / "broker.yaml"
    settings.write_text("config_values: {log.cleaner.backoff.ms: 50}\n", encoding="ascii")
    fairlead = FairleadPeer.start(folder, "--config", str(settings))
    try:
        kafka = KafkaPeer.start(folder, jars, settings={"log.cleaner.backoff.ms": "50"})
        try:
            alone(fairlead, (fairlead, kafka))
            ours = asyncio.run(_fairlead(fairlead, keys, codec))
            alone(kafka, (fairlead, kafka))
            return ours, _kafka(kafka, keys, codec)
        finally:
            kafka.stop()
    finally:
        fairlead.stop()


async def _fairlead(peer: FairleadPeer, keys: list[bytes], codec: str) -> dict[str, float]:
    config = {"cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "min.compaction.lag.ms": HELD}
    async with Admin(peer.url) as admin:
        topic = await admin.create_topic(TOPIC, config=config)
        async with Producer(
            peer.url, compression=Codec[codec.upper()], batch_bytes=500_000, linger_ms=10
        ) as producer:
            for key in keys:
                await producer.send(TOPIC, VALUE, key)
            # The last segment is never cleaned, so `segment.ms` makes the next append close it.
            await admin.alter_topic(TOPIC, config={"segment.ms": 1})
            await producer.send_and_wait(TOPIC, VALUE, b"last")
        stored = _log_bytes(peer, f"{topic.topic_id}/0")
        begun, used = time.monotonic(), _processor_seconds(peer)
        await admin.alter_topic(TOPIC, config={"min.compaction.lag.ms": 0})
        _until_shrunk(lambda: _log_bytes(peer, f"{topic.topic_id}/0"), stored)
    return _rates(stored, len(keys), begun, peer, used)


def _kafka(peer: KafkaPeer, keys: list[bytes], codec: str) -> dict[str, float]:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": str(SEGMENT_BYTES),
        "min.compaction.lag.ms": str(HELD),
    }
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
    for number, key in enumerate(keys):
        producer.produce(TOPIC, VALUE, key)
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()
    _alter(admin, "segment.ms", "1")
    producer.produce(TOPIC, VALUE, b"last")
    producer.flush()
    stored = _log_bytes(peer, f"{TOPIC}-0")
    begun, used = time.monotonic(), _processor_seconds(peer)
    _alter(admin, "min.compaction.lag.ms", "0")
    _until_shrunk(lambda: _log_bytes(peer, f"{TOPIC}-0"), stored)
    return _rates(stored, len(keys), begun, peer, used)


def _alter(admin: AdminClient, key: str, value: str) -> None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result()


def _log_bytes(peer: PeerProcess, folder: str) -> int:
    """Return the total size of a partition's segments, excluding new and replaced segments."""
    return sum(file.stat().st_size for file in peer.data.rglob(f"{folder}/*.log"))


def _until_shrunk(stored_bytes: Callable[[], int], before: int) -> None:
    """Wait until a log has shrunk and its size no longer changes. Raises TimeoutError."""
    least, until = before, time.monotonic() + CLEANED_SECONDS_MAX
    while time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
        now = stored_bytes()
        if now < before * SHRUNK and now >= least:
            return
        least = min(least, now)
    raise TimeoutError(f"a log of {before} bytes still has {least} after {CLEANED_SECONDS_MAX} s")


def _processor_seconds(peer: PeerProcess) -> float:
    """Return the processor seconds that a broker and its child processes have used."""
    pid = peer.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return cpu_seconds(pid) + sum(cpu_seconds(int(child)) for child in children)


def _rates(stored: int, records: int, begun: float, peer: PeerProcess, used: float) -> dict[str, float]:
    seconds, processor = time.monotonic() - begun, _processor_seconds(peer) - used
    return {
        "cleaned log": stored / seconds / 1e6,
        "records a processor second": records / max(processor, 1e-3),
    }


def rebuild(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure how fast a table of distinct keys is rebuilt: by `Table`, and by a loop with confluent-kafka."""
    jars = fetch_kafka(options.cache)
    rng = random.Random(25)
    keys = [b"%024x" % rng.getrandbits(96) for _ in range(options.records // 5)]
    with both_peers(folder, jars) as (fairlead, kafka):
        alone(fairlead, (fairlead, kafka))
        asyncio.run(_fill_fairlead(fairlead, keys))
        alone(kafka, (fairlead, kafka))
        _fill_kafka(kafka, keys)
        ours, theirs = [], []
        for _ in range(options.pairs):
            alone(fairlead, (fairlead, kafka))
            ours.append(len(keys) / asyncio.run(_rebuilt(fairlead, len(keys))))
            alone(kafka, (fairlead, kafka))
            theirs.append(len(keys) / _polled(kafka, len(keys)))
    pair = Pairs("rebuild of a table", "keys/s", tuple(ours), tuple(theirs), REBUILD_RATIO_MIN)
    print(table([pair]))
    return {"keys": len(keys), "cases": [pair.document()]}


async def _fill_fairlead(peer: FairleadPeer, keys: list[bytes]) -> None:
    async with Admin(peer.url) as admin, Producer(peer.url, batch_bytes=500_000, linger_ms=10) as producer:
        await admin.create_topic(TOPIC, config={"cleanup.policy": "compact"})
        for key in keys:
            await producer.send(TOPIC, VALUE, key)


def _fill_kafka(peer: KafkaPeer, keys: list[bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": peer.bootstrap})
    [made] = admin.create_topics([NewTopic(TOPIC, 1, 1, config={"cleanup.policy": "compact"})]).values()
    made.result()
    producer = KafkaProducer({"bootstrap.servers": peer.bootstrap, "batch.size": 500_000, "linger.ms": 10})
    for number, key in enumerate(keys):
        producer.produce(TOPIC, VALUE, key)
        if number % 10_000 == 0:
            producer.flush()
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
    keys = keys_of(options.records // 20)
    settings = folder / "broker.yaml"
    settings.write_text("config_values: {log.cleaner.backoff.ms: 50}\n", encoding="ascii")
    peer = FairleadPeer.start(folder, "--config", str(settings))
    try:
        rounds = [asyncio.run(_latencies(peer, keys, number)) for number in range(options.pairs)]
    finally:
        peer.stop()
    busy, idle = (tuple(each[side] for each in rounds) for side in (0, 1))
    pair = Pairs("p99 of a synced write while cleaning", "ms", busy, idle, LATENCY_RATIO_MAX, at_least=False)
    print(table([pair]).replace("| Kafka |", "| without |", 1))
    return {"records": len(keys), "cases": [pair.document()]}


async def _latencies(peer: FairleadPeer, keys: list[bytes], number: int) -> tuple[float, float]:
    """Return the 99th percentile in milliseconds while topics are cleaned, and without cleaning."""
    config = {"cleanup.policy": "compact", "segment.bytes": SEGMENT_BYTES, "min.compaction.lag.ms": HELD}
    names = [f"table-{number}-{index}" for index in range(CLEANED_TOPICS)]
    async with Admin(peer.url) as admin, Producer(peer.url, batch_bytes=500_000, linger_ms=10) as producer:
        for name in names:
            topic = await admin.create_topic(name, config=config)
            for key in keys:
                await producer.send(name, VALUE, key)
            await admin.alter_topic(name, config={"segment.ms": 1})
            await producer.send_and_wait(name, VALUE, b"last")
        writes = f"writes-{number}"
        await admin.create_topic(writes)
        async with Producer(peer.url, linger_ms=0) as single:
            idle: list[float] = []
            for _ in range(IDLE_WRITES):
                await _write(single, writes, idle)
            for name in names:
                await admin.alter_topic(name, config={"min.compaction.lag.ms": 0})
            stored, busy = _log_bytes(peer, f"{topic.topic_id}/0"), list[float]()
            until = time.monotonic() + CLEANED_SECONDS_MAX
            while _log_bytes(peer, f"{topic.topic_id}/0") > stored * SHRUNK and time.monotonic() < until:
                for _ in range(10):
                    await _write(single, writes, busy)
    return tuple(1000 * quantiles(each, n=100)[98] for each in (busy, idle))  # type: ignore[return-value]


async def _write(producer: Producer, topic: str, seconds: list[float]) -> None:
    begun = time.monotonic()
    await producer.send_and_wait(topic, VALUE)
    seconds.append(time.monotonic() - begun)
    # The pace of a program that is not limited by the broker.
    await asyncio.sleep(0.002)
