"""Transactions of Kafka's clients: commits, aborts, fencing, and offsets that are committed with records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaAdminClient
from kafka import TopicPartition as KafkaPartition
from kafka.admin import TransactionState
from kafka.admin._transactions import AbortTransactionSpec
from kafka.errors import BrokerResponseError

from broker_kit import Calls
from fairlead_broker.kafka.protocol.errors import KafkaError as Error
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address, produced, read_to_end

TIMEOUT_MS = 60_000


def transactional(bootstrap: str, name: str, **settings: Any) -> Producer:
    """Return a producer whose session has begun."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "linger.ms": 0,
            **settings,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    return producer


def sent(producer: Producer, topic: str, values: Iterable[str]) -> None:
    """Produce values to partition 0 of a topic and wait until they are acknowledged."""
    for value in values:
        producer.produce(topic, value.encode(), partition=0)
    producer.flush(SECONDS_MAX)


def committed_values(bootstrap: str, topic: str) -> list[str]:
    """Return the committed values of partition 0, once each of its transactions has ended.

    The marker of a transaction may be written after the answer to its commit or abort.
    """
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        values, stable = read_to_end(bootstrap, topic, "read_committed")
        end = read_to_end(bootstrap, topic, "read_uncommitted")[1]
        if stable == end:
            return [(value or b"").decode() for value in values]
        assert time.monotonic() < deadline, f"a transaction is open at offset {stable} of {end}"


async def test_transactions_of_one_session_are_committed_or_aborted(bootstrap: str) -> None:
    """A client that keeps one epoch commits and aborts many transactions, each with several batches."""

    def run() -> None:
        producer = transactional(bootstrap, "loader")
        for number in range(6):
            producer.begin_transaction()
            sent(producer, "orders", [f"{number}-a", f"{number}-b"])
            sent(producer, "orders", [f"{number}-c"])
            if number % 3 == 1:
                producer.abort_transaction(SECONDS_MAX)
            else:
                producer.commit_transaction(SECONDS_MAX)

    await asyncio.to_thread(run)

    kept = [f"{number}-{part}" for number in (0, 2, 3, 5) for part in "abc"]
    assert await asyncio.to_thread(committed_values, bootstrap, "orders") == kept


async def test_a_new_session_fences_the_previous_one(bootstrap: str) -> None:
    """A second producer with the same transactional id aborts the open transaction of the first, which then fails."""

    def run() -> KafkaError:
        first = transactional(bootstrap, "loader")
        first.begin_transaction()
        sent(first, "orders", ["lost"])
        second = transactional(bootstrap, "loader")
        second.begin_transaction()
        sent(second, "orders", ["kept"])
        second.commit_transaction(SECONDS_MAX)
        with pytest.raises(KafkaException) as refused:
            first.commit_transaction(SECONDS_MAX)
        error: KafkaError = refused.value.args[0]
        return error

    error = await asyncio.to_thread(run)

    assert error.fatal()
    assert await asyncio.to_thread(committed_values, bootstrap, "orders") == ["kept"]


async def test_a_transaction_that_its_timeout_aborted_is_not_committed(bootstrap: str) -> None:
    """The commit of a client whose transaction was aborted by the broker fails, and its records stay invisible."""

    def run() -> KafkaError:
        producer = transactional(bootstrap, "slow", **{"transaction.timeout.ms": 1000})
        producer.begin_transaction()
        sent(producer, "orders", ["late"])
        while not read_to_end(bootstrap, "orders", "read_committed")[1]:
            pass
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(SECONDS_MAX)
        error: KafkaError = refused.value.args[0]
        return error

    error = await asyncio.to_thread(run)

    assert error.fatal() or error.txn_requires_abort()
    assert await asyncio.to_thread(committed_values, bootstrap, "orders") == []


async def test_offsets_are_stored_only_with_the_records_of_their_transaction(bootstrap: str) -> None:
    """A program that reads, processes and writes moves its group only by transactions that are committed."""
    await asyncio.to_thread(produced, bootstrap, "in", [{"value": str(n).encode()} for n in range(20)])

    def run() -> tuple[int, list[str]]:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "copier",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        producer = transactional(bootstrap, "copier")
        consumer.subscribe(["in"])
        copied, attempts = 0, 0
        try:
            while copied < 20:
                messages = consumer.consume(5, SECONDS_MAX)
                producer.begin_transaction()
                sent(producer, "out", [f"copy-{(each.value() or b'').decode()}" for each in messages])
                positions = consumer.position(consumer.assignment())
                producer.send_offsets_to_transaction(
                    positions, consumer.consumer_group_metadata(), SECONDS_MAX
                )
                attempts += 1
                if attempts % 2:
                    producer.abort_transaction(SECONDS_MAX)
                    for each in consumer.committed(consumer.assignment(), SECONDS_MAX):
                        consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, 0)))
                else:
                    producer.commit_transaction(SECONDS_MAX)
                    copied += len(messages)
            [stored] = consumer.committed([TopicPartition("in", 0)], SECONDS_MAX)
        finally:
            consumer.close()
        return stored.offset, committed_values(bootstrap, "out")

    offset, values = await asyncio.to_thread(run)

    assert (offset, values) == (20, [f"copy-{number}" for number in range(20)])


