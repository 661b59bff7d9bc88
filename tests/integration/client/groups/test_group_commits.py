"""Commits of group members, and crashes of the program while it processes a batch."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta

import pyarrow as pa
import pytest

from fairlead import Admin, CommitMode, Consumer, Producer, TopicPartition
from fairlead.clock import now_us
from fairlead.errors import (
    NoCommittedOffsetError,
    OffsetExpiredError,
    ProcessingTimeoutError,
    SettingError,
)
from refusals import raises
from waiting import until

PLACE = TopicPartition("flights", 0)
SECOND = 1_000_000


class CrashError(Exception):
    """Failure of the program between two steps."""


async def fill(bootstrap: str, count: int, first: int = 0) -> None:
    """Store `count` numbers from `first` on, ten per batch, with timestamps one second apart that begin an hour ago."""
    hour_ago = now_us() - 3600 * SECOND
    async with Producer(bootstrap) as producer:
        for base in range(first, first + count, 10):
            numbers = range(base, min(base + 10, first + count))
            times = pa.array([hour_ago + number * SECOND for number in numbers], pa.timestamp("us", "UTC"))
            table = pa.table({"value": [b"%d" % number for number in numbers], "timestamp": times})
            await producer.send_batch("flights", table, partition=0)


def consumer_of(bootstrap: str, **settings: object) -> Consumer:
    """Return a consumer of the group."""
    return Consumer(
        bootstrap, group="g", topics="flights", session_timeout="3s", **settings  # type: ignore[arg-type]
    )  # fmt: skip


async def take(consumer: Consumer) -> list[int]:
    """Return the numbers of the next batch."""
    batch = await consumer.next_batch(timeout="30s")
    assert batch is not None
    return [int(value or b"") for value in batch.values]


async def committed(admin: Admin) -> int | None:
    """Return the group's committed offset."""
    found = (await admin.group_offsets("g")).get(PLACE)
    return None if found is None else found.offset


@pytest.fixture(autouse=True)
async def topic(admin: Admin, bootstrap: str) -> None:
    """Create the topic `flights` with three batches of ten."""
    await admin.create_topic("flights", partitions=1)
    await fill(bootstrap, 30)


async def test_a_batch_counts_as_processed_when_the_next_one_is_taken(bootstrap: str, admin: Admin) -> None:
    """A batch is committed when the next batch is taken, so that a failed program gets it again (at least once)."""
    with suppress(CrashError):
        async with consumer_of(bootstrap) as consumer:
            assert await take(consumer) == list(range(10))
            assert await take(consumer) == list(range(10, 20))
            raise CrashError
    assert await committed(admin) == 10
    async with consumer_of(bootstrap) as consumer:
        assert await take(consumer) == list(range(10, 20))
    assert await committed(admin) == 20


async def test_records_taken_one_by_one_count_one_by_one(bootstrap: str, admin: Admin) -> None:
    """When a loop leaves a batch with `break` or an exception, the batch's records are not lost."""
    async with consumer_of(bootstrap) as consumer:
        async for record in consumer.records():
            if record.offset == 13:
                break
    assert await committed(admin) == 14
    with suppress(CrashError):
        async with consumer_of(bootstrap) as consumer:
            async for record in consumer.records():
                if record.offset == 16:
                    raise CrashError
    assert await committed(admin) == 16
    async with consumer_of(bootstrap, commit="manual") as consumer:
        async for record in consumer.records():
            assert record.offset == 16
            await consumer.commit()
            break
        assert await committed(admin) == 17
        assert await take(consumer) == list(range(17, 20))
        await consumer.commit()
    assert await committed(admin) == 20


async def test_a_reader_of_single_records_is_not_overdue(bootstrap: str) -> None:
    """The processing timeout of a member applies to each record, not to the whole batch."""
    async with consumer_of(bootstrap, processing_timeout="2s") as consumer:
        got = []
        async for record in consumer.records():
            got.append(record.offset)
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.25)
            if len(got) == 10:
                break
        assert consumer.membership.member_epoch > 0
    assert got == list(range(10))


async def test_before_commits_the_batch_that_is_about_to_be_delivered(bootstrap: str, admin: Admin) -> None:
    """A batch is committed before its delivery, so that a failed program does not get it again (at most once)."""
    with suppress(CrashError):
        async with consumer_of(bootstrap, commit="before") as consumer:
            assert await take(consumer) == list(range(10))
            assert await committed(admin) == 10
            raise CrashError
    async with consumer_of(bootstrap, commit=CommitMode.BEFORE) as consumer:
        assert await take(consumer) == list(range(10, 20))
    assert await committed(admin) == 20


