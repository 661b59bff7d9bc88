"""Transactions without an event loop: the blocking producer, and the blocking loop `exactly_once`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from cluster_kit import Cluster
from fairlead.blocking import Consumer, Producer, exactly_once
from fairlead.errors import ClosedError, RecordError, SettingError


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of one broker with the topics `orders`, which has two partitions, and `priced`."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        await cluster.topic("orders", 2, replication_factor=1)
        await cluster.topic("priced", 1, replication_factor=1)
        yield f"http://{cluster.brokers[1].addresses.data}"
    finally:
        await cluster.close()


def member(url: str) -> Consumer:
    """Return a consumer for `exactly_once`."""
    return Consumer(url, group="pricing", topics="orders", commit="manual", isolation="read_committed")


def fill(url: str, count: int) -> None:
    """Send numbered records to orders."""
    with Producer(url) as producer:
        for number in range(count):
            producer.send("orders", b"%03d" % number, key=b"%d" % number)


def committed(url: str, count: int) -> list[bytes]:
    """Return the values of priced that a reader of committed records gets, once it has enough of them."""
    with Consumer(url, isolation="read_committed") as reader:
        reader.assign(topic="priced")
        values = [record.value or b"" for record in islice(reader.records(), count)]
        return sorted(
            [*values, *(record.value or b"" for record in reader.records(until=reader.end_offsets()))]
        )


def copied(url: str, failures: list[Exception], count: int) -> int:
    """Copy records until `count` are committed; each round raises the next failure at its end. Returns their number."""
    rounds = done = 0
    with Producer(url, transactional="pricing-1") as producer, member(url) as consumer:
        for transaction in exactly_once(consumer, producer, every="20ms", retry=ZeroDivisionError):
            values: list[bytes] = []
            with transaction:
                for batch in transaction:
                    for record in batch:
                        values.append(record.value or b"")
                        transaction.send("priced", record.value, key=record.key)
                if failures:
                    raise failures.pop(0)
            rounds += 1
            done += len(values) if transaction.is_committed else 0
            if done == count:
                break
    return rounds


async def test_each_record_has_one_result_despite_failed_rounds(url: str) -> None:
    """A failed round runs again with the same records, and another loop continues after the last commit."""

    def scenario() -> tuple[int, list[bytes], int, list[bytes]]:
        fill(url, 300)
        first = copied(url, [ZeroDivisionError(), ZeroDivisionError()], 300)
        half = committed(url, 300)
        fill(url, 10)
        with suppress(KeyError):
            copied(url, [KeyError()], 10)
        second = copied(url, [], 10)
        return first, half, second, committed(url, 310)

    first, half, second, values = await asyncio.to_thread(scenario)

    assert first >= 3
    assert second >= 1
    assert half == [b"%03d" % number for number in range(300)]
    assert values == sorted([*half, *half[:10]])


async def test_queued_records_of_a_failed_block_are_never_sent(url: str) -> None:
    """Records that a failed block has queued are in no transaction; the next transaction has only its own records."""

    def scenario() -> list[bytes]:
        with Producer(url, transactional=True, buffer_bytes=50_000, batch_bytes=10_000) as producer:
            with producer.transaction() as transaction:
                transaction.send("priced", b"first")
            for _ in range(20):
                with suppress(ZeroDivisionError), producer.transaction() as transaction:
                    late = [transaction.send("priced", b"lost" * 50) for _ in range(2_000)]
                    _ = 1 // 0
                assert all(delivery.done for delivery in late)
                with pytest.raises(SettingError):
                    producer.send("priced", b"outside")
                with producer.transaction() as transaction:
                    transaction.send("priced", b"kept")
            producer.flush()
        return committed(url, 21)

    assert await asyncio.to_thread(scenario) == [b"first", *[b"kept"] * 20]


def send_wrong(producer: Producer) -> None:
    """Send a record in a transaction, then one whose headers have a wrong type."""
    with producer.transaction() as transaction:
        transaction.send("priced", b"lost")
        transaction.send("priced", b"lost", headers=[("count", 5)])  # type: ignore[list-item]


async def test_a_record_that_cannot_be_sent_aborts_its_transaction_only(url: str) -> None:
    """A block with a record of a wrong type is aborted with the record's error, and the next block is committed."""

    def scenario() -> list[bytes]:
        with Producer(url, transactional=True) as producer:
            with producer.transaction() as transaction:
                transaction.send("priced", b"first")
            with pytest.raises(RecordError):
                send_wrong(producer)
            with producer.transaction() as transaction:
                transaction.send("priced", b"kept")
        return committed(url, 2)

    assert await asyncio.to_thread(scenario) == [b"first", b"kept"]


def close_before_the_end(url: str, producer: Producer) -> None:
    """Commit offsets with a transaction, and close the consumer before the transaction ends."""
    with producer.transaction() as transaction, member(url) as consumer:
        assert consumer.next_batch() is not None
        transaction.send("priced", b"lost")
        transaction.commit_offsets(consumer)


async def test_offsets_are_committed_with_the_records(url: str) -> None:
    """Offsets are stored with a committed transaction; a consumer that is closed before the commit aborts it."""

    def scenario() -> list[bytes]:
        fill(url, 20)
        with Producer(url, transactional=True) as producer:
            with member(url) as consumer:
                with producer.transaction() as transaction:
                    batch = consumer.next_batch()
                    assert batch is not None
                    transaction.send("priced", b"kept")
                    transaction.commit_offsets(consumer)
                place = batch.topic_partition
                assert consumer.committed([place]) == {place: batch.next_offset}
            with pytest.raises(ClosedError):
                close_before_the_end(url, producer)
        return committed(url, 1)

    assert await asyncio.to_thread(scenario) == [b"kept"]
