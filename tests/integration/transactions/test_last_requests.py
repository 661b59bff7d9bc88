"""Commits of the SDK that share a request with the last batches, also if the answer to the request is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_kit import Cluster
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.connection.transport import Answer, Call, Transport
from fairlead.errors import (
    MalformedRequestError,
    ProducerFencedError,
    TransactionAbortedError,
    UnreachableError,
)
from fairlead.producing.last_request import LastRequest
from fairlead.settings import ConnectionSettings
from fairlead_api.bodies.media_types import Header
from fairlead_api.problems import SideEffect

PLACES = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
COMMIT = Header.COMMIT_TRANSACTION


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Yield the address of a broker with a topic of two partitions."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        address = f"http://{cluster.brokers[1].addresses.data}"
        async with Admin(address) as admin:
            await admin.create_topic("orders", partitions=len(PLACES), replication_factor=1)
        yield address
    finally:
        await cluster.close()


class Requests:
    """The requests of clients, in order; the answer to the first commit with batches may be lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str, *, loses: int | None = None) -> None:
        """`loses`: number of records that readers have seen when the answer is lost; None loses no answer."""
        self.paths: list[str] = []
        self.calls: list[Call] = []
        self._url = url
        self._loses = loses
        send = Transport._send_with

        async def sent(transport: Transport, client: Any, call: Call, *given: Any) -> Answer:
            answer = await send(transport, client, call, *given)
            self.calls.append(call)
            if call.method == "POST" and call.path.startswith(("/v1/produce", "/v1/transactions")):
                self.paths.append(call.path.partition("?")[0].rpartition(":")[2])
            if COMMIT in call.headers and self._loses is not None:
                count, self._loses = self._loses, None
                if count:
                    await committed(self._url, count)
                raise UnreachableError(call.subject, {"broker": "the answer is lost"}, sent=True)
            return answer

        monkeypatch.setattr(Transport, "_send_with", sent)


async def committed(url: str, count: int) -> list[bytes]:
    """Return the values that a reader of committed records gets, once it has enough of them."""
    values: list[bytes] = []
    async with Consumer(url, isolation="read_committed") as consumer:
        await consumer.assign(PLACES)
        async for record in consumer.records():
            values.append(record.value or b"")
            if len(values) == count:
                break
        values += [
            record.value or b"" async for record in consumer.records(until=await consumer.end_offsets())
        ]
    return sorted(values)


async def test_one_request_stores_and_commits(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction whose batches fit in one request takes one request; the next transaction needs no begin."""
    async with Producer(url, transactional=True) as producer:
        requests = Requests(monkeypatch, url)
        for value in (b"1", b"2"):
            async with producer.transaction() as transaction:
                deliveries = [await transaction.send("orders", value, partition=place) for place in (0, 1)]
            assert [(await delivery).partition for delivery in deliveries] == [0, 1]

    assert requests.paths == ["/v1/produce", "/v1/produce"]
    assert await committed(url, 4) == [b"1", b"1", b"2", b"2"]


async def test_earlier_partitions_need_a_separate_commit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction with records in a partition that the last request does not contain is committed separately."""
    async with Producer(url, transactional=True) as producer:
        requests = Requests(monkeypatch, url)
        async with producer.transaction() as transaction:
            await transaction.send_and_wait("orders", b"1", partition=0)
            await transaction.send("orders", b"2", partition=1)

    assert requests.paths == ["/v1/produce", "/v1/produce", "commit"]
    assert await committed(url, 2) == [b"1", b"2"]


async def test_an_earlier_release_stores_only(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that ignores the header stores the batches, and the producer commits with another request."""
    async with Producer(url, transactional=True) as producer:
        requests = Requests(monkeypatch, url)
        # The broker reads the header by the name that it had when its module was imported.
        monkeypatch.setattr(Header, "COMMIT_TRANSACTION", "Fairlead-Not-Known")
        async with producer.transaction() as transaction:
            await transaction.send("orders", b"1", partition=0)

    assert requests.paths == ["/v1/produce", "commit"]
    assert await committed(url, 1) == [b"1"]


@pytest.mark.parametrize("seen", [0, 1], ids=["at once", "after the markers"])
async def test_a_lost_answer_is_repeated(url: str, monkeypatch: pytest.MonkeyPatch, seen: int) -> None:
    """A request without an answer is repeated, and its transaction is committed once."""
    async with Producer(url, transactional="billing") as producer:
        requests = Requests(monkeypatch, url, loses=seen)
        async with producer.transaction() as transaction:
            delivery = await transaction.send("orders", b"1", partition=0)
        async with producer.transaction() as following:
            await following.send("orders", b"2", partition=0)
        place = await delivery

    assert requests.paths == ["/v1/produce"] * 3
    assert (transaction.is_committed, following.is_committed) == (True, True)
    assert place.offset in ((-1,) if seen else (-1, 0))
    assert await committed(url, 2) == [b"1", b"2"]


async def test_batches_of_another_transaction_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that commits a transaction has only batches of this transaction; otherwise nothing is stored."""
    async with Producer(url, transactional=True) as producer:
        requests = Requests(monkeypatch, url)
        async with producer.transaction() as transaction:
            await transaction.send("orders", b"1", partition=0)
    [call] = [each for each in requests.calls if COMMIT in each.headers]
    producer_id, _, epoch = call.headers[COMMIT].partition(".")
    other = replace(call, headers={**call.headers, COMMIT: f"{producer_id}.{int(epoch) + 1}"})
    async with Transport(ConnectionSettings(bootstrap=(url,))) as transport:
        with pytest.raises(MalformedRequestError):
            await transport.call(other)

    assert await committed(url, 1) == [b"1"]


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "aborted"])
async def test_a_repeat_without_the_commit_learns_the_outcome(
    url: str, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    """If the batches cannot be repeated in one request, the producer asks for the outcome of the lost commit."""
    attempts: list[object] = []
    commits = LastRequest.commits

    def once(request: LastRequest, places: Any) -> Any:
        attempts.append(places)
        return commits(request, places) if len(attempts) == 1 else None

    monkeypatch.setattr(LastRequest, "commits", once)
    async with Producer(url, transactional="billing", linger_ms=60_000) as producer:
        Requests(monkeypatch, url, loses=int(is_committed))
        transaction = producer.transaction()
        await transaction.__aenter__()
        delivery = await transaction.send("orders", b"1", partition=0)
        if is_committed:
            await transaction.__aexit__(None, None, None)
            with pytest.raises(ProducerFencedError) as caught:
                await delivery
            assert caught.value.side_effect is SideEffect.MAYBE
        else:
            async with Admin(url) as admin:
                await admin.abort_transaction("billing")
            with pytest.raises(TransactionAbortedError):
                await transaction.__aexit__(None, None, None)
        async with producer.transaction() as following:
            await following.send("orders", b"2", partition=0)

    assert transaction.is_committed is is_committed
    assert await committed(url, 1 + is_committed) == [b"1"] * is_committed + [b"2"]
