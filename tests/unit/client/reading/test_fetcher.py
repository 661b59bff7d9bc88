"""The consumer, against a real listener with scripted answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
import pytest

from fairlead import Consumer, TopicPartition
from fairlead.errors import (
    CrcMismatchError,
    InternalServerError,
    LogDamagedError,
    LogTruncatedError,
    SettingError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from refusals import raises

if TYPE_CHECKING:
    from conftest import Received, Replies, Reply, ScriptedBroker

FETCH = "/v1/fetch"


def at(partition: int) -> TopicPartition:
    """Return a partition of flights."""
    return TopicPartition("flights", partition)


@pytest.fixture
async def consumer(broker: ScriptedBroker) -> AsyncIterator[Consumer]:
    """Yield a consumer that reads partition 0 of flights from offset 0."""
    async with Consumer(broker.url) as consumer:
        await consumer.assign([at(0)], start=0)
        yield consumer


def answering(*replies: Reply) -> list[object]:
    """Return scripts that send the given answers."""

    def script(reply: Reply) -> object:
        """Return a script that sends the given answer."""

        async def answer(_: Received) -> Reply:
            """Answer as scripted."""
            return reply

        return answer

    return [script(reply) for reply in replies]


def asked(broker: ScriptedBroker) -> list[dict[str, object]]:
    """Return the first partition of each fetch."""
    return [msgspec.json.decode(request.body)["partitions"][0] for request in broker.received(FETCH)]


async def values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Read and return the given number of values."""
    found: list[bytes | None] = []
    while len(found) < count:
        batch = await consumer.next_batch()
        assert batch is not None
        found += batch.values
    return found


async def test_the_next_fetch_begins_where_the_last_ended(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies
) -> None:
    """A fetch starts where the previous fetch ended, with the leader epochs of the partition and of the last batch."""
    first = replies.fetched((0, 2, replies.stored([b"a", b"b"], 0, leader_epoch=4)))
    broker.script(FETCH, *answering(first, replies.fetched((0, 3, replies.stored([b"c"], 2)))))  # type: ignore[arg-type]

    assert await values(consumer, 3) == [b"a", b"b", b"c"]
    assert [(request["offset"], request.get("last_epoch")) for request in asked(broker)[:2]] == [
        (0, None),
        (2, 4),
    ]
    assert asked(broker)[1]["leader_epoch"] == 1


async def test_the_epoch_goes_along_when_reading_stops_and_goes_on(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies
) -> None:
    """After a pause, fetches still contain the epoch of the last batch, so that a truncated log is detected."""
    stored = replies.fetched((0, 3, replies.stored([b"a", b"b", b"c"], 0, leader_epoch=4)))
    broker.script(FETCH, *answering(stored))  # type: ignore[arg-type]
    assert [record.offset async for record in consumer.records(until={at(0): 3})] == [0, 1, 2]

    assert await consumer.next_batch(timeout="500ms") is None
    behind = [each.get("last_epoch") for each in asked(broker) if each["offset"] == 3]
    assert set(behind) == {4}


@pytest.mark.parametrize("code", ["offset_not_available", "not_leader", "stale_leader_epoch", "throttled"])
async def test_refused_partitions_are_asked_again(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies, code: str
) -> None:
    """A refused partition or request is fetched again if the problem is retryable."""
    good = replies.fetched((0, 1, replies.stored([b"a"], 0)))
    broker.script(FETCH, *answering(replies.fetch_problem(0, code), replies.problem(code), good))  # type: ignore[arg-type]

    assert await values(consumer, 1) == [b"a"]


async def test_a_refresh_finds_the_new_leader(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies
) -> None:
    """A partition is fetched from its new leader after a refresh of the metadata."""
    async with type(broker)() as other:
        broker.addresses = {1: broker.url, 2: other.url}
        broker.leaders = [2, 1]
        other.script(FETCH, *answering(replies.fetched((0, 1, replies.stored([b"a"], 0)))))  # type: ignore[arg-type]
        broker.script(FETCH, *answering(*[replies.fetch_problem(0, "not_leader")] * 3))  # type: ignore[arg-type]

        assert await values(consumer, 1) == [b"a"]


