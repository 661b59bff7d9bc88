"""Limits of transactions on a real broker: partitions of a transaction, and open transactions of a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from broker_kit import Answer, Calls
from cluster_kit import Cluster
from fairlead import Consumer, Producer, TopicPartition
from fairlead_api.bodies.transactions import PARTITIONS_MAX
from fairlead_broker.producers.open_transactions import OPEN_MAX

BEGIN = "/v1/transactions"
AT_ONCE = 50
"""Number of calls in flight."""
TIMEOUT_MS = 900_000


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of a broker."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        yield f"http://{cluster.brokers[1].addresses.data}"
    finally:
        await cluster.close()


async def answers(calls: list[Awaitable[Answer]]) -> list[Answer]:
    """Send calls, some at a time; return the answers in order."""
    return [
        answer
        for at in range(0, len(calls), AT_ONCE)
        for answer in await asyncio.gather(*calls[at : at + AT_ONCE])
    ]


@pytest.mark.slow
async def test_a_transaction_has_a_thousand_partitions_at_most(url: str) -> None:
    """A transaction that spans 1,000 partitions is committed as a whole, and one over 1,001 partitions is refused."""
    async with Calls(url) as api:
        await api.create("wide", PARTITIONS_MAX + 1)
        begun = (await api.post(BEGIN, {})).json["transaction"]
        named = [{"topic": "wide", "partitions": list(range(PARTITIONS_MAX + 1))}]
        refused = await api.post(f"{BEGIN}/{begun}:commit", {"partitions": named})
    async with Producer(url, transactional=True) as producer, producer.transaction() as transaction:
        for partition in range(PARTITIONS_MAX):
            await transaction.send("wide", b"%d" % partition, partition=partition)
    seen = set[bytes | None]()
    async with Consumer(url, isolation="read_committed") as consumer, asyncio.timeout(60):
        await consumer.assign([TopicPartition("wide", each) for each in range(PARTITIONS_MAX)])
        async for batch in consumer:
            seen.update(batch.values)
            if len(seen) == PARTITIONS_MAX:
                break

    assert refused.code == "transaction_too_large"
    assert seen == {b"%d" % each for each in range(PARTITIONS_MAX)}


@pytest.mark.scenario
@pytest.mark.timeout(900)
async def test_a_partition_has_ten_thousand_open_transactions_at_most(url: str) -> None:
    """10,000 transactions are open in a partition, the next one is refused, and all end after their aborts."""
    path = "/v1/topics/orders/partitions/0"
    async with Calls(url) as api:
        await api.create("orders")
        begun = [
            answer.json["transaction"]
            for answer in await answers(
                [api.post(BEGIN, {"timeout_ms": TIMEOUT_MS}) for _ in range(OPEN_MAX + 1)]
            )
        ]
        written = await answers(
            [
                api.post(f"{path}/records", {"records": [{"value": each}]}, Fairlead_Transaction=each)
                for each in begun
            ]
        )
        opened = (await api.call("GET", f"{path}/transactions")).json
        await answers([api.post(f"{BEGIN}/{each}:abort", {}) for each in begun])
        async with asyncio.timeout(120):
            while True:
                left = (await api.call("GET", f"{path}/transactions")).json
                if not left["items"]:
                    break
                await asyncio.sleep(0.2)  # noqa: TID251 - no event announces that all markers are appended

    refusals = [answer.code for answer in written if answer.status != 200]
    assert refusals == ["throttled"]
    assert (len(opened["items"]), opened["last_stable_offset"]) == (OPEN_MAX, 0)
    assert left["last_stable_offset"] == left["high_watermark"] == 2 * OPEN_MAX
