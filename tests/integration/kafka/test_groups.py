"""Groups of Kafka's clients: members of both protocols, listing and deletion, and rebalances under load."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from broker_kit import Calls
from kafka_kit import SECONDS_MAX, StartBroker, kafka_address, produced

PROTOCOLS = ("classic", "consumer")
REBALANCING = (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS)
"""Errors for a commit from a member that has not joined the current generation."""


def member(bootstrap: str, topic: str, **settings: object) -> Consumer:
    """Return a member of the group `billing` that reads a topic from its start."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **settings,
        }
    )
    consumer.subscribe([topic])
    return consumer


def read(consumer: Consumer, enough: Callable[[list[Message]], bool]) -> list[Message]:
    """Return the records that a member reads until there are enough."""
    found: list[Message] = []
    waited = 0.0
    while not enough(found):
        message = consumer.poll(0.5)
        if message is None:
            waited += 0.5
            assert waited < SECONDS_MAX, f"{len(found)} records within {SECONDS_MAX} s"
        else:
            assert message.error() is None, message.error()
            found.append(message)
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_member_continues_after_the_commit_of_an_earlier_member(
    bootstrap: str, protocol: str
) -> None:
    """A member reads a topic from its start and commits, and a later member of the group reads only newer records."""
    settings: dict[str, Any] = {"group.protocol": protocol}
    await asyncio.to_thread(
        produced, bootstrap, "orders", [{"value": b"%d" % number} for number in range(10)]
    )

    def first() -> list[bytes | None]:
        consumer = member(bootstrap, "orders", **settings)
        try:
            values = [each.value() for each in read(consumer, lambda found: len(found) == 10)]
            consumer.commit(asynchronous=False)
            return values
        finally:
            consumer.close()

    def second() -> list[bytes | None]:
        consumer = member(bootstrap, "orders", **settings)
        try:
            return [each.value() for each in read(consumer, lambda found: len(found) == 1)]
        finally:
            consumer.close()

    before = await asyncio.to_thread(first)
    await asyncio.to_thread(produced, bootstrap, "orders", [{"value": b"new"}])
    after = await asyncio.to_thread(second)

    assert before == [b"%d" % number for number in range(10)]
    assert after == [b"new"]


async def test_groups_are_listed_and_deleted(start: StartBroker) -> None:
    """Both Kafka's and Fairlead's clients list a Kafka client's group, which can be deleted once it has no members."""
    running = await start()
    bootstrap = kafka_address(running)
    await asyncio.to_thread(produced, bootstrap, "orders", [{"value": b"v"}])
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def groups() -> list[str]:
        return [each.group_id for each in admin.list_consumer_groups().result(SECONDS_MAX).valid]

    def joined() -> list[str]:
        consumer = member(bootstrap, "orders", **{"group.protocol": "consumer"})
        read(consumer, lambda found: len(found) == 1)
        try:
            return groups()
        finally:
            consumer.close()

    while_joined = await asyncio.to_thread(joined)
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        over_http = (await calls.call("GET", "/v1/groups")).json["items"]
    await asyncio.to_thread(lambda: admin.delete_consumer_groups(["billing"])["billing"].result(SECONDS_MAX))

    assert while_joined == ["billing"]
    assert [each["group"] for each in over_http] == ["billing"]
    assert await asyncio.to_thread(groups) == []


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
async def test_members_that_come_and_go_read_each_record_once(start: StartBroker, strategy: str) -> None:
    """Three members share the partitions, one leaves, and only records whose commit was refused are read twice."""
    running = await start()
    bootstrap = kafka_address(running)
    assert running.addresses.data is not None
    async with Calls(running.addresses.data) as calls:
        await calls.create("shared", partitions=4)
    settings: dict[str, Any] = {"partition.assignment.strategy": strategy, "session.timeout.ms": 6000}
    producer = Producer({"bootstrap.servers": bootstrap})

    found: list[bytes | None] = []
    refused: set[bytes | None] = set()

    def run() -> None:
        for number in range(100):
            producer.produce("shared", b"%d" % number, key=b"%d" % number)
        assert producer.flush(SECONDS_MAX) == 0
        members = [member(bootstrap, "shared", **settings) for _ in range(3)]

        def read_some() -> None:
            for each in members:
                for message in each.consume(50, 0.1):
                    assert message.error() is None, message.error()
                    found.append(message.value())
                    try:
                        each.commit(message=message, asynchronous=False)
                    except KafkaException as refusal:
                        # The group has begun the next generation, and the member has not learned of it.
                        if refusal.args[0].code() not in REBALANCING:
                            raise
                        refused.add(message.value())

        deadline = time.monotonic() + SECONDS_MAX
        try:
            while not all(each.assignment() for each in members) or len(set(found)) < 100:
                assert time.monotonic() < deadline, (len(found), [each.assignment() for each in members])
                read_some()
            members.pop().close()
            for number in range(100, 200):
                producer.produce("shared", b"%d" % number, key=b"%d" % number)
            assert producer.flush(SECONDS_MAX) == 0
            deadline = time.monotonic() + SECONDS_MAX
            while len(set(found)) < 200:
                assert time.monotonic() < deadline, len(found)
                read_some()
        finally:
            for each in members:
                each.close()

    await asyncio.to_thread(run)

    assert sorted(int(value or b"-1") for value in set(found)) == list(range(200))
    assert {value for value, times in Counter(found).items() if times > 1} <= refused
