"""A file system that is slow for the files of one topic does not delay leadership changes in another topic."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fairlead_api.identifiers import LeaderEpoch, PartitionIndex
from fairlead_api.problems import ProblemError
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.registry.records import encode
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime import Broker
from runtime_kit import TopicClient, topic
from waiting import until

StartRuntime = Callable[..., Awaitable[Broker]]


class SlowStorage(PosixStorage):
    """The real disk, which on request waits before it lists new folders or removes files."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = threading.Event()
        self.may_unlink = threading.Event()
        self.waiting = threading.Event()
        """Event that is set when an operation waits."""
        self.go_on()

    def go_on(self) -> None:
        """Let waiting operations continue at once."""
        self.may_list.set()
        self.may_unlink.set()

    def list_files(self, folder: Path) -> list[str]:
        """List the files of a folder, which is the first step of opening a log."""
        if not folder.name.endswith("-deleted"):
            self._wait(self.may_list)
        return super().list_files(folder)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        if path.suffix == ".log":
            self._wait(self.may_unlink)
        super().unlink(path)

    def _wait(self, event: threading.Event) -> None:
        if not event.is_set():
            self.waiting.set()
            assert event.wait(30), "the disk waits too long"


@pytest.fixture
def disk() -> Iterator[SlowStorage]:
    """Yield a disk that can be slow until the test ends."""
    storage = SlowStorage()
    yield storage
    storage.go_on()


async def led_in_the_next_epoch(flights: TopicClient) -> None:
    """Write the next leader epoch as the controller does, and wait until the broker uses it."""
    entry = flights.broker.entry
    before = flights.broker.metadata.partitions(flights.topic_id)[PartitionIndex(0)].value
    epoch = LeaderEpoch(before.leader_epoch + 1)
    key = entry.keys.partition(flights.topic_id, PartitionIndex(0))
    await entry.coordination.transact(
        (), (Put(key, encode(msgspec.structs.replace(before, leader_epoch=epoch))),)
    )
    partitions = flights.broker.replicas
    await until(lambda: epoch in {each.leader_epoch for each in partitions.of_topic(flights.topic_id)})


async def test_no_role_waits_for_files_to_be_removed(start_runtime: StartRuntime, disk: SlowStorage) -> None:
    """The name and partitions of a deleted topic are free before its files are removed."""
    runtime = await start_runtime(disk)
    doomed, flights = await topic(runtime, "doomed"), await topic(runtime)
    await doomed.produce(b"a")
    disk.may_unlink.clear()
    async with asyncio.TaskGroup() as group:
        delete = group.create_task(runtime.delete_topic("doomed"))
        await until(disk.waiting.is_set)
        await led_in_the_next_epoch(flights)
        again = await topic(runtime, "doomed")
        answer = await again.produce(b"b")
        waits = not delete.done()
        disk.go_on()

    assert waits, "a deletion ends when the files are gone"
    assert answer.base_offset == 0
    assert not (runtime.entry.directory.path / doomed.topic_id).exists()


async def test_no_role_waits_for_a_log_to_be_opened(start_runtime: StartRuntime, disk: SlowStorage) -> None:
    """A topic whose log is being opened delays only its own callers."""
    runtime = await start_runtime(disk)
    flights = await topic(runtime)
    disk.may_list.clear()
    async with asyncio.TaskGroup() as group:
        create = group.create_task(topic(runtime, "slow"))
        await until(disk.waiting.is_set)
        await led_in_the_next_epoch(flights)
        waits = not create.done()
        disk.go_on()

    assert waits, "a creation ends when the topic takes records"
    assert (await create.result().produce(b"a")).base_offset == 0


async def test_topic_that_is_deleted_while_its_log_is_opened(
    start_runtime: StartRuntime, disk: SlowStorage
) -> None:
    """The folder of a topic that is deleted during its recovery is removed after the recovery."""
    runtime = await start_runtime(disk)
    disk.may_list.clear()
    async with asyncio.TaskGroup() as group:
        create = group.create_task(topic_or_nothing(runtime, "doomed"))
        await until(disk.waiting.is_set)
        topic_id = runtime.views.by_name("doomed").topic_id
        delete = group.create_task(runtime.delete_topic("doomed"))
        await until(lambda: "doomed" not in {view.name for view in runtime.views.all()})
        early = delete.done()
        disk.go_on()
        await create

    assert not early
    assert not (runtime.entry.directory.path / topic_id).exists()
    assert len(runtime.replicas) == 0
    assert runtime.ready


async def topic_or_nothing(runtime: Broker, name: str) -> None:
    """Create a topic that may be deleted before it is described."""
    with suppress(ProblemError):
        await topic(runtime, name)
