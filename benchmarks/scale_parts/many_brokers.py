"""Growth of the number of brokers on one machine: throughput, and the processor time that it costs the brokers.

`brokers` is a part of `scale.py`. Clients, brokers and etcd share the machine, so the throughput shows what one machine
does in total; the processor time per record shows whether further brokers make a record more expensive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

from pairing import Outcome
from peers.clusters import FairleadCluster
from scale_parts.growth import Limit, Step, command_of, growth

from fairlead import Admin

PARTITIONS = 16
"""Partitions of the topic, a multiple of each number of brokers."""
PRODUCERS = 2
RECORDS = 2_000_000
"""Records of each producer."""
LARGE_MACHINE_CORES = 16
BROKER_SHARE = 0.5
"""Share of a machine's processor time that the brokers get beside their clients, for the estimate."""
LEASE_SECONDS = 10
TIME, RATE = "brokers' time per million records, s", "produced, records/s"
IDLE, MEMORY = "cores of all idle brokers", "memory of all brokers, MiB"


def brokers(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Produce to clusters of more and more brokers, each partition with one replica."""
    steps = [Step(count, _step(folder / str(count), count)) for count in options.brokers]
    why = "Without load, further brokers need only this; under load, they share the machine's cores."
    limits = (
        Limit(MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20, why),
        Limit(IDLE, os.cpu_count() or 1, why),
    )
    result = growth("brokers", steps, limits)
    return {**result, "outcomes": [each.document() for each in _outcomes(steps)]}


def _step(folder: Path, count: int) -> dict[str, float]:
    cluster = FairleadCluster.start(folder, LEASE_SECONDS, brokers=count)
    try:
        asyncio.run(_create(cluster.bootstrap))
        names = [f"broker-{broker}" for broker in range(count)]
        idle, at = _cpu_seconds(cluster, names), time.monotonic()
        time.sleep(LEASE_SECONDS / 2)
        before = _cpu_seconds(cluster, names)
        cores = (before - idle) / (time.monotonic() - at)
        command = command_of(
            "workloads/workload.py", "produce", url=cluster.bootstrap, topic="shared", partitions=PARTITIONS,
            records=RECORDS,
        )  # fmt: skip
        clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PRODUCERS)]
        sent = [json.loads(client.communicate()[0]) for client in clients]
        spent = _cpu_seconds(cluster, names) - before
        return {
            RATE: sum(each["records_per_second"] for each in sent),
            TIME: spent / (PRODUCERS * RECORDS) * 1e6,
            IDLE: cores,
            MEMORY: sum(cluster.resident_mib(name) for name in names),
        }
    finally:
        cluster.stop()


def _cpu_seconds(cluster: FairleadCluster, names: list[str]) -> float:
    return sum(cluster.cpu_seconds(name) for name in names)


async def _create(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(
            "shared", partitions=PARTITIONS, replication_factor=1, config={"durability": "replicated"}
        )


def _outcomes(steps: list[Step]) -> list[Outcome]:
    by_count = {step.count: step.figures for step in steps}
    one, last = by_count[1], steps[-1]
    outcomes = []
    if 2 in by_count:
        ratio = by_count[2][RATE] / one[RATE]
        outcomes.append(
            Outcome(
                f"2 brokers against 1 on {os.cpu_count()} cores with {PRODUCERS} producers",
                f"{ratio:.2f}x the rate",
            )
        )
    ratio = last.figures[TIME] / one[TIME]
    outcomes.append(
        Outcome(
            f"processor time of {last.count} brokers for a record, against 1 broker",
            f"{ratio:.2f}x",
        )
    )
    rate = LARGE_MACHINE_CORES * BROKER_SHARE / last.figures[TIME]
    outcomes.append(
        Outcome(
            f"what follows for {LARGE_MACHINE_CORES} cores, of which the brokers get"
            f" {BROKER_SHARE:.0%}, at the time per record of {last.count} brokers (computed from processor time alone)",
            f"{rate:.1f} million records/s",
        )
    )
    return outcomes
