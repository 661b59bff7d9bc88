"""The SDK without an event loop: the same producer, consumer and admin client against a real broker."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator

import pyarrow as pa
import pytest

import fairlead
from fairlead import TopicPartition, errors
from fairlead.blocking import Admin, Consumer, Producer
from refusals import raises

Apart = Callable[[Callable[[str], None]], Awaitable[None]]


@pytest.fixture
async def apart(bootstrap: str) -> Apart:
    """Return a function that runs a scenario in a thread, because the broker runs on the test's event loop."""

    def run(scenario: Callable[[str], None]) -> Awaitable[None]:
        return asyncio.to_thread(scenario, bootstrap)

    return run


def ten_records(bootstrap: str) -> None:
    """Create a topic of one partition with one batch of ten records."""
    with Admin(bootstrap) as admin:
        admin.create_topic("flights", partitions=1)
    with Producer(bootstrap, linger_ms=60_000) as producer:
        for number in range(10):
            producer.send("flights", b"%d" % number)


async def test_records_there_and_back(apart: Apart) -> None:
    """Records of one key are sent one by one and read in order by a for loop, and each delivery has its offset."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights", partitions=3)
        with Producer(bootstrap) as producer:
            deliveries = [producer.send("flights", b"%d" % number, key=b"UA") for number in range(5_000)]
            metadata = [delivery.result() for delivery in deliveries]
            assert all(delivery.done for delivery in deliveries)
        [place] = {TopicPartition(each.topic, each.partition) for each in metadata}
        assert [each.offset for each in metadata] == list(range(5_000))
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic="flights")
            values = [record.value for record in consumer.records(until={place: 5_000})]
        assert values == [b"%d" % number for number in range(5_000)]

    await apart(scenario)


async def test_several_threads_share_a_producer(apart: Apart) -> None:
    """Records from several threads keep each thread's order, and leaving the block waits for all records."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights")
        with Producer(bootstrap) as producer:

            def send(name: str) -> None:
                for number in range(1_000):
                    producer.send("flights", b"%d" % number, key=name.encode())

            threads = [threading.Thread(target=send, args=(name,)) for name in "abc"]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic="flights")
            records = list(consumer.records(until=consumer.end_offsets()))
        for name in (b"a", b"b", b"c"):
            values = [record.value for record in records if record.key == name]
            assert values == [b"%d" % number for number in range(1_000)]

    await apart(scenario)


async def test_headers_are_those_of_the_call(apart: Apart) -> None:
    """Headers of a record stay as given, even if the list is reused before the loop has handled the record."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights")
        with Producer(bootstrap) as producer:
            headers = [("number", b"")]
            for number in range(100):
                headers[0] = ("number", b"%d" % number)
                producer.send("flights", b"%d" % number, headers=headers)
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic="flights")
            records = list(consumer.records(until=consumer.end_offsets()))
        assert [dict(record.headers)["number"] for record in records] == [record.value for record in records]

    await apart(scenario)


async def test_tables_and_batches(apart: Apart) -> None:
    """A table is sent as one batch and read back as Arrow."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights")
        table = pa.table({"value": pa.array([b"a", b"b"])})
        with Producer(bootstrap) as producer:
            [delivery] = producer.send_batch("flights", table)
            metadata = delivery.result()
            assert (delivery.done, delivery.partition, delivery.record_count) == (True, 0, 2)
        assert (metadata.base_offset, metadata.last_offset) == (0, 1)
        with Consumer(bootstrap) as consumer:
            place = TopicPartition("flights", 0)
            consumer.assign([place])
            [batch] = consumer.batches(until={place: 2})
            assert batch.to_arrow().column("value").to_pylist() == [b"a", b"b"]
            consumer.seek(place, 1)
            assert consumer.position(place) == 1
            consumer.pause(place)
            assert consumer.paused == {place}
            assert consumer.next_batch("50ms") is None
            consumer.resume(place)
            again = consumer.next_batch("30s")
            assert again is not None
            assert again.values == [b"b"]

    await apart(scenario)


