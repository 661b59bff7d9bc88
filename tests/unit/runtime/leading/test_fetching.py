"""Fetch calls: the records in an answer, its size, and long polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from fairlead_api.identifiers import LeaderEpoch, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.log import DamagedRange
from fairlead_broker.runtime import Broker, FetchResult, FetchSpec, PartitionFetch
from fairlead_broker.runtime.leading.fetching import EPOCH_WAIT_SECONDS_MAX
from refusals import refuses
from runtime_kit import TopicClient, WatchedStorage, batch, topic
from waiting import until

MakeTopic = Callable[..., Awaitable[TopicClient]]
StartRuntime = Callable[..., Awaitable[Broker]]
KIB = 1024


def waiting(runtime: Broker) -> int:
    """Return the number of waiting long polls, as the metric reports it."""
    value = runtime.telemetry.registry.get_sample_value("fairlead_long_polls_waiting")
    assert value is not None
    return int(value)


async def until_waiting(runtime: Broker, polls: int = 1) -> None:
    """Run other tasks until a number of long polls wait."""
    await until(lambda: waiting(runtime) == polls)


def many(flights: TopicClient, *partitions: int, **call: Any) -> FetchSpec:
    """Return a fetch for several partitions from their log starts."""
    of_partition = {"bytes_max": call.pop("bytes_max", 1 << 20)}
    fetches = [
        PartitionFetch(flights.topic_id, PartitionIndex(n), Offset(0), **of_partition) for n in partitions
    ]
    return FetchSpec(fetches, **{"max_wait_seconds": 0.0, **call})


class TestLimits:
    """Size limits of an answer."""

    async def test_first_batch_is_never_held_back(self, make_topic: MakeTopic) -> None:
        """The first batch is returned even above the limits of the partition and the call."""
        flights = await make_topic()
        for value in (b"a", b"b"):
            await flights.produce(value * 10_000)

        one = await flights.fetch(bytes_max=1)
        other = await flights.fetch(1, max_bytes=1)

        assert one.next_offset == 1
        assert other.next_offset == 2

    async def test_answer_begins_with_the_batch_that_holds_the_offset(self, make_topic: MakeTopic) -> None:
        """An answer begins with the batch that contains the offset, including its records below the offset."""
        flights = await make_topic()
        await flights.produce(b"a", b"b", b"c")

        result = await flights.fetch(2)

        assert result.next_offset == 3
        assert len(result.data) == 1

    async def test_partition_limit_holds_back_later_batches(self, make_topic: MakeTopic) -> None:
        """The partition's limit excludes later batches, but batches are never split."""
        flights = await make_topic()
        for _ in range(10):
            await flights.produce(b"x" * 10 * KIB)

        result = await flights.fetch(bytes_max=35 * KIB)

        assert result.next_offset == 3
        assert result.nbytes <= 35 * KIB

    async def test_call_limit_is_shared_by_the_partitions_in_order(self, make_topic: MakeTopic) -> None:
        """The limit of the call is used up by its partitions in order, and every partition is answered."""
        flights = await make_topic(partitions=3)
        for partition in range(3):
            await flights.produce(b"x" * 20 * KIB, partition=partition)

        results = await flights.fetch_all(many(flights, 0, 1, 2, max_bytes=45 * KIB))

        assert [result.next_offset for result in results if isinstance(result, FetchResult)] == [1, 1, 0]
        assert [result.high_watermark for result in results if isinstance(result, FetchResult)] == [1, 1, 1]

    async def test_large_fetch_comes_in_parts_of_at_most_a_mebibyte(self, make_topic: MakeTopic) -> None:
        """A fetch larger than one read on the event loop is answered in parts of at most 1 MiB, without a gap."""
        flights = await make_topic(durability="replicated")
        for _ in range(80):
            await flights.produce(b"x" * 100 * KIB)

        result = await flights.fetch(bytes_max=16 << 20, max_bytes=16 << 20)

        assert result.next_offset == 80
        assert len(result.data) > 1

    async def test_batch_above_a_mebibyte_is_read_in_the_pool(self, make_topic: MakeTopic) -> None:
        """A batch larger than one read on the event loop is read in the thread pool."""
        flights = await make_topic()
        data = batch(b"x" * (3 << 20))
        await flights.produce_batch(data)

        result = await flights.fetch(bytes_max=1)

        assert bytes(result.data[0])[36:] == data[36:]

    async def test_call_limit_holds_back_large_batches_of_later_partitions(
        self, make_topic: MakeTopic
    ) -> None:
        """Only the first partition with records may exceed the limit of the call."""
        flights = await make_topic(partitions=2)
        for partition in range(2):
            await flights.produce(b"x" * (2 << 20), partition=partition)

        first, second = await flights.fetch_all(many(flights, 0, 1, max_bytes=3 << 20, bytes_max=1))

        assert isinstance(first, FetchResult)
        assert isinstance(second, FetchResult)
        assert first.next_offset == 1
        assert second.next_offset == 0


