"""Links between two clusters of one broker each, compared with MirrorMaker 2 between two Kafka nodes.

`cluster.py` calls this module, which measures the rate and the processor time of copying a topic, the time until a
record is readable in the other cluster, and the time for which writes stop in a planned hand-over.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as KafkaPlace
from pairing import Outcome, Pairs
from peers.brokers import HERE, FairleadPeer, KafkaPeer, PeerFailedError, cpu_seconds, fetch_kafka
from peers.mirror_maker import fetch_mirror_maker, mirror_maker
from throughput import PRODUCER_SETTINGS, VALUE_BYTES

from fairlead import Admin, Consumer, Producer
from fairlead.blocking import Admin as BlockingAdmin
from fairlead.errors import FairleadError
from fairlead_api.bodies.links import CreateLinkRequest, LinkSource, NamePatterns

TOPIC: Final = "orders"
PARTITIONS: Final = 4
LINKED_FACTOR: Final = 5
"""Number of records that the link copies for each record that MirrorMaker copies. With as many records as MirrorMaker,
the link would end within a few ticks of the processor times."""
WARM_SHARE: Final = 0.1
"""Share of the records that is copied before the measurement begins: connections, caches and JVMs warm up."""
LOOK_SECONDS: Final = 0.02
COPY_SECONDS_MAX: Final = 600.0
LAG_RATE: Final = 20_000
LAG_BATCH_RECORDS: Final = 200
LAG_P99_SECONDS_MAX: Final = 1.0
MOVED_PARTITIONS: Final = 100
MOVED_RATE: Final = 500
MOVE_SECONDS_MAX: Final = 90.0
WRITES_STOP_SECONDS_MAX: Final = 2.0


@contextmanager
def two_brokers(folder: Path) -> Iterator[tuple[FairleadPeer, FairleadPeer]]:
    """Run two clusters of one broker until the end of the block."""
    source = FairleadPeer.start(folder, name="source")
    try:
        target = FairleadPeer.start(folder, name="target")
        try:
            yield source, target
        finally:
            target.stop()
    finally:
        source.stop()


def throughput(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure copying a topic of 100-byte records by a link, and by MirrorMaker 2 with two sets of properties."""
    names = ("link", "tuned", "defaults")
    rates: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    for number in range(options.pairs):
        place = folder / str(number)
        place.mkdir()
        measured = {"link": _copied_by_link(place, LINKED_FACTOR * options.records)}
        measured |= _copied_by_mirror_maker(place, options)
        for name, (rate, cpu) in measured.items():
            print(f"{name}: {rate:,.0f} records/s, {cpu:.2f} µs of CPU a record", file=sys.stderr, flush=True)
            rates[name].append(rate)
            cpus[name].append(cpu)
    cases = []
    for name, words in (("tuned", "tuned"), ("defaults", "with its defaults")):
        against = f"copy 100 B by a link, against MirrorMaker 2 {words}"
        cases += [
            Pairs(against, "records/s", tuple(rates["link"]), tuple(rates[name]), 3.0),
            Pairs(
                f"CPU in the same runs, against MirrorMaker 2 {words}",
                "ns/record",
                tuple(each * 1000 for each in cpus["link"]),
                tuple(each * 1000 for each in cpus[name]),
                0.333,
                at_least=False,
            ),
        ]
    return {"cases": [case.document() for case in cases]}


