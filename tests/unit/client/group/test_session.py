"""A consumer in a group, against a real listener with scripted heartbeats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from threading import Event
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlead import Consumer, TopicPartition
from fairlead.errors import ClosedError, CoordinationUnavailableError, MemberFencedError
from refusals import raises
from waiting import until

if TYPE_CHECKING:
    from conftest import Received, Replies, Reply, ScriptedBroker

PLACE = TopicPartition("flights", 0)
OFFSETS = "/v1/groups/g/offsets"


class Coordinator:
    """A coordinator that answers the heartbeats and commits of one member as specified by the test."""

    def __init__(self, broker: ScriptedBroker, replies: Replies) -> None:
        self._broker = broker
        self._replies = replies
        self.refusals: list[str] = []
        """Problem codes of the next refusals, one code for each heartbeat."""
        self.commit_refusals: list[str] = []
        self.heartbeats: list[dict[str, object]] = []
        self.commits: list[dict[str, object]] = []
        self.epoch = 1
        self.open = asyncio.Event()
        """Whether heartbeats are answered."""
        self.open.set()
        self.takes_away = False
        """Whether the answer to the next heartbeat revokes the partition."""
        self.commits_open = asyncio.Event()
        """Whether commits are answered."""
        self.commits_open.set()
        self.calls: list[str] = []
        """Answered calls, in order."""

    def serve(self, consumer: Consumer) -> None:
        """Start answering a consumer that has just sent its first heartbeat."""
        path = f"/v1/groups/g/members/{consumer.membership.member_id}"
        self._broker.scripts[path] = [self._member] * 10_000
        self._broker.scripts[OFFSETS] = [self._offsets] * 10_000

    async def _member(self, received: Received) -> Reply:
        if received.method == "DELETE":
            self.calls.append("leave")
            return 204, {}, b""
        request = msgspec.json.decode(received.body)
        self.heartbeats.append(request)
        await self.open.wait()
        self.calls.append("heartbeat")
        if self.refusals:
            return self._replies.problem(self.refusals.pop(0))
        if request["member_epoch"] == 0:
            self.epoch += 1
        place = {"topic": "flights", "topic_id": self._broker.topic_id, "partitions": [0]}
        given = [place] if request["member_epoch"] == 0 else None
        if self.takes_away and given is None:
            self.takes_away, given = False, []
        return self._replies.json(
            {
                "member_epoch": self.epoch,
                "heartbeat_interval_ms": 20,
                "session_timeout_ms": 1_000,
                "assignment": given,
            }
        )

    async def _offsets(self, received: Received) -> Reply:
        if received.method == "GET":
            return self._replies.json({"offsets": []})
        request = msgspec.json.decode(received.body)
        self.commits.append(request)
        await self.commits_open.wait()
        if self.commit_refusals:
            return self._replies.problem(self.commit_refusals.pop(0))
        [entry] = request["offsets"]
        self.calls.append(f"commit {entry['offset']}")
        stored = {"topic": "flights", "topic_id": None, "partition": entry["partition"]}
        return self._replies.json({"offsets": [stored]})


@pytest.fixture
def coordinator(broker: ScriptedBroker, replies: Replies) -> Coordinator:
    """Return the coordinator of group g."""
    return Coordinator(broker, replies)


@pytest.fixture
def revoked() -> list[frozenset[TopicPartition]]:
    """Return the list to which `on_revoked` adds partitions."""
    return []


@pytest.fixture
async def opened(
    broker: ScriptedBroker, coordinator: Coordinator, replies: Replies
) -> AsyncIterator[Callable[..., Awaitable[Consumer]]]:
    """Yield a function that opens a consumer of partition 0, which has two records from offset 0."""

    async def looked_up(_: Received) -> Reply:
        """Answer an offset lookup with the start of the log."""
        begins = {
            "topic": "flights",
            "topic_id": broker.topic_id,
            "partition": 0,
            "offset": 0,
            "timestamp": None,
        }
        return replies.json({"partitions": [begins]})

    async def fetched(received: Received) -> Reply | None:
        """Answer with two records at the start of the log, and without records at later offsets."""
        [place] = msgspec.json.decode(received.body)["partitions"]
        stored = replies.stored([b"a", b"b"], 0)
        return replies.fetched((0, 2, stored)) if place["offset"] == 0 else None

    broker.scripts["/v1/offsets:lookup"] = [looked_up] * 100
    broker.scripts["/v1/fetch"] = [fetched] * 10_000
    async with AsyncExitStack() as stack:

        async def open_consumer(**settings: Any) -> Consumer:
            """Open a consumer that starts to join."""
            consumer = Consumer(broker.url, group="g", topics="flights", session_timeout="1s", **settings)
            await stack.enter_async_context(consumer)
            coordinator.serve(consumer)
            return consumer

        yield open_consumer


@pytest.fixture
async def consumer(
    opened: Callable[..., Awaitable[Consumer]], revoked: list[frozenset[TopicPartition]]
) -> Consumer:
    """Return a consumer with manual commits."""
    return await opened(on_revoked=revoked.append, commit="manual")


async def test_failed_heartbeats_are_reported_until_they_succeed(
    consumer: Consumer, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Until heartbeats succeed again, the log and a property report the failures, and the member continues to read."""
    await until(lambda: consumer.assignment == {PLACE})
    caplog.set_level(logging.INFO, logger="fairlead")
    coordinator.refusals += ["coordination_unavailable"] * 3
    await until(lambda: consumer.membership.heartbeat_failing_seconds is not None)
    failing = consumer.membership
    batch = await consumer.next_batch(timeout="10s")
    await until(lambda: consumer.membership.heartbeat_failing_seconds is None)

    assert batch is not None
    assert isinstance(failing.heartbeat_error, CoordinationUnavailableError)
    assert consumer.membership.heartbeat_error is None
    assert consumer.assignment == {PLACE}
    # On a busy machine the log may also report a blocked event loop, which this test ignores.
    logged = [
        record for record in caplog.records if "heartbeat" in record.message and "loop" not in record.message
    ]
    assert len(logged) >= 2