class TestRefusals:
    """Partitions that a fetch refuses while it answers others."""

    async def test_offset_beyond_the_end(self, make_topic: MakeTopic) -> None:
        """An offset beyond the end is refused, and the problem contains the log start and the log end."""
        flights = await make_topic()
        await flights.produce(b"a")

        with pytest.raises(ProblemError) as refused:
            await flights.fetch(2)

        assert refused.value.code == "offset_out_of_range"
        assert (refused.value.data["log_start_offset"], refused.value.data["high_watermark"]) == (0, 1)

    async def test_offset_below_the_log_start(self, make_topic: MakeTopic) -> None:
        """An offset below the log start is reported as data loss."""
        flights = await make_topic()
        await flights.produce(b"a", b"b")
        flights.handle().log.advance_log_start(Offset(1))

        with pytest.raises(ProblemError) as refused:
            await flights.fetch(0)

        assert refused.value.code == "offset_expired"
        assert refused.value.data["log_start_offset"] == 1

    @pytest.mark.parametrize(("step", "code"), [(-1, "stale_leader_epoch"), (1, "unknown_leader_epoch")])
    async def test_other_leader_epoch(self, make_topic: MakeTopic, step: int, code: str) -> None:
        """A fetch with an older leader epoch is refused as stale, and a fetch with a newer epoch as unknown."""
        flights = await make_topic()
        await flights.produce(b"a")
        epoch = flights.handle().leader_epoch

        with refuses(code):
            await flights.fetch(leader_epoch=LeaderEpoch(epoch + step))

        assert (await flights.fetch(leader_epoch=epoch, last_epoch=epoch)).next_offset == 1

    async def test_fetch_of_a_later_epoch_waits_for_the_mirror(
        self, runtime: Broker, make_topic: MakeTopic
    ) -> None:
        """A fetch with a later leader epoch waits for the mirror, and is answered when the leadership ends."""
        flights = await make_topic()
        fetching = asyncio.ensure_future(
            flights.fetch(leader_epoch=LeaderEpoch(flights.handle().leader_epoch + 1), max_wait_seconds=30)
        )
        await until(lambda: bool(flights.handle()._polls))
        assert not fetching.done()

        await runtime.delete_topic("flights")

        with refuses("topic_not_found"):
            await asyncio.wait_for(fetching, EPOCH_WAIT_SECONDS_MAX / 2)

    async def test_last_epoch_of_another_history(self, start_runtime: StartRuntime) -> None:
        """A caller whose last record is not in the log gets the end offset of that record's epoch."""
        runtime = await start_runtime()
        flights = await topic(runtime)
        await flights.produce(b"a", b"b")
        old = flights.handle().leader_epoch
        await runtime.stop()
        flights = TopicClient(await start_runtime(), "flights")
        await flights.produce(b"c", b"d")

        with pytest.raises(ProblemError) as cut:
            await flights.fetch(3, last_epoch=old)
        with refuses("log_truncated"):
            await flights.fetch(9, last_epoch=old)
        with refuses("unknown_leader_epoch"):
            await flights.fetch(3, last_epoch=LeaderEpoch(flights.handle().leader_epoch + 1))

        assert cut.value.code == "log_truncated"
        assert (cut.value.data["epoch"], cut.value.data["end_offset"]) == (old, 2)

    async def test_unknown_topic_beside_a_known_one(self, make_topic: MakeTopic) -> None:
        """A fetch that includes an unknown topic is answered at once for every partition, without a long poll."""
        flights = await make_topic()
        unknown = PartitionFetch(
            TopicId("00000000-0000-4000-8000-00000000ffff"), PartitionIndex(0), Offset(0)
        )
        spec = FetchSpec([*flights.spec().partitions, unknown], max_wait_seconds=30)

        fine, refused = await flights.fetch_all(spec)

        assert isinstance(fine, FetchResult)
        assert isinstance(refused, ProblemError)
        assert refused.code == "topic_not_found"


