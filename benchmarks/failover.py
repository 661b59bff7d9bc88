"""Duration of failovers: after a leader is killed or moved, in a rolling restart, and with many partitions.

`cluster.py` calls this module with a running cluster. During each failover, a producer sends records with plain SDK
calls at a steady rate; durations are computed from the times of its acknowledgements.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

from pairing import Outcome
from peers.clusters import BROKERS, FairleadCluster

from fairlead import Admin, Consumer, Delivery, Producer
from fairlead.errors import FairleadError
from fairlead_api.bodies.metadata import PartitionMetadata
from fairlead_api.configuration import ConfigInput
from fairlead_broker.controller.failure_detector import ENDED_SECONDS

Condition: TypeAlias = Callable[[], Awaitable[bool]]
"""Function that checks once whether a condition is met."""

EndOfLeader: TypeAlias = Callable[[FairleadCluster, str], Awaitable[tuple[float, int]]]
"""Function that ends the leader of a topic, and returns the seconds until an acknowledgement, and the failed sends."""

KILL_P50_SECONDS_MAX = 0.6
KILL_P99_SECONDS_MAX = 1.5
CUT_P50_SECONDS_MAX = 3.5
MOVE_P99_MS_MAX = 300
PACE_SECONDS = 0.005
CALM_SECONDS = 1.0
SETTLE_SECONDS_MAX = 60.0


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Return the median, 99th percentile and maximum in milliseconds."""
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {
        "count": len(ordered),
        "p50_ms": round(median(ordered) * 1000, 1),
        "p99_ms": round(p99 * 1000, 1),
        "max_ms": round(ordered[-1] * 1000, 1),
    }


async def until(ask: Condition, what: str) -> None:
    """Repeat a check until it returns True."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        try:
            if await ask():
                return
        except FairleadError:
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            msg = f"{what} took longer than {SETTLE_SECONDS_MAX:g} s"
            raise TimeoutError(msg)
        await asyncio.sleep(0.02)


async def settled(cluster: FairleadCluster) -> None:
    """Wait until all brokers are registered and every partition has its leader and all replicas in sync."""
    async with Admin(cluster.bootstrap) as admin:

        async def calm() -> bool:
            """Check once whether all brokers are registered and all partitions are in sync."""
            metadata = await admin.metadata()
            partitions = [partition for topic in metadata.topics for partition in topic.partitions]
            return (
                len(metadata.brokers) == BROKERS
                and metadata.controller is not None
                and all(p.leader is not None and len(p.isr) == len(p.replicas) for p in partitions)
            )

        await until(calm, "a cluster in sync")


async def new_topic(
    cluster: FairleadCluster, name: str, partitions: int, config: Mapping[str, ConfigInput]
) -> None:
    """Create a topic with three replicas, and wait until they are in sync."""
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(name, partitions=partitions, replication_factor=BROKERS, config=config)
    await settled(cluster)


async def partition_of(admin: Admin, topic: str) -> PartitionMetadata:
    """Return the metadata of partition 0 of a topic."""
    return (await admin.metadata([topic])).topics[0].partitions[0]


class PacedProducer:
    """Sends a record every few milliseconds, and stores the time at which each record was acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.sent_at: list[float] = []
        self.acknowledged_at: list[float] = []
        self.latencies: list[float] = []
        self.errors: list[str] = []
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Send records until cancelled."""
        while True:
            self.sent_at.append(time.monotonic())
            delivery = await self._producer.send(self._topic, b"%d" % len(self.sent_at), partition=0)
            task = asyncio.ensure_future(self._settle(delivery, self.sent_at[-1]))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)
            await asyncio.sleep(PACE_SECONDS)

    async def _settle(self, delivery: Delivery, sent_at: float) -> None:
        try:
            await delivery
        except FairleadError as error:
            self.errors.append(repr(error))
        else:
            self.acknowledged_at.append(time.monotonic())
            self.latencies.append(self.acknowledged_at[-1] - sent_at)

    async def rest(self) -> None:
        """Wait for the acknowledgements of all sent records."""
        await asyncio.gather(*self._waiting)


@asynccontextmanager
async def producing(cluster: FairleadCluster, topic: str) -> AsyncIterator[PacedProducer]:
    """Run a paced producer in the background."""
    async with Producer(cluster.bootstrap, linger_ms=0, delivery_timeout="60s") as producer:
        paced = PacedProducer(producer, topic)
        task = asyncio.ensure_future(paced.run())
        try:
            yield paced
        finally:
            task.cancel()
            await asyncio.wait([task])
            await paced.rest()


def leader_kills(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Kill the leader repeatedly; measure the time until a record that was sent after the kill is acknowledged."""
    targets = {"p50": KILL_P50_SECONDS_MAX, "p99": KILL_P99_SECONDS_MAX}
    outages = Outages("leader killed (-9) to the first new acknowledgement", leader_kill, targets)
    return asyncio.run(outages.measure(cluster, options.runs))


