"""Start, stop and topics of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fairlead_api.bodies.requests import AlterTopicRequest, CreateTopicRequest
from fairlead_api.identifiers import Acks, LeaderEpoch, Offset, PartitionIndex
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.coordination.protocol import CoordinationError
from fairlead_broker.log import IdentityMismatch, LogError
from fairlead_broker.registry.caller_side import CallerSide
from fairlead_broker.registry.records import DurabilityState, TopicState
from fairlead_broker.runtime import Broker, Phase
from fairlead_broker.runtime.peer_serving.positions import look_up
from refusals import raises, refuses
from runtime_kit import TopicClient, WatchedStorage, new_id, topic
from waiting import until

MakeTopic = Callable[..., Awaitable[TopicClient]]
StartRuntime = Callable[..., Awaitable[Broker]]


class TestLife:
    """Starts, stops and restarts of a broker."""

    async def test_what_is_produced_is_fetched(self, make_topic: MakeTopic) -> None:
        """A produced batch is fetched at its offset."""
        flights = await make_topic()
        first = await flights.produce(b"a", b"b")
        second = await flights.produce(b"c")

        result = await flights.fetch()

        assert (first.base_offset, first.last_offset) == (0, 1)
        assert (second.base_offset, second.last_offset) == (2, 2)
        assert (result.next_offset, result.high_watermark, result.log_start_offset) == (3, 3, 0)

    async def test_restart_keeps_everything_and_raises_the_leader_epoch(
        self, start_runtime: StartRuntime
    ) -> None:
        """A restart keeps records, topics and the cluster id, and raises the broker epoch and the leader epochs."""
        before = await start_runtime()
        flights = await topic(before, partitions=3, durability="replicated")
        for partition in range(3):
            await flights.produce(b"kept", partition=partition)
        epochs = [flights.handle(n).leader_epoch for n in range(3)]
        await before.stop()
        after = await start_runtime()
        again = TopicClient(after, "flights")

        assert after.entry.cluster.cluster_id == before.entry.cluster.cluster_id
        assert after.broker_epoch > before.broker_epoch
        assert again.topic_id == flights.topic_id
        assert [again.handle(n).leader_epoch for n in range(3)] == [epoch + 1 for epoch in epochs]
        assert [(await again.fetch(partition=n)).next_offset for n in range(3)] == [1, 1, 1]
        assert (await again.produce(b"new")).base_offset == 1

    async def test_start_after_a_crash_keeps_what_was_acknowledged(
        self, start_runtime: StartRuntime, tmp_path: Path
    ) -> None:
        """A broker that starts after a kill has every synced record."""
        before = await start_runtime()
        flights = await topic(before)
        await flights.produce(b"kept")
        copy = tmp_path / "killed"
        await asyncio.get_running_loop().run_in_executor(None, _copy, tmp_path / "data", copy)
        after = await start_runtime(data=copy)

        assert (await TopicClient(after, "flights").fetch()).next_offset == 1

    async def test_stop_syncs_and_leaves_the_clean_marker(
        self, start_runtime: StartRuntime, tmp_path: Path
    ) -> None:
        """A stop syncs replicated records and leaves the clean marker."""
        storage = WatchedStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime, durability="replicated")
        await flights.produce(b"unsynced")
        before = storage.syncs
        await runtime.stop()

        assert storage.syncs > before
        assert (tmp_path / "data" / ".fairlead" / "clean").exists()
        assert runtime.state.phase is Phase.STOPPED

    async def test_stop_after_a_failed_disk_leaves_no_clean_marker(
        self, start_runtime: StartRuntime, tmp_path: Path
    ) -> None:
        """A stop with a failed disk leaves no clean marker."""
        storage = WatchedStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime)
        storage.failing = True
        with refuses("storage_failed"):
            await flights.produce(b"lost?")
        await runtime.stop()

        assert not (tmp_path / "data" / ".fairlead" / "clean").exists()

    async def test_stop_answers_what_still_waits_after_the_limit(self, start_runtime: StartRuntime) -> None:
        """A stop answers a produce call that exceeds the stop's time limit with `maybe`, and refuses new calls."""
        storage = WatchedStorage()
        runtime = await start_runtime(storage, limits={"stop_answer_seconds": 0.05})
        flights = await topic(runtime)
        storage.hold()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(_refusal(flights.produce(b"slow")))
            await until(storage.waiting.is_set)
            await runtime.stop_answering()
        refused = call.result()
        late = await _refusal(flights.produce(b"late"))
        storage.may_sync.set()

        assert (refused.code, refused.side_effect) == ("shutting_down", SideEffect.MAYBE)
        assert (late.code, late.side_effect) == ("shutting_down", SideEffect.NONE)
        assert not runtime.ready

    async def test_stop_lets_what_is_under_way_finish(self, start_runtime: StartRuntime) -> None:
        """A stop waits for produce calls in progress, up to its time limit."""
        storage = WatchedStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime)
        storage.hold()
        async with asyncio.TaskGroup() as group:
            call = group.create_task(flights.produce(b"slow"))
            await until(storage.waiting.is_set)
            stop = group.create_task(runtime.stop())
            await until(lambda: not runtime.ready)
            storage.may_sync.set()

        assert stop.done()
        assert call.result().base_offset == 0

    async def test_second_broker_on_the_same_directory_is_refused(self, start_runtime: StartRuntime) -> None:
        """A second broker on the same directory is refused, leaves nothing open, and reports the owner of the lock."""
        first = await start_runtime()

        with raises(LogError, "pid"):
            await start_runtime()

        assert first.ready

    async def test_directory_of_another_broker_is_refused(self, start_runtime: StartRuntime) -> None:
        """A directory that belongs to a different broker id is refused."""
        first = await start_runtime()
        await first.stop()

        with raises(IdentityMismatch, 0):
            await start_runtime(id=1)

        assert (await start_runtime()).ready

    async def test_directory_of_another_cluster_is_refused(
        self, start_runtime: StartRuntime, tmp_path: Path
    ) -> None:
        """A directory of another cluster is refused."""
        first = await start_runtime()
        await first.stop()
        for path in (tmp_path / "data" / ".fairlead").glob("coordination.sqlite*"):
            path.unlink()

        with pytest.raises((IdentityMismatch, CoordinationError)):
            await start_runtime()

    async def test_failed_task_fails_the_broker(
        self, make_topic: MakeTopic, runtime: Broker, tmp_path: Path
    ) -> None:
        """A failed task fails the broker, and its stop leaves no clean marker."""
        await make_topic()

        async def broken() -> None:
            raise AssertionError("invariant")

        runtime.supervisor.spawn(broken(), "broken")
        failure = await runtime.failure
        ready = runtime.ready
        async with asyncio.timeout(10):
            await runtime.stop()

        assert isinstance(failure, AssertionError)
        assert not ready
        assert not (tmp_path / "data" / ".fairlead" / "clean").exists()