class TestLongPoll:
    """Fetches that wait for new records."""

    async def test_ends_when_the_high_watermark_moves(self, make_topic: MakeTopic) -> None:
        """A fetch at the log end waits and returns the next batch of any of its partitions."""
        flights = await make_topic(partitions=3)
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch_all(many(flights, 0, 1, 2, max_wait_seconds=30)))
            await until_waiting(flights.broker)
            await flights.produce(b"news", partition=1)
        results = poll.result()

        assert [len(result.data) for result in results if isinstance(result, FetchResult)] == [0, 1, 0]
        assert waiting(flights.broker) == 0

    async def test_waits_for_min_bytes(self, make_topic: MakeTopic) -> None:
        """A fetch stops waiting when its partitions together have `min_bytes`."""
        flights = await make_topic(partitions=2)
        await flights.produce(b"x" * 1000)
        spec = many(flights, 0, 1, max_wait_seconds=30, min_bytes=20_000)
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch_all(spec))
            await until_waiting(flights.broker)
            await flights.produce(b"x" * 1000, partition=1)

            assert waiting(flights.broker) == 1

            await flights.produce(b"x" * 20_000)
        results = poll.result()

        assert [result.next_offset for result in results if isinstance(result, FetchResult)] == [2, 1]

    async def test_ends_empty_when_the_wait_is_over(self, make_topic: MakeTopic) -> None:
        """A wait that expires is answered with the offsets and without records."""
        flights = await make_topic()

        result = await flights.fetch(max_wait_seconds=0.01)

        assert (result.data, result.next_offset, result.high_watermark) == ([], 0, 0)

    async def test_ends_when_the_caller_is_gone(self, make_topic: MakeTopic) -> None:
        """A long poll ends when the caller disconnects."""
        flights = await make_topic()
        gone = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch_all(flights.spec(max_wait_seconds=30), disconnected=gone))
            await until_waiting(flights.broker)
            gone.set_result(None)

        assert poll.done()
        assert waiting(flights.broker) == 0

    async def test_with_a_caller_that_stays_ends_by_records(self, make_topic: MakeTopic) -> None:
        """The long poll of a caller that stays connected ends when records arrive."""
        flights = await make_topic()
        gone = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch_all(flights.spec(max_wait_seconds=30), disconnected=gone))
            await until_waiting(flights.broker)
            await flights.produce(b"news")
        [result] = poll.result()

        assert isinstance(result, FetchResult)
        assert result.next_offset == 1

    async def test_is_answered_at_once_by_a_stop(self, make_topic: MakeTopic) -> None:
        """A stop ends waiting long polls at once and refuses new calls."""
        flights = await make_topic()
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch_all(flights.spec(max_wait_seconds=30)))
            await until_waiting(flights.broker)
            await flights.broker.stop_answering()
        [result] = poll.result()

        with refuses("shutting_down"):
            await flights.fetch()

        assert isinstance(result, FetchResult)
        assert result.data == []

    async def test_is_answered_when_the_topic_is_deleted(self, make_topic: MakeTopic) -> None:
        """A long poll is answered when its topic is deleted."""
        flights = await make_topic()
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch_all(flights.spec(max_wait_seconds=30)))
            await until_waiting(flights.broker)
            await flights.broker.delete_topic("flights")
        [result] = poll.result()

        assert isinstance(result, ProblemError)
        assert result.code == "topic_not_found"

    async def test_unsynced_records_do_not_end_it(self, start_runtime: StartRuntime) -> None:
        """Unsynced records are not served and do not end a long poll."""
        storage = WatchedStorage()
        flights = await topic(await start_runtime(storage))
        storage.hold()
        async with asyncio.TaskGroup() as group:
            produce = group.create_task(flights.produce(b"news"))
            poll = group.create_task(flights.fetch_all(flights.spec(max_wait_seconds=30)))
            await until_waiting(flights.broker)
            await asyncio.get_running_loop().run_in_executor(None, storage.waiting.wait)

            assert not poll.done()

            storage.may_sync.set()

        assert produce.result().base_offset == 0
        assert isinstance(poll.result()[0], FetchResult)

    async def test_a_reader_goes_on_behind_a_loss_at_the_end_that_was_accepted(
        self, make_topic: MakeTopic
    ) -> None:
        """A reader at an accepted loss at the log end waits for new records instead of getting empty answers."""
        flights = await make_topic()
        await flights.produce(b"whole")
        await flights.produce(b"lost")
        log = flights.handle().log
        log.note_damage([DamagedRange(Offset(1), Offset(2))])
        log.accept_damage(Offset(1), Offset(2))
        nothing = await flights.fetch(1)
        async with asyncio.TaskGroup() as group:
            poll = group.create_task(flights.fetch(1, max_wait_seconds=10))
            await until_waiting(flights.broker)
            await flights.produce(b"behind")

        assert (nothing.nbytes, nothing.next_offset) == (0, 2)
        assert poll.result().nbytes > 0
        assert poll.result().next_offset == 3

    @pytest.mark.serial
    async def test_two_hundred_idle_polls_cost_nothing(self, make_topic: MakeTopic) -> None:
        """Two hundred idle long polls use no processor time while nothing is produced."""
        flights = await make_topic(partitions=10)
        spec = many(flights, *range(10), max_wait_seconds=1.0)
        async with asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(flights.fetch_all(spec))
            await until_waiting(flights.broker, 200)
            before = time.thread_time()
            await asyncio.get_running_loop().run_in_executor(None, flights.handle().log.sync)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await asyncio.get_running_loop().create_future()
            used = time.thread_time() - before

            assert used < 0.05
            assert waiting(flights.broker) == 200