def leader_stops(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Pause the leader repeatedly, so that it is as silent as a cut machine; measure the time as for a kill."""
    targets = {"p50": CUT_P50_SECONDS_MAX}
    outages = Outages(
        "leader silent, as a cut machine, to the first new acknowledgement", leader_stop, targets
    )
    return asyncio.run(outages.measure(cluster, options.runs))


@dataclass(frozen=True, slots=True)
class Outages:
    """Times from the end of a leader to a new acknowledgement; targets in seconds, by percentile."""

    case: str
    end: EndOfLeader
    targets: Mapping[str, float]

    async def measure(self, cluster: FairleadCluster, runs: int) -> dict[str, object]:
        """End the leader repeatedly."""
        await new_topic(cluster, "failover", 1, {"min.insync.replicas": 2})
        outages, errors = [], 0
        for _ in range(runs):
            outage, failed = await self.end(cluster, "failover")
            outages.append(outage)
            errors += failed
        measured = percentiles(outages)
        outcome = Outcome(
            f"{self.case}, {runs} times, leases of {cluster.lease_seconds} s",
            f"p50 {measured['p50_ms'] / 1000:.2f} s, p99 {measured['p99_ms'] / 1000:.2f} s, {errors} failed sends",
            ", ".join(f"{name} at most {seconds} s" for name, seconds in self.targets.items()),
            all(measured[f"{name}_ms"] <= seconds * 1000 for name, seconds in self.targets.items()),
        )
        return {
            "outages_seconds": [round(each, 3) for each in outages],
            "outcomes": [outcome.document()],
        }


async def leader_kill(cluster: FairleadCluster, topic: str) -> tuple[float, int]:
    """Kill the leader of a topic with one partition, and start its broker again; see `_outage`."""
    return await _outage(cluster, topic, cluster.kill_broker)


async def leader_stop(cluster: FairleadCluster, topic: str) -> tuple[float, int]:
    """Pause the leader of a topic with one partition; then kill and start its broker; see `_outage`."""
    return await _outage(cluster, topic, cluster.pause_broker)


async def _outage(cluster: FairleadCluster, topic: str, end: Callable[[int], float]) -> tuple[float, int]:
    """End the leader of a topic with one partition while a producer has requests in flight, and start its broker again.

    Returns the seconds until a record that was sent after the end is acknowledged, and the number of failed sends.
    """
    async with Admin(cluster.bootstrap) as admin:
        async with producing(cluster, topic) as paced:
            await asyncio.sleep(CALM_SECONDS)
            leader = (await partition_of(admin, topic)).leader
            assert leader is not None, "the cluster was in sync"
            ended_at = await asyncio.to_thread(end, leader)
            before = len(paced.sent_at)
            await until(_acknowledged_since(paced, before, ended_at), "a new acknowledgement")
            outage = min(at for at in paced.acknowledged_at if at > ended_at + 0.05) - ended_at
        await asyncio.to_thread(cluster.kill_broker, leader)
        await asyncio.to_thread(cluster.start_broker, leader)
    await settled(cluster)
    # Brokers that have ended several leases early wait for the next lease to expire.
    await asyncio.sleep(max(0.0, ENDED_SECONDS - (time.monotonic() - ended_at)))
    return outage, len(paced.errors)


def _acknowledged_since(paced: PacedProducer, before: int, ended_at: float) -> Condition:
    async def look() -> bool:
        """Return whether a record that was sent after the end is acknowledged."""
        return len(paced.sent_at) > before and any(at > ended_at + 0.05 for at in paced.acknowledged_at)

    return look


def planned_moves(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Repeatedly move the leadership gracefully; measure the longest acknowledgement time around each move."""
    return asyncio.run(_planned_moves(cluster, options.runs))


async def _planned_moves(cluster: FairleadCluster, runs: int) -> dict[str, object]:
    await new_topic(cluster, "moves", 1, {"min.insync.replicas": 2})
    longest: list[float] = []
    async with Admin(cluster.bootstrap) as admin, producing(cluster, "moves") as paced:
        for _ in range(runs):
            await asyncio.sleep(CALM_SECONDS / 4)
            first = len(paced.latencies)
            partition = await partition_of(admin, "moves")
            order = partition.replicas[1:] + partition.replicas[:1]
            await admin.reassign("moves", 0, order)
            await until(_leads(admin, "moves", order[0]), "a planned move")
            await asyncio.sleep(CALM_SECONDS / 4)
            longest.append(max(paced.latencies[first:]))
    wait, failed = percentiles(longest), len(paced.errors)
    outcome = Outcome(
        f"planned move of a leader, {runs} times: longest wait of a write",
        f"p50 {wait['p50_ms']:.0f} ms, p99 {wait['p99_ms']:.0f} ms, {failed} of {len(paced.sent_at):,} failed",
        f"p99 at most {MOVE_P99_MS_MAX} ms, none failed",
        wait["p99_ms"] <= MOVE_P99_MS_MAX and not failed,
    )
    return {"longest_waits_seconds": longest, "outcomes": [outcome.document()]}


def _leads(admin: Admin, topic: str, broker: int) -> Condition:
    async def look() -> bool:
        """Ask the broker to become the leader; return whether it leads."""
        if (await partition_of(admin, topic)).leader == broker:
            return True
        await admin.elect(topic, 0, "preferred")
        return (await partition_of(admin, topic)).leader == broker

    return look


def rolling_restart(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Restart the brokers one at a time under load, and read all records back."""
    del options
    return asyncio.run(_rolling_restart(cluster))


async def _rolling_restart(cluster: FairleadCluster) -> dict[str, object]:
    await new_topic(cluster, "rolling", 1, {"min.insync.replicas": 2})
    async with producing(cluster, "rolling") as paced:
        await asyncio.sleep(CALM_SECONDS)
        for broker in range(BROKERS):
            await asyncio.to_thread(cluster.terminate_broker, broker)
            await asyncio.to_thread(cluster.start_broker, broker)
            await settled(cluster)
        await asyncio.sleep(CALM_SECONDS)
    values: list[bytes] = []
    async with Consumer(cluster.bootstrap) as consumer:
        await consumer.assign(topic="rolling")
        async for batch in consumer:
            values += [record.value or b"" for record in batch]
            if len(values) >= len(paced.acknowledged_at):
                break
    errors, wait = len(paced.errors), percentiles(paced.latencies)
    lost, duplicates = len(paced.acknowledged_at) - len(set(values)), len(values) - len(set(values))
    outcome = Outcome(
        f"rolling restart of all three brokers under load, {len(paced.sent_at):,} records",
        f"{errors} errors, {lost} lost, {duplicates} stored twice; longest wait {wait['max_ms']:.0f} ms",
        "no error, no record lost or stored twice",
        not errors and not lost and not duplicates,
    )
    return {"wait": wait, "outcomes": [outcome.document()]}


def many_partitions(cluster: FairleadCluster, options: argparse.Namespace) -> dict[str, object]:
    """Create many partitions, measure idle brokers, then kill one broker."""
    return asyncio.run(_many_partitions(cluster, options.partitions))


async def _many_partitions(cluster: FairleadCluster, count: int) -> dict[str, object]:
    async with Admin(cluster.bootstrap) as admin:
        began = time.monotonic()
        await admin.create_topic("many", partitions=count, replication_factor=BROKERS)
        created = time.monotonic() - began
        await settled(cluster)
        in_sync = time.monotonic() - began
        await asyncio.sleep(CALM_SECONDS * 3)
        names = [f"broker-{broker}" for broker in range(BROKERS)]
        before, at = {name: cluster.cpu_seconds(name) for name in names}, time.monotonic()
        await asyncio.sleep(CALM_SECONDS * 10)
        spent = time.monotonic() - at
        idle = {name: round((cluster.cpu_seconds(name) - before[name]) / spent, 3) for name in names}
        memory = {name: round(cluster.resident_mib(name)) for name in names}
        killed_at = await asyncio.to_thread(cluster.kill_broker, 0)
        await until(_all_led_without(admin, 0), "the elections")
        elected = time.monotonic() - killed_at
    outcomes = [
        Outcome(
            f"creation of {count:,} partitions with three replicas each",
            f"{created:.1f} s, in sync after {in_sync:.1f} s",
        ),
        Outcome(
            f"kill of a broker of a cluster with {count:,} partitions, until all partitions have a leader again",
            f"{elected:.1f} s",
        ),
        Outcome(
            f"an idle broker with its share of {count:,} partitions",
            f"{max(idle.values()):.3f} of a core, {max(memory.values())} MiB",
        ),
    ]
    return {
        "idle_cores": idle,
        "memory_mib": memory,
        "outcomes": [each.document() for each in outcomes],
    }


def _all_led_without(admin: Admin, broker: int) -> Condition:
    async def look() -> bool:
        """Return whether every partition has a leader other than the killed broker."""
        metadata = await admin.metadata(["many"])
        return all(p.leader is not None and p.leader != broker for p in metadata.topics[0].partitions)

    return look
