"""Readers of committed records over HTTP: tails, fetches of the latest records and lookups of offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from broker_kit import Calls

BEGIN = "/v1/transactions"
TAIL = "/v1/topics/orders/records?from=earliest&isolation="
PARTITION = "/v1/topics/orders/partitions/0"
ISOLATIONS = ("read_committed", "read_uncommitted")


async def put(api: Calls, second: int, **headers: str) -> None:
    """Store a record with a time, which is also its value."""
    record = {"value": str(second), "timestamp": 1_700_000_000_000 + second * 1000}
    answer = await api.post(f"{PARTITION}/records", {"records": [record]}, **headers)
    assert answer.status == 200, answer


async def opened(api: Calls) -> str:
    """Store a record, a record of an open transaction, and another record; return the transaction."""
    transaction = str((await api.post(BEGIN, {})).json["transaction"])
    await put(api, 0)
    await put(api, 1, Fairlead_Transaction=transaction)
    await put(api, 2)
    return transaction


async def tail(api: Calls, isolation: str, limit: str) -> list[tuple[int, str]]:
    """Return offset and value of each record of a tail."""
    path = f"{TAIL}{isolation}&{limit}"
    answer = await api.call("GET", path, None, {"accept": "application/x-ndjson"})
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = [msgspec.json.decode(line) for line in answer.body.splitlines()]
    return [(each["offset"], each["value"]) for each in found]


@pytest.mark.parametrize("how", ["commit", "abort"])
async def test_a_tail_waits_for_the_end_of_a_transaction(api: Calls, how: str) -> None:
    """A tail of committed records ends before an open transaction, and continues when the transaction ends.

    Records of an aborted transaction and markers are left out.
    """
    transaction = await opened(api)
    before = [await tail(api, isolation, "max_seconds=1") for isolation in ISOLATIONS]
    count = 3 if how == "commit" else 2
    following = asyncio.create_task(tail(api, "read_committed", f"max_records={count}"))
    await api.post(f"{BEGIN}/{transaction}:{how}", {})
    async with asyncio.timeout(30):
        found = await following

    every = [(0, "0"), (1, "1"), (2, "2")]
    assert before == [every[:1], every]
    assert found == (every if how == "commit" else [every[0], every[2]])


async def test_the_latest_committed_offset_is_the_last_stable_offset(api: Calls) -> None:
    """Fetches and lookups of `latest` with `read_committed` return the last stable offset, not the high watermark."""
    transaction = await opened(api)

    async def latest(isolation: str) -> tuple[int, int, str]:
        path = f"{PARTITION}/records?offset=latest&max_wait_ms=0&isolation={isolation}"
        fetched = await api.call("GET", path)
        wanted = [{"topic": "orders", "partition": 0, "timestamp": "latest"}]
        looked_up = await api.post("/v1/offsets:lookup", {"partitions": wanted, "isolation": isolation})
        return (
            int(fetched.headers["fairlead-next-offset"]),
            looked_up.json["partitions"][0]["offset"],
            fetched.headers["fairlead-high-watermark"],
        )

    open_ = [await latest(isolation) for isolation in ISOLATIONS]
    await api.post(f"{BEGIN}/{transaction}:commit", {})
    async with asyncio.timeout(30):
        # A tail waits for the marker.
        await tail(api, "read_committed", "max_records=3")
    ended = [await latest(isolation) for isolation in ISOLATIONS]

    assert open_ == [(1, 1, "3"), (3, 3, "3")]
    assert ended == [(4, 4, "4"), (4, 4, "4")]


async def test_a_lookup_by_time_ends_at_the_last_stable_offset(api: Calls) -> None:
    """A lookup by time with `read_committed` finds no record of an open transaction, nor a record after it."""
    transaction = await opened(api)

    async def at(second: int, isolation: str) -> int | None:
        time = 1_700_000_000_000 + second * 1000
        answer = await api.call("GET", f"{PARTITION}/offsets?timestamp={time}&isolation={isolation}")
        offset: int | None = answer.json["offset"]
        return offset

    found = [[await at(second, isolation) for second in range(3)] for isolation in ISOLATIONS]
    await api.post(f"{BEGIN}/{transaction}:commit", {})
    async with asyncio.timeout(30):
        await tail(api, "read_committed", "max_records=3")
    ended = [await at(second, "read_committed") for second in range(3)]

    assert found == [[0, None, None], [0, 1, 2]]
    assert ended == [0, 1, 2]
