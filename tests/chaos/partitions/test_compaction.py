"""A compacted topic of broker processes: a producer continues while rounds remove records and leaders are killed."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker_kit import Calls
from chaos_cluster import Node
from chaos_run import TOPIC, ChaosRun, chaos_run
from fairlead import Admin, Consumer, Producer, RecordMetadata, TopicPartition
from figures import record

pytestmark = pytest.mark.etcd
KEYS = 10
KILLS = 3
CLEANED_SECONDS_MAX = WRITTEN_SECONDS_MAX = 120
PADDING_BYTES = 16_000
PADDED_RECORDS = 500
RATE = "log.cleaner.io.max.bytes.per.second"
RATE_BYTES = 1 << 20
"""Lowest rate of the cleaner, at which a round over the padded records takes more than ten seconds."""


@dataclass
class Writer:
    """A producer that writes the numbers from 0 on to a few keys, with several records under way."""

    producer: Producer
    padding: bytes = b""
    """Bytes behind each number, which make rounds of a limited rate long."""
    is_stopping: bool = False
    written: list[RecordMetadata] = field(default_factory=list)

    async def run(self) -> None:
        """Write until the writer is stopped."""
        for first in itertools.count(step=5):
            sent = [
                await self.producer.send(TOPIC, b"%d %s" % (number, self.padding), b"k%d" % (number % KEYS))
                for number in range(first, first + 5)
            ]
            self.written += [await delivery for delivery in sent]
            if self.is_stopping:
                break

    async def write_padded(self, run: ChaosRun) -> None:
        """Write enough padded records for a round of several seconds at the limited rate."""
        before, self.padding = len(self.written), random.Random(14).randbytes(PADDING_BYTES)
        async with asyncio.timeout(WRITTEN_SECONDS_MAX):
            while len(self.written) < before + PADDED_RECORDS:
                await run.work(0.1)
        self.padding = b""


async def _clean(run: ChaosRun) -> None:
    """Let every replica remove the records that newer records replace, up to the current end of the log."""
    end = 0
    async with asyncio.timeout(CLEANED_SECONDS_MAX), Admin(run.cluster.urls) as admin:
        while True:
            # A follower that is behind closes its last segment at an earlier offset, and must do so again.
            replicas = (await admin.clean_partition(TOPIC, 0)).replicas
            end = end or max(each.log_end_offset or 0 for each in replicas)
            cleaned = [each.cleaned_offset or 0 for each in replicas]
            if len(cleaned) == len(run.cluster.nodes) and min(cleaned) >= end > 0:
                return
            await run.work(0.5)


async def _leader(run: ChaosRun) -> Node:
    """Return the leader's broker."""
    leader = (await run.partition()).leader
    assert leader is not None
    return run.cluster.node(leader)


async def _replace_leader(run: ChaosRun, leader: Node) -> list[str]:
    """Kill the leader, wait for the next leader, and start the killed broker again.

    Returns the names of unfinished files of a round that the killed broker has left.
    """
    await run.cluster.kill(leader)
    left = _unfinished(leader)
    await run.cluster.wait_for_partitions(TOPIC, lambda each: each.leader not in {None, leader.number})
    await run.cluster.start(leader)
    await run.cluster.wait_for_partitions(TOPIC, lambda each: set(each.isr) == set(each.replicas))
    return left


async def _kill_during_round(run: ChaosRun, writer: Writer) -> list[str]:
    """Replace the leader while its round writes a segment; return the names of the files that the round has left."""
    leader = await _leader(run)
    async with Admin(run.cluster.urls) as admin:
        await admin.alter_broker_config(leader.number, {RATE: RATE_BYTES})
        await writer.write_padded(run)
        before = await _read_bytes(leader)
        await admin.clean_partition(TOPIC, 0)
        async with asyncio.timeout(CLEANED_SECONDS_MAX):
            while await _read_bytes(leader) == before or not _unfinished(leader):
                await run.work(0.05)
        left = await _replace_leader(run, leader)
        await admin.alter_broker_config(leader.number, {RATE: None})
    return left


async def _read_bytes(node: Node) -> float:
    """Return the number of bytes that the broker's rounds have read."""
    async with Calls.http1(node.process.ops) as ops:
        answer = await ops.call("GET", "/metrics")
    return sum(
        float(line.rpartition(" ")[2])
        for line in answer.body.decode().splitlines()
        if line.startswith("fairlead_cleaner_read_bytes_total")
    )


def _unfinished(node: Node) -> list[str]:
    """Return the names of files that a round of a broker has not finished."""
    return sorted(path.name for path in node.process.data.rglob("*") if path.suffix in {".cleaned", ".swap"})


@pytest.mark.scenario
@pytest.mark.timeout(600)
async def test_a_producer_continues_over_rounds_and_kills_of_leaders_without_a_duplicate(
    tmp_path: Path,
) -> None:
    """Each record gets one offset, and readers find the newest record of each key.

    The leader is killed behind a finished round, and three times in the middle of one, while the round has unfinished
    files.
    """
    async with chaos_run(tmp_path, partitions=1) as run:
        await run.create_topic(
            min_insync_replicas=2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
        )
        async with Producer(
            run.cluster.urls, delivery_timeout="120s", linger_ms=1, compression="none"
        ) as producer:
            writer = Writer(producer)
            writing = asyncio.create_task(writer.run())
            await _clean(run)
            await _replace_leader(run, await _leader(run))
            left = [await _kill_during_round(run, writer) for _ in range(KILLS)]
            writer.is_stopping = True
            await writing
        written = writer.written
        await _clean(run)
        async with Consumer(run.cluster.urls) as consumer:
            place = TopicPartition(TOPIC, 0)
            await consumer.assign([place], start=0)
            ends = await consumer.end_offsets()
            found = [record async for record in consumer.records(ends)]
    newest = {each.key: each for each in found}
    record(
        "kills of leaders",
        {"records": len(written), "records_left": len(found), "killed_in_a_round": KILLS, "files_left": left},
    )

    numbers = range(len(written) - KEYS, len(written))
    assert all(left)
    assert [each.offset for each in written] == list(range(len(written)))
    assert ends == {place: len(written)}
    assert len(found) < len(written)
    assert {(each.value or b"").split(b" ")[0] for each in newest.values()} == {
        b"%d" % each for each in numbers
    }
    assert sorted(each.offset for each in newest.values()) == list(numbers)
