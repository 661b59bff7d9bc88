"""Compacted topics on a running broker, whose cleaner works in its child process."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime
from typing import Any

import pytest

from cleaning_kit import make_hostile
from fairlead import Consumer, Producer, Record, TopicPartition
from fairlead_api.batch.header import Codec
from waiting import pause

TABLE = {"cleanup.policy": "compact", "segment.ms": 1000, "min.cleanable.dirty.ratio": 0.1}
EAGER = {"log.cleaner.backoff.ms": 20, "log.retention.check.interval.ms": 20}
DAY_SECONDS = 24 * 3600
KEYS = UPDATES = 100


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
    """Of 100 keys with 100 updates each, the cleaner keeps the newest record of each key at its offset.

    It drops a tombstone once it is old enough.
    """
    api = await lives.start(EAGER)
    await api.admin.create_topic("accounts", config=TABLE)
    for number in range(UPDATES):
        await put(api, "accounts", **{f"k{key}": f"{number}" for key in range(KEYS)})
    end = KEYS * UPDATES
    await put(api, "accounts", k0=None)
    clock.move(2)
    await api.looks()
    newest = [(end - KEYS + key, f"k{key}", f"{UPDATES - 1}") for key in range(1, KEYS)]
    await until_table(api, "accounts", [*newest, (end, "k0", None)])
    refused = await api.produce("accounts", "a record without a key")
    in_the_middle = await api.fetch("accounts", end // 2)
    await put(api, "accounts", k5="new")
    await api.running.stop()
    api = await lives.start(EAGER)
    again = await table(api, "accounts")
    clock.move(2 * DAY_SECONDS)
    await api.looks()
    updated = [each for each in newest if each[1] != "k5"]

    assert (refused.status, refused.json["code"]) == (422, "invalid_record")
    assert [each["offset"] for each in in_the_middle.json["records"]] == list(range(end - KEYS + 1, end + 1))
    assert again == [*newest, (end, "k0", None), (end + 1, "k5", "new")]
    await until_table(api, "accounts", [*updated, (end + 1, "k5", "new")])
    assert (await put(api, "accounts", k6="last")).json["base_offset"] == end + 2


async def test_each_policy_removes_what_it_names(lives, clock) -> None:
    """Retention removes old segments only with `delete` in the policy, and rounds remove records only with `compact`.

    A record above `max.compaction.lag.ms` makes a round due below any dirty ratio, and closes its segment.
    """
    api = await lives.start(EAGER)
    old = {"min.cleanable.dirty.ratio": 1, "max.compaction.lag.ms": 1000, "retention.ms": 3_600_000}
    policies = {"compacted": "compact", "both": "compact,delete"}
    for topic, policy in policies.items():
        await api.admin.create_topic(topic, config={**old, "cleanup.policy": policy})
        for value in ("1", "2"):
            await put(api, topic, k=value)
    clock.move(2)
    await api.looks()
    for topic in policies:
        await until_table(api, topic, [(1, "k", "2")])
    for topic in policies:
        await put(api, topic, k="3")
    clock.move(DAY_SECONDS)
    await api.looks()
    async with asyncio.timeout(120):
        while (expired := await api.fetch("both", 0)).json.get("log_start_offset") != 3:
            await pause(0.02)
    await until_table(api, "compacted", [(2, "k", "3")])
    await api.admin.alter_topic("compacted", config={"cleanup.policy": "delete", "retention.ms": -1})
    for value in ("4", "5"):
        await put(api, "compacted", k=value)
    clock.move(2)
    await api.looks()
    refused = await api.call("POST", "/v1/topics/compacted/partitions/0:clean")

    assert (expired.status, expired.json["code"]) == (410, "offset_expired")
    assert (refused.status, refused.json["code"]) == (409, "not_possible_now")
    assert await table(api, "compacted") == [(2, "k", "3"), (3, "k", "4"), (4, "k", "5")]


@pytest.mark.parametrize("kind", ["flipped", "malformed"])
async def test_hostile_bytes_in_a_closed_segment_end_the_round_and_not_the_broker(lives, kind: str) -> None:
    """A round over damaged or malformed bytes ends; the broker continues to serve, and cleans other partitions."""
    api = await lives.start(EAGER)
    topic = await api.admin.create_topic("broken", config={**TABLE, "min.compaction.lag.ms": 3_600_000})
    for number in range(5):
        await put(api, "broken", **{f"k{key}": f"{number}" for key in range(50)})
    await api.call("POST", "/v1/topics/broken/partitions/0:clean")
    path = lives.segments(topic.topic_id)[0]
    data = bytearray(path.read_bytes())
    make_hostile(data, 0, kind)
    path.write_bytes(data)
    await api.admin.alter_topic("broken", config={"min.compaction.lag.ms": 0})
    async with asyncio.timeout(120):
        while await outcome(api, "broken") != "damaged":
            await pause(0.02)
    await api.admin.create_topic("healthy", config=TABLE)
    for value in ("1", "2"):
        await put(api, "healthy", k=value)
    await api.call("POST", "/v1/topics/healthy/partitions/0:clean")
    await until_table(api, "healthy", [(1, "k", "2")])
    written = await put(api, "broken", k0="still written")
    read = await api.fetch("broken", written.json["base_offset"])

    assert path.read_bytes() == data
    assert [record["value"] for record in read.json["records"]] == ["still written"]


async def outcome(api: Any, topic: str) -> str | None:
    """Return the outcome of the last round of a topic's partition."""
    answer = await api.call("GET", f"/v1/topics/{topic}/partitions/0/cleaning")
    last = answer.json["replicas"][0].get("last_round")
    return None if last is None else last["outcome"]