async def test_a_group_with_callbacks_that_call_the_consumer(apart: Apart) -> None:
    """A consumer runs its callbacks in a separate thread and commits the processed records on leaving the block."""

    def scenario(bootstrap: str) -> None:
        ten_records(bootstrap)
        told: list[tuple[str, int]] = []

        def assigned(partitions: frozenset[TopicPartition]) -> None:
            assert not asyncio._get_running_loop()
            told.append((consumer.membership.member_id, len(partitions)))

        consumer = Consumer(bootstrap, group="etl", topics="flights", on_assigned=assigned)
        with consumer:
            records = consumer.records()
            values = [next(records).value for _ in range(4)]
            consumer.commit()
        assert [count for _, count in told] == [1]
        with Admin(bootstrap) as admin:
            [offset] = admin.group_offsets("etl").values()
        assert (values, offset.offset) == ([b"0", b"1", b"2", b"3"], 4)

    await apart(scenario)


async def test_a_plain_callback_may_return_an_awaitable(apart: Apart) -> None:
    """A coroutine that a plain callback returns is awaited."""

    def scenario(bootstrap: str) -> None:
        told: list[frozenset[TopicPartition]] = []

        async def note(partitions: frozenset[TopicPartition], where: list[frozenset[TopicPartition]]) -> None:
            """Record the call in the loop."""
            where.append(partitions)

        ten_records(bootstrap)
        with Consumer(
            bootstrap, group="g", topics="flights", on_assigned=lambda partitions: note(partitions, told)
        ) as consumer:
            assert consumer.next_batch(timeout="20s") is not None
        assert len(told) == 1

    await apart(scenario)


async def test_a_callback_may_close_a_closing_consumer(apart: Apart) -> None:
    """A close from a callback returns at once while another close commits and leaves the group."""

    def scenario(bootstrap: str) -> None:
        ten_records(bootstrap)
        told: list[str] = []

        def revoked(_: frozenset[TopicPartition]) -> None:
            consumer.close()
            told.append("itself")
            assert ends(consumer.close)
            told.append("another thread")

        consumer = Consumer(bootstrap, group="etl", topics="flights", on_revoked=revoked)
        consumer.start()
        records = consumer.records()
        values = [next(records).value for _ in range(4)]

        assert ends(consumer.close)
        assert told == ["itself", "another thread"]
        assert "fairlead consumer" not in {thread.name for thread in threading.enumerate()}
        with Admin(bootstrap) as admin:
            [offset] = admin.group_offsets("etl").values()
            assert (values, offset.offset) == ([b"0", b"1", b"2", b"3"], 4)
            assert not admin.describe_group("etl").members

    await apart(scenario)


async def test_a_callback_cannot_close_its_consumer(apart: Apart) -> None:
    """A consumer cannot be closed in its own callback: the reader gets an error, and the consumer continues."""

    def scenario(bootstrap: str) -> None:
        ten_records(bootstrap)

        def plain(_: frozenset[TopicPartition]) -> None:
            consumer.close()

        async def on_the_loop(_: frozenset[TopicPartition]) -> None:
            consumer.close()

        for assigned in (plain, on_the_loop):
            consumer = Consumer(bootstrap, group="etl", topics="flights", on_assigned=assigned)
            consumer.start()
            with pytest.raises(errors.SettingError) as refused:
                consumer.next_batch("30s")
            assert refused.value.name == "close"
            assert consumer.next_batch("30s") is not None
            assert ends(consumer.close)
            with Admin(bootstrap) as admin:
                [offset] = admin.group_offsets("etl").values()
                assert offset.offset == 10
                admin.reset_group_offsets("etl", "earliest")

    await apart(scenario)


