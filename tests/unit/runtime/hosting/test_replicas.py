"""Changes to partition records that a broker applies to its replicas, and partial disk failures."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fairlead_api.identifiers import Acks, BrokerEpoch, BrokerId, LeaderEpoch, PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.log.segments.storage import Buffer, PosixFile, PosixStorage
from fairlead_broker.registry.records import ConfigRecord, InSync, PartitionRecord, Replica, encode
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.runtime import Broker
from refusals import refuses
from runtime_kit import TopicClient, WatchedFile, WatchedStorage, WatchedVolume, topic
from waiting import until

MakeTopic = Callable[..., Awaitable[TopicClient]]
StartRuntime = Callable[..., Awaitable[Broker]]


async def put(runtime: Broker, key: str, record: Any) -> None:
    """Write a record as the controller would, and wait until the broker has applied it."""
    entry = runtime.entry
    result = await entry.coordination.transact((), (Put(key, encode(record)),))
    await entry.mirror.wait_for(result.revision)
    await runtime.replicas.settled()


async def change_record(flights: TopicClient, **fields: object) -> PartitionRecord:
    """Write the record of partition 0 with changed fields."""
    runtime = flights.broker
    before = runtime.metadata.partitions(flights.topic_id)[PartitionIndex(0)].value
    after = msgspec.structs.replace(before, **fields)
    await put(runtime, runtime.entry.keys.partition(flights.topic_id, PartitionIndex(0)), after)
    return before


async def register_another(runtime: Broker) -> InSync:
    """Register broker 7, because the controller would depose a leader without a registration."""
    metadata, keys = runtime.metadata, runtime.entry.keys
    await put(runtime, keys.broker(BrokerId(7)), metadata.brokers[runtime.entry.incarnation.broker].value)
    epoch = BrokerEpoch(metadata.brokers[BrokerId(7)].create_revision)
    return InSync(broker=BrokerId(7), broker_epoch=epoch)


async def refusal(call: Awaitable[object]) -> ProblemError:
    """Return the problem of a refused call."""
    with pytest.raises(ProblemError) as refused:
        await call
    return refused.value


class TestRecords:
    """Partition records that the controller writes."""

    async def test_partition_without_leader_is_closed_and_led_again_in_the_next_epoch(
        self, make_topic: MakeTopic
    ) -> None:
        """A partition without a leader refuses calls, and opens the same log when this broker leads it again."""
        flights = await make_topic()
        await flights.produce(b"kept")
        before = await change_record(flights, leader=None)

        with refuses("no_leader"):
            flights.handle()

        await change_record(flights, leader=before.leader, leader_epoch=LeaderEpoch(before.leader_epoch + 1))
        answer = await flights.produce(b"next")

        assert (answer.base_offset, answer.leader_epoch) == (1, before.leader_epoch + 1)

    async def test_partition_of_another_broker_names_where_it_is_led(self, make_topic: MakeTopic) -> None:
        """A call for a partition that another broker leads is refused with `not_leader`."""
        flights = await make_topic()
        other = await register_another(flights.broker)
        await change_record(flights, leader=other, leader_epoch=LeaderEpoch(9))

        with pytest.raises(ProblemError) as refused:
            flights.handle()

        assert refused.value.code == "not_leader"
        assert refused.value.data["leader_epoch"] == 9

    async def test_what_the_record_gives_to_others_is_deleted(self, make_topic: MakeTopic) -> None:
        """A partition whose replicas no longer include this broker is deleted; other partitions of the topic stay."""
        flights = await make_topic(partitions=2)
        await flights.produce(b"kept", partition=1)
        folder = flights.broker.entry.directory.path / flights.topic_id
        before = sorted(path.name for path in folder.iterdir())
        other = await register_another(flights.broker)
        replica = Replica(broker=BrokerId(7), directory="elsewhere")
        await change_record(
            flights, leader=other, isr=(other,), replicas=(replica,), leader_epoch=LeaderEpoch(9)
        )

        # The partition is removed at once, and its files in the background.
        await until(lambda: [path.name for path in folder.iterdir()] == ["1"])

        assert before == ["0", "1"]
        assert (await flights.fetch(0, partition=1)).next_offset == 1

    async def test_what_was_given_away_meanwhile_is_deleted_at_the_start(
        self, start_runtime: StartRuntime
    ) -> None:
        """A partition that was moved away while the broker was stopped is deleted at the next start."""
        runtime = await start_runtime()
        flights = await topic(runtime, partitions=2)
        folder = runtime.entry.directory.path / flights.topic_id
        other = InSync(broker=BrokerId(7), broker_epoch=BrokerEpoch(1))
        replica = Replica(broker=BrokerId(7), directory="elsewhere")
        await change_record(
            flights, leader=other, isr=(other,), replicas=(replica,), leader_epoch=LeaderEpoch(9)
        )
        await runtime.stop()
        (folder / "0").mkdir()
        await start_runtime()

        assert sorted(path.name for path in folder.iterdir()) == ["1"]

    async def test_new_epoch_answers_what_waits_with_leader_changed(
        self, start_runtime: StartRuntime
    ) -> None:
        """A waiting batch of the old epoch fails with `leader_changed`, and nothing is appended in the old epoch."""
        storage = WatchedStorage()
        flights = await topic(await start_runtime(storage))
        storage.hold()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(refusal(flights.produce(*[b"x" * 100] * 1000)))
            await asyncio.get_running_loop().run_in_executor(None, storage.waiting.wait)
            epoch = flights.handle().leader_epoch
            change = group.create_task(change_record(flights, leader_epoch=LeaderEpoch(epoch + 1)))
            refused = await call
            storage.may_sync.set()
            await change

        assert (refused.code, refused.side_effect) == ("leader_changed", SideEffect.MAYBE)
        assert (await flights.produce(b"next")).leader_epoch == epoch + 1

    async def test_too_few_replicas_in_sync_hold_everything_back(self, make_topic: MakeTopic) -> None:
        """With too few in-sync replicas, acks=all is refused, and acks=1 is stored and committed later."""
        flights = await make_topic()
        await change_record(flights, min_isr=2)
        refused = await refusal(flights.produce(b"all"))
        await flights.produce(b"one", acks=Acks.LEADER)
        uncommitted = await flights.fetch()
        await change_record(flights, min_isr=1)
        committed = await flights.fetch(max_wait_seconds=10)

        assert (refused.code, refused.side_effect) == ("not_enough_replicas", SideEffect.NONE)
        assert (refused.data["in_sync"], refused.data["required"]) == (1, 2)
        assert uncommitted.next_offset == 0
        assert committed.next_offset == 1

    async def test_cluster_configuration_reaches_open_partitions(self, make_topic: MakeTopic) -> None:
        """A cluster-wide configuration value applies to topics that do not set the key."""
        flights = await make_topic()
        own = await make_topic("own", max_message_bytes=5000)
        runtime = flights.broker
        await put(
            runtime,
            runtime.entry.keys.cluster_config,
            ConfigRecord(values={"max.message.bytes": "3000"}),
        )
        refused = await refusal(flights.produce(b"x" * 4000))

        assert refused.code == "batch_too_large"
        assert (await own.produce(b"x" * 4000)).base_offset == 0
        assert runtime.views.by_name("flights").config_entries["max.message.bytes"].source == "cluster"


class FullStorage(WatchedStorage):
    """A disk that runs out of space or fails to write."""

    write_error: int | None = None
    open_error: int | None = None
    """Error raised by opening a new log, or None if new logs can be opened."""
    syncs_max: int | None = None
    """Number of syncs of log files that succeed before further syncs fail, or None if no sync fails."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file; a log file may fail to open, and its writes and syncs may fail."""
        if create and path.suffix == ".log" and self.open_error is not None:
            raise OSError(self.open_error, "injected by the test")
        file = super().open(path, write=write, create=create)
        return FullFile(file, self) if path.suffix == ".log" else file

    def open_volume(self, path: Path) -> FullVolume:
        """Open the volume; its sync fails if syncs of files fail."""
        return FullVolume(path, self)


