"""The sync rounds that make appended records durable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead_api.bodies.requests import CreateTopicRequest
from fairlead_api.identifiers import Acks
from fairlead_broker.runtime import Broker, ProduceItem
from runtime_kit import TopicClient, WatchedStorage, batch, topic
from waiting import until

StartRuntime = Callable[..., Awaitable[Broker]]


def synced(flights: TopicClient, partition: int = 0) -> int:
    """Return the offset up to which the log is durable."""
    return flights.handle(partition).log.synced_offset


async def test_replicated_bytes_are_synced_in_the_background(start_runtime: StartRuntime) -> None:
    """Records of a topic with `replicated` durability are synced in the background within the sync interval."""
    runtime = await start_runtime(limits={"sync_interval_seconds": 0.05})
    flights = await topic(runtime, durability="replicated")
    await flights.produce(b"a")
    await until(lambda: runtime.rounds.unsynced_bytes == 0)

    assert synced(flights) == 1


async def test_flush_messages_bounds_the_unsynced_records(start_runtime: StartRuntime) -> None:
    """`flush.messages` syncs a log after the configured number of records, and not earlier."""
    flights = await topic(await start_runtime(), durability="replicated", flush_messages=3)
    await flights.produce(b"a", b"b")
    before = synced(flights)
    await flights.produce(b"c")
    await until(lambda: synced(flights) == 3)

    assert before == 0


async def test_flush_ms_bounds_the_unsynced_time(start_runtime: StartRuntime) -> None:
    """`flush.ms` syncs a log after the configured time, before the background sync does."""
    flights = await topic(await start_runtime(), durability="replicated", flush_ms=20)
    await flights.produce(b"a")
    await until(lambda: synced(flights) == 1)

    assert synced(flights) == 1


async def test_many_dirty_partitions_are_synced_by_one_call_for_the_volume(
    start_runtime: StartRuntime,
) -> None:
    """More than 16 dirty files are synced by one syncfs call."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage)
    flights = await topic(runtime, partitions=40)
    data = memoryview(batch(*[b"x" * 1000] * 100))
    items = [ProduceItem(flights.handle(n), data) for n in range(40)]
    opened = storage.syncs
    storage.hold()
    async with asyncio.TaskGroup() as group:
        call = group.create_task(runtime.producing.produce(items, acks=Acks.ALL, timeout_seconds=30))
        await until(lambda: all(flights.handle(n).log_end_offset == 100 for n in range(40)))
        storage.may_sync.set()
    answers = call.result()

    assert {getattr(answer, "base_offset", None) for answer in answers} == {0}
    assert storage.volume_syncs >= 1
    assert storage.syncs - opened < 40
    assert all(synced(flights, n) == 100 for n in range(40))


async def test_appends_wait_at_the_bound_of_unsynced_bytes(start_runtime: StartRuntime) -> None:
    """Appends of any durability wait at the limit of unsynced bytes, and continue after a sync."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage, limits={"unsynced_bytes_max": 1 << 20})
    flights = await topic(runtime, partitions=2, durability="replicated")
    storage.hold()
    await flights.produce(b"x" * (2 << 20))
    async with asyncio.TaskGroup() as group:
        held = group.create_task(flights.produce(b"held", partition=1))
        await until(storage.waiting.is_set)
        await until(lambda: flights.handle(1).queued_batches == 1)

        assert not held.done()

        storage.may_sync.set()

    assert held.result().base_offset == 0


async def test_deleting_a_topic_while_its_log_is_synced_harms_nothing(start_runtime: StartRuntime) -> None:
    """The files of a deleted topic are removed after the running sync round, and other topics are not affected."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage)
    doomed = await topic(runtime, "doomed")
    other = await topic(runtime, "other")
    storage.hold()
    await doomed.produce(*[b"x" * 100] * 1000, acks=Acks.LEADER)
    async with asyncio.TaskGroup() as group:
        await until(storage.waiting.is_set)
        delete = group.create_task(runtime.delete_topic("doomed"))
        await until(lambda: "doomed" not in {view.name for view in runtime.views.all()})

        assert not delete.done()

        storage.may_sync.set()

    assert (await other.produce(b"a")).base_offset == 0
    assert runtime.ready


async def test_rounds_go_on_while_partitions_come_and_go(start_runtime: StartRuntime) -> None:
    """Topics that are created and deleted under load leave no unsynced bytes."""
    runtime = await start_runtime()
    for number in range(5):
        flights = await topic(runtime, f"topic-{number}", partitions=3)
        async with asyncio.TaskGroup() as group:
            for partition in range(3):
                group.create_task(flights.produce(*[b"x" * 100] * 1000, partition=partition))
        await runtime.delete_topic(f"topic-{number}")

    assert runtime.rounds.unsynced_bytes == 0
    assert runtime.views.all() == []


@pytest.mark.parametrize("durability", ["synced", "replicated"])
async def test_stop_during_a_round_syncs_everything(start_runtime: StartRuntime, durability: str) -> None:
    """A stop during a sync round makes every log durable to its end."""
    storage = WatchedStorage()
    runtime = await start_runtime(storage)
    await runtime.create_topic(
        CreateTopicRequest(name="flights", partitions=3, config={"durability": durability})
    )
    flights = TopicClient(runtime, "flights")
    for partition in range(3):
        await flights.produce(*[b"x" * 100] * 1000, partition=partition, acks=Acks.LEADER)
    logs = [flights.handle(n).log for n in range(3)]
    await runtime.stop()

    assert [log.synced_offset for log in logs] == [1000, 1000, 1000]
