"""A compacted topic of broker processes: a producer continues while rounds remove records and leaders are killed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from chaos_run import TOPIC, ChaosRun, chaos_run
from fairlead import Admin, Consumer, Producer, RecordMetadata, TopicPartition

pytestmark = pytest.mark.etcd
KEYS = 10
CLEANED_SECONDS_MAX = 120


async def _write(producer: Producer, stopping: asyncio.Event) -> list[RecordMetadata]:
    """Write the numbers from 0 on to a few keys, with several records under way; return their offsets."""
    written: list[RecordMetadata] = []
    for first in itertools.count(step=5):
        sent = [
            await producer.send(TOPIC, b"%d" % number, b"k%d" % (number % KEYS))
            for number in range(first, first + 5)
        ]
        written += [await delivery for delivery in sent]
        if stopping.is_set():
            break
    return written


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


async def _replace_leader(run: ChaosRun) -> None:
    """Kill the leader, wait for the next leader, and start the killed broker again."""
    leader = (await run.partition()).leader
    assert leader is not None
    await run.cluster.kill(run.cluster.node(leader))
    await run.cluster.wait_for_partitions(TOPIC, lambda each: each.leader not in {None, leader})
    await run.cluster.start(run.cluster.node(leader))
    await run.cluster.wait_for_partitions(TOPIC, lambda each: set(each.isr) == set(each.replicas))


@pytest.mark.scenario
@pytest.mark.timeout(600)
async def test_a_producer_continues_over_rounds_and_kills_of_leaders_without_a_duplicate(
    tmp_path: Path,
) -> None:
    """Each record gets one offset, and readers find the newest record of each key.

    The leader is killed behind a finished round and in the middle of one.
    """
    stopping = asyncio.Event()
    async with chaos_run(tmp_path, partitions=1) as run:
        await run.create_topic(
            min_insync_replicas=2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01
        )
        async with Producer(run.cluster.urls, delivery_timeout="120s", linger_ms=1) as producer:
            writing = asyncio.create_task(_write(producer, stopping))
            await _clean(run)
            await _replace_leader(run)
            async with Admin(run.cluster.urls) as admin:
                await admin.clean_partition(TOPIC, 0)
            await _replace_leader(run)
            stopping.set()
            written = await writing
        await _clean(run)
        async with Consumer(run.cluster.urls) as consumer:
            place = TopicPartition(TOPIC, 0)
            await consumer.assign([place], start=0)
            ends = await consumer.end_offsets()
            found = [record async for record in consumer.records(ends)]
    left = {record.key: record for record in found}

    numbers = range(len(written) - KEYS, len(written))
    assert [each.offset for each in written] == list(range(len(written)))
    assert ends == {place: len(written)}
    assert len(found) < len(written)
    assert {each.value for each in left.values()} == {b"%d" % number for number in numbers}
    assert sorted(each.offset for each in left.values()) == list(numbers)
