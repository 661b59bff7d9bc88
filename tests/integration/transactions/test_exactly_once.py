"""Programs that consume, transform and produce: each record has one effect, even when brokers and programs stop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker_kit import Calls
from cluster_kit import Cluster, until
from fairlead import Admin, Consumer, Producer, exactly_once
from fairlead.errors import FairleadError, MemberFencedError, ProducerFencedError, SettingError
from fairlead.transaction import Transaction
from fairlead_api.identifiers import BrokerId
from held_commits import HeldCommit

RECORDS = 150
PARTITIONS = 3


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Yield three brokers with the topics orders and priced."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1, 2, 3)
        for topic in ("orders", "priced"):
            await cluster.topic(topic, PARTITIONS, min_insync_replicas=1)
        yield cluster
    finally:
        await cluster.close()


def urls_of(cluster: Cluster) -> list[str]:
    """Return the addresses of the brokers."""
    return [f"http://{broker.addresses.data}" for broker in cluster.brokers.values()]


async def work(urls: list[str], name: str, done: Counter[bytes]) -> None:
    """Copy records until cancelled; `done` counts the attempts of each record."""
    async with (
        Producer(urls, transactional=name) as producer,
        Consumer(
            urls,
            group="pricing",
            topics="orders",
            commit="manual",
            isolation="read_committed",
            session_timeout="2s",
        ) as consumer,
    ):
        async for transaction in exactly_once(consumer, producer, every="50ms"):
            async with transaction:
                async for batch in transaction:
                    for record in batch:
                        assert record.value is not None
                        done[record.value] += 1
                        await transaction.send("priced", record.value, key=record.key)


async def fill(urls: list[str], numbers: range) -> None:
    """Send the records of these numbers, one after the other."""
    async with Producer(urls) as producer:
        for number in numbers:
            await producer.send_and_wait("orders", b"%d" % number, key=b"%d" % (number % 17))


async def effects(urls: list[str]) -> Counter[bytes]:
    """Return how often readers of committed records find each record in the output, once every record is there."""
    found: Counter[bytes] = Counter()
    async with Consumer(urls, isolation="read_committed") as consumer, asyncio.timeout(60):
        await consumer.assign(topic="priced")
        async for record in consumer.records():
            found[record.value or b""] += 1
            if len(found) == RECORDS:
                break
        async for record in consumer.records(until=await consumer.end_offsets()):
            found[record.value or b""] += 1
    return found


async def stopped(worker: asyncio.Task[None]) -> None:
    """Stop a worker in the middle of its work."""
    worker.cancel()
    with suppress(asyncio.CancelledError, FairleadError):
        await worker


async def test_each_record_has_one_effect_despite_stops_of_brokers_and_workers(cluster: Cluster) -> None:
    """Each input has one output for readers of committed records, while brokers and workers stop and start."""
    urls, done = urls_of(cluster), Counter[bytes]()
    workers = [asyncio.create_task(work(urls, f"pricing-{number}", done)) for number in (1, 2)]
    await fill(urls, range(50))
    await until(lambda: len(done) > 25, "no worker reads")
    filling = asyncio.create_task(fill(urls, range(50, 100)))
    async with Admin(urls) as admin:
        coordinator = (await admin.describe_group("pricing")).coordinator
    assert coordinator is not None
    await cluster.stop(BrokerId(coordinator))
    await filling
    await stopped(workers.pop())
    filling = asyncio.create_task(fill(urls_of(cluster), range(100, RECORDS)))
    await cluster.start(coordinator)
    urls = urls_of(cluster)
    workers.append(asyncio.create_task(work(urls, "pricing-2", done)))
    await filling
    found = await effects(urls)
    for worker in workers:
        await stopped(worker)

    assert set(found.values()) == {1}
    assert len(found) == RECORDS


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of one broker with the topics `orders`, which has three records, and `priced`."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        for topic in ("orders", "priced"):
            await cluster.topic(topic, 1, replication_factor=1)
        address = f"http://{cluster.brokers[1].addresses.data}"
        async with Producer(address) as producer:
            for number in range(3):
                await producer.send("orders", b"%d" % number)
        yield address
    finally:
        await cluster.close()


def member(url: str, **settings: Any) -> Consumer:
    """Return a consumer for `exactly_once`."""
    chosen = {"commit": "manual", "isolation": "read_committed", **settings}
    return Consumer(url, group="pricing", topics="orders", **chosen)


async def copied(url: str, consumer: Consumer, failures: list[Exception]) -> list[tuple[bytes, ...]]:
    """Copy three records; each round raises the next failure at its end. Returns the records of each round."""
    rounds: list[tuple[bytes, ...]] = []
    async with Producer(url, transactional=True) as producer:
        async for transaction in exactly_once(consumer, producer, every="20ms", retry=ZeroDivisionError):
            async with transaction:
                values: list[bytes] = []
                async for batch in transaction:
                    for record in batch:
                        values.append(record.value or b"")
                        await transaction.send("priced", record.value)
                rounds.append(tuple(values))
                if failures:
                    raise failures.pop(0)
            if not failures and transaction.is_committed:
                break
    return rounds


async def priced(url: str, count: int) -> list[bytes | None]:
    """Return the values in the output that a reader of committed records gets, once it has enough of them.

    The markers of a transaction may be written after the answer to its commit.
    """
    values: list[bytes | None] = []
    async with Consumer(url, isolation="read_committed") as reader, asyncio.timeout(60):
        await reader.assign(topic="priced")
        async for record in reader.records():
            values.append(record.value)
            if len(values) == count:
                break
        values += [record.value async for record in reader.records(until=await reader.end_offsets())]
    return values


async def test_a_failed_block_runs_again_with_the_same_records(url: str) -> None:
    """After an error of `retry`, the next round has the same records; another error ends the loop without a commit."""
    three = (b"0", b"1", b"2")
    async with member(url) as consumer:
        with pytest.raises(KeyError):
            await copied(url, consumer, [ZeroDivisionError(), KeyError("order")])
        unchanged = await consumer.committed()
        rounds = await copied(url, consumer, [ZeroDivisionError()])
        done = await consumer.committed()
    values = await priced(url, 3)

    assert set(unchanged.values()) == {None}
    assert rounds == [three, three]
    assert (set(done.values()), tuple(values)) == ({3}, three)


async def send_until_refused(transaction: Transaction) -> None:
    """Send records; the leader refuses them once it has appended the marker of the transaction."""
    while True:
        await transaction.send_and_wait("priced", b"late")


async def test_a_block_whose_records_are_refused_after_an_abort_runs_again(url: str) -> None:
    """When an operator aborts the transaction and partitions refuse its further records, the block runs again."""
    rounds = 0
    async with (
        Admin(url) as admin,
        member(url) as consumer,
        Producer(url, transactional="pricing") as producer,
    ):
        async for transaction in exactly_once(consumer, producer, every="20ms"):
            async with transaction:
                rounds += 1
                async for batch in transaction:
                    for record in batch:
                        await transaction.send_and_wait("priced", record.value)
                if rounds == 1:
                    await admin.abort_transaction("pricing")
                    with pytest.raises(ProducerFencedError):
                        await send_until_refused(transaction)
            if transaction.is_committed:
                break
        done = await consumer.committed()
    values = await priced(url, 3)

    assert rounds == 2
    assert (set(done.values()), values) == ({3}, [b"0", b"1", b"2"])


@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
async def test_a_loop_after_a_cancelled_commit_repeats_no_record(
    url: str, monkeypatch: pytest.MonkeyPatch, *, is_written: bool
) -> None:
    """A loop that is cancelled during its commit, and begins again, produces one result per record.

    The cancelled commit arrives late, when the second loop has read its first records.
    """
    held = HeldCommit(monkeypatch, is_written=is_written)
    has_read = asyncio.Event()
    async with member(url) as consumer, Producer(url, transactional=True) as producer:

        async def copy() -> None:
            async for transaction in exactly_once(consumer, producer, every="20ms"):
                async with transaction:
                    async for batch in transaction:
                        has_read.set()
                        for record in batch:
                            await transaction.send("priced", record.value)

        copying = asyncio.create_task(copy())
        await held.arrived.wait()
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        has_read.clear()
        async with Producer(url) as source:
            await source.send("orders", b"3")
        copying = asyncio.create_task(copy())
        await has_read.wait()
        await held.release()
        async with Consumer(url, isolation="read_committed") as reader:
            await reader.assign(topic="priced")
            found = []
            async for record in reader.records():
                found.append(record.value)
                if record.value == b"3":
                    break
            found += [record.value async for record in reader.records(until=await reader.end_offsets())]
        copying.cancel()
        with suppress(asyncio.CancelledError):
            await copying

    assert found == [b"0", b"1", b"2", b"3"]


async def send_without_owning(url: str, producer: Producer, consumer: Consumer) -> None:
    """Send the result of a batch in a transaction, after the partition of the batch was revoked and assigned again."""
    async with Calls(url) as api, producer.transaction() as transaction:
        first = await consumer.next_batch()
        await transaction.send("priced", b"never")
        await api.call("DELETE", f"/v1/groups/pricing/members/{consumer.membership.member_id}")
        again = await consumer.next_batch()
        while first is None or again is None or again.base_offset > first.base_offset:
            again = await consumer.next_batch()
        await transaction.commit_offsets(consumer)


async def test_a_partition_that_was_lost_in_between_refuses_the_commit(url: str) -> None:
    """A transaction with records of a revoked partition is aborted, even if the partition is assigned again."""
    async with Producer(url, transactional=True) as producer, member(url, session_timeout="3s") as consumer:
        with pytest.raises(MemberFencedError):
            await send_without_owning(url, producer, consumer)
        committed = await consumer.committed()

    assert set(committed.values()) == {None}


@pytest.mark.parametrize("settings", [{"commit": "after"}, {"isolation": "read_uncommitted"}])
async def test_a_consumer_that_commits_or_reads_otherwise_is_refused(
    url: str, settings: dict[str, Any]
) -> None:
    """A consumer that commits by itself, or reads records of open transactions, is refused."""
    async with member(url, **settings) as consumer:
        with pytest.raises(SettingError):
            await copied(url, consumer, [])