async def test_a_cancelled_take_loses_nothing(bootstrap: str) -> None:
    """A batch whose take was cancelled during its commit is returned by the next take."""
    got: list[int] = []
    async with consumer_of(bootstrap, commit="before") as consumer, asyncio.timeout(30):
        while len(got) < 30:
            batch = await consumer.next_batch(timeout="1ms")
            got += [] if batch is None else [int(value or b"") for value in batch.values]

    assert got == list(range(30))


async def test_an_undelivered_batch_is_not_skipped_after_a_close(bootstrap: str, admin: Admin) -> None:
    """A batch that was not delivered because of a cancelled take and a close is the next member's first batch."""
    loop = asyncio.get_running_loop()
    async with consumer_of(bootstrap, commit="before") as consumer:
        assert await take(consumer) == list(range(10))
        taking = loop.create_task(consumer.next_batch())

        def give_up() -> None:
            """Cancel the take in the iteration of the event loop in which the commit of its batch begins."""
            before = consumer._commit_before
            assert before is not None
            if before.held is None:
                loop.call_soon(give_up)
            else:
                taking.cancel()

        give_up()
        with pytest.raises(asyncio.CancelledError):
            await taking
    assert await committed(admin) == 10
    async with consumer_of(bootstrap, commit="before") as consumer:
        got = [number for _ in range(2) for number in await take(consumer)]

    assert got == list(range(10, 30))
    assert await committed(admin) == 30


async def test_processed_batches_are_committed_from_time_to_time(bootstrap: str, admin: Admin) -> None:
    """Processed batches are committed periodically, so that a crash repeats at most one interval."""
    async with consumer_of(bootstrap, auto_commit_interval="50ms") as consumer:
        await take(consumer)
        await take(consumer)
        async with asyncio.timeout(30):
            while await committed(admin) != 10:
                pass


async def test_a_commit_of_the_program_is_not_taken_back(bootstrap: str, admin: Admin) -> None:
    """A periodic commit and the last commit do not overwrite a commit by the program."""
    with suppress(CrashError):
        async with consumer_of(bootstrap) as consumer:
            await take(consumer)
            await consumer.commit()
            await another_commit(consumer)
            assert await committed(admin) == 10
            raise CrashError
    assert await committed(admin) == 10
    with suppress(CrashError):
        async with consumer_of(bootstrap) as consumer:
            async for record in consumer.records():
                if record.offset == 14:
                    await consumer.commit()
                    await another_commit(consumer)
                    raise CrashError
    assert await committed(admin) == 15
    async with consumer_of(bootstrap) as consumer:
        assert await take(consumer) == list(range(15, 20))
        await consumer.commit({PLACE: 17})
        await consumer.seek(PLACE, 12)
        assert await take(consumer) == list(range(12, 20))
    assert await committed(admin) == 20


async def another_commit(consumer: Consumer) -> None:
    """Run the periodic commit at once."""
    assert consumer._session is not None
    await consumer._session.committer.commit_processed()


async def test_manual_commits_are_exact_and_may_go_back(bootstrap: str, admin: Admin) -> None:
    """Manual commits are exact to the record and may move backwards, and no other commits are made."""
    async with consumer_of(bootstrap, commit="manual") as consumer:
        await take(consumer)
        await take(consumer)
        assert await consumer.committed() == {PLACE: None}
        await consumer.commit()
        assert await committed(admin) == 20
        await consumer.commit({PLACE: 13})
        await take(consumer)
    assert await committed(admin) == 13
    async with consumer_of(bootstrap, commit="manual") as consumer:
        assert await take(consumer) == list(range(13, 20))
        assert consumer.position(PLACE) == 20
        with pytest.raises(SettingError) as unassigned:
            await consumer.commit({TopicPartition("flights", 7): 1})
        with pytest.raises(SettingError) as negative:
            await consumer.commit({PLACE: -1})

    assert (unassigned.value.name, unassigned.value.value) == ("partition", "flights-7")
    assert (negative.value.name, negative.value.value) == ("offset", -1)


async def test_a_partition_is_released_after_its_batch_its_callback_and_its_commit(
    bootstrap: str, admin: Admin
) -> None:
    """Before a partition is revoked, its batch is processed, its callback runs and its offset is committed."""
    steps: list[str] = []

    async def revoked(_: frozenset[TopicPartition]) -> None:
        """Commit an offset that only the callback knows."""
        steps.append(f"revoked at {await committed(admin)}")
        await consumer.commit({PLACE: 17})

    consumer = consumer_of(bootstrap, commit="manual", on_revoked=revoked)
    async with consumer:
        assert await take(consumer) == list(range(10))
        await admin.create_topic("trains", partitions=1)
        async with Consumer(bootstrap, group="g", topics=["flights"], session_timeout="3s") as other:
            # The assignor moves the only partition from its owner to the second member.
            reading = asyncio.get_running_loop().create_task(other.next_batch(timeout="30s"))
            await consumer.close()
            batch = await reading

    assert batch is not None
    assert steps == ["revoked at None"]
    assert batch.base_offset == 17


