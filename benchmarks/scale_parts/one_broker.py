"""Growth of work on one broker: partitions, connections, groups, idempotent producers, and the size of a topic.

Each function is a part of `scale.py`. A part starts its own broker, for partitions a new broker in each step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.brokers import FairleadPeer, PeerFailedError, cpu_seconds
from scale_parts.growth import FILES, Limit, Step, command_of, growth, machine_limits, measured, work

from fairlead import Admin
from fairlead_broker.settings import Limits

PROBE = "probe"
LOADED = "loaded"
WORKLOAD = "workloads/scale_workload.py"
TOPIC_PARTITIONS = 1_000
"""Partitions of a topic; more partitions are created in several topics."""
PRODUCED_RECORDS = 1_000_000
BATCH_RECORDS = 1_000
PRODUCER_PARTITIONS = 6
GIB_RECORDS = int(2**30 / 120)
"""Records of 100 bytes that use a GiB of the disk."""
FREE_GIB_MIN = 4
"""Space in GiB that stays free on the disk when a topic grows."""


def topic(url: str, name: str, partitions: int = 1) -> str:
    """Create a topic whose records are acknowledged from the page cache; return its id."""

    async def create() -> str:
        async with Admin(url, request_timeout="120s") as admin:
            config = {"durability": "replicated"}
            return (await admin.create_topic(name, partitions=partitions, config=config)).topic_id

    return asyncio.run(create())


@contextmanager
def broker(folder: Path) -> Iterator[FairleadPeer]:
    """Run a broker with a topic for the other producer."""
    fairlead = FairleadPeer.start(folder)
    try:
        topic(fairlead.url, PROBE)
        yield fairlead
    finally:
        fairlead.stop()


@contextmanager
def running(*command: str) -> Iterator[dict[str, float]]:
    """Run a workload that continues until its standard input is closed; yield the figures that it prints first."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                msg = f"{command[2]} ended with {process.wait()}"
                raise PeerFailedError(msg)
            yield json.loads(line)
        finally:
            process.stdin.close()
        if process.wait():
            msg = f"{command[2]} ended with {process.returncode}"
            raise PeerFailedError(msg)


def partitions(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Create partitions, measure the idle broker, produce to all partitions, and restart the broker."""
    steps = []
    for count in options.partitions:
        with broker(folder / str(count)) as fairlead:
            began = time.monotonic()
            # One partition of the broker belongs to the probe's topic.
            for first in range(0, count - 1, TOPIC_PARTITIONS):
                topic(fairlead.url, f"many-{first}", min(TOPIC_PARTITIONS, count - 1 - first))
            figures = {"creation, s": time.monotonic() - began}
            figures |= measured(fairlead, fairlead.url, PROBE, options.seconds)
            produced = work(
                "workloads/workload.py", "produce", url=fairlead.url, topic="many-0",
                partitions=min(count - 1, TOPIC_PARTITIONS), records=PRODUCED_RECORDS, batch_records=BATCH_RECORDS,
            )  # fmt: skip
            os.sync()
            figures["produced, records/s"] = produced["records_per_second"]
            figures["restart, s"] = fairlead.restart()
            steps.append(Step(count, figures))
    most = Limits().partitions_max
    why = "The setting limits the replicas of a broker, because each has open files and a task."
    return growth("partitions", steps, (*machine_limits(), Limit("the setting `partitions_max`", most, why)))


def connections(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Open connections that make one request each and stay open."""

    def step(fairlead: FairleadPeer, count: int) -> dict[str, float]:
        with running(*command_of(WORKLOAD, "connections", url=fairlead.url, count=count)) as opened:
            found = measured(fairlead, fairlead.url, PROBE, options.seconds)
        return {"opened per second": count / opened["seconds"], **found}

    steps = _steps(folder, options.connections, step)
    files = next(limit.most for limit in machine_limits() if limit.figure == FILES)
    why = "Its default is three quarters of the process's limit of open files."
    return growth(
        "connections", steps, (*machine_limits(), Limit("the setting `max.connections`", files * 3 / 4, why))
    )


def groups(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Join groups of one member each, whose members send heartbeats."""

    def step(fairlead: FairleadPeer, count: int) -> dict[str, float]:
        name = f"read-by-{count}"
        topic(fairlead.url, name)
        command = command_of(WORKLOAD, "groups", url=fairlead.url, count=count, topic=name)
        with running(*command) as joined:
            found = measured(fairlead, fairlead.url, PROBE, options.seconds)
        return {"joins per second": count / joined["seconds"], **found}

    return growth("groups", _steps(folder, options.groups, step), machine_limits())


def producers(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Send batches of one record from idempotent producers in turn, 16 at a time."""

    def step(fairlead: FairleadPeer, count: int) -> dict[str, float]:
        topic_id = topic(fairlead.url, f"written-by-{count}", PRODUCER_PARTITIONS)
        before = cpu_seconds(fairlead.process.pid)
        sent = work(
            WORKLOAD, "producers", url=fairlead.url, count=count, topic_id=topic_id,
            partitions=PRODUCER_PARTITIONS, seconds=options.seconds,
        )  # fmt: skip
        used = cpu_seconds(fairlead.process.pid) - before
        return {
            "batches per second": sent["batches_per_second"],
            "p99 of a batch, ms": sent["p99_ms"],
            "broker's time per batch and id, µs": used / (sent["batches"] + count) * 1e6,
            **measured(fairlead, fairlead.url, PROBE, options.seconds),
        }

    return growth("idempotent producers", _steps(folder, options.producers, step), machine_limits())


def size(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Grow a topic of one partition; append and read at its end, look up a time, and restart the broker."""
    stored = 0

    def step(fairlead: FairleadPeer, count: int) -> dict[str, float]:
        nonlocal stored
        if not stored:
            topic(fairlead.url, LOADED)
        produced = work(
            "workloads/workload.py", "produce", url=fairlead.url, topic=LOADED, partitions=1,
            records=(count - stored) * GIB_RECORDS,
        )  # fmt: skip
        stored = count
        os.sync()
        tail = work(
            "workloads/latency_workload.py", "tail", url=fairlead.url, topic=LOADED, seconds=options.seconds
        )
        return {
            "produced, records/s": produced["records_per_second"],
            "p50 of append and read, ms": tail["p50_ms"],
            "p99 of append and read, ms": tail["p99_ms"],
            **measured(fairlead, fairlead.url, PROBE, options.seconds),
            "restart, s": fairlead.restart(),
        }

    free = shutil.disk_usage(folder).free / 2**30 - FREE_GIB_MIN
    counts = [count for count in options.gib if count <= free]
    steps = _steps(folder, counts, step)
    why = "The log is a sequence of files of which only the end is open, so the disk is the limit."
    return growth("GiB of a topic", steps, (*machine_limits(), Limit("free disk, GiB", free, why)))


def _steps(
    folder: Path, counts: list[int], step: Callable[[FairleadPeer, int], dict[str, float]]
) -> list[Step]:
    """Run all steps on one broker."""
    with broker(folder) as fairlead:
        return [Step(count, step(fairlead, count)) for count in counts]