async def test_a_program_that_blocks_the_loop_is_reported(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that blocks the event loop is reported in the log, because its heartbeats are late."""
    await until(lambda: consumer.assignment == {PLACE})

    def was_logged() -> bool:
        """Block the event loop once more, and return whether this was logged."""
        Event().wait(0.5)
        return any("the event loop was blocked" in record.message for record in caplog.records)

    await until(was_logged)


async def test_a_fenced_member_loses_everything_and_joins_again(
    consumer: Consumer, coordinator: Coordinator, revoked: list[frozenset[TopicPartition]]
) -> None:
    """A fenced member rejoins and reads uncommitted records again, and commits no offsets from its old membership."""
    assert await consumer.next_batch(timeout="10s") is not None
    epoch = consumer.membership.member_epoch
    coordinator.refusals.append("member_fenced")
    await until(lambda: consumer.membership.member_epoch > epoch)
    again = await consumer.next_batch(timeout="10s")

    assert again is not None
    assert again.base_offset == 0
    assert revoked == [frozenset({PLACE})]
    assert coordinator.commits == []
    assert "owned" not in next(beat for beat in coordinator.heartbeats[1:] if beat["member_epoch"] == 0)


async def test_a_commit_is_not_made_again_for_a_partition_that_was_away(
    consumer: Consumer, coordinator: Coordinator
) -> None:
    """A commit is not retried for a partition that was lost and regained, because a newer offset may be stored."""
    assert await consumer.next_batch(timeout="10s") is not None
    epoch = consumer.membership.member_epoch
    coordinator.commit_refusals += ["coordination_unavailable"] * 5
    committing = asyncio.get_running_loop().create_task(consumer.commit())
    await until(lambda: len(coordinator.commits) == 1)
    coordinator.refusals.append("member_fenced")
    await until(lambda: consumer.membership.member_epoch > epoch and consumer.assignment == {PLACE})
    with raises(MemberFencedError, "flights-0"):
        await committing

    assert {commit["member_epoch"] for commit in coordinator.commits} == {epoch}


async def test_a_stale_commit_waits_for_a_heartbeat_and_is_made_again(
    consumer: Consumer, coordinator: Coordinator
) -> None:
    """A stale commit waits for a heartbeat and is retried with the epoch in the heartbeat's answer."""
    assert await consumer.next_batch(timeout="10s") is not None
    epoch = coordinator.epoch
    coordinator.epoch += 1
    coordinator.commit_refusals.append("stale_member_epoch")
    await consumer.commit()

    assert coordinator.commits[-1]["member_epoch"] == epoch + 1
    assert coordinator.commits[-1]["offsets"][0]["offset"] == 2  # type: ignore[index]


async def test_a_leave_does_not_overtake_the_join(broker: ScriptedBroker, coordinator: Coordinator) -> None:
    """A leave is sent only after the join is answered, so that the group keeps no partitions for the closed member."""
    consumer = Consumer(broker.url, group="g", topics="flights")
    await consumer.start()
    coordinator.serve(consumer)
    coordinator.open.clear()
    await until(lambda: bool(coordinator.heartbeats))
    closing = asyncio.get_running_loop().create_task(consumer.close())
    await until(lambda: consumer._closing)
    asyncio.get_running_loop().call_later(0.1, coordinator.open.set)
    await closing

    assert coordinator.calls.index("leave") > coordinator.calls.index("heartbeat")


async def test_a_batch_whose_commit_a_revocation_overtakes_is_handed_out(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A batch that is committed before delivery is delivered despite a revocation, which waits for the processing."""
    coordinator.commits_open.clear()
    consumer = await opened(commit="before")
    taking = asyncio.get_running_loop().create_task(consumer.next_batch(timeout="10s"))
    await until(lambda: bool(coordinator.commits))
    coordinator.takes_away = True
    await until(lambda: consumer.membership.state == "reconciling")
    coordinator.commits_open.set()
    batch = await taking
    still = consumer.assignment
    await consumer.next_batch(timeout="10ms")
    await until(lambda: consumer.assignment == frozenset())

    assert batch is not None
    assert batch.values == [b"a", b"b"]
    assert still == {PLACE}


async def with_unseen_batch(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator, **settings: str
) -> Consumer:
    """Return a consumer whose reader was cancelled while the batch for which it waited was being committed."""
    coordinator.commits_open.clear()
    consumer = await opened(commit="before", **settings)
    taking = asyncio.get_running_loop().create_task(consumer.next_batch(timeout="10s"))
    await until(lambda: bool(coordinator.commits))
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    return consumer


def moves_of(coordinator: Coordinator) -> list[str]:
    """Return the stored commits and the leave request, in order."""
    return [call for call in coordinator.calls if call != "heartbeat"]


@pytest.mark.parametrize("committed_when_closed", [True, False])
async def test_a_commit_is_taken_back_when_its_batch_was_never_handed_out(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator, committed_when_closed: bool
) -> None:
    """The commit of a batch that was never delivered is undone when the consumer closes."""
    consumer = await with_unseen_batch(opened, coordinator)
    if committed_when_closed:
        coordinator.commits_open.set()
        await until(lambda: "commit 2" in coordinator.calls)
    closing = asyncio.get_running_loop().create_task(consumer.close())
    await until(lambda: consumer._closing)
    coordinator.commits_open.set()
    await closing

    assert moves_of(coordinator) == ["commit 2", "commit 0", "leave"]


async def test_a_reader_that_waits_at_the_close_leaves_its_batch(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A reader that waits while the consumer closes gets an error, and the commit of its batch is undone."""
    coordinator.commits_open.clear()
    consumer = await opened(commit="before")
    taking = asyncio.get_running_loop().create_task(consumer.next_batch(timeout="10s"))
    await until(lambda: bool(coordinator.commits))
    closing = asyncio.get_running_loop().create_task(consumer.close())
    await until(lambda: consumer._closing)
    coordinator.commits_open.set()
    with pytest.raises(ClosedError):
        await taking
    await closing

    assert moves_of(coordinator) == ["commit 2", "commit 0", "leave"]


async def test_the_commit_of_a_batch_that_was_handed_out_stays(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """The commit of a batch is not undone if a later call returns the batch to the program."""
    consumer = await with_unseen_batch(opened, coordinator)
    coordinator.commits_open.set()
    batch = await consumer.next_batch(timeout="10s")
    await consumer.close()

    assert batch is not None
    assert moves_of(coordinator) == ["commit 2", "leave"]


async def test_a_commit_is_not_taken_back_when_the_partition_was_away(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A commit is not undone if the partition was lost and regained, because another member may have read further."""
    consumer = await with_unseen_batch(opened, coordinator)
    coordinator.commits_open.set()
    await until(lambda: "commit 2" in coordinator.calls)
    epoch = consumer.membership.member_epoch
    coordinator.refusals.append("member_fenced")
    await until(lambda: consumer.membership.member_epoch > epoch and consumer.assignment == {PLACE})
    await consumer.close()

    assert moves_of(coordinator) == ["commit 2", "leave"]


async def test_a_commit_is_not_taken_back_when_the_partition_goes_meanwhile(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A commit is not undone if the member is fenced while its closing consumer waits for the commit."""
    consumer = await with_unseen_batch(opened, coordinator)
    epoch = consumer.membership.member_epoch
    closing = asyncio.get_running_loop().create_task(consumer.close())
    await until(lambda: consumer._closing)
    coordinator.refusals.append("member_fenced")
    await until(lambda: consumer.membership.member_epoch > epoch and consumer.assignment == {PLACE})
    coordinator.commits_open.set()
    await closing

    assert moves_of(coordinator) == ["commit 2", "leave"]


async def test_what_the_program_committed_by_itself_is_not_taken_back(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """An offset that the program committed itself is not undone."""
    consumer = await with_unseen_batch(opened, coordinator)
    coordinator.commits_open.set()
    await consumer.commit({PLACE: 1})
    await consumer.close()

    assert moves_of(coordinator) == ["commit 2", "commit 1", "leave"]


async def test_a_commit_without_an_answer_is_taken_back_too(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A commit without a definite answer is also undone, because it may have been stored."""
    coordinator.commit_refusals += ["coordination_unavailable"] * 2
    consumer = await with_unseen_batch(opened, coordinator, retry_timeout="0s")
    coordinator.commits_open.set()
    await until(lambda: len(coordinator.commit_refusals) == 1)
    coordinator.commit_refusals.clear()
    await consumer.close()

    assert moves_of(coordinator) == ["commit 0", "leave"]


async def test_a_commit_is_taken_back_to_where_its_batch_began(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """Undoing a commit restores the start of its batch, even if the program seeks while the consumer closes."""
    consumer = await with_unseen_batch(opened, coordinator)
    closing = asyncio.get_running_loop().create_task(consumer.close())
    await until(lambda: consumer._closing)
    await consumer.seek(PLACE, 50)
    coordinator.commits_open.set()
    await closing

    assert moves_of(coordinator) == ["commit 2", "commit 0", "leave"]


async def test_a_commit_that_was_cancelled_may_be_stored(
    consumer: Consumer, coordinator: Coordinator
) -> None:
    """A cancelled commit may be stored, so the earlier offset is committed again after a seek to it."""
    await until(lambda: consumer.assignment == {PLACE})
    await consumer.commit({PLACE: 0})
    assert await consumer.next_batch(timeout="10s") is not None
    coordinator.commits_open.clear()
    committing = asyncio.get_running_loop().create_task(consumer.commit())
    await until(lambda: len(coordinator.commits) == 2)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    coordinator.commits_open.set()
    await consumer.seek(PLACE, 0)
    await consumer.commit()

    assert moves_of(coordinator)[-1] == "commit 0"
    assert len(coordinator.commits) == 3


async def test_a_batch_whose_commit_stays_stale_is_not_skipped(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A batch whose commit remains stale is not skipped, but delivered after the next commit."""
    coordinator.commit_refusals += ["stale_member_epoch"] * 3
    consumer = await opened(commit="before", retry_timeout="50ms")
    batch = await consumer.next_batch(timeout="5s")

    assert coordinator.commit_refusals == []
    assert batch is not None
    assert batch.values == [b"a", b"b"]


async def test_a_callback_whose_work_is_cancelled_ends_nothing_else(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """If a callback ends with CancelledError, the reader gets an error, and the partition is released."""

    async def on_revoked(_: frozenset[TopicPartition]) -> None:
        """Cancel the work on revoked partitions, as many programs do."""
        work = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        work.cancel()
        await work

    consumer = await opened(on_revoked=on_revoked)
    await until(lambda: consumer.assignment == {PLACE})
    coordinator.takes_away = True
    await until(lambda: consumer.assignment == frozenset())

    with raises(RuntimeError, "on_revoked"):
        await consumer.next_batch(timeout="10s")


async def test_a_partition_that_is_gone_before_it_was_found_never_came(
    broker: ScriptedBroker, opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """A partition revoked before the metadata contains it, as for a deleted topic, is not passed to callbacks."""
    broker.topics, events = [], []
    consumer = await opened(on_assigned=events.append, on_revoked=events.append)
    await until(lambda: len(broker.received("/v1/metadata")) > 1)
    coordinator.takes_away = True
    await until(lambda: consumer.membership.state == "stable")

    assert events == []


async def test_an_error_restarts_the_processing_timeout(
    opened: Callable[..., Awaitable[Consumer]],
) -> None:
    """An error that is raised to the reader restarts the processing timeout; after the timeout, the member leaves."""

    def on_assigned(_: frozenset[TopicPartition]) -> None:
        """Raise an error."""
        msg = "no room"
        raise ValueError(msg)

    consumer = await opened(on_assigned=on_assigned, processing_timeout="100ms")
    with raises(ValueError):
        await consumer.next_batch(timeout="10s")
    await until(lambda: consumer.membership.state == "left")