class TestTopics:
    """Topic administration, and its effect on partitions."""

    async def test_created_topic_takes_records_at_once(self, runtime: Broker) -> None:
        """A created topic is led by this broker when the call returns, and a repeated request changes nothing."""
        request = CreateTopicRequest(name="flights", partitions=3)
        view, created = await runtime.create_topic(request)
        again, created_again = await runtime.create_topic(request)

        assert (created, created_again) == (True, False)
        assert (view.state, view.partition_count, view.replication_factor) == (TopicState.READY, 3, 1)
        assert again.topic_id == view.topic_id
        assert [partition.leader_epoch for partition in view.partitions.values()] == [0, 0, 0]
        assert all(
            runtime.replicas.find(view.topic_id, index).high_watermark == 0 for index in view.partitions
        )

    async def test_dry_run_writes_nothing(self, runtime: Broker) -> None:
        """A dry run returns the topic without writing it."""
        view, created = await runtime.create_topic(CreateTopicRequest(name="flights"), dry_run=True)

        assert created
        assert view.partition_count == 1
        assert runtime.views.all() == []

    async def test_topics_are_listed_by_name(self, runtime: Broker) -> None:
        """Topics are listed by name, and found by name and id."""
        for name in ("b", "a"):
            await topic(runtime, name)
        views = runtime.views.all()

        assert [view.name for view in views] == ["a", "b"]
        assert runtime.views.by_id(views[0].topic_id) == runtime.views.by_name("a")

    async def test_changed_configuration_holds_for_the_next_batch(
        self, make_topic: MakeTopic, runtime: Broker
    ) -> None:
        """A changed configuration applies to the next batch, and so does its removal."""
        flights = await make_topic()
        large = b"x" * 5000
        await flights.produce(large)
        view = await runtime.alter_topic("flights", AlterTopicRequest(config={"max.message.bytes": "2000"}))
        refused = await _refusal(flights.produce(large))
        await runtime.alter_topic("flights", AlterTopicRequest(config={"max.message.bytes": None}))

        assert view.config.max_message_bytes == 2000
        assert refused.code == "batch_too_large"
        assert (await flights.produce(large)).base_offset == 1

    async def test_growing_opens_the_new_partitions(self, make_topic: MakeTopic, runtime: Broker) -> None:
        """New partitions accept records when the call returns."""
        flights = await make_topic()
        await runtime.alter_topic("flights", AlterTopicRequest(partitions=4))

        assert (await flights.produce(b"a", partition=3)).base_offset == 0

    async def test_deleted_topic_is_gone_with_its_files(
        self, make_topic: MakeTopic, runtime: Broker, tmp_path: Path
    ) -> None:
        """A deleted topic loses its name, partitions and folders; a new topic of that name is a different topic."""
        flights = await make_topic(partitions=2)
        await flights.produce(b"a")
        await runtime.delete_topic("flights")

        with refuses("topic_not_found"):
            flights.handle()

        assert not (tmp_path / "data" / flights.topic_id).exists()

        again = await topic(runtime)

        with refuses("topic_recreated"):
            flights.handle()

        assert (await again.fetch()).next_offset == 0

    async def test_start_finishes_the_deletion_of_a_topic(
        self, start_runtime: StartRuntime, tmp_path: Path
    ) -> None:
        """A start removes the folder of a deleted topic and sets an unknown folder aside."""
        runtime = await start_runtime()
        flights = await topic(runtime)
        await flights.produce(b"a")
        folder = tmp_path / "data" / flights.topic_id
        _copy(folder, tmp_path / "left")
        await runtime.delete_topic("flights")
        await runtime.stop()
        unknown = tmp_path / "data" / new_id()
        _copy(tmp_path / "left", folder)
        _copy(tmp_path / "left", unknown)
        again = await start_runtime()
        await again.replicas.files_removed()

        assert not folder.exists()
        assert not unknown.exists()
        assert unknown.with_name(unknown.name + ".stray").exists()

    async def test_recovery_reports_what_it_cut(self, start_runtime: StartRuntime, tmp_path: Path) -> None:
        """Recovery cuts a torn log end and reports it, and the log continues after the last whole batch."""
        runtime = await start_runtime()
        flights = await topic(runtime, durability="replicated")
        await flights.produce(b"whole")
        copy = tmp_path / "killed"
        _copy(tmp_path / "data", copy)
        [segment] = copy.glob("*/0/*.log")
        segment.write_bytes(segment.read_bytes() + b"torn")
        again = TopicClient(await start_runtime(data=copy), "flights")
        [cut] = again.handle().log.recovery_report.cuts

        assert cut.first_offset == 1
        assert (await again.produce(b"next")).base_offset == 1

    async def test_epochs_issued_again_are_not_led(self, start_runtime: StartRuntime) -> None:
        """A broker does not lead a partition whose log has a higher leader epoch than the partition's record."""
        runtime = await start_runtime()
        flights = await topic(runtime)
        await flights.produce(b"a")
        flights.handle().log.begin_epoch(LeaderEpoch(50))
        await runtime.stop()
        again = await start_runtime()

        with refuses("internal", "epoch"):
            again.replicas.find(flights.topic_id, PartitionIndex(0))

        assert again.ready
        assert again.telemetry.registry.get_sample_value("fairlead_refused_replicas") == 1

    async def test_batch_on_its_way_when_the_topic_goes(self, start_runtime: StartRuntime) -> None:
        """After the deletion of a topic, written batches fail with `maybe`, and waiting batches are refused."""
        storage = WatchedStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime)
        storage.hold()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(_refusal(flights.produce(b"on the disk")))
            await until(storage.waiting.is_set)
            second = group.create_task(_refusal(flights.produce(b"queued")))
            await until(lambda: flights.handle().queued_batches == 1)
            delete = group.create_task(runtime.delete_topic("flights"))
            queued = await second
            storage.may_sync.set()
            await delete

        assert (queued.code, queued.side_effect) == ("topic_not_found", SideEffect.NONE)
        assert (first.result().code, first.result().side_effect) == ("topic_not_found", SideEffect.MAYBE)
        assert runtime.ready

    async def test_replicated_topic_becomes_synced(self, make_topic: MakeTopic, runtime: Broker) -> None:
        """A replicated topic becomes synced by a record in state `syncing`, after the leader has synced its log."""
        flights = await make_topic(durability="replicated")
        await flights.produce(b"a")
        await runtime.alter_topic("flights", AlterTopicRequest(config={"durability": "synced"}))
        await until(
            lambda: runtime.views.by_name("flights").partitions[0].durability is DurabilityState.SYNCED
        )
        answer = await flights.produce(b"b")

        assert answer.base_offset == 1
        assert flights.handle().log.synced_offset == 2

    async def test_synced_topic_becomes_replicated(self, make_topic: MakeTopic, runtime: Broker) -> None:
        """A topic whose durability changes from synced to replicated acknowledges a batch after appending it."""
        flights = await make_topic()
        await runtime.alter_topic("flights", AlterTopicRequest(config={"durability": "replicated"}))

        assert (await flights.produce(b"a")).base_offset == 0
        assert flights.handle().log.synced_offset == 0

    async def test_unfit_requests_are_refused(self, runtime: Broker) -> None:
        """A replication factor above the number of brokers and an unknown topic are refused."""
        with refuses("invalid_config", "flights", 2):
            await runtime.create_topic(CreateTopicRequest(name="flights", replication_factor=2))
        with refuses("topic_not_found"):
            await runtime.delete_topic("flights")


