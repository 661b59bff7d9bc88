"""Commits that partitions have not confirmed: further commits, batches and the deletion of the name wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from broker_kit import Answer, Calls
from cluster_kit import Cluster
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.looks import TransactionLooks
from fairlead_broker.transactions.decisions import UNFINISHED_MAX

BEGIN = "/v1/transactions"
RECORDS = "/v1/topics/orders/partitions/{}/records"
HELD_SECONDS = 1.0
"""Time for which a leader holds a batch while an earlier transaction of its producer is open."""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Calls]:
    """Yield calls to a broker with a topic of six partitions."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        async with Calls(str(cluster.brokers[1].addresses.data)) as api:
            await api.create("orders", UNFINISHED_MAX + 1)
            yield api
    finally:
        await cluster.close()


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Return a patch under which no leader ends a transaction, until the patch is undone."""
    monkeypatch.setattr(TransactionEnds, "_report", lambda ends, leader, due: None)
    monkeypatch.setattr(TransactionLooks, "_watch", lambda looks, now: None)
    return monkeypatch


async def write(api: Calls, transaction: str, partition: int) -> Answer:
    """Write a record in a transaction."""
    body = {"records": [{"value": transaction}]}
    return await api.post(RECORDS.format(partition), body, Fairlead_Transaction=transaction)


async def commit(api: Calls, transaction: str) -> Answer:
    """Commit a transaction."""
    return await api.post(f"{BEGIN}/{transaction}:commit", {})


async def succeeds(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Repeat a call while it is refused with `transaction_unfinished`."""
    async with asyncio.timeout(30):
        while True:
            answer = await call()
            if answer.status != 503:
                return answer
            await asyncio.sleep(0.05)  # noqa: TID251 - no event announces that a marker is committed


async def test_a_sixth_unconfirmed_commit_and_the_deletion_of_the_name_are_refused(
    api: Calls, markers: pytest.MonkeyPatch
) -> None:
    """While five commits of a producer are unconfirmed, the next commit is refused, and so is the name's deletion."""
    following = (await api.post(BEGIN, {"name": "billing"})).json["transaction"]
    committed = []
    for partition in range(UNFINISHED_MAX):
        await write(api, following, partition)
        committed.append(await commit(api, following))
        following = committed[-1].json["next"]
    written = await write(api, following, UNFINISHED_MAX)
    sixth = await commit(api, following)
    forgotten = await api.call("DELETE", f"{BEGIN}/billing")
    described = (await api.call("GET", f"{BEGIN}/{following}")).json
    markers.undo()
    repeated = await succeeds(lambda: commit(api, following))
    forgotten_later = await succeeds(lambda: api.call("DELETE", f"{BEGIN}/billing"))

    assert [answer.status for answer in (*committed, written)] == [200] * (UNFINISHED_MAX + 1)
    assert [(each.status, each.code) for each in (sixth, forgotten)] == [(503, "transaction_unfinished")] * 2
    assert (sixth.json["transaction"], sixth.json["side_effect"]) == (following, "none")
    assert (described["state"], len(described["unfinished"])) == ("open", UNFINISHED_MAX)
    assert (repeated.json["state"], repeated.json["duplicate"]) == ("committed", False)
    assert forgotten_later.status == 204


async def test_a_batch_waits_a_second_for_the_end_of_the_earlier_transaction(
    api: Calls, markers: pytest.MonkeyPatch
) -> None:
    """A batch is refused if the producer's earlier transaction in the partition does not end within a second."""
    first = (await api.post(BEGIN, {"name": "billing"})).json["transaction"]
    await write(api, first, 0)
    second = (await commit(api, first)).json["next"]
    began = asyncio.get_running_loop().time()
    refused = await write(api, second, 0)
    seconds = asyncio.get_running_loop().time() - began
    end = (await api.call("GET", "/v1/topics/orders/partitions/0/offsets")).json["log_end_offset"]
    markers.undo()
    stored = await succeeds(lambda: write(api, second, 0))

    assert (refused.status, refused.code) == (503, "transaction_unfinished")
    assert {key: refused.json[key] for key in ("topic", "partition", "transaction", "side_effect")} == {
        "topic": "orders", "partition": 0, "transaction": first, "side_effect": "none",
    }  # fmt: skip
    assert seconds >= HELD_SECONDS * 0.9
    assert end == 1
    assert (stored.status, stored.json["base_offset"]) == (200, 2)