async def test_a_stale_commit_is_made_again_after_a_heartbeat(bootstrap: str, admin: Admin) -> None:
    """A commit with a stale member epoch is repeated after a heartbeat."""
    async with consumer_of(bootstrap, commit="manual") as consumer:
        await take(consumer)
        session = consumer._session
        assert session is not None
        # The test sets the member back by one epoch. The test first waits for a second epoch, because the epoch below
        # the first would be 0, which is invalid.
        heard, known = session._member.heartbeats_answered, session._member.epoch
        async with consumer_of(bootstrap) as other:
            await until(lambda: session._member.epoch > known)
            session._member.epoch -= 1
            await consumer.commit({PLACE: 6})
            assert session._member.epoch > known
            assert other.assignment == frozenset()

        assert session._member.heartbeats_answered > heard
        assert await committed(admin) == 6


async def test_a_batch_that_takes_too_long_costs_the_membership(bootstrap: str, admin: Admin) -> None:
    """A member that processes a batch for too long loses its membership, and joins again with the next read."""
    dropped: list[frozenset[TopicPartition]] = []
    async with consumer_of(bootstrap, processing_timeout="300ms", on_revoked=dropped.append) as consumer:
        await take(consumer)
        assert await take(consumer) == list(range(10, 20))
        await until(lambda: consumer.membership.state == "left")
        async with asyncio.timeout(30):
            while (await admin.describe_group("g")).members:
                pass
        with pytest.raises(ProcessingTimeoutError) as late:
            await consumer.next_batch()
        assert (late.value.partition, late.value.position, late.value.limit_seconds) == ("flights-0", 10, 0.3)
        assert await take(consumer) == list(range(10))
    assert dropped[0] == {PLACE}


async def test_the_first_read_begins_at_start(bootstrap: str, admin: Admin) -> None:
    """A group starts at earliest, latest or a duration if it has no commit, and otherwise at its commit."""
    for group, start, first in [("a", "earliest", 0), ("b", timedelta(minutes=60), 0), ("c", "latest", 30)]:
        async with Consumer(bootstrap, group=group, topics="flights", start=start) as consumer:
            await until(lambda consumer=consumer: consumer.assignment == {PLACE})  # type: ignore[misc]
            assert consumer.position(PLACE) <= max(first, 10)
    assert (await admin.group_offsets("c"))[PLACE].offset == 30
    await fill(bootstrap, 10, first=30)
    async with Consumer(bootstrap, group="c", topics="flights", start="latest") as consumer:
        assert await take(consumer) == list(range(30, 40))


async def test_a_duration_begins_at_the_first_younger_record(bootstrap: str) -> None:
    """A start by duration begins at the first record younger than the duration; zero means the end of the log."""
    begins = []
    starts: list[tuple[str, timedelta | str]]
    starts = [("a", timedelta(minutes=59, seconds=50)), ("b", "0s"), ("c", "20000000h")]
    for group, start in starts:
        async with Consumer(bootstrap, group=group, topics="flights", start=start) as consumer:
            await until(lambda consumer=consumer: consumer.membership.state == "stable")  # type: ignore[misc]
            begins.append((await consumer.committed())[PLACE])

    assert begins[0] is not None
    assert 10 < begins[0] < 30
    assert begins[1:] == [30, 0]


async def test_no_start_is_an_error_until_a_seek(bootstrap: str) -> None:
    """Without a start policy, a group's read fails until a callback seeks, as with offsets in a database."""
    async with consumer_of(bootstrap, start="none") as consumer:
        with pytest.raises(NoCommittedOffsetError) as missing:
            await consumer.next_batch(timeout="30s")
        assert (missing.value.group, missing.value.partition) == ("g", "flights-0")
        await consumer.seek(PLACE, 20)
        assert await take(consumer) == list(range(20, 30))
    sought: list[int] = []

    async def assigned(places: frozenset[TopicPartition]) -> None:
        """Seek to the offset that the program itself has stored."""
        sought.extend([await consumer.seek(place, 10) for place in places])

    consumer = Consumer(bootstrap, group="other", topics="flights", start="none", on_assigned=assigned)
    async with consumer:
        assert await take(consumer) == list(range(10, 20))
    assert sought == [10]


