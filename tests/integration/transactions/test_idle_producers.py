"""Names of producers with transactions are forgotten after a time without use, on a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker_kit import JSON, Answer, Calls
from cluster_kit import Cluster
from fairlead_broker import clock
from fairlead_broker.runtime.transactions import idle
from fairlead_broker.runtime.transactions.ends import TransactionEnds
from fairlead_broker.runtime.transactions.looks import TransactionLooks

BEGIN = "/v1/transactions"
PARTITION = "/v1/topics/orders/partitions/0"
KEPT_MS = 2000
"""`transactional.id.expiration.ms`, longer than a busy machine takes from one use of a name to the next."""


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calls]:
    """Yield calls to a broker that soon forgets names, with the topic orders."""
    monkeypatch.setattr(idle, "INTERVAL_SECONDS", 0.2)
    # A broker deletes no expired state in its first hour.
    monkeypatch.setattr(clock, "HOUR_US", 0)
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(1)
        async with Calls(str(cluster.brokers[1].addresses.data)) as api:
            await api.create("orders")
            body = b'{"config":{"transactional.id.expiration.ms":"%d"}}' % KEPT_MS
            configured = await api.call("PATCH", "/v1/cluster/config", body, JSON)
            assert configured.status == 200, configured
            yield api
    finally:
        await cluster.close()


async def described(api: Calls, transaction: str, *, status: int) -> Answer:
    """Wait until the description of a transaction or a name has a status, and return the answer."""
    async with asyncio.timeout(30):
        while True:
            answer = await api.call("GET", f"{BEGIN}/{transaction}")
            if answer.status == status:
                return answer
            await asyncio.sleep(0.05)  # noqa: TID251 - no event announces that a name is forgotten


async def write(api: Calls, **fields: object) -> str:
    """Begin a transaction, write a record in it, and return its id."""
    begun = str((await api.post(BEGIN, fields)).json["transaction"])
    answer = await api.post(
        f"{PARTITION}/records", {"records": [{"value": begun}]}, Fairlead_Transaction=begun
    )
    assert answer.status == 200, answer
    return begun


async def test_an_unused_name_is_forgotten_and_its_open_transaction_aborted(api: Calls) -> None:
    """A name that is not used for the set time is deleted, and the name begins again with another producer id.

    The open transaction of the name is aborted. A producer without a name is kept for an hour.
    """
    unnamed = await write(api)
    await api.post(f"{BEGIN}/{unnamed}:commit", {})
    begun = await write(api, name="nightly", timeout_ms=KEPT_MS)
    await described(api, "nightly", status=404)
    late = await api.post(f"{BEGIN}/{begun}:commit", {})
    again = await write(api, name="nightly")
    await api.post(f"{BEGIN}/{again}:commit", {})
    path = f"{PARTITION}/records?isolation=read_committed&offset=0&max_wait_ms=0"
    values: list[str] = []
    async with asyncio.timeout(30):
        while len(values) < 2:
            answer = await api.call("GET", path, None, {"accept": "application/json"})
            values = [record["value"] for record in answer.json["records"]] if answer.status == 200 else []
    kept = await api.call("GET", f"{BEGIN}/{unnamed}")

    assert late.code == "transaction_not_found"
    assert again.partition(".")[0] != begun.partition(".")[0]
    assert values == [unnamed, again]
    assert kept.status == 200


async def test_a_name_with_an_unconfirmed_commit_is_kept(api: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a commit that a partition has not confirmed is forgotten only after the confirmation."""
    with monkeypatch.context() as without_markers:
        without_markers.setattr(TransactionEnds, "_report", lambda ends, leader, due: None)
        without_markers.setattr(TransactionLooks, "_watch", lambda looks, now: None)
        begun = await write(api, name="unfinished", timeout_ms=KEPT_MS)
        await api.post(f"{BEGIN}/{begun}:commit", {})
        # A name that is used later is forgotten earlier, because it has no unconfirmed commit.
        await api.post(BEGIN, {"name": "nightly", "timeout_ms": KEPT_MS})
        await described(api, "nightly", status=404)
        kept = await api.call("GET", f"{BEGIN}/{begun}")
    forgotten = await described(api, "unfinished", status=404)

    assert (kept.status, kept.json["state"]) == (200, "unfinished")
    assert forgotten.code == "transaction_not_found"
