"""Committed records and end offsets of whole topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from chaos_cluster import ChaosCluster
from fairlead import Consumer, TopicPartition

Places: TypeAlias = dict[tuple[str, int], list[bytes]]
"""Values of each partition, in the order of their offsets."""


async def ends(cluster: ChaosCluster, topics: Sequence[str], partitions: int) -> dict[str, int]:
    """Return the end of each partition for readers of committed records."""
    places = [TopicPartition(topic, number) for topic in topics for number in range(partitions)]
    async with Consumer(cluster.urls, isolation="read_committed") as consumer:
        await consumer.assign(places)
        return {
            f"{place.topic}-{place.partition}": end for place, end in (await consumer.end_offsets()).items()
        }


async def read(cluster: ChaosCluster, topics: Sequence[str], partitions: int) -> Places:
    """Return all committed records of some topics."""
    found: Places = {(topic, number): [] for topic in topics for number in range(partitions)}
    async with Consumer(cluster.urls, isolation="read_committed") as consumer:
        await consumer.assign([TopicPartition(*place) for place in found])
        async for batch in consumer.batches(until=await consumer.end_offsets()):
            found[batch.topic, batch.partition] += [value or b"" for value in batch.values]
    return found
