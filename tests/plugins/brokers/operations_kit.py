"""A topic on the brokers of `coordination_kit`, administrative requests, and the resulting partitions."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.problems import ProblemError
from fairlead_broker.registry.records import InSync, PartitionRecord, encode
from fairlead_broker.registry.store_writes import Put

TOPIC = "flights"


async def refusal(call: Awaitable[object]) -> ProblemError:
    """Wait for a call to be refused."""
    with pytest.raises(ProblemError) as refused:
        await call
    return refused.value


async def begin(
    cluster: Any, brokers: int, replication_factor: int, partitions: int = 1, **config: str
) -> None:
    """Start brokers from 1 on and a topic on them; underscores in configuration keys replace dots."""
    for broker in range(1, brokers + 1):
        await cluster.add(broker)
    await cluster.until(lambda metadata: metadata.controller)
    named = {key.replace("_", "."): value for key, value in config.items()}
    request = CreateTopicRequest(
        name=TOPIC, partitions=partitions, replication_factor=replication_factor, config={**named}
    )
    await cluster.controller.admin.create(request)
    await cluster.until(lambda metadata: len(partitions_of(metadata)) == partitions)


def partitions_of(metadata: Any) -> list[PartitionRecord]:
    """Return the topic's partitions in order."""
    if TOPIC not in metadata.topics:
        return []
    found = metadata.partitions(metadata.topics[TOPIC].value.topic_id)
    return [found[index].value for index in sorted(found)]


def replicas(record: PartitionRecord) -> list[int]:
    """Return the brokers that store a partition."""
    return [replica.broker for replica in record.replicas]


def isr(record: PartitionRecord) -> list[int]:
    """Return the in-sync replicas."""
    return sorted(entry.broker for entry in record.isr)


async def catch_up(cluster: Any, partition: int = 0) -> None:
    """Put every live replica into the ISR, as the leader would when the replicas have caught up."""
    metadata = cluster.controller.mirror.metadata
    topic_id = metadata.topics[TOPIC].value.topic_id
    record = metadata.partitions(topic_id)[partition].value
    entries = tuple(
        InSync(broker=each.broker, broker_epoch=metadata.brokers[each.broker].create_revision)
        for each in record.replicas
        if each.broker in metadata.brokers
    )
    caught_up = msgspec.structs.replace(record, isr=entries, elr=())
    await cluster.store.transact((), (Put(metadata.keys.partition(topic_id, partition), encode(caught_up)),))