@pytest.mark.parametrize(
    ("code", "error"), [("log_damaged", LogDamagedError), ("log_truncated", LogTruncatedError)]
)
async def test_lost_records_are_raised_and_a_seek_continues(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies, code: str, error: type[Exception]
) -> None:
    """A loss of records is raised after the preceding records are read, and a seek lets the reader continue."""
    good = replies.fetched((0, 1, replies.stored([b"a"], 0)))
    later = replies.fetched((0, 6, replies.stored([b"f"], 5)))
    broker.script(FETCH, *answering(good, replies.fetch_problem(0, code)))  # type: ignore[arg-type]
    assert await values(consumer, 1) == [b"a"]
    with raises(error, "flights-0", 1):
        await consumer.next_batch()
    broker.script(FETCH, *answering(later))  # type: ignore[arg-type]
    await consumer.seek(at(0), 5)

    assert await values(consumer, 1) == [b"f"]


async def test_a_damaged_answer_is_never_handed_out(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies
) -> None:
    """A damaged batch is never delivered, because the consumer verifies checksums."""
    data = bytearray(replies.stored([b"a"], 0))
    data[-12] ^= 1
    broker.script(FETCH, *answering(replies.fetched((0, 1, bytes(data)))))  # type: ignore[arg-type]
    with raises(CrcMismatchError, "flights-0", 0):
        await consumer.next_batch()
    assert consumer.position(at(0)) == 0
    with pytest.raises(CrcMismatchError):
        await consumer.next_batch()

    async def repaired(received: Received) -> Reply | None:
        """Answer a fetch at offset 0."""
        [place] = msgspec.json.decode(received.body)["partitions"]
        return replies.fetched((0, 1, replies.stored([b"a"], 0))) if place["offset"] == 0 else None

    broker.script(FETCH, *[repaired] * 5)
    await consumer.seek(at(0), 0)
    assert await values(consumer, 1) == [b"a"]


@pytest.mark.parametrize("body", [b"no frames at all", b"\x08\0\0\0\0\0\0\0no json "])
async def test_an_unreadable_answer_is_raised(
    broker: ScriptedBroker, consumer: Consumer, body: bytes
) -> None:
    """An answer that cannot be read raises an error, because retries would hide that the address is not a broker's."""
    broker.script(FETCH, *answering((200, {}, body)))  # type: ignore[arg-type]
    with pytest.raises(InternalServerError):
        await consumer.next_batch()


async def test_a_position_may_move_without_records(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies
) -> None:
    """A fetch answer without records may advance the position to the requested end."""
    broker.script(FETCH, *answering(replies.fetched((0, 7, b""))))  # type: ignore[arg-type]

    assert [batch async for batch in consumer.batches(until={at(0): 7})] == []
    assert consumer.position(at(0)) == 7


async def test_an_unanswered_reset_is_retried(broker: ScriptedBroker, replies: Replies) -> None:
    """A failed reset is retried like a fetch, without an error for the reader."""

    async def looked_up(_: Received) -> Reply:
        """Refuse fetches until the reset has failed once and the partition was fetched again."""
        if len(broker.received(FETCH)) < 2:
            return replies.problem("offset_not_available")
        place = {"topic": "flights", "topic_id": broker.topic_id, "partition": 0}
        return replies.json({"partitions": [{**place, "offset": 5, "timestamp": None}]})

    async def fetched(received: Received) -> Reply | None:
        """Answer with the record at offset 5, and refuse earlier offsets."""
        [place] = msgspec.json.decode(received.body)["partitions"]
        if place["offset"] < 5:
            return replies.fetch_problem(0, "offset_expired")
        return replies.fetched((0, 6, replies.stored([b"f"], 5))) if place["offset"] == 5 else None

    broker.scripts["/v1/offsets:lookup"] = [looked_up] * 100
    broker.script(FETCH, *[fetched] * 100)
    async with Consumer(broker.url, offset_policy="earliest", retry_timeout="50ms") as consumer:
        await consumer.assign([at(0)], start=0)
        async with asyncio.timeout(20):
            assert await values(consumer, 1) == [b"f"]


