"""Kafka's AssignmentValidation, consume_bench_test and consumer_group_command_test on one shared cluster."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
import pytest
import pytest_asyncio

from chaos_cluster import ChaosCluster, chaos_cluster
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead_api.bodies.group_answers import MemberDescription
from group_watch import is_settled, places_of, wait_for_group, wait_for_lag
from warm_programs import warm_program

pytestmark = [pytest.mark.etcd, pytest.mark.asyncio(loop_scope="module")]
PARTITIONS: Final = 6
RECORDS: Final = 300
_NAMES: Final = itertools.count()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    """Yield three brokers without faults."""
    async with chaos_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def topic(cluster: ChaosCluster) -> str:
    """Return a new topic for each test."""
    return await _create(cluster)


async def _create(cluster: ChaosCluster) -> str:
    name = f"topic-{next(_NAMES)}"
    async with Admin(cluster.urls) as admin:
        await admin.create_topic(name, partitions=PARTITIONS, replication_factor=3)
    await cluster.wait_for_partitions(name, lambda each: each.leader is not None)
    return name


async def _produce(cluster: ChaosCluster, topic: str) -> set[bytes]:
    values = {str(number).encode() for number in range(RECORDS)}
    async with Producer(cluster.urls) as producer:
        for number, value in enumerate(sorted(values)):
            await producer.send(topic, value, partition=number % PARTITIONS)
    return values


async def _take(consumer: Consumer, got: Counter[bytes], count: int) -> None:
    """Read until the readers together have `count` records."""
    while got.total() < count:
        batch = await consumer.next_batch("1s")
        if batch is not None:
            got.update(record.value or b"" for record in batch)


@pytest.mark.scenario
@pytest.mark.parametrize("assignor", ["range", "uniform"])
async def test_every_partition_has_one_owner_after_each_join(
    cluster: ChaosCluster, topic: str, assignor: str
) -> None:
    """Every partition of two topics has one owner after each join, even with more members than partitions."""
    topics = (topic, await _create(cluster))
    places = places_of(topics[0], PARTITIONS) | places_of(topics[1], PARTITIONS)
    async with AsyncExitStack() as stack:
        for count in range(1, PARTITIONS + 2):
            consumer = Consumer(cluster.urls, group=topic, topics=topics, assignor=assignor)
            await stack.enter_async_context(consumer)
            found = await wait_for_group(cluster, topic, is_settled(count, places))
            shares = [_shares(member) for member in found.members]
            assert found.assignor == assignor
            if assignor == "range":
                # Partitions with the same number in topics with the same keys are assigned to one member.
                assert all(share.get(topics[0]) == share.get(topics[1]) for share in shares)
                sizes = [len(share.get(topic, ())) for share in shares]
            else:
                sizes = [sum(map(len, share.values())) for share in shares]
            assert max(sizes) - min(sizes) <= 1, "partitions are shared unevenly"


def _shares(member: MemberDescription) -> dict[str, list[int]]:
    return {each.topic: each.partitions for each in member.assignment if each.partitions}


@pytest.mark.scenario
async def test_explicit_readers_and_groups_are_independent(cluster: ChaosCluster, topic: str) -> None:
    """A reader in each group, and a reader with chosen partitions, read all records; a group's members share them."""
    values = await _produce(cluster, topic)
    alone, *groups = (Counter[bytes]() for _ in range(4))
    async with AsyncExitStack() as stack:
        chosen = await stack.enter_async_context(Consumer(cluster.urls))
        await chosen.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        reading = [_take(chosen, alone, RECORDS)]
        # The first two groups have one member each, the last group has two.
        for got, name in zip([*groups, groups[-1]], ("a", "b", "shared", "shared"), strict=True):
            member = Consumer(cluster.urls, group=f"{topic}-{name}", topics=topic)
            await stack.enter_async_context(member)
            reading.append(_take(member, got, RECORDS))
        both = is_settled(2, places_of(topic, PARTITIONS))
        await wait_for_group(cluster, f"{topic}-shared", both)
        async with asyncio.timeout(60):
            await asyncio.gather(*reading)

    for got in (alone, *groups):
        assert got == Counter(values)


async def _command(cluster: ChaosCluster, *arguments: str) -> Any:
    """Run `fairlead` and return its JSON."""
    command = [warm_program(), *arguments, "--output", "json"]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, "FAIRLEAD_BOOTSTRAP": ",".join(cluster.urls)},
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, arguments
    return msgspec.json.decode(printed)


@pytest.mark.scenario
async def test_the_command_line_lists_and_describes_groups(cluster: ChaosCluster, topic: str) -> None:
    """A group with a reading member is listed by the command line, and described with its owner and its lag."""
    await _produce(cluster, topic)
    got = Counter[bytes]()
    async with Consumer(cluster.urls, group=topic, topics=topic) as member:
        await _take(member, got, RECORDS)
        await member.commit()
        await wait_for_lag(cluster, topic, places_of(topic, PARTITIONS))
        listed = await _command(cluster, "group", "list")
        described = await _command(cluster, "group", "describe", topic)
        lag = await _command(cluster, "group", "lag", topic)
        member_id = member.membership.member_id

    assert described["coordinator"] == {each["group"]: each["coordinator"] for each in listed}[topic]
    assert described["state"] == "stable"
    (told,) = described["members"]
    assert told["member_id"] == member_id
    assert [each["partitions"] for each in told["assignment"]] == [list(range(PARTITIONS))]
    assert lag["total_records"] == 0
    assert sum(each["committed_offset"] for each in lag["lag"]) == RECORDS
