"""Fetches from followers: sessions, the long poll, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fairlead_api.identifiers import Acks, BrokerEpoch, LeaderEpoch, Offset, PartitionIndex
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.peers.messages import NEW_SESSION, PeerIncarnation
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.peer_serving.replica_serving import IDLE_SECONDS_MAX
from leading_kit import LEADER_EPOCH, SECOND, Leading, Tasks, start_leading

StartLeading = Callable[..., Awaitable[Leading]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartLeading]:
    """Start one leader, and stop it at the end of the test."""
    tasks = Tasks()

    async def start_one(**fields: object) -> Leading:
        return await start_leading(tmp_path, tasks, **fields)  # type: ignore[arg-type]

    yield start_one
    await tasks.end()


class TestSessions:
    """Fetch sessions, which transfer only changes (KIP-227)."""

    async def test_partition_is_answered_at_once_the_first_time_and_then_only_with_news(
        self, start: StartLeading
    ) -> None:
        """The first fetch of a partition is answered at once, and later fetches only after a change."""
        leading = await start(partitions=3)
        second = leading.follower()

        first = await second.fetch(10_000)
        idle = await second.fetch()
        await leading.produce(b"a", acks=Acks.LEADER, partition=1)
        news = await second.fetch(10_000)

        assert [(each.partition, each.end_offset, each.problem) for each in first] == [
            (0, 0, None),
            (1, 0, None),
            (2, 0, None),
        ]
        assert idle == []
        assert [each.partition for each in news] == [1]
        assert second.copies[1].end == 1

    async def test_what_was_sent_is_sent_again_only_when_it_is_named_again(self, start: StartLeading) -> None:
        """Records that were sent are sent again only if the follower names their partition again."""
        leading = await start()
        second = leading.follower()
        await leading.produce(b"a", acks=Acks.LEADER)
        [sent] = await second.fetch()
        second.copy.named = True

        nothing = await second.fetch()
        second.copy.named, second.copy.end = False, Offset(0)
        second.copy.last_epoch = None
        [again] = await second.fetch()

        assert nothing == []
        assert bytes(again.data[0]) == bytes(sent.data[0])

    async def test_unknown_session_and_repeated_request_restart_the_session(
        self, start: StartLeading
    ) -> None:
        """An unknown session and a repeated request are answered without partitions, and the session restarts."""
        leading = await start()
        second = leading.follower()
        await second.fetch()
        second.sequence -= 1

        repeated = await second.fetch()
        fresh = await second.fetch()
        second.session += 1
        unknown = await second.fetch()

        assert (repeated, unknown) == ([], [])
        assert [each.partition for each in fresh] == [0]
        assert second.session == NEW_SESSION

    async def test_another_incarnation_of_the_follower_starts_a_session(self, start: StartLeading) -> None:
        """A fetch from a new incarnation of the follower starts a new session."""
        leading = await start()
        second = leading.follower()
        await second.fetch()
        second.life = PeerIncarnation(SECOND, BrokerEpoch(second.life.epoch + 50))

        assert await second.fetch() == []
        assert second.session == NEW_SESSION

    async def test_forgotten_partition_is_left_out(self, start: StartLeading) -> None:
        """A partition that the follower removed from its session is left out of the answers."""
        leading = await start(partitions=2)
        second = leading.follower()
        await second.fetch()
        await second.fetch(forgotten=[0])

        await leading.produce(b"a", acks=Acks.LEADER)
        await leading.produce(b"b", acks=Acks.LEADER, partition=1)
        told = await second.fetch(10_000)

        assert [each.partition for each in told] == [1]
        assert leading.serving.followed_partitions == 1

    async def test_unused_session_expires(self, start: StartLeading) -> None:
        """A fetch session that is not used expires."""
        leading = await start()
        await leading.follower().fetch()
        leading.serving.drop_idle()
        kept = leading.serving.followed_partitions

        leading.clock.time_us += int((IDLE_SECONDS_MAX + 31) * 1e6)
        leading.serving.drop_idle()

        assert (kept, leading.serving.followed_partitions) == (1, 0)

    async def test_large_answers_are_cut_and_no_partition_starves(self, start: StartLeading) -> None:
        """An answer that would be too large omits partitions, which come first in the next answer."""
        leading = await start(partitions=3)
        second = leading.follower()
        await second.fetch()
        for partition in range(3):
            await leading.produce(b"x" * 5000, acks=Acks.LEADER, partition=partition)

        answers = [
            [each.partition for each in await second.fetch(max_bytes=6000) if each.data] for _ in range(3)
        ]

        assert [len(each) for each in answers[:2]] == [2, 1]
        assert sorted(answers[0] + answers[1]) == [0, 1, 2]


class TestWaiting:
    """Fetches from followers that wait for new records."""

    async def test_append_wakes_it(self, start: StartLeading) -> None:
        """An append ends a follower's wait, even before the leader's own fsync."""
        leading = await start()
        second = leading.follower()
        await second.fetch()
        parked = asyncio.ensure_future(second.fetch(30_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait

        await leading.produce(b"a", acks=Acks.LEADER)
        [told] = await asyncio.wait_for(parked, 10)

        assert told.end_offset == 1
        assert len(told.data) == 1

    async def test_moved_high_watermark_wakes_it_without_data(self, start: StartLeading) -> None:
        """A new high watermark ends a follower's wait, with an answer without records."""
        leading = await start(isr=(1, 2))
        second = leading.follower()
        await leading.produce(b"a", acks=Acks.LEADER)
        await second.fetch()

        # This fetch reports that the follower has the record, which advances the high watermark.
        [told] = await second.fetch(30_000)

        assert (told.high_watermark, list(told.data)) == (1, [])
        assert second.copy.high_watermark == 1

    async def test_log_start_that_retention_moved_is_sent(self, start: StartLeading) -> None:
        """A log start that retention moved is sent to followers, because followers do not evaluate retention."""
        leading = await start(isr=(1, 2))
        second = leading.follower()
        await leading.produce(b"a", b"b", acks=Acks.LEADER)
        await second.catch_up()
        await second.fetch()
        parked = asyncio.ensure_future(second.fetch(30_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait

        leading.partition.log.move_log_start(Offset(1))
        leading.pass_time(1)
        [told] = await asyncio.wait_for(parked, 10)

        assert (told.log_start, list(told.data)) == (1, [])

    async def test_an_answer_without_records_names_removed_tombstones(self, start: StartLeading) -> None:
        """A round of the leader that removes tombstones tells followers of an idle partition, which wait for it."""
        leading = await start(isr=(1, 2))
        second = leading.follower()
        await leading.produce(b"a", b"b", acks=Acks.LEADER)
        await second.catch_up()
        await second.fetch()
        parked = asyncio.ensure_future(second.fetch(30_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait

        leading.partition.log.note_removed(Offset(2))
        leading.partition.tombstones_removed()
        [told] = await asyncio.wait_for(parked, 10)
        leading.partition.tombstones_removed()

        assert (told.removed, list(told.data)) == (2, [])
        assert await second.fetch() == []

    async def test_wait_ends_with_nothing(self, start: StartLeading) -> None:
        """A wait that expires is answered without partitions."""
        leading = await start()
        second = leading.follower()
        await second.fetch()

        assert await second.fetch(20) == []

    async def test_newer_fetch_of_the_session_takes_over(self, start: StartLeading) -> None:
        """A newer fetch in a session ends the wait of the earlier fetch, and only the newer fetch gets the records."""
        leading = await start()
        second = leading.follower()
        await second.fetch()
        given_up = asyncio.ensure_future(second.fetch(30_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        second.sequence += 1
        newer = asyncio.ensure_future(second.fetch(30_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait

        await leading.produce(b"a", acks=Acks.LEADER)
        [told] = await asyncio.wait_for(newer, 10)

        assert await given_up == []
        assert told.end_offset == 1

    async def test_stop_answers_it(self, start: StartLeading) -> None:
        """A stop of the broker answers waiting fetches and refuses new fetches."""
        leading = await start()
        second = leading.follower()
        await second.fetch()
        parked = asyncio.ensure_future(second.fetch(30_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait

        leading.serving.answer_all()

        assert await asyncio.wait_for(parked, 10) == []


class TestRefusals:
    """Fetches that are refused with a reason, and whose reported offsets are ignored."""

    async def test_diverged_log_is_refused_with_the_offset(self, start: StartLeading) -> None:
        """A log with records of an epoch that the leader never had is refused with the offset of divergence."""
        leading = await start()
        second = leading.follower()
        await leading.produce(b"a", acks=Acks.LEADER)
        second.copy.end, second.copy.last_epoch = Offset(3), LeaderEpoch(4)

        [told] = await second.fetch()

        assert told.diverging is not None
        assert told.diverging.end_offset == 0
        assert leading.partition.leadership.machine.counted_of(SECOND) is None

    async def test_offset_outside_the_log(self, start: StartLeading) -> None:
        """An offset outside the leader's log is refused, and the refusal contains the log start and log end."""
        leading = await start()
        second = leading.follower()
        second.copy.end = Offset(7)

        [told] = await second.fetch()

        assert (told.problem, told.log_start, told.end_offset) == ("offset_out_of_range", 0, 0)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"leader_epoch": LeaderEpoch(LEADER_EPOCH - 1)}, "stale_leader_epoch"),
            ({"leader_epoch": LeaderEpoch(LEADER_EPOCH + 1)}, "unknown_leader_epoch"),
            ({"generation": 1}, "conflict"),
        ],
    )
    async def test_report_that_does_not_belong_here(
        self, start: StartLeading, fields: dict[str, int], code: str
    ) -> None:
        """A report from a different leader epoch or generation is refused."""
        leading = await start()
        second = leading.follower()
        for name, value in fields.items():
            setattr(second.copy, name, value)

        [told] = await second.fetch(10_000)

        assert told.problem == code
        assert leading.serving.followed_partitions == 0

    async def test_partition_that_is_not_led_here(self, start: StartLeading) -> None:
        """A fetch for a partition that this broker does not lead is refused with the client's problem code."""
        leading = await start()
        second = leading.follower()
        leading.partition.closed = True

        [told] = await second.fetch(10_000)
        second.progress()

        assert told.problem == "no_leader"

    async def test_read_that_ends_after_the_leadership_is_not_answered(self, start: StartLeading) -> None:
        """A read that completes after the leadership has ended is not answered: the log may have other bytes."""
        storage = PosixStorage()
        storage.reads_cached = False  # Every read uses the thread pool, as on tmpfs.
        leading = await start(storage=storage)
        await leading.produce(b"a", acks=Acks.LEADER)
        reading = asyncio.ensure_future(leading.follower().fetch())
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait

        leading.partition.close(lambda effect: refusals.leader_changed("flights", PartitionIndex(0), effect))
        [told] = await reading

        assert (told.problem, list(told.data)) == ("no_leader", [])
