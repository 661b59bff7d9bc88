"""Tests of the mirror of metadata on a real etcd: it stays current through kills and compactions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from etcd_cluster import EtcdCluster, etcd_cluster
from fairlead_api.identifiers import Revision, TimestampUs, TopicId
from fairlead_broker.coordination.mirror import Mirror
from fairlead_broker.coordination.protocol import Coordination, CoordinationUnavailable, UnknownOutcome
from fairlead_broker.registry.keys import Keys
from fairlead_broker.registry.records import TopicRecord, TopicState, encode
from fairlead_broker.registry.store_writes import Put

KEYS = Keys("test")


@asynccontextmanager
async def running(client: Coordination) -> AsyncIterator[Mirror]:
    """Run a mirror."""
    mirror = Mirror(client, KEYS)
    await mirror.load()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(mirror.run())
        yield mirror
        task.cancel()


async def write(client: Coordination, number: int) -> Revision:
    """Write topic t<number>, with retries until it succeeds."""
    record = TopicRecord(
        topic_id=TopicId(f"00000000-0000-4000-8000-{number:012}"),
        state=TopicState.READY,
        partitions=1,
        replication_factor=1,
        created_us=TimestampUs(number),
    )
    while True:
        try:
            return (await client.transact((), (Put(KEYS.topic(f"t{number}"), encode(record)),))).revision
        except (CoordinationUnavailable, UnknownOutcome):
            continue


@pytest.mark.scenario
async def test_it_follows_while_members_die(three: EtcdCluster) -> None:
    """After each kill and a compaction, a caller that waits for a revision sees all changes up to this revision."""
    writer = three.client()
    async with running(three.client()) as mirror:
        for number, member in enumerate(three.members):
            member.kill()
            revision = await write(writer, number)
            async with asyncio.timeout(30):
                await mirror.wait_for(revision)
            await writer.compact(revision)

            assert set(mirror.metadata.topics) == {f"t{n}" for n in range(number + 1)}

            member.start()
            await three.wait_until_ready((member,))


async def test_callers_that_wait_for_a_new_watch_are_answered(alone: EtcdCluster) -> None:
    """Callers that wait while the watch is created are answered when the watch has caught up, even without events."""
    client = alone.client()
    await write(client, 0)
    async with running(client) as mirror, asyncio.timeout(10), asyncio.TaskGroup() as waiting:
        for number in range(40):
            elsewhere = await client.transact((), (Put("/elsewhere", b"%d" % number),))
            waiting.create_task(mirror.wait_for(elsewhere.revision))


async def test_a_quiet_mirror_can_be_waited_for(alone: EtcdCluster) -> None:
    """Progress events advance the mirror past a change outside its prefix."""
    client = alone.client()
    await write(client, 0)
    async with running(client) as mirror:
        elsewhere = await client.transact((), (Put("/elsewhere", b""),))
        async with asyncio.timeout(10):
            await mirror.wait_for(elsewhere.revision)

        assert mirror.metadata.revision >= elsewhere.revision


def test_it_runs_on_the_loop_of_the_broker(tmp_path: Path) -> None:
    """Calls, streams and their ends work on uvloop, which the broker uses."""

    async def follow() -> set[str]:
        async with etcd_cluster(tmp_path) as cluster:
            client = cluster.client()
            lease = await client.grant_lease(10)
            async with running(client) as mirror:
                revision = await write(client, 1)
                await client.keep_alive(lease)
                await mirror.wait_for(revision)
                return set(mirror.metadata.topics)

    assert uvloop.run(follow()) == {"t1"}
