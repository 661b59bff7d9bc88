"""Produce calls that also commit their transaction: when they commit, and how repeats are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_kit import TIME_US, Answer, Calls
from cluster_kit import Cluster
from fairlead_api.batch.batches import ProducerStamp, encode, record_batch
from fairlead_api.bodies.frames import encode_frame
from fairlead_api.bodies.media_types import FRAMES
from fairlead_api.transaction_id import parse_transaction_id

BEGIN = "/v1/transactions"
PARTITIONS = 3
UNKNOWN = "1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"


@dataclass
class Ledger:
    """Calls to a broker about one topic."""

    api: Calls
    topic_id: str

    async def begin(self, name: str | None = None) -> str:
        """Begin a transaction and return its id."""
        return str((await self.api.post(BEGIN, {"name": name})).json["transaction"])

    async def commit(self, transaction: str, *partitions: int, other: str | None = None) -> Answer:
        """Send a batch to each partition, and to partition 0 of the topic `other`, together with the commit."""
        places = [(self.topic_id, each) for each in partitions] + ([(other, 0)] if other else [])
        return await self.api.call(
            "POST",
            "/v1/produce",
            b"".join(frame(transaction, topic_id, each) for topic_id, each in places),
            {"content-type": FRAMES, "fairlead-commit-transaction": transaction},
        )

    async def values(self, partition: int) -> list[str]:
        """Return the values that a reader of committed records gets now."""
        path = f"/v1/topics/ledger/partitions/{partition}/records?isolation=read_committed&max_wait_ms=0&offset=0"
        answer = await self.api.call("GET", path, None, {"accept": "application/json"})
        return [record["value"] for record in answer.json["records"]] if answer.status == 200 else []

    async def until_read(self, partition: int, values: list[str]) -> None:
        """Wait until a reader of committed records gets exactly these values."""
        async with asyncio.timeout(30):
            while await self.values(partition) != values:  # noqa: ASYNC110
                await asyncio.sleep(0.02)  # noqa: TID251 - no event announces that a marker is committed

    async def state(self, transaction: str) -> str:
        """Return the state of a transaction."""
        return str((await self.api.call("GET", f"{BEGIN}/{transaction}")).json["state"])


def frame(transaction: str, topic_id: str, partition: int) -> bytes:
    """Return a frame with one record, whose value is its transaction and partition."""
    producer_id, epoch = parse_transaction_id(transaction)
    stamp = ProducerStamp(producer_id, epoch, 0, is_transactional=True)
    columns = record_batch([f"{transaction}-{partition}".encode()], default_timestamp_us=TIME_US)
    meta = b'{"topic_id":"%s","partition":%d}' % (topic_id.encode(), partition)
    return b"".join(bytes(part) for part in encode_frame(meta, [encode(columns, producer=stamp).to_bytes()]))


@pytest.fixture(params=[1, 3], ids=["a lone broker", "three brokers"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ledger]:
    """Yield calls to a broker, which leads all or some of the partitions of a topic."""
    cluster = await Cluster.open(tmp_path)
    try:
        await cluster.start(*range(1, request.param + 1))
        async with Calls(str(cluster.brokers[1].addresses.data)) as api:
            yield Ledger(api, await api.create("ledger", PARTITIONS))
    finally:
        await cluster.close()


async def test_the_call_commits_what_it_stores(ledger: Ledger) -> None:
    """All batches are stored and become visible, and the answer names the next transaction."""
    transaction = await ledger.begin()
    answer = await ledger.commit(transaction, *range(PARTITIONS))
    following = answer.json["committed"]["next"]
    again = await ledger.commit(following, 0)

    assert (answer.status, again.status) == (200, 200)
    assert answer.json["committed"] == {
        "transaction": transaction, "state": "committed", "next": following, "duplicate": False,
    }  # fmt: skip
    assert [each["base_offset"] for each in answer.json["results"]] == [0] * PARTITIONS
    await ledger.until_read(0, [f"{transaction}-0", f"{following}-0"])
    for partition in range(1, PARTITIONS):
        await ledger.until_read(partition, [f"{transaction}-{partition}"])


async def test_a_refused_batch_leaves_the_transaction_open(ledger: Ledger) -> None:
    """If one batch is refused, nothing is committed; a repeat that stores all batches commits, each batch once."""
    transaction = await ledger.begin()
    refused = await ledger.commit(transaction, 0, other=UNKNOWN)
    state = await ledger.state(transaction)
    hidden = await ledger.values(0)
    repeated = await ledger.commit(transaction, 0, 1)

    assert (refused.status, refused.json["results"][1]["problem"]["code"]) == (207, "topic_not_found")
    assert (set(refused.json), state, hidden) == ({"results"}, "open", [])
    assert [each["duplicate"] for each in repeated.json["results"]] == [True, False]
    assert repeated.json["committed"]["state"] == "committed"
    await ledger.until_read(0, [f"{transaction}-0"])


async def test_a_repeat_is_answered_as_committed(ledger: Ledger) -> None:
    """A repeat after the markers is answered as committed, also by a request that lost some of its leaders."""
    transaction = await ledger.begin()
    first = await ledger.commit(transaction, 0, 1)
    for partition in (0, 1):
        await ledger.until_read(partition, [f"{transaction}-{partition}"])
    late = await ledger.commit(transaction, 0, 1)
    partly = await ledger.commit(transaction, 0, other=UNKNOWN)

    assert first.json["committed"]["duplicate"] is False
    assert (late.status, partly.status) == (200, 200)
    assert (
        late.json["committed"] == partly.json["committed"] == {**first.json["committed"], "duplicate": True}
    )
    assert late.json["results"] == [{"topic_id": ledger.topic_id, "partition": each} for each in (0, 1)]
    await ledger.until_read(0, [f"{transaction}-0"])


async def test_an_ended_transaction_is_not_committed(ledger: Ledger) -> None:
    """Batches of an aborted or fenced transaction stay invisible, and the answer has the problem of the commit."""
    aborted, fenced = await ledger.begin(), await ledger.begin("billing")
    await ledger.api.call("POST", f"{BEGIN}/{aborted}:abort")
    await ledger.begin("billing")
    answers = [await ledger.commit(each, 0, 1) for each in (aborted, fenced, "999.0")]
    last = await ledger.begin()
    await ledger.commit(last, 0)

    assert [answer.status for answer in answers] == [207] * 3
    assert not any("committed" in answer.json for answer in answers)
    assert [answer.json["commit_problem"]["code"] for answer in answers] == [
        "transaction_aborted", "producer_fenced", "transaction_not_found",
    ]  # fmt: skip
    await ledger.until_read(0, [f"{last}-0"])


async def test_a_repeat_of_an_aborted_transaction_is_refused(ledger: Ledger) -> None:
    """Batches that are refused after an abort marker are not reported as committed."""
    transaction = await ledger.begin()
    await ledger.commit(transaction, 0, other=UNKNOWN)
    await ledger.api.call("POST", f"{BEGIN}/{transaction}:abort")
    last = await ledger.begin()
    await ledger.commit(last, 0)
    await ledger.until_read(0, [f"{last}-0"])
    refused = await ledger.commit(transaction, 0)

    assert refused.status == 207
    assert [each["problem"]["code"] for each in refused.json["results"]] == ["producer_fenced"]
    assert set(refused.json) == {"results"}