@pytest.mark.parametrize(
    ("messages", "codecs"),
    [
        (3_000, [Codec.LZ4]),
        pytest.param(300_000, list(Codec), marks=[pytest.mark.scenario, pytest.mark.timeout(900)]),
    ],
)
async def test_kafkas_log_compaction_tester(lives, messages: int, codecs: list[Codec]) -> None:
    """A topic of random keys and deletes, cleaned while it is written, ends with the newest record of each key.

    Kafka's `LogCompactionTester` compares the produced records with the records that are consumed later, each
    reduced to the newest record of its key. Here a topic without compaction gets the same records, so that every read
    from an offset or a time can be compared as well.
    """
    api = await lives.start(EAGER)
    # The records are old, and the topic without compaction keeps all of them.
    kept = {"segment.bytes": 1 << 20, "retention.ms": -1}
    for codec in codecs:
        names = (f"compacted-{codec.name.lower()}", f"full-{codec.name.lower()}")
        for name, policy in zip(names, ("compact", "delete"), strict=True):
            await api.admin.create_topic(name, config={**kept, "cleanup.policy": policy})
        rng = random.Random(messages + codec)
        for part in range(2):
            await produce_randomly(api.url, names, codec, rng, part * messages // 2, messages // 2, messages)
            await cleaned(api, names[0], (part + 1) * messages // 2)
        left, full = await consumed(api.url, names[0]), await consumed(api.url, names[1])
        offsets = {record.offset for record in left}
        by_time = await first_offsets(
            api.url, names[0], [record.timestamp for record in full[:: messages // 50]]
        )

        assert len(full) == messages
        assert newest(left) == newest(full)
        assert len(left) < messages // 2
        assert list(map(content, left)) == [content(record) for record in full if record.offset in offsets]
        for offset in range(0, messages, messages // 50):
            rest = [record for record in left if record.offset >= offset]
            found = await consumed(api.url, names[0], offset)
            assert list(map(content, found)) == list(map(content, rest))
        for record, found in zip(full[:: messages // 50], by_time, strict=True):
            assert found == next(each.offset for each in left if each.timestamp >= record.timestamp)


async def produce_randomly(
    url: str, topics: tuple[str, ...], codec: Codec, rng: random.Random, first: int, count: int, messages: int
) -> None:
    """Write the same records to topics: each key five times on average, and a fifth of the records are deletes.

    Pairs of consecutive records have the same time.
    """
    async with Producer(url, compression=codec, batch_bytes=20_000) as producer:
        for number in range(first, first + count):
            key = b"%d" % rng.randrange(messages // 5)
            value = None if rng.random() < 0.2 else b"%d" % number
            for topic in topics:
                await producer.send(topic, value, key, timestamp=1_700_000_000_000 + number // 2)


async def cleaned(api: Any, topic: str, end_offset: int) -> None:
    """Clean a topic up to an offset."""
    await api.call("POST", f"/v1/topics/{topic}/partitions/0:clean")
    async with asyncio.timeout(120):
        while True:
            answer = await api.call("GET", f"/v1/topics/{topic}/partitions/0/cleaning")
            if answer.json["replicas"][0]["cleaned_offset"] >= end_offset:
                return
            await pause(0.02)


async def consumed(url: str, topic: str, offset: int = 0) -> list[Record]:
    """Read a topic from an offset to its end."""
    async with Consumer(url) as consumer:
        await consumer.assign([TopicPartition(topic, 0)], start=offset)
        ends = await consumer.end_offsets()
        return [record async for record in consumer.records(ends)]


async def first_offsets(url: str, topic: str, times: list[datetime]) -> list[int]:
    """Return the offset of the first record at or after each time."""
    place = TopicPartition(topic, 0)
    async with Consumer(url) as consumer:
        await consumer.assign([place])
        found = [(await consumer.offsets_for_times({place: time}))[place] for time in times]
    return [each.offset for each in found if each is not None]


def content(record: Record) -> tuple[int, bytes | None, bytes | None, int]:
    """Return offset, key, value and time of a record."""
    return record.offset, record.key, record.value, record.timestamp_us


def newest(records: list[Record]) -> dict[bytes | None, tuple[int, bytes | None, bytes | None, int]]:
    """Return the newest record of each key, without deleted keys."""
    found = {record.key: content(record) for record in records}
    return {key: each for key, each in found.items() if each[2] is not None}
