"""The SDK's transactions against a real broker: commits, aborts, failed records, fenced producers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cluster_kit import Cluster
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.errors import ProducerFencedError, SettingError, TransactionAbortedError
from held_commits import HeldCommit

PARTITIONS = 3


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of a broker with two topics."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        address = f"http://{cluster.brokers[1].addresses.data}"
        async with Admin(address) as admin:
            for topic in ("orders", "ledger"):
                limits = {"max.message.bytes": 5000}
                await admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1, config=limits)
        yield address
    finally:
        await cluster.close()


async def committed(url: str, topic: str, count: int) -> list[bytes]:
    """Return the values that a reader of committed records gets, until it has the given number of values."""
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    values: list[bytes] = []
    async with Consumer(url, isolation="read_committed") as consumer:
        await consumer.assign(places)
        async for record in consumer.records():
            assert record.value is not None
            values.append(record.value)
            if len(values) == count:
                break
        ends = await consumer.end_offsets()
        values += [record.value or b"" async for record in consumer.records(until=ends)]
    return sorted(values)


async def failing(producer: Producer) -> None:
    """Write a record in a transaction, and raise an error."""
    async with producer.transaction() as transaction:
        await transaction.send_and_wait("orders", b"never")
        _ = 1 // 0


async def too_large(producer: Producer) -> None:
    """Write two records in a transaction; the second record is too large for any broker."""
    async with producer.transaction() as transaction:
        await transaction.send("ledger", b"never")
        await transaction.send("orders", b"x" * 20_000)


async def test_leaving_the_block_commits_and_an_exception_aborts(url: str) -> None:
    """Records of all topics become visible at the end of the block, and records before an exception never do."""
    async with Producer(url, transactional="billing") as producer:
        for number in range(5):
            async with producer.transaction() as transaction:
                await transaction.send("orders", b"paid %d" % number, key=b"%d" % number)
                await transaction.send("ledger", b"+10 %d" % number, key=b"%d" % number)
        with pytest.raises(ZeroDivisionError):
            await failing(producer)
        async with producer.transaction() as transaction:
            await transaction.send("orders", b"paid 5")

    assert await committed(url, "orders", 6) == [b"paid %d" % number for number in range(6)]
    assert await committed(url, "ledger", 5) == [b"+10 %d" % number for number in range(5)]


async def test_a_failed_record_aborts_the_transaction(url: str) -> None:
    """If a record is not stored, no record of its transaction becomes visible, and the producer continues."""
    async with Producer(url, transactional=True) as producer:
        with pytest.raises(TransactionAbortedError) as caught:
            await too_large(producer)
        async with producer.transaction() as transaction:
            await transaction.send("ledger", b"kept")

    assert "too large" in str(caught.value.__cause__)
    assert await committed(url, "ledger", 1) == [b"kept"]


async def test_a_second_producer_of_a_name_fences_the_first(url: str) -> None:
    """The first producer can neither commit nor begin a transaction once another producer has taken its name."""
    async with Producer(url, transactional="billing") as first:
        transaction = first.transaction()
        await transaction.__aenter__()
        await transaction.send_and_wait("orders", b"lost")
        async with Producer(url, transactional="billing") as second, second.transaction() as other:
            await other.send("orders", b"kept")
        with pytest.raises(ProducerFencedError):
            await transaction.__aexit__(None, None, None)
        with pytest.raises(ProducerFencedError):
            await first.transaction().__aenter__()

    assert await committed(url, "orders", 1) == [b"kept"]


async def test_a_timed_out_transaction_is_reported_and_the_next_one_works(url: str) -> None:
    """A commit after the transaction's timeout raises an error, and the producer begins the next transaction."""
    async with Producer(url, transactional="slow", transaction_timeout="2s") as producer:
        transaction = producer.transaction()
        await transaction.__aenter__()
        await transaction.send_and_wait("orders", b"late")
        async with Admin(url) as admin:
            while (await admin.describe_transaction("slow")).ended is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # noqa: TID251 - no event announces the timeout
        with pytest.raises(TransactionAbortedError):
            await transaction.__aexit__(None, None, None)
        async with producer.transaction() as following:
            await following.send("orders", b"kept")

    assert await committed(url, "orders", 1) == [b"kept"]


@pytest.mark.parametrize("is_written", [False, True], ids=["before the write", "after the write"])
@pytest.mark.parametrize("name", ["billing", True], ids=["named", "unnamed"])
async def test_a_cancelled_commit_is_resolved_before_the_next_transaction(
    url: str, monkeypatch: pytest.MonkeyPatch, name: str | bool, *, is_written: bool
) -> None:
    """The outcome of a cancelled commit is known when the next transaction begins, and the late commit changes nothing.

    The commit is cancelled before or after the broker has written it, and arrives again after the next transaction.
    """
    held = HeldCommit(monkeypatch, is_written=is_written)
    async with Producer(url, transactional=name) as producer:
        cancelled = producer.transaction()

        async def pay() -> None:
            async with cancelled:
                await cancelled.send("orders", b"cancelled")

        paying = asyncio.create_task(pay())
        await held.arrived.wait()
        paying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await paying
        unknown = cancelled.is_committed
        async with producer.transaction() as following:
            known = cancelled.is_committed
            await following.send("orders", b"kept")
        await held.release()

    assert (unknown, known, following.is_committed) == (None, is_written, True)
    expected = [b"cancelled", b"kept"] if is_written else [b"kept"]
    assert await committed(url, "orders", len(expected)) == expected


async def test_closing_aborts_a_cancelled_transaction(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that is closed after a cancelled commit leaves no open transaction, which would delay readers."""
    held = HeldCommit(monkeypatch, is_written=False)

    async def pay() -> None:
        async with Producer(url, transactional=True) as producer, producer.transaction() as transaction:
            await transaction.send("orders", b"cancelled", partition=0)

    paying = asyncio.create_task(pay())
    await held.arrived.wait()
    paying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await paying
    await held.release()
    async with Producer(url) as producer:
        await producer.send("orders", b"kept", partition=0)

    assert await committed(url, "orders", 1) == [b"kept"]


async def test_a_waiting_send_never_joins_the_next_transaction(url: str) -> None:
    """A record whose `send` waits for buffer space when its transaction ends is refused, and is in no transaction."""
    async with Producer(
        url, transactional=True, buffer_bytes=20_000, batch_bytes=4000, linger_ms=60_000
    ) as producer:

        async def send_many() -> None:
            while True:
                await producer.send("ledger", b"x" * 1000)

        transaction = producer.transaction()
        await transaction.__aenter__()
        senders = [asyncio.create_task(send_many()) for _ in range(8)]
        done, _ = await asyncio.wait(senders, timeout=0.05)
        await transaction.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
        async with producer.transaction() as following:
            await following.send("ledger", b"kept")
            refusals = await asyncio.gather(*senders, return_exceptions=True)

    assert not done
    assert {type(refusal) for refusal in refusals} == {SettingError}
    assert await committed(url, "ledger", 1) == [b"kept"]


async def test_misuse_is_refused(url: str) -> None:
    """Records outside a transaction, and transactions of a plain producer, are refused."""
    async with Producer(url, transactional=True) as producer:
        with pytest.raises(SettingError):
            await producer.send("orders", b"outside")
    async with Producer(url) as plain:
        with pytest.raises(SettingError):
            plain.transaction()
    with pytest.raises(SettingError):
        Producer(url, transactional=True, acks=1)