class TestOffsets:
    """Lookups of offsets by name and by time."""

    async def test_earliest_and_latest(self, make_topic: MakeTopic, runtime: Broker) -> None:
        """The earliest offset is the log start, and the latest is the high watermark."""
        flights = await make_topic()
        await flights.produce(b"a", b"b", b"c")
        flights.handle().log.advance_log_start(Offset(1))

        assert await look_up(flights.handle(), "earliest", runtime.disk) == (1, None)
        assert await look_up(flights.handle(), "latest", runtime.disk) == (3, None)

    async def test_first_record_at_or_after_a_time(self, make_topic: MakeTopic, runtime: Broker) -> None:
        """A lookup of a time between two batches finds the later batch, and a lookup after all batches finds none."""
        flights = await make_topic(message_timestamp_type="LogAppendTime")
        answers = [await flights.produce(value) for value in (b"a", b"b")]
        times = [answer.log_append_time_us for answer in answers]

        assert await look_up(flights.handle(), 0, runtime.disk) == (0, times[0])
        assert await look_up(flights.handle(), times[0] + 1, runtime.disk) == (1, times[1])
        assert await look_up(flights.handle(), times[1] + 1, runtime.disk) == (None, None)

    async def test_uncommitted_records_are_not_found(self, start_runtime: StartRuntime) -> None:
        """A lookup by time does not find records above the high watermark."""
        storage = WatchedStorage()
        runtime = await start_runtime(storage)
        flights = await topic(runtime)
        storage.hold()
        await flights.produce(*[b"x" * 100] * 1000, acks=Acks.LEADER)
        found = await look_up(flights.handle(), 0, runtime.disk)
        storage.may_sync.set()

        assert found == (None, None)