class FullFile(WatchedFile):
    """A log file on a full or failing disk."""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write to the log file if the disk has space."""
        assert isinstance(self._watched, FullStorage)
        if self._watched.write_error is not None:
            raise OSError(self._watched.write_error, "injected by the test")
        super().write(buffers, position)

    def sync(self) -> None:
        """Sync unless the disk fails."""
        assert isinstance(self._watched, FullStorage)
        if self._watched.syncs == self._watched.syncs_max:
            raise OSError(errno.EIO, "injected by the test")
        super().sync()


class FullVolume(WatchedVolume):
    """The volume of a full or failing disk."""

    def sync(self) -> None:
        """Sync unless the disk fails."""
        assert isinstance(self._watched, FullStorage)
        if self._watched.syncs_max is not None:
            raise OSError(errno.EIO, "injected by the test")
        super().sync()


class CountingStorage(PosixStorage):
    """A storage that counts checkpoints."""

    checkpoints = 0

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, and count the rename if the file is a checkpoint."""
        self.checkpoints += target.name == "checkpoint"
        super().rename(source, target)


class TestDisk:
    """Failures of the disk during writes and reads."""

    async def test_full_disk_refuses_for_certain_and_recovers_by_itself(
        self, start_runtime: StartRuntime
    ) -> None:
        """A full disk refuses a batch without storing it, reads succeed, and the next batch gets its offset."""
        storage = FullStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime)
        await flights.produce(b"before")
        storage.write_error = errno.ENOSPC
        refused = await refusal(flights.produce(b"no space"))
        during = await flights.fetch()
        ready = runtime.ready
        storage.write_error = None

        assert (refused.code, refused.side_effect) == ("disk_full", SideEffect.NONE)
        assert during.next_offset == 1
        assert ready
        assert (await flights.produce(b"after")).base_offset == 1

    async def test_failed_write_ends_the_directory(self, start_runtime: StartRuntime) -> None:
        """A failed write fails the directory, and no partition of the directory accepts writes."""
        storage = FullStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime, partitions=2)
        storage.write_error = errno.EIO
        first = await refusal(flights.produce(b"a"))
        storage.write_error = None
        second = await refusal(flights.produce(b"b", partition=1))

        assert (first.code, first.side_effect) == ("storage_failed", SideEffect.MAYBE)
        assert (second.code, second.side_effect) == ("storage_failed", SideEffect.NONE)
        assert not runtime.ready

    async def test_a_deletion_writes_no_checkpoint(self, start_runtime: StartRuntime) -> None:
        """The deletion of a topic removes the files of all its partitions and writes no checkpoint."""
        storage = CountingStorage()
        runtime = await start_runtime(storage, limits={"checkpoint_interval_seconds": 1000})
        flights = await topic(runtime, partitions=8)
        await runtime.upkeep.checkpoint()
        before = storage.checkpoints
        await runtime.delete_topic("flights")

        assert storage.checkpoints == before
        assert not (runtime.entry.directory.path / flights.topic_id).exists()

    async def test_a_partition_that_finds_no_space_is_opened_once_there_is_some(
        self, start_runtime: StartRuntime
    ) -> None:
        """A partition that could not be opened on a full disk is opened when the disk has space."""
        storage = FullStorage()
        runtime = await start_runtime(storage)
        storage.open_error = errno.ENOSPC
        flights = await topic(runtime)
        refused = await refusal(flights.produce(b"no space"))
        storage.open_error = None

        await until(lambda: next(runtime.replicas.of_topic(flights.topic_id), None) is not None)
        assert refused.code == "disk_full"
        assert (await flights.produce(b"after")).base_offset == 0

    async def test_a_disk_that_fails_while_a_log_is_opened_has_failed(
        self, start_runtime: StartRuntime
    ) -> None:
        """A disk error while a log is opened fails the disk.

        If a failed disk stayed in use, the broker would be elected as leader repeatedly.
        """
        storage = FullStorage()
        runtime = await start_runtime(storage, limits={"checkpoint_interval_seconds": 0.05})
        storage.open_error = errno.EROFS
        flights = await topic(runtime)
        refused = await refusal(flights.produce(b"read-only"))

        await until(lambda: not runtime.ready)
        assert refused.code == "storage_failed"
        await until(lambda: runtime.entry.membership.registration.directories == ())

    async def test_a_log_whose_end_could_not_be_synced_is_refused_and_not_taken_for_another(
        self, start_runtime: StartRuntime, tmp_path: Path
    ) -> None:
        """A log whose end cannot be synced is also refused in the next epoch, and the stop leaves no clean marker."""
        first = await start_runtime()
        await (await topic(first, durability="replicated")).produce(b"not synced")
        copy = tmp_path / "killed"
        shutil.copytree(tmp_path / "data", copy)
        storage = FullStorage()
        storage.syncs_max = 1
        runtime = await start_runtime(storage, data=copy)
        flights = TopicClient(runtime, "flights")
        before = await refusal(flights.produce(b"refused"))
        await change_record(flights, leader_epoch=LeaderEpoch(9))
        after = await refusal(flights.produce(b"refused"))
        ready = runtime.ready
        await runtime.stop()

        assert (before.code, after.code, ready) == ("storage_failed", "storage_failed", False)
        assert not runtime.failure.done()
        assert not (copy / ".fairlead" / "clean").exists()

    async def test_a_leader_on_a_failed_disk_refuses_writes(self, start_runtime: StartRuntime) -> None:
        """A leader that is elected again on a failed disk refuses writes."""
        storage = FullStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime)
        storage.write_error = errno.EIO
        await refusal(flights.produce(b"a"))
        await change_record(flights, leader_epoch=LeaderEpoch(9))
        refused = await refusal(flights.produce(b"b"))

        assert (refused.code, refused.side_effect) == ("storage_failed", SideEffect.NONE)

    async def test_idle_segments_roll_by_age(self, start_runtime: StartRuntime) -> None:
        """`segment.ms` rolls a segment without further writes, so that its records can expire."""
        runtime = await start_runtime(limits={"checkpoint_interval_seconds": 0.05})
        flights = await topic(runtime, segment_ms=1)
        await flights.produce(b"a")
        await until(lambda: flights.handle().log.segment_count >= 2)

        assert (await flights.produce(b"b")).base_offset == 1
        assert (await flights.fetch()).next_offset >= 1

    async def test_damaged_records_are_named(self, start_runtime: StartRuntime, tmp_path: Path) -> None:
        """A fetch of a damaged range is refused with `log_damaged`, while records before and after it are served."""
        runtime = await start_runtime()
        flights = await topic(runtime)
        for value in (b"a", b"b", b"c"):
            await flights.produce(value * 100)
        await runtime.stop()
        (tmp_path / "data" / ".fairlead" / "clean").unlink()
        (tmp_path / "data" / ".fairlead" / "checkpoint").unlink()
        [segment] = (tmp_path / "data" / flights.topic_id / "0").glob("*.log")
        content = bytearray(segment.read_bytes())
        content[len(content) // 2] ^= 0xFF
        segment.write_bytes(content)
        again = TopicClient(await start_runtime(), "flights")
        refused = await refusal(again.fetch(1))

        assert refused.code == "log_damaged"
        assert (refused.data["first_offset"], refused.data["next_good_offset"]) == (1, 2)
        assert (await again.fetch(0)).next_offset == 1
        assert (await again.fetch(2)).next_offset == 3
