"""`commit="before"`: events between the commit of a batch and its delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest

from fairlead import Admin, Consumer, ConsumerBatch, Producer, TopicPartition
from fairlead.errors import SettingError
from fairlead.group.member import MemberState

PLACE, OTHER = TopicPartition("flights", 0), TopicPartition("flights", 1)


async def fill(bootstrap: str, place: TopicPartition, count: int) -> None:
    """Store `count` numbers, ten per batch."""
    async with Producer(bootstrap) as producer:
        for base in range(0, count, 10):
            values = [b"%d" % number for number in range(base, base + 10)]
            await producer.send_batch(place.topic, pa.table({"value": values}), partition=place.partition)


async def take(consumer: Consumer) -> ConsumerBatch:
    """Return the next batch."""
    batch = await consumer.next_batch(timeout="30s")
    assert batch is not None
    return batch


async def committed(admin: Admin) -> int | None:
    """Return the group's committed offset of the first partition."""
    found = (await admin.group_offsets("g")).get(PLACE)
    return None if found is None else found.offset


async def taking_while(
    consumer: Consumer, act: Callable[[asyncio.Task[ConsumerBatch]], object]
) -> asyncio.Task[ConsumerBatch]:
    """Start a take, and call `act` in the iteration of the event loop in which the commit of its batch begins."""
    loop = asyncio.get_running_loop()
    taking, acted = loop.create_task(take(consumer)), asyncio.Event()

    def act_in_time() -> None:
        """Check in each iteration of the event loop whether a batch waits for its commit."""
        before = consumer._commit_before
        assert before is not None
        if before.held is None:
            loop.call_soon(act_in_time)
        else:
            act(taking)
            acted.set()

    act_in_time()
    await acted.wait()
    return taking


@pytest.fixture(autouse=True)
async def topic(admin: Admin, bootstrap: str) -> None:
    """Create the topic `flights` with two partitions and three batches of ten records in the first."""
    await admin.create_topic("flights", partitions=2)
    await fill(bootstrap, PLACE, 30)


@pytest.fixture
def member(bootstrap: str) -> Callable[[], Consumer]:
    """Return a factory of consumers of the group."""
    return lambda: Consumer(bootstrap, group="g", topics="flights", commit="before", session_timeout="3s")


async def test_a_batch_whose_partition_is_paused_is_kept_until_it_is_resumed(
    member: Callable[[], Consumer], admin: Admin, bootstrap: str
) -> None:
    """A batch of a paused partition is kept and its commit reverted, while other partitions continue."""
    async with member() as consumer:
        taking = await taking_while(consumer, lambda _: consumer.pause(PLACE))
        await fill(bootstrap, OTHER, 10)
        assert (await taking).topic_partition == OTHER
        assert consumer.position(PLACE) == 0
        assert await committed(admin) == 0
        consumer.resume(PLACE)
        offsets = [(await take(consumer)).base_offset for _ in range(3)]

    assert offsets == [0, 10, 20]
    assert await committed(admin) == 30


async def test_a_reader_that_gave_up_and_paused_gets_the_batch_after_resuming(
    member: Callable[[], Consumer],
) -> None:
    """A batch is delivered once, before later batches, after a cancelled take, a pause and `resume`."""

    def give_up(taking: asyncio.Task[ConsumerBatch]) -> None:
        """Cancel the take and pause the partition."""
        taking.cancel()
        consumer.pause(PLACE)

    async with member() as consumer:
        await asyncio.wait([await taking_while(consumer, give_up)])
        assert await consumer.next_batch(timeout="300ms") is None
        consumer.resume(PLACE)
        offsets = [(await take(consumer)).base_offset for _ in range(3)]
        rest = await consumer.next_batch(timeout="100ms")

    assert offsets == [0, 10, 20]
    assert rest is None


async def test_a_seek_of_a_paused_partition_counts(member: Callable[[], Consumer]) -> None:
    """A batch that was kept for a paused partition is not delivered after a seek."""
    async with member() as consumer:
        taking = await taking_while(consumer, lambda _: consumer.pause(PLACE))
        await consumer.seek(PLACE, 20)
        consumer.resume(PLACE)
        batch = await taking

    assert batch.base_offset == 20


@pytest.mark.slow
async def test_an_undelivered_batch_moves_with_its_paused_partition(
    member: Callable[[], Consumer], admin: Admin
) -> None:
    """A batch that was not delivered is the first batch that the next owner of its paused partition gets."""
    async with member() as consumer:
        taking = await taking_while(consumer, lambda _: consumer.pause(PLACE))
        async with member() as other:
            while not other.assignment:
                await other.next_batch(timeout="100ms")
            taking.cancel()
            await asyncio.wait([taking])
            await consumer.close()
            batch = await take(other)

    assert (batch.topic_partition, batch.base_offset) == (PLACE, 0)


@pytest.mark.parametrize("way", ["break", "raise", "pause"])
async def test_the_rest_of_an_interrupted_batch_is_not_skipped(
    member: Callable[[], Consumer], admin: Admin, way: str
) -> None:
    """If a consumer leaves in the middle of a batch, the next member begins after the last delivered record."""
    with suppress(RuntimeError):
        async with member() as consumer:
            async for record in consumer.records():
                if record.offset == 13:
                    assert await committed(admin) == 20
                    break
            if way == "raise":
                raise RuntimeError
            if way == "pause":
                consumer.pause()
                assert await consumer.next_batch(timeout="50ms") is None
    assert await committed(admin) == 14
    async with member() as consumer:
        assert (await take(consumer)).base_offset == 14
        # Only undelivered records are reverted: a later commit by the program is kept.
        await consumer.seek(PLACE, 3)
    assert await committed(admin) == 20


@pytest.mark.parametrize("commit", ["after", "before", "manual"])
async def test_two_takes_at_once_are_refused_and_lose_nothing(bootstrap: str, commit: str) -> None:
    """A second take at the same time is refused, and the first take receives every batch."""
    offsets: list[int] = []

    async def read(consumer: Consumer) -> None:
        """Read until three batches have been received."""
        async for batch in consumer:
            offsets.append(batch.base_offset)
            if len(offsets) == 3:
                return

    async with Consumer(bootstrap, group="g", topics="flights", commit=commit) as consumer:
        outcomes = await asyncio.gather(read(consumer), read(consumer), return_exceptions=True)

    assert outcomes[0] is None
    assert isinstance(outcomes[1], SettingError)
    assert offsets == [0, 10, 20]


async def test_a_member_unknown_to_the_group_joins_again(
    member: Callable[[], Consumer], admin: Admin
) -> None:
    """A member that its group has removed joins again and misses no batch."""
    async with member() as consumer:
        assert (await take(consumer)).base_offset == 0
        assert consumer._session is not None
        await consumer._session._calls.leave(static=False)
        offsets = [(await take(consumer)).base_offset for _ in range(2)]
        assert consumer.membership.state is MemberState.STABLE

    assert offsets == [10, 20]
    assert await committed(admin) == 30
