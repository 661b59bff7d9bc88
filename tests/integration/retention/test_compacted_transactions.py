"""Transactions in a compacted topic: reads of both isolations before, during and after rounds.

A topic without compaction gets the same writes, and shows what the rounds may leave.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

from broker_kit import Calls
from waiting import pause

KEYS = 12
WRITES = 70
VALUE_BYTES = 10_000
FIRST_TIME_MS = 1_700_000_000_000
RATE = "log.cleaner.io.max.bytes.per.second"
ISOLATIONS = ("read_committed", "read_uncommitted")
TOPICS = ("compacted", "full")
# Rounds run only when they are requested, and the topic without compaction keeps its old records.
CONFIG = {"min.cleanable.dirty.ratio": 1, "segment.bytes": 1 << 20, "retention.ms": -1}


class Row(NamedTuple):
    """One record."""

    offset: int
    key: str
    value: str | None
    timestamp: int


class Writer:
    """Makes the same writes in both topics, so that every record and marker has the same offset in both."""

    def __init__(self, api: Any, calls: Calls, rng: random.Random) -> None:
        self.api = api
        self.calls = calls
        self.rng = rng
        self.end = 0
        self.made = 0

    async def write(self, transaction: str | None = None) -> None:
        """Append a batch, of a transaction or without."""
        records = [
            {
                "key": f"k{self.rng.randrange(KEYS)}",
                "value": None if self.rng.random() < 0.1 else self.rng.randbytes(VALUE_BYTES).hex(),
                "timestamp": FIRST_TIME_MS + self.made,
            }
            for _ in range(self.rng.randint(1, 4))
        ]
        self.made += 1
        headers = {} if transaction is None else {"Fairlead_Transaction": transaction}
        for topic in TOPICS:
            path = f"/v1/topics/{topic}/partitions/0/records"
            answer = await self.calls.post(path, {"records": records}, **headers)
            assert (answer.status, answer.json["base_offset"]) == (200, self.end), answer
        self.end += len(records)

    async def begin(self) -> str:
        """Begin a transaction and return its id."""
        return str((await self.calls.post("/v1/transactions", {})).json["transaction"])

    async def end_transaction(self, transaction: str, how: str) -> None:
        """Commit or abort a transaction, and wait for its marker in both topics."""
        answer = await self.calls.post(f"/v1/transactions/{transaction}:{how}", {})
        assert answer.status == 200, answer
        self.end += 1
        async with asyncio.timeout(60):
            for topic in TOPICS:
                while (await self.api.admin.offsets(topic, 0)).log_end_offset < self.end:
                    await pause(0.01)

    async def history(self, count: int) -> None:
        """Make random writes: plain ones, and interleaved transactions that are committed or aborted."""
        opened: list[str] = []
        for _ in range(count):
            match self.rng.randrange(6):
                case 0 | 1:
                    await self.write()
                case 2:
                    opened.append(await self.begin())
                    await self.write(opened[-1])
                case 3 | 4 if opened:
                    await self.write(self.rng.choice(opened))
                case 5 if opened:
                    ended = opened.pop(self.rng.randrange(len(opened)))
                    await self.end_transaction(ended, self.rng.choice(("commit", "abort")))
        for transaction in opened:
            await self.end_transaction(transaction, self.rng.choice(("commit", "abort")))


async def read(calls: Calls, topic: str, isolation: str) -> list[Row]:
    """Return every record that a reader of an isolation gets from offset 0 on."""
    rows: list[Row] = []
    offset = 0
    while True:
        query = f"offset={offset}&max_bytes=100000000&max_wait_ms=0&isolation={isolation}"
        answer = await calls.call("GET", f"/v1/topics/{topic}/partitions/0/records?{query}")
        if answer.status == 204:
            return rows
        assert answer.status == 200, answer
        rows += [
            Row(each["offset"], each["key"], each["value"], each["timestamp"])
            for each in answer.json["records"]
        ]
        assert answer.json["next_offset"] > offset
        offset = answer.json["next_offset"]


async def read_both(calls: Calls, topic: str) -> dict[str, list[Row]]:
    """Return what readers of each isolation get."""
    return {isolation: await read(calls, topic, isolation) for isolation in ISOLATIONS}


async def cleaned_offset(calls: Calls) -> int:
    """Return the offset below which the compacted topic was cleaned."""
    answer = await calls.call("GET", "/v1/topics/compacted/partitions/0/cleaning")
    return int(answer.json["replicas"][0]["cleaned_offset"])


def filtered(rows: list[Row], committed: list[Row], cleaned: int) -> list[Row]:
    """Return the rows that a round to an offset leaves: below it, the newest committed record of each key."""
    newest = {row.key: row.offset for row in committed if row.offset < cleaned}
    kept = set(newest.values())
    return [row for row in rows if row.offset >= cleaned or row.offset in kept]


async def test_readers_of_both_isolations_see_the_same_records_over_rounds(lives) -> None:
    """Readers find every record that rounds leave, and no record of an open or aborted transaction as committed.

    The first round runs while two transactions are open, and ends before them; after both have ended, rounds clean the
    whole log. A read during a round has every record that the round leaves, and none that an earlier round has removed.
    """
    api = await lives.start({"log.cleaner.backoff.ms": 20, "log.retention.check.interval.ms": 20})
    topics = {
        topic: await api.admin.create_topic(topic, config={**CONFIG, "cleanup.policy": policy})
        for topic, policy in zip(TOPICS, ("compact", "delete"), strict=True)
    }
    folder = lives.segments(topics["compacted"].topic_id)[0].parent
    await api.admin.alter_cluster_config({RATE: 1 << 20})
    async with Calls(api.url) as calls:
        writer = Writer(api, calls, random.Random(16))
        await writer.history(WRITES)
        first_open = writer.end
        opened = [await writer.begin() for _ in range(2)]
        for transaction in opened:
            await writer.write(transaction)
        await writer.history(5)
        cleaned = 0
        for is_open in (True, False):
            if not is_open:
                for transaction, how in zip(opened, ("commit", "abort"), strict=True):
                    await writer.write(transaction)
                    await writer.end_transaction(transaction, how)
                await writer.write()
            full, before = await read_both(calls, "full"), await read_both(calls, "compacted")
            assert before == {name: filtered(full[name], full["read_committed"], cleaned) for name in full}

            start, unfinished, during = cleaned, 0, []
            requested = await calls.post("/v1/topics/compacted/partitions/0:clean", {})
            assert requested.status < 300, requested
            async with asyncio.timeout(120):
                while cleaned == start if is_open else cleaned < writer.end:
                    unfinished += any(folder.glob("*.log.cleaned"))
                    during.append(await read_both(calls, "compacted"))
                    cleaned = await cleaned_offset(calls)
            after = await read_both(calls, "compacted")
            left = {name: filtered(full[name], full["read_committed"], cleaned) for name in full}

            assert unfinished
            assert cleaned <= (first_open if is_open else writer.end)
            assert after == left
            assert len(after["read_uncommitted"]) < len(before["read_uncommitted"])
            for found in during:
                for name in ISOLATIONS:
                    assert found[name] == sorted(set(found[name]))
                    assert set(left[name]) <= set(found[name]) <= set(before[name])
        assert after["read_committed"] == after["read_uncommitted"]
        assert max(row.offset for row in full["read_uncommitted"]) >= first_open
