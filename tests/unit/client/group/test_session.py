"""A consumer in a group against a real listener whose heartbeats a test answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlead import Consumer, TopicPartition
from fairlead.clock import monotonic
from fairlead.errors import ClosedError, CoordinationUnavailableError, MemberFencedError

if TYPE_CHECKING:
    from conftest import Received, Replies, Reply, ScriptedBroker

PLACE = TopicPartition("flights", 0)
OFFSETS = "/v1/groups/g/offsets"


class Coordinator:
    """Answers the heartbeats of one member as the test says at the time, and its commits."""

    def __init__(self, broker: ScriptedBroker, replies: Replies) -> None:
        self._broker = broker
        self._replies = replies
        self.refusals: list[str] = []
        """Codes of the next answers to heartbeats; then they are good again."""
        self.commit_refusals: list[str] = []
        self.heartbeats: list[dict[str, object]] = []
        self.commits: list[dict[str, object]] = []
        self.epoch = 1
        self.open = asyncio.Event()
        """Whether heartbeats are answered."""
        self.open.set()
        self.takes_away = False
        """Whether the answer to the next heartbeat gives the partition to somebody else."""
        self.commits_open = asyncio.Event()
        """Whether commits are answered."""
        self.commits_open.set()
        self.calls: list[str] = []
        """What was answered, in its order."""

    def serve(self, consumer: Consumer) -> None:
        """Answer for a consumer that has just begun to join."""
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


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that other tasks bring about."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.005)


@pytest.fixture
def coordinator(broker: ScriptedBroker, replies: Replies) -> Coordinator:
    """The coordinator of group g."""
    return Coordinator(broker, replies)


@pytest.fixture
def revoked() -> list[frozenset[TopicPartition]]:
    """What `on_revoked` was told."""
    return []


@pytest.fixture
async def opened(
    broker: ScriptedBroker, coordinator: Coordinator, replies: Replies
) -> AsyncIterator[Callable[..., Awaitable[Consumer]]]:
    """Opens a consumer that owns partition 0 and begins at offset 0, where two records are."""

    async def looked_up(_: Received) -> Reply:
        """Answer where the log begins."""
        begins = {
            "topic": "flights",
            "topic_id": broker.topic_id,
            "partition": 0,
            "offset": 0,
            "timestamp": None,
        }
        return replies.json({"partitions": [begins]})

    async def fetched(received: Received) -> Reply | None:
        """Answer two records at the beginning, and nothing behind them."""
        [place] = msgspec.json.decode(received.body)["partitions"]
        stored = replies.stored([b"a", b"b"], 0)
        return replies.fetched((0, 2, stored)) if place["offset"] == 0 else None

    broker.scripts["/v1/offsets:lookup"] = [looked_up] * 100
    broker.scripts["/v1/fetch"] = [fetched] * 10_000
    async with AsyncExitStack() as stack:

        async def open_consumer(**settings: Any) -> Consumer:
            """Open one that begins to join."""
            consumer = Consumer(broker.url, group="g", topics="flights", session_timeout="1s", **settings)
            await stack.enter_async_context(consumer)
            coordinator.serve(consumer)
            return consumer

        yield open_consumer


@pytest.fixture
async def consumer(
    opened: Callable[..., Awaitable[Consumer]], revoked: list[frozenset[TopicPartition]]
) -> Consumer:
    """A consumer that commits when it is told to."""
    return await opened(on_revoked=revoked.append, commit="manual")


async def test_heartbeats_that_do_not_succeed_are_told(
    consumer: Consumer, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and as a property, while the member reads on; and when they succeed again."""
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
    told = [record.message for record in caplog.records if "heartbeat" in record.message]
    assert "no heartbeat has succeeded for" in told[0]
    assert "heartbeats succeed again" in told[-1]


