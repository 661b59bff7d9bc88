"""Topics, partitions and moves that would exceed the maximum number of replicas of a broker are refused."""

from __future__ import annotations

import asyncio
from typing import Any

from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.identifiers import BrokerId, PartitionIndex, TimestampUs
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.records import TopicState, encode
from fairlead_broker.registry.security_records import QuotaRecord
from fairlead_broker.registry.store_writes import Put
from operations_kit import TOPIC, begin, catch_up, partitions_of, refusal, replicas

P0 = PartitionIndex(0)


def new(name: str, partitions: int) -> CreateTopicRequest:
    """Return the request for a topic with one replica for each partition."""
    return CreateTopicRequest(name=name, partitions=partitions, replication_factor=1)


async def test_a_topic_beyond_the_limit_is_refused_with_the_numbers(cluster: Any) -> None:
    """A creation, a dry run and added partitions beyond the limit are refused, and nothing is written."""
    life = await cluster.add(1, partitions_max=5)
    await cluster.until(lambda metadata: metadata.controller)
    await life.admin.create(new("a", 4))
    dry = await refusal(life.admin.create(new("b", 2), dry_run=True))
    real = await refusal(life.admin.create(new("b", 2)))
    grown = await refusal(life.admin.alter("a", AlterTopicRequest(partitions=6)))
    fits = await life.admin.alter("a", AlterTopicRequest(partitions=5))

    assert [problem.code for problem in (dry, real, grown)] == ["too_many_partitions"] * 3
    assert real.data == {"topic": "b", "broker": 1, "limit": 5, "count": 4}
    assert list(cluster.metadata.topics) == ["a"]
    assert fits.partitions == 5


async def test_concurrent_creations_together_stay_within_the_limits(cluster: Any) -> None:
    """Of concurrent creations, as many succeed as the brokers have room for, and no topic stays incomplete."""
    await cluster.add(1, partitions_max=70)
    await cluster.add(2, partitions_max=70)
    await cluster.until(lambda metadata: metadata.controller)
    admin = cluster.controller.admin
    results = await asyncio.gather(
        *(admin.create(new(f"t{n}", 65)) for n in range(4)), return_exceptions=True
    )
    refused = [each for each in results if isinstance(each, ProblemError)]
    topics = cluster.metadata.topics.values()

    assert [each.code for each in refused] == ["too_many_partitions"] * 2
    assert [each.value.state for each in topics] == [TopicState.READY] * 2
    assert all(count <= 70 for count in cluster.controller.controllership.load.of_brokers().values())
    assert (await admin.create(new("rest", 10)))[1], "the promises of finished operations have ended"


async def test_concurrent_operations_together_stay_within_a_quota(cluster: Any) -> None:
    """Creations and growths in progress count towards the limit, even before their partitions are written."""
    await cluster.add(1)
    await cluster.until(lambda metadata: metadata.controller)
    admin = cluster.controller.admin
    for name in ("shop.a", "shop.b", "other"):
        await admin.create(new(name, 1))
    record = QuotaRecord(shared={"partitions": 5}, changed_us=TimestampUs(1), changed_by="user:a")
    await cluster.store.transact((), (Put(cluster.metadata.keys.quota("topics:shop.*"), encode(record)),))
    await cluster.until(lambda metadata: metadata.quotas)
    results = await asyncio.gather(
        admin.alter("shop.a", AlterTopicRequest(partitions=3)),
        admin.alter("shop.b", AlterTopicRequest(partitions=3)),
        admin.create(new("shop.c", 2)),
        admin.alter("other", AlterTopicRequest(partitions=9)),
        return_exceptions=True,
    )
    refused = [each for each in results if isinstance(each, ProblemError)]

    assert [(each.code, each.data["limit"]) for each in refused] == [("conflict", 5)] * 2
    assert not isinstance(results[3], ProblemError)


async def test_a_move_to_a_full_broker_is_refused(cluster: Any) -> None:
    """A reassignment to a broker is refused if concurrent reassignments already fill the broker to its limit."""
    await begin(cluster, brokers=2, replication_factor=1, partitions=4)
    await cluster.add(3, partitions_max=1)
    operations = cluster.controller.operations
    results = await asyncio.gather(
        *(operations.reassign(TOPIC, PartitionIndex(n), [BrokerId(3)]) for n in range(3)),
        return_exceptions=True,
    )
    refused = [each for each in results if isinstance(each, ProblemError)]

    assert [(each.code, each.data["broker"], each.data["limit"]) for each in refused] == [
        ("too_many_partitions", 3, 1)
    ] * 2


async def test_a_drain_moves_only_as_many_replicas_as_fit(cluster: Any) -> None:
    """A drain fills another broker up to its limit, and reports the partitions that must stay."""
    await begin(cluster, brokers=1, replication_factor=1, partitions=3)
    await cluster.add(2, partitions_max=2)
    operations = cluster.controller.operations
    await operations.drain(BrokerId(1))
    await cluster.until(lambda metadata: sum(bool(each.adding) for each in partitions_of(metadata)) == 2)
    for partition in range(3):
        await catch_up(cluster, partition)
    await cluster.until(lambda metadata: sorted(map(replicas, partitions_of(metadata))) == [[1], [2], [2]])

    assert len(operations.immovable(BrokerId(1))) == 1


async def test_a_broker_without_a_limit_takes_the_rest(cluster: Any) -> None:
    """Brokers of older releases register no limit, and get the partitions for which other brokers have no room."""
    await cluster.add(1, partitions_max=1)
    await cluster.add(2)
    await cluster.until(lambda metadata: metadata.controller)
    record, _ = await cluster.controller.admin.create(new(TOPIC, 6))

    assert record.state is TopicState.READY
    assert [replicas(each)[0] for each in partitions_of(cluster.metadata)].count(1) == 1
