"""The replication factor of a topic, which applies to its new partitions, and brokers that a client chooses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.identifiers import BrokerId, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.records import InSync, encode
from fairlead_broker.registry.store_writes import Put, unchanged_since
from refusals import missing


async def test_another_replication_factor_is_for_new_partitions(cluster: Any) -> None:
    """A changed replication factor applies to new partitions; existing partitions keep their replicas."""
    life = await cluster.add(1)
    await cluster.add(2)
    await cluster.until(lambda metadata: len(metadata.brokers) == 2)
    created, _ = await life.admin.create(
        CreateTopicRequest(name="flights", partitions=1, replication_factor=1)
    )
    await life.admin.alter("flights", AlterTopicRequest(replication_factor=2))
    altered = await life.admin.alter("flights", AlterTopicRequest(partitions=2))
    partitions = life.mirror.metadata.partitions(created.topic_id)
    with pytest.raises(ProblemError) as refused:
        await life.admin.alter("flights", AlterTopicRequest(replication_factor=3))

    assert altered.replication_factor == 2
    assert [len(partitions[PartitionIndex(n)].value.replicas) for n in (0, 1)] == [1, 2]
    assert missing(refused.value.detail, "flights", 3, 2) == []


async def test_a_replication_factor_below_the_minimum_in_sync_is_refused(cluster: Any) -> None:
    """A replication factor below the topic's min.insync.replicas is refused."""
    life = await cluster.add(1)
    await cluster.add(2)
    await cluster.until(lambda metadata: len(metadata.brokers) == 2)
    await life.admin.create(
        CreateTopicRequest(name="flights", replication_factor=2, config={"min.insync.replicas": "2"})
    )
    with pytest.raises(ProblemError) as refused:
        await life.admin.alter("flights", AlterTopicRequest(replication_factor=1))

    assert refused.value.code == "invalid_config"
    assert "requires 2 in-sync replicas" in refused.value.detail


async def test_a_client_chooses_the_brokers_of_new_partitions(cluster: Any) -> None:
    """New partitions lie on the chosen brokers, whose number is the replication factor."""
    life = await cluster.add(1)
    await cluster.add(2)
    await cluster.until(lambda metadata: len(metadata.brokers) == 2)
    request = CreateTopicRequest(name="flights", replicas=[[2, 1], [1, 2]])
    created, _ = await life.admin.create(request)
    again, was_created = await life.admin.create(request)
    await life.admin.alter("flights", AlterTopicRequest(partitions=3, replicas=[[2, 1]]))
    partitions = life.mirror.metadata.partitions(created.topic_id)
    replicas = [[each.broker for each in partitions[PartitionIndex(n)].value.replicas] for n in range(3)]

    assert (created.partitions, created.replication_factor, created.assigned) == (2, 2, None)
    assert (again.topic_id, was_created) == (created.topic_id, False)
    assert replicas == [[2, 1], [1, 2], [2, 1]]


async def test_brokers_that_cannot_be_chosen_are_refused(cluster: Any) -> None:
    """A wrong number of partitions or brokers, a repeated, an unknown and a full broker are refused."""
    life = await cluster.add(1, partitions_max=2)
    await cluster.add(2)
    await cluster.until(lambda metadata: len(metadata.brokers) == 2)
    await life.admin.create(CreateTopicRequest(name="flights", replicas=[[1]]))

    async def code(call: Any) -> tuple[str, object]:
        with pytest.raises(ProblemError) as refused:
            await call
        return refused.value.code, refused.value.data.get("key")

    def created(*replicas: list[int], partitions: int | None = None) -> Any:
        request = CreateTopicRequest(name="other", partitions=partitions, replicas=list(replicas))
        return life.admin.create(request)

    refusals = [
        await code(created([1], partitions=2)),
        await code(created([1], [1, 2])),
        await code(created([1, 1])),
        await code(created([3])),
        await code(life.admin.alter("flights", AlterTopicRequest(replicas=[[1]]))),
    ]
    full = await code(created([1], [1]))

    assert refusals == [("invalid_config", "replicas")] * 5
    assert full == ("too_many_partitions", None)
    assert list(life.mirror.metadata.topics) == ["flights"]


async def in_sync(life: Any, topic_id: TopicId) -> None:
    """Put every replica of the first partition into the ISR, as its leader would."""
    metadata = life.mirror.metadata
    found = metadata.partitions(topic_id)[PartitionIndex(0)]
    isr = tuple(
        InSync(broker=each.broker, broker_epoch=metadata.brokers[each.broker].create_revision)
        for each in found.value.replicas
    )
    written = await life.coordination.transact(
        (unchanged_since(metadata.keys.partition(topic_id, 0), found.mod_revision),),
        (Put(metadata.keys.partition(topic_id, 0), encode(msgspec.structs.replace(found.value, isr=isr))),),
    )
    assert written.succeeded


async def test_a_partition_that_was_moved_to_more_brokers_needs_its_minimum(cluster: Any) -> None:
    """`min_isr` of a partition that is moved to more brokers rises only when the added replicas are in sync."""
    life = await cluster.add(1)
    await cluster.add(2)
    await cluster.add(3)
    await cluster.until(lambda metadata: len(metadata.brokers) == 3)
    created, _ = await life.admin.create(
        CreateTopicRequest(name="flights", partitions=1, replication_factor=1)
    )
    await life.admin.alter("flights", AlterTopicRequest(replication_factor=3))

    def minimum(metadata: Any) -> int:
        return int(metadata.partitions(created.topic_id)[PartitionIndex(0)].value.min_isr)

    wanted = [BrokerId(1), BrokerId(2), BrokerId(3)]
    moving = await life.operations.reassign("flights", PartitionIndex(0), wanted)
    await life.admin.follow_cluster_config()
    amid = minimum(life.mirror.metadata)
    await in_sync(life, created.topic_id)
    await cluster.until(lambda metadata: minimum(metadata) == 2)

    assert len(moving.adding) == 2
    assert amid == 1
