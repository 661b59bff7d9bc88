"""Compacted topics on a running broker, whose cleaner works in its child process."""

from __future__ import annotations

import asyncio
from typing import Any

from waiting import pause

TABLE = {"cleanup.policy": "compact", "segment.ms": 1000, "min.cleanable.dirty.ratio": 0.1}
EAGER = {"log.cleaner.backoff.ms": 20, "log.retention.check.interval.ms": 20}
DAY_SECONDS = 24 * 3600


async def put(api: Any, topic: str, **values: str | None) -> Any:
    """Produce one record for each key in one batch."""
    records = [{"key": key, "value": value} for key, value in values.items()]
    return await api.call("POST", f"/v1/topics/{topic}/partitions/0/records", {"records": records})


async def table(api: Any, topic: str) -> list[tuple[int, str, str | None]]:
    """Return offset, key and value of every record from offset 0 on."""
    found, answer = [], await api.fetch(topic, 0)
    while answer.status == 200:
        found += [(each["offset"], each["key"], each["value"]) for each in answer.json["records"]]
        answer = await api.fetch(topic, answer.json["next_offset"])
    assert answer.status == 204, answer
    return found


async def until_table(api: Any, topic: str, expected: list[tuple[int, str, str | None]]) -> None:
    """Wait until a reader from offset 0 finds exactly these records. The child process needs seconds to start."""
    found = None
    try:
        async with asyncio.timeout(120):
            while found != expected:
                await pause(0.02)
                found = await table(api, topic)
    except TimeoutError:
        assert found == expected


async def test_a_compacted_topic_keeps_the_newest_record_of_each_key(lives, clock) -> None:
    """The cleaner keeps the newest record of each key at its offset, and drops a tombstone once it is old enough."""
    api = await lives.start(EAGER)
    await api.admin.create_topic("accounts", config=TABLE)
    for number in range(20):
        await put(api, "accounts", **{f"k{key}": f"{number}" for key in range(5)})
    await put(api, "accounts", k0=None)
    clock.move(2)
    await api.looks()
    newest = [(95 + key, f"k{key}", "19") for key in range(1, 5)]
    await until_table(api, "accounts", [*newest, (100, "k0", None)])
    refused = await api.produce("accounts", "a record without a key")
    in_the_middle = await api.fetch("accounts", 50)
    await put(api, "accounts", k5="new")
    await api.running.stop()
    api = await lives.start(EAGER)
    again = await table(api, "accounts")
    clock.move(2 * DAY_SECONDS)
    await api.looks()

    assert (refused.status, refused.json["code"]) == (422, "invalid_record")
    assert [each["offset"] for each in in_the_middle.json["records"]] == [96, 97, 98, 99, 100]
    assert again == [*newest, (100, "k0", None), (101, "k5", "new")]
    await until_table(api, "accounts", [*newest, (101, "k5", "new")])
    assert (await put(api, "accounts", k6="last")).json["base_offset"] == 102