@pytest.mark.parametrize(
    ("policy", "first"), [("error", None), ("earliest", 20), ("latest", 30), ("30m", 30)]
)
async def test_a_committed_offset_that_is_gone_follows_the_policy(
    bootstrap: str, admin: Admin, policy: str, first: int | None
) -> None:
    """A committed offset that retention deleted is skipped only under a policy that allows it."""
    await admin.commit_group_offsets("g", {PLACE: 5})
    await admin.delete_records("flights", 0, before=20)
    async with consumer_of(bootstrap, offset_policy=policy) as consumer:
        if first is None:
            with raises(OffsetExpiredError, "flights-0", 5):
                await consumer.next_batch(timeout="30s")
            return
        reading = asyncio.get_running_loop().create_task(take(consumer))
        cursor = consumer._prefetch.cursors
        await until(lambda: PLACE in cursor and cursor[PLACE].fetch_offset >= first)
        await fill(bootstrap, 10, first=30)
        assert (await reading)[0] == first


async def test_a_member_that_has_not_joined_has_no_commits(bootstrap: str) -> None:
    """A member that has not joined yet gets no committed offsets."""
    async with consumer_of(bootstrap) as consumer:
        assert await consumer.committed([PLACE]) == {PLACE: None}


async def test_reading_to_an_end_does_not_wait_for_a_revoked_partition(bootstrap: str) -> None:
    """A read up to an end offset returns when the partition is revoked, before or during the wait for a batch."""
    gone, offsets = asyncio.Event(), []
    async with consumer_of(bootstrap, on_revoked=lambda _: gone.set()) as consumer:
        await until(lambda: PLACE in consumer.assignment)
        async for batch in consumer.batches(await consumer.end_offsets()):
            offsets.append(batch.base_offset)
            session = consumer._session
            assert session is not None
            await session._calls.leave(static=False)
            await gone.wait()
        with raises(SettingError, "flights-7"):
            await anext(consumer.batches({TopicPartition("flights", 7): 1}))

    assert offsets == [0]


async def test_a_member_that_is_started_again_is_a_new_one(bootstrap: str) -> None:
    """A consumer that is started again is a new member, and gets the uncommitted batch of the failed run again."""
    consumer = consumer_of(bootstrap)
    with suppress(CrashError):
        async with consumer:
            member_id = consumer.membership.member_id
            await take(consumer)
            raise CrashError
    async with consumer:
        assert await take(consumer) == list(range(10))
        assert consumer.membership.member_id != member_id


async def test_paused_partitions_continue_at_their_position(bootstrap: str) -> None:
    """Records that were prefetched are not delivered while their partition is paused."""
    async with consumer_of(bootstrap) as consumer:
        assert await take(consumer) == list(range(10))
        consumer.pause(PLACE)
        assert consumer.paused == {PLACE}
        assert await consumer.next_batch(timeout="100ms") is None
        consumer.resume()
        assert await take(consumer) == list(range(10, 20))


async def test_an_error_of_a_callback_is_raised_to_the_reader(bootstrap: str) -> None:
    """An error in a callback is raised by the reading call, the only call that can raise it to the program."""

    def assigned(_: frozenset[TopicPartition]) -> None:
        """Raise an error."""
        raise CrashError

    async with consumer_of(bootstrap, on_assigned=assigned) as consumer:
        with pytest.raises(CrashError):
            await consumer.next_batch(timeout="30s")
        assert await take(consumer) == list(range(10))


async def test_a_callback_cannot_close_its_consumer(bootstrap: str) -> None:
    """A consumer cannot be closed in its own callback, and a consumer that has not joined yet closes at once."""
    async with consumer_of(bootstrap):
        pass

    async def assigned(_: frozenset[TopicPartition]) -> None:
        """Close the consumer, which waits for this callback."""
        await consumer.close()

    consumer = consumer_of(bootstrap, on_assigned=assigned)
    async with consumer:
        with pytest.raises(SettingError) as refused:
            await consumer.next_batch(timeout="30s")
        assert refused.value.name == "close"
        assert await take(consumer) == list(range(10))


async def test_groups_are_administered(bootstrap: str, admin: Admin) -> None:
    """Groups are listed and described with their lag, reset and deleted by the admin client."""
    async with consumer_of(bootstrap) as consumer:
        await take(consumer)
        described = await admin.describe_group("g")
        assert [member.member_id for member in described.members] == [consumer.membership.member_id]
    [summary] = await admin.list_groups()
    lag = await admin.group_lag("g")
    assert (summary.group, lag.total_records) == ("g", 20)
    shown = await admin.reset_group_offsets("g", "earliest", dry_run=True)
    assert [(entry.before, entry.after) for entry in shown.offsets] == [(10, 0)]
    assert await committed(admin) == 10
    await admin.reset_group_offsets("g", "latest", topics=[PLACE])
    assert await committed(admin) == 30
    # A single topic can be given as a string, as with a consumer.
    await admin.reset_group_offsets("g", "earliest", "flights")
    assert (await admin.group_offsets("g", "flights"))[PLACE].offset == 0
    assert list(await admin.delete_group_offsets("g", "flights")) == [PLACE]
    await admin.delete_group("g")
    assert await admin.list_groups() == []
