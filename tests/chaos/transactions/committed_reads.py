"""Committed records, end offsets and open transactions of partitions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from chaos_cluster import ChaosCluster, call, http_client, pause
from fairlead import Consumer, TopicPartition
from pricing_process import TIMEOUT_SECONDS

OPEN_SECONDS: Final = TIMEOUT_SECONDS + 10.0
"""Maximum time for which a transaction is open after the last fault."""
Places: TypeAlias = dict[tuple[str, int], list[bytes]]
"""Values of each partition, in the order of their offsets."""


async def ends(cluster: ChaosCluster, places: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the ends of some partitions for readers of committed records."""
    async with Consumer(cluster.urls, isolation="read_committed") as consumer:
        await consumer.assign([TopicPartition(*place) for place in places])
        return {
            f"{place.topic}-{place.partition}": end for place, end in (await consumer.end_offsets()).items()
        }


async def read(cluster: ChaosCluster, places: Iterable[tuple[str, int]]) -> Places:
    """Return all committed records of some partitions."""
    found: Places = {place: [] for place in places}
    async with Consumer(cluster.urls, isolation="read_committed") as consumer:
        await consumer.assign([TopicPartition(*place) for place in found])
        async for batch in consumer.batches(until=await consumer.end_offsets()):
            found[batch.topic, batch.partition] += [value or b"" for value in batch.values]
    return found


async def open_transactions(cluster: ChaosCluster, places: Sequence[tuple[str, int]]) -> list[str]:
    """Return the partitions in which a transaction is still open after its timeout."""
    deadline = time.monotonic() + OPEN_SECONDS
    async with http_client() as client:
        while True:
            opened = []
            for topic, number in places:
                path = f"/v1/topics/{topic}/partitions/{number}/transactions"
                found = (await call(client, "GET", cluster.urls[0] + path)).json
                if found.get("items") != [] or found["last_stable_offset"] != found["high_watermark"]:
                    opened.append(f"{topic}-{number}: {found}")
            if not opened or time.monotonic() > deadline:
                return opened
            await pause(0.2)