async def test_a_program_that_blocks_the_loop_is_told(
    consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeats come late by that, and whoever is put out for it finds the reason in the log."""
    await until(lambda: consumer.assignment == {PLACE})

    def told() -> bool:
        """Block the loop once more, and see."""
        end = monotonic() + 0.5
        while monotonic() < end:
            pass
        return any("the event loop stood still" in record.message for record in caplog.records)

    await until(told)


async def test_a_fenced_member_loses_everything_and_joins_again(
    consumer: Consumer, coordinator: Coordinator, revoked: list[frozenset[TopicPartition]]
) -> None:
    """What was read and not committed comes again; nothing of before is committed."""
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
    """It has come back, but somebody may have committed more in between: the old offset would put that back."""
    assert await consumer.next_batch(timeout="10s") is not None
    epoch = consumer.membership.member_epoch
    coordinator.commit_refusals += ["coordination_unavailable"] * 5
    committing = asyncio.get_running_loop().create_task(consumer.commit())
    await until(lambda: len(coordinator.commits) == 1)
    coordinator.refusals.append("member_fenced")
    await until(lambda: consumer.membership.member_epoch > epoch and consumer.assignment == {PLACE})
    with pytest.raises(MemberFencedError, match="flights-0 is not its to commit"):
        await committing

    assert {commit["member_epoch"] for commit in coordinator.commits} == {epoch}


async def test_a_stale_commit_waits_for_a_heartbeat_and_is_made_again(
    consumer: Consumer, coordinator: Coordinator
) -> None:
    """Under the epoch that the heartbeat brought."""
    assert await consumer.next_batch(timeout="10s") is not None
    epoch = coordinator.epoch
    coordinator.epoch += 1
    coordinator.commit_refusals.append("stale_member_epoch")
    await consumer.commit()

    assert coordinator.commits[-1]["member_epoch"] == epoch + 1
    assert coordinator.commits[-1]["offsets"][0]["offset"] == 2  # type: ignore[index]


async def test_a_leave_does_not_overtake_the_join(broker: ScriptedBroker, coordinator: Coordinator) -> None:
    """Else the group would hold partitions for a member that is gone, until its session ends."""
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
    """Committed before it is handed out, nobody else gets it; and its partition goes once it was processed."""
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
    """Return a consumer whose reader gave up while the batch that it was to get is being committed."""
    coordinator.commits_open.clear()
    consumer = await opened(commit="before", **settings)
    taking = asyncio.get_running_loop().create_task(consumer.next_batch(timeout="10s"))
    await until(lambda: bool(coordinator.commits))
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    return consumer


def moves_of(coordinator: Coordinator) -> list[str]:
    """Return the commits that were stored and the leave, in their order."""
    return [call for call in coordinator.calls if call != "heartbeat"]


@pytest.mark.parametrize("committed_when_closed", [True, False])
async def test_a_commit_is_taken_back_when_its_batch_was_never_handed_out(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator, committed_when_closed: bool
) -> None:
    """Its reader gave up waiting and the consumer is closed: whoever has the partition next begins with it."""
    consumer = await with_unseen_batch(opened, coordinator)
    if committed_when_closed:
        coordinator.commits_open.set()
        await until(lambda: "commit 2" in coordinator.calls)
    closing = asyncio.get_running_loop().create_task(consumer.close())
    await until(lambda: consumer._closing)
    coordinator.commits_open.set()
    await closing

    assert moves_of(coordinator) == ["commit 2", "commit 0", "leave"]


async def test_a_reader_who_is_waiting_when_the_consumer_closes_leaves_its_batch(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """It gets an error in place of the batch, so the batch is not skipped."""
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
    """Also one that came at a later take than the one that was given up."""
    consumer = await with_unseen_batch(opened, coordinator)
    coordinator.commits_open.set()
    batch = await consumer.next_batch(timeout="10s")
    await consumer.close()

    assert batch is not None
    assert moves_of(coordinator) == ["commit 2", "leave"]


async def test_a_commit_is_not_taken_back_when_the_partition_was_away(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """It has come back, but somebody else may have handed out what is behind the position."""
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
    """The member is put out while the closing consumer waits for the commit under way, and joins again."""
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
    """It said where the group goes on, after the batch was committed for it."""
    consumer = await with_unseen_batch(opened, coordinator)
    coordinator.commits_open.set()
    await consumer.commit({PLACE: 1})
    await consumer.close()

    assert moves_of(coordinator) == ["commit 2", "commit 1", "leave"]


async def test_a_commit_without_an_answer_is_taken_back_too(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """It may have been stored, so the position before the batch is committed again."""
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
    """Not to where the program moved the partition while the consumer was being closed."""
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
    """The position that was committed before it is committed again when the program goes back there."""
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
    """It was neither committed nor handed out, and the partition is still the member's: it is taken once more."""
    coordinator.commit_refusals += ["stale_member_epoch"] * 3
    consumer = await opened(commit="before", retry_timeout="50ms")
    batch = await consumer.next_batch(timeout="5s")

    assert coordinator.commit_refusals == []
    assert batch is not None
    assert batch.values == [b"a", b"b"]


async def test_a_callback_whose_work_is_cancelled_ends_nothing_else(
    opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """It is raised to the reader as a failure, and the partition goes as it should."""

    async def on_revoked(_: frozenset[TopicPartition]) -> None:
        """End the work on what goes, as many programs do."""
        work = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        work.cancel()
        await work

    consumer = await opened(on_revoked=on_revoked)
    await until(lambda: consumer.assignment == {PLACE})
    coordinator.takes_away = True
    await until(lambda: consumer.assignment == frozenset())

    with pytest.raises(RuntimeError, match="on_revoked"):
        await consumer.next_batch(timeout="10s")


async def test_a_partition_that_is_gone_before_it_was_found_never_came(
    broker: ScriptedBroker, opened: Callable[..., Awaitable[Consumer]], coordinator: Coordinator
) -> None:
    """As of a topic that was deleted at once: a callback would look for it in the assignment."""
    broker.topics, told = [], []
    consumer = await opened(on_assigned=told.append, on_revoked=told.append)
    await until(lambda: len(broker.received("/v1/metadata")) > 1)
    coordinator.takes_away = True
    await until(lambda: consumer.membership.state == "stable")

    assert told == []


async def test_a_reader_that_was_told_of_a_failure_has_its_time_again(
    opened: Callable[..., Awaitable[Consumer]],
) -> None:
    """Whoever does not come back after it is put out like one who does not come back after a batch."""

    def on_assigned(_: frozenset[TopicPartition]) -> None:
        """Fail."""
        msg = "no room"
        raise ValueError(msg)

    consumer = await opened(on_assigned=on_assigned, processing_timeout="100ms")
    with pytest.raises(ValueError, match="no room"):
        await consumer.next_batch(timeout="10s")
    await until(lambda: consumer.membership.state == "left")