def ends(call: Callable[[], None]) -> bool:
    """Return whether a call in a thread returns; a deadlocked call never does."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


async def test_a_seek_leaves_the_batch_whose_records_are_taken(apart: Apart) -> None:
    """After a seek within a batch, the sought record is the next record."""

    def scenario(bootstrap: str) -> None:
        ten_records(bootstrap)
        with Consumer(bootstrap) as consumer:
            place = TopicPartition("flights", 0)
            consumer.assign([place])
            consumer.seek(place, "earliest")
            values = []
            for record in consumer.records():
                values.append(int(record.value or b""))
                if values == [0, 1, 2]:
                    consumer.seek(place, 7)
                if values[-1] == 9:
                    break
        assert values == [0, 1, 2, 7, 8, 9]

    await apart(scenario)


async def test_a_pause_keeps_the_rest_of_the_batch_whose_records_are_taken(apart: Apart) -> None:
    """The remaining records of a batch are delivered after a pause and `resume`."""

    def scenario(bootstrap: str) -> None:
        ten_records(bootstrap)
        with Consumer(bootstrap) as consumer:
            place = TopicPartition("flights", 0)
            consumer.assign([place])
            values = []
            for record in consumer.records(until={place: 10}):
                assert not consumer.paused
                values.append(int(record.value or b""))
                if values == [0, 1, 2]:
                    consumer.pause(place)
                    threading.Timer(0.05, consumer.resume, [place]).start()
        assert values == list(range(10))

    await apart(scenario)


async def test_an_aborted_producer_sends_nothing_more(apart: Apart) -> None:
    """An aborted producer drops lingering records, refuses later sends, and is not flushed at the end of `with`."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights")
        with Producer(bootstrap, linger_ms=3_600_000) as producer:
            producer.send("flights", b"wanted")
            producer.flush()
            lingering = [producer.send("flights", b"unwanted") for _ in range(100)]
            producer.abort()
            producer.abort()
            for refused in (lingering[0].result, producer.flush, lambda: producer.send("flights", b"late")):
                with pytest.raises(errors.ClosedError):
                    refused()
        with Consumer(bootstrap) as consumer:
            consumer.assign(topic="flights")
            values = [record.value for record in consumer.records(until=consumer.end_offsets())]
        assert values == [b"wanted"]

    await apart(scenario)


async def test_a_record_of_a_wrong_type_is_not_lost_in_silence(apart: Apart) -> None:
    """A record of a wrong type fails its delivery and the flush, and all other records are sent."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights")
        with Producer(bootstrap) as producer:
            producer.send("flights", b"first").result()
            wrong = producer.send("flights", b"wrong", partition="0")  # type: ignore[arg-type]
            with pytest.raises(ExceptionGroup) as group:
                producer.flush()
            assert group.group_contains(TypeError)
            with pytest.raises(TypeError):
                wrong.result()
            assert producer.send("flights", b"second").result().offset == 1

    await apart(scenario)


async def test_failures_are_raised_where_they_are_waited_for(apart: Apart) -> None:
    """Failures of a producer are raised exactly once: by the call, by `result`, by `flush` or at the block's end."""

    def scenario(bootstrap: str) -> None:
        with Admin(bootstrap) as admin:
            admin.create_topic("flights")
            with pytest.raises(errors.TopicExistsError):
                admin.create_topic("flights", partitions=7)
        with Producer(bootstrap) as producer:
            with pytest.raises(errors.TopicNotFoundError):
                producer.send("nothing", b"x")
            with pytest.raises(errors.RecordError):
                producer.send("flights", "text")  # type: ignore[arg-type]
            producer.send("flights", b"x")
            lost = producer.send("flights", b"x", partition=9)
            with pytest.raises(errors.PartitionNotFoundError):
                lost.result()
            producer.flush()
            producer.send("flights", b"x", partition=8)
            with raises(errors.SettingError, name="start"):
                producer.start()
            with pytest.raises(ExceptionGroup) as group:
                producer.flush()
            assert [type(each) for each in group.value.exceptions] == [errors.PartitionNotFoundError]
        with pytest.raises(errors.ClosedError):
            producer.send("flights", b"x")

    await apart(scenario)


def test_an_unreachable_cluster_ends_the_start_and_its_thread() -> None:
    """If the cluster is unreachable, the start fails in time with the async client's error, and leaves no thread."""
    before = threading.active_count()
    with (
        pytest.raises(errors.UnreachableError),
        Admin("http://127.0.0.1:1", retry_timeout="1s", connect_timeout="1s") as admin,
    ):
        admin.list_topics()

    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("blocking", "client"),
    [(Admin, fairlead.Admin), (Producer, fairlead.Producer), (Consumer, fairlead.Consumer)],
)
def test_nothing_public_is_missing(blocking: type, client: type) -> None:
    """Every public name of the async client exists in the blocking client with its arguments and documentation."""

    def public(of: type) -> Iterator[str]:
        return (name for name in dir(of) if not name.startswith("_"))

    hidden = {"start", "close", "in_hand", "has_in_hand"}
    missing = set(public(client)) - set(public(blocking)) - hidden

    assert missing == set()
    for name in set(public(client)) - hidden:
        theirs, ours = getattr(client, name), getattr(blocking, name)
        assert ours.__doc__, name
        if inspect.iscoroutinefunction(theirs):
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
