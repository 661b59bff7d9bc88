"""The replication factor that a topic has for its new partitions."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead_api.identifiers import PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_api.requests import AlterTopicRequest, CreateTopicRequest


async def test_another_replication_factor_is_for_new_partitions(cluster: Any) -> None:
    """Replicas stay where they are; new partitions have the new number."""
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
    assert refused.value.detail == (
        "topic flights asks for 3 replicas of each partition, but 2 brokers take new replicas"
    )


async def test_a_replication_factor_below_the_minimum_in_sync_is_refused(cluster: Any) -> None:
    """The topic's own minimum could never be reached."""
    life = await cluster.add(1)
    await cluster.add(2)
    await cluster.until(lambda metadata: len(metadata.brokers) == 2)
    await life.admin.create(
        CreateTopicRequest(name="flights", replication_factor=2, config={"min.insync.replicas": "2"})
    )
    with pytest.raises(ProblemError) as refused:
        await life.admin.alter("flights", AlterTopicRequest(replication_factor=1))

    assert refused.value.code == "invalid_config"
    assert "asks for 2 replicas in sync" in refused.value.detail