def _copied_by_link(folder: Path, records: int) -> tuple[float, float]:
    with two_brokers(folder) as (source, target):
        with BlockingAdmin(source.url) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        command = [sys.executable, str(HERE / "workloads/workload.py"), "produce", "--url", source.url]
        command += ["--topic", TOPIC, "--partitions", str(PARTITIONS), "--records", str(records)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        stored = _ends(source.url)
        with BlockingAdmin(target.url) as admin:
            admin.create_link(_link("measured", source))

            def copied() -> int:
                return sum(_end(admin, partition) for partition in range(PARTITIONS))

            return _copy(copied, stored, (source.process.pid, target.process.pid))


def _copied_by_mirror_maker(folder: Path, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    jars, mirror_jars = fetch_kafka(options.cache), fetch_mirror_maker(options.cache)
    measured = {}
    for side in ("from", "to"):
        (folder / side).mkdir()
    source = KafkaPeer.start(folder / "from", jars)
    try:
        target = KafkaPeer.start(folder / "to", jars)
        try:
            server = ("--bootstrap-server", source.bootstrap)
            shape = ("--partitions", str(PARTITIONS), "--replication-factor", "1")
            source.tool("org.apache.kafka.tools.TopicCommand", *server, "--create", "--topic", TOPIC, *shape)
            arguments = (
                "--topic",
                TOPIC,
                "--num-records",
                str(options.records),
                "--record-size",
                str(VALUE_BYTES),
            )
            properties = ("--command-property", f"bootstrap.servers={source.bootstrap}")
            source.tool(
                "org.apache.kafka.tools.ProducerPerformance",
                *arguments, "--throughput", "-1", *properties, *PRODUCER_SETTINGS,
            )  # fmt: skip
            for name in ("tuned", "defaults"):
                with (
                    mirror_maker(folder, mirror_jars, source, target, TOPIC, tuned=name == "tuned") as (
                        process,
                        copy,
                    ),
                    _kafka_ends(target.bootstrap, copy) as copied,
                ):
                    pids = (source.process.pid, target.process.pid, process.pid)
                    measured[name] = _copy(copied, options.records, pids)
        finally:
            target.stop()
    finally:
        source.stop()
    return measured


def _copy(copied: Callable[[], int], records: int, pids: Sequence[int]) -> tuple[float, float]:
    """Wait until all records are copied; return records per second and µs of processor time per record."""

    def reached(count: float) -> tuple[int, float, float]:
        deadline = time.monotonic() + COPY_SECONDS_MAX
        while (found := copied()) < count:
            if time.monotonic() > deadline:
                msg = f"{found:,} of {records:,} records were copied within {COPY_SECONDS_MAX:.0f} s"
                raise PeerFailedError(msg)
            time.sleep(LOOK_SECONDS)
        return found, time.monotonic(), sum(map(cpu_seconds, pids))

    first, began, cpu_before = reached(records * WARM_SHARE)
    _, ended, cpu_after = reached(records)
    if first == records:
        msg = f"{records:,} records are copied within {LOOK_SECONDS} s; measure with more records"
        raise PeerFailedError(msg)
    count = records - first
    return count / (ended - began), (cpu_after - cpu_before) / count * 1e6


def _ends(url: str) -> int:
    with BlockingAdmin(url) as admin:
        return sum(_end(admin, partition) for partition in range(PARTITIONS))


def _end(admin: BlockingAdmin, partition: int) -> int:
    """Return the end offset of a partition; 0 before the mirror has been created and has a leader."""
    try:
        return admin.offsets(TOPIC, partition).high_watermark
    except FairleadError:
        return 0


@contextmanager
def _kafka_ends(bootstrap: str, topic: str) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of records in a topic; 0 before the topic exists."""
    consumer = KafkaConsumer({"bootstrap.servers": bootstrap, "group.id": "ends"})

    def copied() -> int:
        if topic not in consumer.list_topics(timeout=10).topics:
            return 0
        try:
            places = [KafkaPlace(topic, partition) for partition in range(PARTITIONS)]
            return sum(consumer.get_watermark_offsets(place, 10)[1] for place in places)
        except KafkaException:
            return 0

    try:
        yield copied
    finally:
        consumer.close()


def _link(name: str, source: FairleadPeer) -> CreateLinkRequest:
    return CreateLinkRequest(
        name=name, source=LinkSource(bootstrap=[source.url]), topics=NamePatterns(include=[TOPIC])
    )


def lag(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Measure the time from a record's creation until a consumer of the mirror has it, at a steady rate."""
    seconds = options.seconds
    with two_brokers(folder) as (source, target):
        asyncio.run(_mirrored(source, target, PARTITIONS))
        command = [sys.executable, str(HERE / "workloads/latency_workload.py"), "steady", "--url", source.url]
        command += ["--topic", TOPIC, "--partitions", str(PARTITIONS), "--rate", str(LAG_RATE)]
        command += ["--batch-records", str(LAG_BATCH_RECORDS), "--seconds", str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as producer:
            try:
                delays = asyncio.run(_delays(target.url, seconds))
            finally:
                producer.terminate()
    p50, p99 = np.percentile(delays, [50, 99])
    outcome = Outcome(
        f"a link under {LAG_RATE:,} records/s for {seconds:.0f} s: creation of a record to its read from the mirror",
        f"p50 {p50 * 1000:,.0f} ms, p99 {p99 * 1000:,.0f} ms, longest {delays.max() * 1000:,.0f} ms",
        f"p99 at most {LAG_P99_SECONDS_MAX:.0f} s",
        bool(p99 <= LAG_P99_SECONDS_MAX),
    )
    return {"p50_seconds": float(p50), "p99_seconds": float(p99), "outcomes": [outcome.document()]}


async def _mirrored(source: FairleadPeer, target: FairleadPeer, partitions: int) -> None:
    """Create the topic with a record in each partition, and a link; return when the mirror has all records."""
    async with Admin(source.url) as admin:
        await admin.create_topic(TOPIC, partitions=partitions)
    async with Producer(source.url) as producer:
        for partition in range(partitions):
            await producer.send(TOPIC, b"first", partition=partition)
        await producer.flush()
    async with Admin(target.url) as admin:
        await admin.create_link(_link("to-target", source))

    async def is_copied() -> bool:
        async with Admin(target.url) as admin:
            ends = [(await admin.offsets(TOPIC, index)).high_watermark for index in range(partitions)]
        return ends == [1] * partitions and await _is_current(target, "to-target")

    await _until(is_copied, "the topic is not mirrored")


async def _is_current(side: FairleadPeer, link: str) -> bool:
    async with Admin(side.url) as admin:
        found = [each for each in await admin.link_topics(link) if each.topic == TOPIC]
    return any(
        each.state == "mirroring" and each.lag_seconds is not None and each.lag_seconds < 1 for each in found
    )


async def _until(call: Callable[[], Awaitable[bool]], what: str) -> None:
    """Repeat a call until it returns true; an error of the cluster counts as false."""
    try:
        async with asyncio.timeout(MOVE_SECONDS_MAX):
            while True:
                with suppress(FairleadError):
                    if await call():
                        return
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise PeerFailedError(what) from None


async def _delays(url: str, seconds: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Read the mirror for as long as records are written; return the delay of each record after the warm-up."""
    found = []
    wanted = int(LAG_RATE * seconds)
    got = 0
    async with Consumer(url) as consumer:
        await consumer.assign(topic=TOPIC, start="latest")
        while got < wanted and (batch := await consumer.next_batch("30s")) is not None:
            now = time.time()
            created = batch.to_arrow().column("timestamp").to_numpy(zero_copy_only=False)
            found.append(now - created.astype("datetime64[us]").astype(np.int64) / 1e6)
            got += batch.record_count
    if got < wanted * (1 - WARM_SHARE):
        msg = f"{got:,} of {wanted:,} records arrived in the mirror"
        raise PeerFailedError(msg)
    delays = np.concatenate(found)
    return delays[int(len(delays) * WARM_SHARE) :]


def hand_overs(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Hand a topic of a hundred partitions over and back while a producer, which follows the topic, writes to it."""
    with two_brokers(folder) as (source, target):
        stops = asyncio.run(_hand_overs(source, target, options.moves))
    outcome = Outcome(
        f"planned hand-over of {MOVED_PARTITIONS} partitions under {MOVED_RATE} records/s, {options.moves} times:"
        " longest wait of a write",
        f"median {median(stops) * 1000:,.0f} ms, longest {max(stops) * 1000:,.0f} ms",
        f"at most {WRITES_STOP_SECONDS_MAX:.0f} s",
        max(stops) <= WRITES_STOP_SECONDS_MAX,
    )
    return {"stops_seconds": stops, "outcomes": [outcome.document()]}


@dataclass(slots=True)
class Writes:
    """Records that are written at a steady rate, each with its scheduled time."""

    waits: list[tuple[float, float]] = field(default_factory=list)
    """Scheduled time and wait of each acknowledged record."""
    unacknowledged: set[float] = field(default_factory=set)
    """Scheduled times of the other records."""

    async def write(self, producer: Producer, ends: asyncio.Event) -> None:
        """Write records to the partitions in turn until `ends` is set."""
        began, number = time.perf_counter(), 0
        async with asyncio.TaskGroup() as group:
            while not ends.is_set():
                due = began + number / MOVED_RATE
                if (delay := due - time.perf_counter()) > 0:
                    await asyncio.sleep(delay)
                self.unacknowledged.add(due)
                partition = number % MOVED_PARTITIONS
                delivery = await producer.send(TOPIC, b"x" * VALUE_BYTES, partition=partition)
                group.create_task(self._wait(delivery, due))
                number += 1

    async def _wait(self, delivery: Awaitable[object], due: float) -> None:
        await delivery
        self.waits.append((due, time.perf_counter() - due))
        self.unacknowledged.discard(due)

    def longest(self, began: float, ended: float) -> float:
        """Return the longest wait of the records that waited at any time between two times."""
        return max(wait for due, wait in self.waits if due + wait >= began and due <= ended)


async def _hand_overs(east: FairleadPeer, west: FairleadPeer, count: int) -> list[float]:
    """Return the longest wait of a write in each hand-over; no write may fail."""
    await _mirrored(east, west, MOVED_PARTITIONS)
    async with Admin(east.url) as admin:
        await admin.create_link(_link("to-source", west))
    writes, ends, windows = Writes(), asyncio.Event(), []
    async with Producer(east.url, linger_ms=0, follow_moves=True) as producer, asyncio.TaskGroup() as group:
        group.create_task(writes.write(producer, ends))
        try:
            for number in range(count):
                sides = ((east, "to-source"), (west, "to-target"))
                former, latter = sides if number % 2 == 0 else sides[::-1]
                await asyncio.sleep(1)
                began = time.perf_counter()
                await _hand_over(*latter)
                ended = time.perf_counter()
                windows.append((began, ended))

                async def has_followed(ended: float = ended) -> bool:
                    return min(writes.unacknowledged, default=ended) >= ended

                await _until(has_followed, "the producer does not follow the topic")
                await _adopted(*former)
        finally:
            ends.set()
    return [writes.longest(*window) for window in windows]


async def _hand_over(side: FairleadPeer, link: str) -> None:
    """Promote the mirror of a side, and return when it accepts records."""
    await _until(lambda: _is_current(side, link), "the mirror is not current")
    async with Admin(side.url) as admin:
        await admin.promote_link(link, [TOPIC])

    async def promoted() -> bool:
        async with Admin(side.url) as admin:
            found = await admin.link_topics(link)
        return all(each.state == "promoted" for each in found if each.topic == TOPIC)

    await _until(promoted, "the mirror is not promoted")


async def _adopted(side: FairleadPeer, link: str) -> None:
    """Make the topic of a former source the mirror of its promoted copy."""

    async def adopted() -> bool:
        async with Admin(side.url) as admin:
            await admin.adopt_link(link, [TOPIC])
        return True

    await _until(adopted, "the former source is not a mirror")
