"""Transactions while brokers fail: committed records become visible, and no transaction stays open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from broker_kit import Calls
from cluster_kit import Cluster
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.errors import FairleadError
from fairlead.transaction import Transaction
from fairlead_api.bodies.transactions import TransactionDescription
from fairlead_broker.runtime.transactions.ends import TransactionEnds


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield three brokers with a topic."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        yield cluster
    finally:
        await cluster.close()


def url_of(cluster: Cluster, broker: int) -> str:
    """Return the address of a broker."""
    return f"http://{cluster.brokers[broker].addresses.data}"


async def committed(url: str, count: int) -> list[bytes]:
    """Return the values that a reader of committed records gets, once it has enough of them."""
    values: list[bytes] = []
    async with Consumer(url, isolation="read_committed") as consumer, asyncio.timeout(60):
        await consumer.assign([TopicPartition("orders", 0)])
        async for record in consumer.records():
            values.append(record.value or b"")
            if len(values) == count:
                break
        values += [
            record.value or b"" async for record in consumer.records(until=await consumer.end_offsets())
        ]
    return values


async def test_a_commit_survives_the_stop_of_its_broker_and_of_the_leader(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A committed transaction is ended by the next leader, even if the broker that wrote the commit has stopped."""
    topic_id = await cluster.topic("orders", min_insync_replicas=1)
    await cluster.led("orders", topic_id)
    leader = cluster.leader(topic_id)
    assert leader is not None
    decider, other = (broker for broker in cluster.brokers if broker != leader)
    async with Calls(str(cluster.brokers[decider].addresses.data)) as api:
        begun = (await api.post("/v1/transactions", {"name": "billing"})).json["transaction"]
        records = "/v1/topics/orders/records"
        written = await api.post(records, [{"value": "kept"}], Fairlead_Transaction=begun)
        # This test suppresses the call that tells the leader to end the transaction, so only a leader's own check ends
        # it.
        monkeypatch.setattr(TransactionEnds, "_report_due", lambda ends, now: None)
        done = await api.post(f"/v1/transactions/{begun}:commit", {})
    await cluster.stop(decider)
    await cluster.stop(leader)
    found = await committed(url_of(cluster, other), 1)

    assert (written.status, done.status) == (200, 200)
    assert found == [b"kept"]


async def test_commits_with_batches_survive_the_stop_of_the_leader(cluster: Cluster) -> None:
    """While the leader stops, each transaction that is reported as committed is visible once, and no other is."""
    topic_id = await cluster.topic("orders", min_insync_replicas=1)
    await cluster.led("orders", topic_id)
    leader = cluster.leader(topic_id)
    assert leader is not None
    other = next(broker for broker in cluster.brokers if broker != leader)
    written: list[Transaction] = []

    async def write(producer: Producer, count: int) -> None:
        for _ in range(count):
            written.append(producer.transaction())
            with suppress(FairleadError):
                async with written[-1] as transaction:
                    await transaction.send("orders", b"%d" % len(written))

    async with Producer(url_of(cluster, other), transactional="billing") as producer:
        await write(producer, 3)
        stopping = asyncio.create_task(cluster.stop(leader))
        while not stopping.done():
            await write(producer, 1)
        await write(producer, 3)
    expected = [b"%d" % number for number, each in enumerate(written, 1) if each.is_committed]
    found = await committed(url_of(cluster, other), len(expected))

    assert [each.is_committed for each in (*written[:3], *written[-3:])] == [True] * 6
    assert found == expected


@pytest.mark.scenario
async def test_an_open_transaction_ends_after_the_stop_of_its_leader(cluster: Cluster) -> None:
    """The next leader of a partition enforces the timeout of a transaction that was open at the previous leader."""
    topic_id = await cluster.topic("orders", min_insync_replicas=1)
    await cluster.led("orders", topic_id)
    leader = cluster.leader(topic_id)
    assert leader is not None
    other = next(broker for broker in cluster.brokers if broker != leader)
    async with Calls(str(cluster.brokers[other].addresses.data)) as api:
        begun = (await api.post("/v1/transactions", {"timeout_ms": 2000})).json["transaction"]
        await api.post("/v1/topics/orders/records", [{"value": "lost"}], Fairlead_Transaction=begun)
    await cluster.stop(leader)
    async with Producer(url_of(cluster, other)) as producer:
        await producer.send_and_wait("orders", b"after")
    found = await committed(url_of(cluster, other), 1)
    async with Admin(url_of(cluster, other)) as admin:
        described: TransactionDescription = await admin.describe_transaction(begun)

    assert found == [b"after"]
    assert described.state == "ended"


@pytest.mark.scenario
async def test_a_restart_of_all_brokers_keeps_decisions(cluster: Cluster) -> None:
    """After a restart of all brokers, readers of committed records get the same records as before."""
    topic_id = await cluster.topic("orders", min_insync_replicas=1, segment_bytes=1_048_576)
    await cluster.led("orders", topic_id)
    async with Producer(url_of(cluster, 1), transactional="billing") as producer:
        for number in range(6):
            transaction = producer.transaction()
            await transaction.__aenter__()
            await transaction.send_and_wait("orders", b"%d" % number)
            failure = None if number % 2 == 0 else ZeroDivisionError()
            await transaction.__aexit__(None if failure is None else type(failure), failure, None)
    before = await committed(url_of(cluster, 1), 3)
    for broker in (1, 2, 3):
        await cluster.stop(broker)
    await cluster.start(1, 2, 3)
    await cluster.led("orders", topic_id)

    assert before == [b"0", b"2", b"4"]
    assert await committed(url_of(cluster, 2), 3) == before