class TestCluster:
    """The description of the cluster."""

    async def test_describes_itself(self, start_runtime: StartRuntime) -> None:
        """A single broker describes itself as the controller, with its configured addresses."""
        runtime = await start_runtime(rack="a", listen="127.0.0.1:1234")
        [broker] = runtime.brokers(CallerSide("http"))

        assert (broker.id, broker.address, broker.rack, broker.state) == (
            0,
            "http://127.0.0.1:1234",
            "a",
            "running",
        )
        assert runtime.peer_side.controller == 0
        assert not runtime.configs.auto_create_topics

    async def test_auto_creation_is_a_setting(self, start_runtime: StartRuntime) -> None:
        """The key `auto.create.topics.enable` can be set on a broker."""
        runtime = await start_runtime(
            config_values={"auto.create.topics.enable": True, "segment.bytes": 1 << 20}
        )
        view, _ = await runtime.create_topic(CreateTopicRequest(name="flights"))

        assert runtime.configs.auto_create_topics
        assert view.config.segment_bytes == 1 << 20
        assert view.config_entries["segment.bytes"].source == "broker"

    async def test_metadata_revision_names_one_state(self, runtime: Broker) -> None:
        """The metadata revision rises with a new topic and stays the same without changes."""
        before = runtime.metadata.metadata_revision
        await topic(runtime)
        after = runtime.metadata.metadata_revision

        assert before < after
        assert runtime.metadata.metadata_revision == after


async def _refusal(call: Awaitable[object]) -> ProblemError:
    with pytest.raises(ProblemError) as refused:
        await call
    return refused.value


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.rglob("*"):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir(exist_ok=True)
        else:
            copy.write_bytes(path.read_bytes())
