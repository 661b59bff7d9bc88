"""Transactions over HTTP on real brokers: all records or none become visible, and old instances are fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_kit import Answer, Calls
from cluster_kit import Cluster

BEGIN = "/v1/transactions"
UNREADY = (421, 503)
"""Status codes of calls about a group that has no coordinator yet."""


@pytest.fixture(params=[1, 3], ids=["a lone broker", "three brokers"])
async def apis(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Calls]]:
    """Yield calls to each broker of a cluster."""
    cluster = await Cluster.open(tmp_path)
    opened: list[Calls] = []
    try:
        await cluster.start(*range(1, request.param + 1))
        opened = [await Calls(str(broker.addresses.data)).__aenter__() for broker in cluster.brokers.values()]
        yield opened
    finally:
        for calls in opened:
            await calls.__aexit__()
        await cluster.close()


class Ring:
    """Calls to several brokers in turn."""

    def __init__(self, apis: list[Calls]) -> None:
        self._apis = apis
        self._turn = 0

    @property
    def api(self) -> Calls:
        """The next broker."""
        self._turn += 1
        return self._apis[self._turn % len(self._apis)]

    async def begin(self, name: str | None = None, **fields: object) -> str:
        """Begin a transaction and return its id."""
        answer = await self.api.post(BEGIN, {"name": name, **fields})
        assert answer.status == 201, answer
        return str(answer.json["transaction"])

    async def write(self, transaction: str, topic: str, *values: str, partition: int | None = None) -> Answer:
        """Write records of a transaction."""
        where = "" if partition is None else f"/partitions/{partition}"
        records = [{"key": value, "value": value} for value in values]
        path = f"/v1/topics/{topic}{where}/records"
        return await self.api.post(path, records, Fairlead_Transaction=transaction)

    async def end(self, transaction: str, how: str = "commit") -> Answer:
        """Commit or abort a transaction."""
        return await self.api.post(f"{BEGIN}/{transaction}:{how}", {})

    async def read(self, topic: str, partitions: int, isolation: str = "read_committed") -> list[str]:
        """Return the values that a reader gets up to the end of each partition."""
        values = []
        for partition in range(partitions):
            path = f"/v1/topics/{topic}/partitions/{partition}/records?isolation={isolation}&max_wait_ms=0&offset="
            offset = 0
            while True:
                answer = await self.api.call("GET", f"{path}{offset}", None, {"accept": "application/json"})
                if answer.status == 200:
                    values += [record["value"] for record in answer.json["records"]]
                following = int(answer.headers["fairlead-next-offset"])
                if following == offset:
                    break
                offset = following
        return sorted(values)

    async def until_read(self, topic: str, partitions: int, values: list[str]) -> None:
        """Wait until a reader of committed records gets exactly these values."""
        async with asyncio.timeout(20):
            while (found := await self.read(topic, partitions)) != values:
                await asyncio.sleep(0.05)  # noqa: TID251 - no event announces that markers are committed
                assert not set(found) - set(values), found


@pytest.fixture
async def ring(apis: list[Calls]) -> Ring:
    """Return calls to a cluster with two topics."""
    for topic in ("orders", "ledger"):
        await apis[0].create(topic, 3)
    return Ring(apis)


async def test_both_topics_or_none(ring: Ring) -> None:
    """Readers of committed records get all records of a committed transaction, and none of an aborted or open one."""
    committed = await ring.begin()
    for topic in ("orders", "ledger"):
        assert (await ring.write(committed, topic, "a", "b", "c", "d")).status == 200
    hidden = [await ring.read(topic, 3) for topic in ("orders", "ledger")]
    done = (await ring.end(committed)).json
    for topic in ("orders", "ledger"):
        await ring.until_read(topic, 3, ["a", "b", "c", "d"])
    await ring.write(done["next"], "orders", "x", "y", "z")
    aborted = await ring.end(done["next"], "abort")
    await ring.write(aborted.json["next"], "orders", "e")
    await ring.end(aborted.json["next"])
    await ring.until_read("orders", 3, ["a", "b", "c", "d", "e"])

    assert hidden == [[], []]
    assert (done["state"], done["duplicate"]) == ("committed", False)
    assert aborted.json["state"] == "aborted"
    assert await ring.read("orders", 3, "read_uncommitted") == ["a", "b", "c", "d", "e", "x", "y", "z"]


async def test_transactions_of_several_producers_are_committed_together(ring: Ring) -> None:
    """A call commits the transactions of several producers, or none if one of them cannot be committed.

    A repeated call gets the same answer.
    """

    async def commit(*transactions: str, **fields: object) -> Answer:
        """Commit transactions together."""
        listed = [{"transaction": each, **fields} for each in transactions]
        return await ring.api.post(f"{BEGIN}:commit", {"transactions": listed})

    tasks = [await ring.begin() for _ in range(3)]
    for number, task in enumerate(tasks):
        await ring.write(task, "orders", f"{number}", partition=number)
    zombie = await ring.begin("spark")
    driver = await ring.begin("spark")
    refused = await commit(*tasks, zombie)
    hidden = await ring.read("orders", 3)
    done, again = [await commit(*tasks, driver, metadata='{"batch": 7}') for _ in range(2)]
    await ring.until_read("orders", 3, ["0", "1", "2"])
    following = await ring.api.post(BEGIN, {"name": "spark"})
    twice = await commit(tasks[0], tasks[0])

    assert (refused.code, hidden) == ("producer_fenced", [])
    assert [each["state"] for each in done.json["transactions"]] == ["committed"] * 4
    assert [each["transaction"] for each in done.json["transactions"]] == [*tasks, driver]
    assert [each["duplicate"] for each in again.json["transactions"]] == [True] * 4
    assert following.json["metadata"] == '{"batch": 7}'
    assert twice.code == "malformed_request"


async def test_offsets_are_stored_with_all_transactions_or_none(ring: Ring) -> None:
    """A joint commit stores its offsets if and only if every transaction is committed, and can be repeated."""
    first, second = await ring.begin(), await ring.begin()
    for transaction in (first, second):
        assert (await ring.write(transaction, "orders", transaction, partition=0)).status == 200

    async def commit(*transactions: str) -> Answer:
        body = {
            "transactions": [{"transaction": each} for each in transactions],
            "offsets": {"group": "etl", "offsets": [{"topic": "ledger", "partition": 0, "offset": 0}]},
        }
        async with asyncio.timeout(20):
            while True:
                answer = await ring.api.post(f"{BEGIN}:commit", body)
                if answer.status not in UNREADY:
                    return answer
                await asyncio.sleep(0.05)  # noqa: TID251 - no event announces the group's first coordinator

    refused = await commit(first, "999.0")
    empty = await ring.api.call("GET", "/v1/groups/etl/offsets")
    answers = [await commit(first, second) for _ in range(2)]
    stored = await ring.api.call("GET", "/v1/groups/etl/offsets")

    assert (refused.code, empty.json.get("offsets", [])) == ("transaction_not_found", [])
    assert [
        (each["transaction"], each["state"], each["duplicate"])
        for answer in answers
        for each in answer.json["transactions"]
    ] == [(each, "committed", repeated) for repeated in (False, True) for each in (first, second)]
    assert [each["offset"] for each in stored.json["offsets"]] == [0]
    await ring.until_read("orders", 1, sorted([first, second]))


async def test_lists_name_the_producers_with_open_transactions(ring: Ring) -> None:
    """Every broker lists exactly the producers that have records in an open transaction at any leader."""
    opened = await ring.begin("opened")
    await ring.begin("empty")
    await ring.write(opened, "orders", "a", "b", "c")

    async def names(state: str) -> list[list[str]]:
        lists = [await ring.api.call("GET", f"{BEGIN}?state={state}") for _ in range(3)]
        return [sorted(each["name"] for each in answer.json["items"]) for answer in lists]

    assert await names("open") == [["opened"]] * 3
    await ring.end("opened", "abort")
    async with asyncio.timeout(20):
        while True:
            if await names("open") == [[]] * 3:
                break
            await asyncio.sleep(0.05)  # noqa: TID251 - no event announces that a marker is appended
    assert await names("all") == [["empty", "opened"]] * 3


async def test_a_name_fences_its_previous_instance(ring: Ring) -> None:
    """A new transaction aborts the open transaction of the same name, whose producer can neither write nor commit."""
    zombie = await ring.begin("billing")
    await ring.write(zombie, "orders", "lost", partition=0)
    successor = await ring.begin("billing")
    late = await ring.write(zombie, "orders", "late", partition=0)
    refused = await ring.end(zombie)
    await ring.write(successor, "orders", "kept", partition=0)
    again = await ring.end(successor)
    repeat = await ring.end(successor)
    await ring.until_read("orders", 3, ["kept"])

    assert (late.code, refused.code) == ("producer_fenced", "producer_fenced")
    assert (again.json["duplicate"], repeat.json["duplicate"]) == (False, True)
    assert repeat.json["next"] == again.json["next"]


async def test_a_transaction_ends_after_its_timeout(ring: Ring) -> None:
    """A transaction that no client ends is aborted after its timeout, and later records become visible."""
    forgotten = await ring.begin(timeout_ms=1000)
    await ring.write(forgotten, "orders", "lost", partition=0)
    await ring.api.post("/v1/topics/orders/partitions/0/records", [{"value": "after"}])
    open_at = await ring.api.call("GET", f"{BEGIN}/{forgotten}")
    await ring.until_read("orders", 3, ["after"])
    refused = await ring.end(forgotten)

    assert [(each["topic"], each["partition"]) for each in open_at.json["open_at"]] in ([("orders", 0)], [])
    assert refused.code == "transaction_aborted"
    assert refused.json["reason"] == "timeout"