async def test_a_member_that_left_cannot_commit_its_offsets(bootstrap: str) -> None:
    """Offsets of a member that is no longer in the group are not stored, and neither are the records."""
    await asyncio.to_thread(produced, bootstrap, "in", [{"value": b"v"}])

    def run() -> KafkaError:
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "copier", "auto.offset.reset": "earliest"}
        )
        producer = transactional(bootstrap, "copier")
        consumer.subscribe(["in"])
        assert consumer.poll(SECONDS_MAX) is not None
        producer.begin_transaction()
        sent(producer, "out", ["never"])
        member, offsets = consumer.consumer_group_metadata(), [TopicPartition("in", 0, 1)]
        producer.send_offsets_to_transaction(offsets, member, SECONDS_MAX)
        consumer.close()
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(SECONDS_MAX)
        error: KafkaError = refused.value.args[0]
        producer.abort_transaction(SECONDS_MAX)
        producer.begin_transaction()
        sent(producer, "out", ["later"])
        producer.commit_transaction(SECONDS_MAX)
        return error

    error = await asyncio.to_thread(run)

    assert error.txn_requires_abort()
    assert await asyncio.to_thread(committed_values, bootstrap, "out") == ["later"]


async def test_transactions_of_kafka_are_listed_over_http(start: StartBroker) -> None:
    """The transactional id is the name of a producer, whose open transaction HTTP clients see."""
    running = await start()

    def run() -> Producer:
        producer = transactional(kafka_address(running), "loader")
        producer.begin_transaction()
        sent(producer, "orders", ["open"])
        return producer

    producer = await asyncio.to_thread(run)
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        described = (await calls.call("GET", "/v1/transactions/loader")).json
    await asyncio.to_thread(producer.abort_transaction, SECONDS_MAX)

    assert described["state"] == "open"
    assert [each["topic"] for each in described["open_at"]] == ["orders"]


async def test_an_abort_by_id_never_splits_a_transaction(start: StartBroker) -> None:
    """A client whose transaction was aborted by its id cannot go on with the transaction and commit the rest of it.

    Before the abort, a commit by id is refused, because it would drop the offsets of the transaction.
    """
    running = await start()
    bootstrap = kafka_address(running)
    assert running.addresses.data is not None

    def write() -> Producer:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copier"})
        producer = transactional(bootstrap, "copier")
        producer.begin_transaction()
        sent(producer, "orders", ["torn"])
        offsets = [TopicPartition("orders", 0, 1)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), SECONDS_MAX)
        consumer.close()
        return producer

    def finish(producer: Producer) -> KafkaError:
        producer.produce("payments", b"rest", partition=0)
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(SECONDS_MAX)
        error: KafkaError = refused.value.args[0]
        return error

    producer = await asyncio.to_thread(write)
    async with Calls(running.addresses.data) as calls:
        transaction = (await calls.call("GET", "/v1/transactions/copier")).json["transaction"]
        committed = await calls.post(f"/v1/transactions/{transaction}:commit", {})
        aborted = await calls.post(f"/v1/transactions/{transaction}:abort", {})
    error = await asyncio.to_thread(finish, producer)

    assert (committed.json["code"], committed.json["group"]) == ("not_possible_now", "copier")
    assert aborted.status == 200
    assert error.fatal()
    for topic in ("orders", "payments"):
        assert await asyncio.to_thread(committed_values, bootstrap, topic) == []


async def test_kafkas_tools_list_and_describe_transactions(bootstrap: str) -> None:
    """An administrator sees each producer once, with the state and the partitions of its newest transaction."""

    def run() -> tuple[dict[str, str], Any]:
        producers = [transactional(bootstrap, name) for name in ("done", "open")]
        for producer in producers:
            producer.begin_transaction()
            sent(producer, "orders", ["v"])
        producers[0].commit_transaction(SECONDS_MAX)
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            found = [each for of_broker in admin.list_transactions().values() for each in of_broker]
            listed = {each.transactional_id: each.state for each in found}
            return listed, admin.describe_transactions(["open"])["open"]
        finally:
            admin.close()

    listed, described = await asyncio.to_thread(run)

    # The leader of a partition may not have confirmed the commit yet.
    assert listed.pop("done") in {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}
    assert listed == {"open": TransactionState.ONGOING}
    assert described.state is TransactionState.ONGOING
    assert [(each.topic, each.partition) for each in described.topic_partitions] == [("orders", 0)]


async def test_an_operator_aborts_a_transaction_with_kafkas_tools(bootstrap: str) -> None:
    """Readers of committed records continue after an abort, which fails for an epoch that the producer never had."""

    def run() -> tuple[KafkaError, BrokerResponseError]:
        producer = transactional(bootstrap, "hanging")
        producer.begin_transaction()
        sent(producer, "orders", ["never"])
        admin = KafkaAdminClient(bootstrap_servers=bootstrap)
        partition = KafkaPartition("orders", 0)
        try:
            [found] = admin.describe_producers([partition])[partition].active_producers
            with pytest.raises(BrokerResponseError) as refused:
                admin.abort_transaction(AbortTransactionSpec(partition, found.producer_id, 99))
            admin.abort_transaction(AbortTransactionSpec(partition, found.producer_id, found.producer_epoch))
        finally:
            admin.close()
        while not read_to_end(bootstrap, "orders", "read_committed")[1]:
            pass
        with pytest.raises(KafkaException) as ended:
            producer.commit_transaction(SECONDS_MAX)
        error: KafkaError = ended.value.args[0]
        return error, refused.value

    error, refused = await asyncio.to_thread(run)

    assert error.fatal() or error.txn_requires_abort()
    assert refused.errno == Error.INVALID_PRODUCER_ID_MAPPING
    assert await asyncio.to_thread(committed_values, bootstrap, "orders") == []