async def test_a_seek_moves_what_is_assigned_when_its_answer_comes(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """A seek takes effect if its partition is still assigned when the offset is looked up, and is refused otherwise."""
    asked_for, answered = asyncio.Event(), asyncio.Event()

    async def looked_up(_: Received) -> Reply:
        """Answer when the test allows it."""
        asked_for.set()
        await answered.wait()
        place = {"topic": "flights", "topic_id": broker.topic_id, "partition": 0}
        return replies.json({"partitions": [{**place, "offset": 5, "timestamp": None}]})

    async with Consumer(broker.url) as consumer, asyncio.timeout(20):
        for places in ([at(0)], [at(1)]):
            await consumer.assign([at(0)], start=1)
            broker.script("/v1/offsets:lookup", looked_up)
            seeking = asyncio.get_running_loop().create_task(consumer.seek(at(0), "latest"))
            await asked_for.wait()
            await consumer.assign(places, start=2)
            answered.set()
            if places == [at(0)]:
                assert await seeking == consumer.position(at(0)) == 5
            else:
                with raises(SettingError, "flights-1"):
                    await seeking
            asked_for.clear()
            answered.clear()


async def test_a_recreated_topic_is_reported(broker: ScriptedBroker, consumer: Consumer) -> None:
    """A recreated topic is reported, because the offsets of the old topic have no meaning in the new topic."""
    broker.topic_id = "2b4e28ba-2fa1-4d19-883f-0016d3cca427"
    broker.refuse(FETCH, "not_leader")
    with raises(TopicRecreatedError, "flights"):
        await consumer.next_batch()


async def test_a_larger_topic_behind_the_name_is_not_read_as_growth(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """A recreated topic with more partitions is reported on each read, and none of its records is delivered."""
    async with Consumer(broker.url) as consumer, asyncio.timeout(20):
        await consumer.assign(topic="flights", start=5)
        broker.topic_id = "2b4e28ba-2fa1-4d19-883f-0016d3cca427"
        broker.leaders = [1, 1, 1]
        broker.refuse(FETCH, "not_leader")
        for _ in range(4):
            with pytest.raises(TopicRecreatedError):
                await consumer.next_batch()
        assert consumer.assignment == {at(0), at(1)}


async def test_a_deleted_topic_is_reported(broker: ScriptedBroker, consumer: Consumer) -> None:
    """A deleted topic is reported."""
    broker.topics = []
    broker.refuse(FETCH, "not_leader")
    with raises(TopicNotFoundError, "flights"):
        await consumer.next_batch()


async def test_a_reset_asks_no_older_leader_and_leaves_the_old_records_behind(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """A reset requires a leader of at least the known epoch, and replaces the last epoch that was read."""
    stored = replies.fetched((0, 1, replies.stored([b"a"], 0, leader_epoch=1)))
    later = replies.fetched((0, 901, replies.stored([b"z"], 900, leader_epoch=6)))
    broker.script(FETCH, *answering(stored, replies.fetch_problem(0, "offset_expired")))  # type: ignore[arg-type]
    told = {
        "topic": "flights",
        "topic_id": None,
        "partition": 0,
        "offset": 900,
        "timestamp": None,
        "leader_epoch": 6,
    }
    answer = 200, {"content-type": "application/json"}, msgspec.json.encode({"partitions": [told]})
    broker.script("/v1/offsets:lookup", *answering(answer))  # type: ignore[arg-type]
    async with Consumer(broker.url, offset_policy="latest") as consumer:
        await consumer.assign([at(0)], start=0)
        assert await values(consumer, 1) == [b"a"]
        broker.script(FETCH, *answering(later))  # type: ignore[arg-type]
        assert await values(consumer, 1) == [b"z"]
    [lookup] = broker.received("/v1/offsets:lookup")
    [wanted] = msgspec.json.decode(lookup.body)["partitions"]
    after = next(each for each in asked(broker) if each["offset"] == 900)

    assert (wanted["timestamp"], wanted["leader_epoch"]) == ("latest", 1)
    assert (after["leader_epoch"], after["last_epoch"]) == (6, 6)


async def test_grown_partitions_of_an_assigned_topic_are_read(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """New partitions of an assigned topic are read from their start without a new assignment."""
    async with Consumer(broker.url) as consumer, asyncio.timeout(20):
        await consumer.assign(topic="flights", start=5)
        broker.leaders = [1, 1, 1]
        broker.refuse(FETCH, "not_leader")

        async def grown(received: Received) -> Reply | None:
            """Answer when the new partition is fetched."""
            for place in msgspec.json.decode(received.body)["partitions"]:
                if place["partition"] == 2:
                    assert place["offset"] == 0
                    return replies.fetched((2, 1, replies.stored([b"new"], 0)))
            return None

        broker.script(FETCH, *[grown] * 20)
        assert await values(consumer, 1) == [b"new"]


async def test_fetches_are_of_disjoint_partitions(broker: ScriptedBroker, replies: Replies) -> None:
    """Each partition is in one fetch only: during the long poll of a partition, another partition is fetched alone."""
    polled, parked = asyncio.Event(), asyncio.Event()

    async def both(_: Received) -> Reply:
        """Answer with records of one of the two partitions."""
        return replies.fetched((0, 1, replies.stored([b"a"], 0)))

    async def park(received: Received) -> Reply | None:
        """Delay the answer to the poll until the test allows it."""
        polled.set()
        await parked.wait()
        return None

    async with Consumer(broker.url) as consumer, asyncio.timeout(20):
        await consumer.assign([at(0), at(1)], start=0)
        broker.script(FETCH, both, park)
        assert await values(consumer, 1) == [b"a"]
        await polled.wait()
        await consumer.seek(at(0), 1)
        broker.script(FETCH, *answering(replies.fetched((0, 2, replies.stored([b"b"], 1)))))  # type: ignore[arg-type]
        assert await values(consumer, 1) == [b"b"]
        parked.set()


async def test_much_to_read_is_asked_for_in_two_requests_and_no_more(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """A consumer that has many records to read divides its partitions between exactly two requests."""
    broker.leaders = [1] * 4
    shares: list[tuple[int, ...]] = []
    open_now = open_most = 0
    ends = dict.fromkeys(range(4), 0)

    async def some(received: Received) -> Reply:
        """Answer with one record from each requested partition; each partition has a hundred records."""
        nonlocal open_now, open_most
        asked_for = msgspec.json.decode(received.body)["partitions"]
        shares.append(tuple(each["partition"] for each in asked_for))
        open_now += 1
        open_most = max(open_most, open_now)
        await asyncio.sleep(0)  # noqa: TID251 - lets the other request run
        open_now -= 1
        parts = []
        for each in asked_for:
            partition, offset = each["partition"], each["offset"]
            ends[partition] = offset + 1
            parts.append((partition, offset + 1, replies.stored([b"%d" % offset], offset)))
        return replies.fetched(*parts, high_watermark=100)

    async with Consumer(broker.url) as consumer, asyncio.timeout(20):
        broker.script(FETCH, *[some] * 60)
        await consumer.assign([at(partition) for partition in range(4)], start=0)
        await values(consumer, 80)

    assert len(shares[0]) == 4
    assert {len(share) for share in shares[1:20]} <= {1, 2}, shares
    assert open_most <= 2
    assert min(ends.values()) >= 10, ends


async def test_a_reset_moves_the_position_where_nothing_follows(
    broker: ScriptedBroker, replies: Replies
) -> None:
    """A reset to the end of an empty log advances the position, so that the requested end is reached."""

    async def looked_up(_: Received) -> Reply:
        """Answer that the log starts at its end."""
        place = {"topic": "flights", "topic_id": broker.topic_id, "partition": 0}
        return replies.json({"partitions": [{**place, "offset": 5, "timestamp": None}]})

    broker.scripts["/v1/offsets:lookup"] = [looked_up] * 2
    broker.script(FETCH, *answering(replies.fetch_problem(0, "offset_expired")))  # type: ignore[arg-type]
    async with Consumer(broker.url, offset_policy="earliest") as consumer, asyncio.timeout(10):
        await consumer.assign([at(0)], start=0)

        assert [batch async for batch in consumer.batches(until={at(0): 5})] == []
        assert consumer.position(at(0)) == 5


async def test_a_seek_among_the_records_of_a_batch_is_heeded_at_once(
    broker: ScriptedBroker, consumer: Consumer, replies: Replies
) -> None:
    """A seek between two records of a batch takes effect with the next record."""
    batch = replies.fetched((0, 3, replies.stored([b"a", b"b", b"c"], 0)))

    async def fetched(received: Received) -> Reply | None:
        """Answer with the whole batch for any offset in it."""
        [place] = msgspec.json.decode(received.body)["partitions"]
        return batch if place["offset"] < 3 else None

    broker.script(FETCH, *[fetched] * 20)
    found = []
    async for record in consumer.records(until={at(0): 3}):
        found.append(record.offset)
        if found == [0, 1]:
            await consumer.seek(at(0), 1)

    assert found == [0, 1, 1, 2]
