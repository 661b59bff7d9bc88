"""Idempotent producers whose answers are lost or delayed, while partition leaders are killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chaos_cluster import chaos_cluster
from chaos_faults import FAULTS
from chaos_run import TOPIC, assert_good, chaos_run
from fairlead import Admin, Consumer, Producer
from links import AnswerTrouble

pytestmark = pytest.mark.etcd
SHARE = 0.1
SENDS, PARTITIONS = 10_000, 3


@pytest.mark.scenario
@pytest.mark.parametrize("kills", [1, 5])
async def test_resent_records_are_stored_once_and_in_order(tmp_path: Path, kills: int) -> None:
    """Records are stored once and in order while one in ten answers is late, or lost with its connection."""
    async with chaos_run(tmp_path) as run:
        await run.create_topic(min_insync_replicas=2)
        run.usual_load()
        await run.wait_for_acknowledgements(50)
        trouble = run.cluster.links.trouble = AnswerTrouble(SHARE, random.Random(1))
        for seed in range(kills):
            await run.wait_for_acknowledgements(100)
            assert await FAULTS["kill-leader"](run, random.Random(seed))
        await run.wait_for_acknowledgements(100)
        assert_good(run, await run.finish())

    assert min(trouble.lost, trouble.late) >= 10, trouble


@pytest.mark.scenario
async def test_a_flush_ends_ten_thousand_sends_in_their_order(tmp_path: Path) -> None:
    """Ten thousand records that are sent without waiting are stored once and in order after a flush."""
    async with chaos_cluster(tmp_path) as cluster, Admin(cluster.urls) as admin:
        await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
        trouble = cluster.links.trouble = AnswerTrouble(SHARE, random.Random(1), seconds_max=0.5)
        async with Producer(cluster.urls, batch_bytes=256, request_timeout="5s") as producer:
            deliveries = [
                await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
                for number in range(SENDS)
            ]
            await producer.flush()
            told = [await each for each in deliveries if each.done]
        cluster.links.trouble = None
        read: list[list[int]] = [[] for _ in range(PARTITIONS)]
        async with Consumer(cluster.urls) as consumer:
            await consumer.assign(topic=TOPIC)
            async for batch in consumer.batches(until=await consumer.end_offsets()):
                read[batch.partition] += [int(value or b"") for value in batch.values]

    assert len(told) == SENDS
    assert read == [list(range(each, SENDS, PARTITIONS)) for each in range(PARTITIONS)]
    assert [each.offset for each in told[::PARTITIONS]] == list(range(len(read[0])))
    assert min(trouble.lost, trouble.late) >= 3, trouble
