"""Members of groups against a real broker: partitions are shared, and move when members join and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fairlead
from fairlead import Admin, Consumer, Producer, TopicPartition
from fairlead.errors import ClosedError, InstanceFencedError, InvalidPatternError
from refusals import raises
from waiting import until

PARTITIONS = 6
SESSION = "6s"


def at(partition: int, topic: str = "flights") -> TopicPartition:
    """Return a partition of the topic that these tests use."""
    return TopicPartition(topic, partition)


async def fill(bootstrap: str, numbers: Iterable[int], topic: str = "flights") -> None:
    """Store numbers, each in the partition `number % PARTITIONS`."""
    async with Producer(bootstrap) as producer:
        for number in numbers:
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)


def tasks_of_the_sdk() -> list[str]:
    """Return the names of tasks that run code of the SDK; the broker has tasks on the same event loop."""
    home = Path(fairlead.__file__).parent
    return [
        task.get_name()
        for task in asyncio.all_tasks()
        if home in Path(getattr(task.get_coro(), "cr_code").co_filename).parents  # noqa: B009
    ]


class Member:
    """Consumer of a group that reads in a separate task and stores its records and errors."""

    def __init__(self, consumer: Consumer, moves: list[tuple[str, frozenset[TopicPartition]]]) -> None:
        self.consumer = consumer
        self.moves = moves
        self.got: list[int] = []

    @property
    def partitions(self) -> set[int]:
        """Return the assigned partitions."""
        return {place.partition for place in self.consumer.assignment}

    async def read(self) -> None:
        """Read until cancelled, or until the consumer is closed."""
        try:
            async for record in self.consumer.records():
                self.got.append(int(record.value or b""))
        except ClosedError:
            return

    def die(self) -> None:
        """End without leaving the group, as a killed process does."""
        session = self.consumer._session
        assert session is not None
        session._task.cancel()
        running = self.consumer._running
        assert running is not None
        running.fetching.cancel()


@asynccontextmanager
async def member(bootstrap: str, *, group: str = "g", **settings: object) -> AsyncIterator[Member]:
    """Run a member that reads within the block, and commits and leaves at its end."""
    moves: list[tuple[str, frozenset[TopicPartition]]] = []
    arguments = {"topics": "flights", "session_timeout": SESSION, **settings}
    consumer = Consumer(
        bootstrap,
        group=group,
        on_assigned=lambda places: moves.append(("assigned", places)),
        on_revoked=lambda places: moves.append(("revoked", places)),
        **arguments,  # type: ignore[arg-type]
    )
    async with consumer, asyncio.TaskGroup() as tasks:
        found = Member(consumer, moves)
        reading = tasks.create_task(found.read())
        yield found
        reading.cancel()


@pytest.fixture(autouse=True)
async def topic(admin: Admin) -> None:
    """Create the topic `flights`."""
    await admin.create_topic("flights", partitions=PARTITIONS)


@pytest.mark.slow
async def test_members_split_the_partitions_and_only_what_moves_pauses(bootstrap: str) -> None:
    """Members share the partitions, and each record is read once: a batch is committed before its partition moves."""
    async with member(bootstrap) as first:
        await until(lambda: first.partitions == set(range(6)))
        await fill(bootstrap, range(120))
        stayed = dict(first.consumer._prefetch.cursors)
        async with member(bootstrap) as second:
            await until(lambda: len(first.partitions) == len(second.partitions) == 3)
            assert first.partitions | second.partitions == set(range(6))
            assert all(cursor is stayed[place] for place, cursor in first.consumer._prefetch.cursors.items())
            await fill(bootstrap, range(120, 240))
            async with member(bootstrap) as third:
                await until(lambda: [len(each.partitions) for each in (first, second, third)] == [2, 2, 2])
                await fill(bootstrap, range(240, 360))
                got = lambda: sorted(first.got + second.got + third.got)  # noqa: E731
                await until(lambda: len(got()) >= 360)
            await until(lambda: len(first.partitions) == len(second.partitions) == 3)
    revoked = [places for kind, places in first.moves if kind == "revoked"]

    assert got() == list(range(360))
    assert [len(places) for places in revoked] == [3, 1, 3]
    assert first.moves[0] == ("assigned", frozenset(at(partition) for partition in range(6)))


@pytest.mark.slow
async def test_the_partitions_of_a_dead_member_are_read_from_its_last_commit(bootstrap: str) -> None:
    """When a dead member's session expires, its partitions are read from its last commit, and no record is lost."""
    await fill(bootstrap, range(60))
    silent = Consumer(bootstrap, group="g", topics="flights", session_timeout="2s", auto_commit_interval="1h")
    async with member(bootstrap, auto_commit_interval="50ms") as second:
        await until(lambda: len(second.got) == 60)
        async with silent as consumer:
            first = Member(consumer, [])
            await until(lambda: len(first.partitions) == 3)
            await fill(bootstrap, range(60, 120))
            batch = await consumer.next_batch(timeout="30s")
            assert batch is not None
            first.die()
            await until(lambda: second.partitions == set(range(6)))
            await until(lambda: set(second.got) == set(range(120)))

    assert set(map(int, filter(None, batch.values))) <= set(range(60, 120))
    assert len(second.got) == 120


async def test_members_without_a_partition_wait_for_one(bootstrap: str, admin: Admin) -> None:
    """Members without a partition have an empty assignment, and take over when another member leaves."""
    await admin.create_topic("narrow", partitions=1)
    async with member(bootstrap, topics="narrow") as first:
        await until(lambda: len(first.partitions) == 1)
        async with member(bootstrap, topics="narrow") as second:
            await until(lambda: second.moves == [("assigned", frozenset())])
            await first.consumer.close()
            await until(lambda: second.partitions == {0})


async def test_groups_are_independent(bootstrap: str) -> None:
    """Each of two groups reads all records."""
    await fill(bootstrap, range(60))
    async with member(bootstrap) as one, member(bootstrap, group="other") as other:
        await until(lambda: len(one.got) >= 60 and len(other.got) >= 60)

    assert sorted(one.got) == sorted(other.got) == list(range(60))


@pytest.mark.slow
async def test_a_static_member_comes_back_to_its_partitions(bootstrap: str) -> None:
    """A static member keeps its partitions within its session, and a second live member with its id is refused."""
    async with member(bootstrap) as other:
        async with member(bootstrap, instance_id="one") as before:
            await until(lambda: len(before.partitions) == len(other.partitions) == 3)
            kept = before.partitions
            moves = len(other.moves)
        async with member(bootstrap, instance_id="one") as after:
            await until(lambda: after.partitions == kept)
            assert len(other.moves) == moves
            second = Consumer(bootstrap, group="g", topics="flights", instance_id="one", session_timeout="2s")
            async with second:
                with raises(InstanceFencedError, "one"):
                    await second.next_batch(timeout="40s")
            assert after.partitions == kept


@pytest.mark.slow
async def test_new_topics_and_partitions_are_assigned_by_heartbeat(bootstrap: str, admin: Admin) -> None:
    """New topics that match the pattern, and new partitions, are assigned by heartbeat and read from the start."""
    async with member(bootstrap, topics=None, pattern="fl.*|trains", start="latest") as reading:
        await until(lambda: len(reading.partitions) == PARTITIONS)
        await admin.alter_topic("flights", partitions=PARTITIONS + 1)
        async with Producer(bootstrap) as producer:
            await producer.send_and_wait("flights", b"1001", partition=PARTITIONS)
        await until(lambda: reading.got == [1001])
        await admin.create_topic("trains", partitions=1)
        await until(lambda: at(0, "trains") in reading.consumer.assignment)
        await admin.delete_topic("trains")
        await until(lambda: at(0, "trains") not in reading.consumer.assignment)
        await fill(bootstrap, [6])
        await until(lambda: reading.got == [1001, 6])


async def test_an_invalid_pattern_is_an_error_for_the_reader(bootstrap: str) -> None:
    """A consumer with an invalid pattern gets an error from every take, because no topic can match."""
    async with Consumer(bootstrap, group="g", pattern="fl(") as consumer:
        for _ in range(2):
            with raises(InvalidPatternError, "fl"):
                await consumer.next_batch(timeout="30s")
        assert consumer.membership.state == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("milliseconds", [0, 1, 5, 20, 60, 150, 400])
async def test_a_cancelled_member_leaves_no_task_behind(bootstrap: str, milliseconds: int) -> None:
    """No task remains after a member is cancelled while it joins, starts, reads or leaves."""
    await fill(bootstrap, range(12))

    async def consume() -> None:
        """Read a few records and leave."""
        async with Consumer(bootstrap, group="g", topics="flights", session_timeout="1s") as consumer:
            async for _ in consumer.records():
                pass

    task = asyncio.get_running_loop().create_task(consume())
    await asyncio.wait([task], timeout=milliseconds / 1000)
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert tasks_of_the_sdk() == []
