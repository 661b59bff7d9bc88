"""A leader with followers: acknowledgements, changes to the ISR, the end of a leadership, and deletions."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from fairlead_api.identifiers import Acks, BrokerEpoch, Offset
from fairlead_api.problems import ProblemError, SideEffect
from fairlead_broker.registry.records import DurabilityState
from fairlead_broker.runtime.leading.records_deletion import RecordsDeletion
from leading_kit import (
    BROKERS,
    LAG_SECONDS,
    LEADER,
    SECOND,
    THIRD,
    Follower,
    Leading,
    Tasks,
    replaced,
    start_leading,
)
from log_kit import FaultyStorage
from waiting import until

StartLeading = Callable[..., Awaitable[Leading]]
BOTH = pytest.mark.parametrize("durability", [DurabilityState.REPLICATED, DurabilityState.SYNCED])


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[StartLeading]:
    """Start one leader, and stop it at the end of the test."""
    tasks = Tasks()

    async def start_one(**fields: object) -> Leading:
        return await start_leading(tmp_path, tasks, **fields)  # type: ignore[arg-type]

    yield start_one
    await tasks.end()


async def until_isr(leading: Leading, isr: set[int]) -> None:
    """Wait until the state machine uses the given ISR."""
    await until(lambda: {each.broker for each in leading.partition.leadership.machine.record.isr} == isr)


async def both(*followers: Follower) -> None:
    """Run the fetches with which the given followers catch up and report to the leader."""
    for follower in followers:
        await follower.catch_up()


class TestAcknowledging:
    """Acknowledgements with acks=all, which wait for the whole ISR."""

    @BOTH
    async def test_every_member_of_the_isr_is_waited_for(
        self, start: StartLeading, durability: DurabilityState
    ) -> None:
        """A batch is acknowledged only with the next fetch of the last in-sync follower."""
        leading = await start(durability=durability)
        second, third = leading.follower(SECOND), leading.follower(THIRD)
        await both(second, third)
        waiting = asyncio.ensure_future(leading.produce(b"a", b"b"))
        await until(lambda: leading.partition.log_end_offset == 2)

        await second.catch_up()
        assert not waiting.done()
        await third.fetch()
        assert not waiting.done()
        await third.fetch()

        assert (await waiting).last_offset == 1
        assert leading.partition.high_watermark == 2

    async def test_synced_counts_what_followers_have_synced(self, start: StartLeading) -> None:
        """With durability=synced, the followers' synced offsets count; `progress` reports them without a fetch."""
        leading = await start(durability=DurabilityState.SYNCED, isr=(LEADER, SECOND))
        second = leading.follower(SECOND)
        await second.fetch()
        waiting = asyncio.ensure_future(leading.produce(b"a"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await second.fetch(1000, syncs=False)
        await second.fetch(syncs=False)
        assert not waiting.done()

        second.progress()

        assert (await waiting).last_offset == 0

    async def test_progress_of_another_life_does_not_count(self, start: StartLeading) -> None:
        """Progress reported by an earlier incarnation of a broker is ignored."""
        leading = await start(durability=DurabilityState.SYNCED, isr=(LEADER, SECOND))
        second = leading.follower(SECOND)
        await second.fetch()
        waiting = asyncio.ensure_future(leading.produce(b"a"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await second.fetch(1000, syncs=False)
        await second.fetch(syncs=False)
        second.life = type(second.life)(SECOND, BrokerEpoch(second.life.epoch + 100))

        second.progress()

        assert leading.partition.high_watermark == 0
        waiting.cancel()

    async def test_leader_acks_do_not_wait(self, start: StartLeading) -> None:
        """A batch with acks=1 is acknowledged after the leader's append."""
        leading = await start()

        answer = await leading.produce(b"a", acks=Acks.LEADER)

        assert answer.base_offset == 0

    async def test_too_few_in_sync_is_a_definite_refusal(self, start: StartLeading) -> None:
        """Below min.insync.replicas, a batch with acks=all is refused and not appended."""
        leading = await start(isr=(LEADER,))

        with pytest.raises(ProblemError) as refused:
            await leading.produce(b"a")

        assert (refused.value.code, refused.value.side_effect) == ("not_enough_replicas", SideEffect.NONE)
        assert leading.partition.log_end_offset == 0

    @pytest.mark.slow
    async def test_isr_that_shrinks_below_the_minimum_after_the_append(self, start: StartLeading) -> None:
        """A batch fails with `not_enough_replicas_after_append` if the ISR becomes too small after the append."""
        leading = await start(isr=(LEADER, SECOND))
        second = leading.follower(SECOND)
        await second.fetch()
        waiting = asyncio.ensure_future(leading.produce(b"a", timeout_seconds=2.0))
        await until(lambda: leading.partition.log_end_offset == 1)
        leading.pass_time(LAG_SECONDS + 1)
        await until_isr(leading, {LEADER})

        with pytest.raises(ProblemError) as refused:
            await waiting

        assert refused.value.code == "not_enough_replicas_after_append"
        assert refused.value.side_effect is SideEffect.MAYBE


class TestInSync:
    """Changes to the ISR, which are written by compare-and-set."""

    @BOTH
    async def test_dead_follower_is_dropped_and_comes_back(
        self, start: StartLeading, durability: DurabilityState
    ) -> None:
        """A stopped follower leaves the ISR after the lag time, and joins again when it has caught up."""
        leading = await start(durability=durability)
        second, third = leading.follower(SECOND), leading.follower(THIRD)
        await both(second, third)
        waiting = asyncio.ensure_future(leading.produce(b"a"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await second.catch_up()
        assert not waiting.done()

        leading.pass_time(LAG_SECONDS + 1)

        assert (await waiting).base_offset == 0
        assert await leading.isr() == {LEADER, SECOND}
        assert leading.partition.leadership.under_replicated

        await third.catch_up()
        await until_isr(leading, {*BROKERS})

        assert await leading.isr() == {*BROKERS}
        assert not leading.partition.leadership.under_replicated

    async def test_idle_partition_keeps_its_isr(self, start: StartLeading) -> None:
        """A follower that has caught up stays in the ISR, even if the partition is idle for a long time."""
        leading = await start()
        await both(leading.follower(SECOND), leading.follower(THIRD))

        for _ in range(5):
            leading.pass_time(LAG_SECONDS)

        assert leading.unreliable.transactions == 0
        assert await leading.isr() == {*BROKERS}

    async def test_unknown_outcome_of_a_removal_keeps_the_wait_for_its_follower(
        self, start: StartLeading
    ) -> None:
        """A batch still waits for a follower whose removal has an unknown outcome, until a later removal is stored."""
        leading = await start()
        second = leading.follower(SECOND)
        await both(second, leading.follower(THIRD))
        leading.unreliable.faults = ["lost"]
        waiting = asyncio.ensure_future(leading.produce(b"a"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await second.catch_up()

        leading.pass_time(LAG_SECONDS + 1)
        await until(lambda: leading.unreliable.answered == 1)
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        assert not waiting.done()
        leading.pass_time(1)

        assert (await waiting).base_offset == 0
        assert await leading.isr() == {LEADER, SECOND}

    async def test_write_that_was_stored_without_an_answer(self, start: StartLeading) -> None:
        """The retry of a join that was stored without an answer is refused, and the stored record applies."""
        leading = await start(isr=(LEADER, SECOND))
        second, third = leading.follower(SECOND), leading.follower(THIRD)
        await second.catch_up()
        leading.unreliable.faults = ["applied"]
        await third.catch_up()
        await until(lambda: leading.unreliable.answered == 1)
        waiting = asyncio.ensure_future(leading.produce(b"a"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await second.catch_up()
        assert not waiting.done(), "the third replica may already be in the ISR"

        leading.pass_time(1)
        await until_isr(leading, {*BROKERS})
        await third.catch_up()

        assert (await waiting).base_offset == 0

    async def test_decision_that_waited_too_long_gives_way_to_the_next_one(self, start: StartLeading) -> None:
        """A removal that the controller's change of the ISR has made obsolete is decided again before it is written."""
        leading = await start()
        leadership, before = leading.partition.leadership, await leading.stored()
        controllers = replaced(before, isr=before.isr[:2])
        revision = await leading.put(controllers)
        leading.pass_time(
            LAG_SECONDS + 1
        )  # All followers lag, so a removal is decided on the previous record.
        # The removal is decided again on the new record, before the first decision is written.
        leadership.record_changed(controllers, revision)

        await until_isr(leading, {LEADER})
        assert await leading.isr() == {LEADER}
        assert leading.unreliable.transactions == 1

    async def test_record_that_won_is_read_from_the_store(self, start: StartLeading) -> None:
        """A leader that loses a write to the controller uses the stored partition record before its mirror has it."""
        leading = await start(isr=(LEADER, SECOND))
        second, third = leading.follower(SECOND), leading.follower(THIRD)
        await second.catch_up()
        won = await leading.put(replaced(await leading.stored(), min_isr=1))

        await third.catch_up()
        await until_isr(leading, {*BROKERS})

        assert leading.partition.leadership.machine.min_isr == 1
        assert leading.partition.leadership.machine.revision > won

    async def test_store_that_is_away_is_asked_again(self, start: StartLeading) -> None:
        """A write to an unavailable store is decided again later."""
        leading = await start(isr=(LEADER, SECOND))
        await leading.follower(SECOND).catch_up()
        leading.unreliable.faults = ["away"]

        await leading.follower(THIRD).catch_up()
        async with asyncio.timeout(10):
            while await leading.isr() != {*BROKERS}:
                leading.pass_time(0.1)

    async def test_many_records_are_written_together_and_a_lost_one_holds_no_other(
        self, start: StartLeading
    ) -> None:
        """The records of many partitions are written in one transaction, which is halved if any of them fails."""
        leading = await start(isr=(LEADER, SECOND), partitions=16)
        await leading.follower(SECOND).catch_up()
        await leading.put(replaced(await leading.stored(4), min_isr=1), 4)

        await leading.follower(THIRD).catch_up()
        async with asyncio.timeout(10):
            while any([await leading.isr(each) != {*BROKERS} for each in range(16) if each != 4]):
                leading.pass_time(0.1)

        assert leading.unreliable.transactions < 16


class TestLeadership:
    """The end and the limits of a leadership."""

    async def test_failed_disk_gives_the_leadership_away(self, start: StartLeading) -> None:
        """A leader with a failed disk resigns and leaves the ISR, and waiting batches fail as possibly stored."""
        storage = FaultyStorage()
        leading = await start(durability=DurabilityState.SYNCED, storage=storage)
        await both(leading.follower(SECOND), leading.follower(THIRD))
        storage.sync_error = errno.EIO

        with pytest.raises(ProblemError) as refused:
            await leading.produce(b"a")
        await until(lambda: leading.partition.leadership.machine.resigned)
        record = await leading.stored()

        assert (refused.value.code, refused.value.side_effect) == ("storage_failed", SideEffect.MAYBE)
        assert record.leader is None
        assert {entry.broker for entry in record.isr} == {SECOND, THIRD}

    async def test_lease_in_doubt(self, start: StartLeading) -> None:
        """With an expired lease, acks=all and fetches are served, but weak acks and `latest` are refused."""
        leading = await start()
        second, third = leading.follower(SECOND), leading.follower(THIRD)
        await both(second, third)
        leading.confirmed[0] = False

        with pytest.raises(ProblemError) as weak:
            await leading.produce(b"a", acks=Acks.LEADER)
        with pytest.raises(ProblemError) as latest:
            _ = leading.partition.high_watermark
        waiting = asyncio.ensure_future(leading.produce(b"b"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await both(second, third)
        await waiting
        leading.confirmed[0] = True

        assert weak.value.code == "coordination_unavailable"
        assert latest.value.code == "offset_not_available"
        assert leading.partition.readable_limit == leading.partition.high_watermark == 1

    async def test_alone_and_replaceable_uncleanly_acknowledges_nothing_in_doubt(
        self, start: StartLeading
    ) -> None:
        """With an expired lease, a leader alone in the ISR refuses even acks=all if unclean elections are enabled."""
        leading = await start(isr=(LEADER,), min_isr=1, unclean=True)
        await leading.produce(b"a")
        leading.confirmed[0] = False

        with pytest.raises(ProblemError) as refused:
            await leading.produce(b"b")

        assert refused.value.code == "coordination_unavailable"

    async def test_end_of_a_leadership_answers_waiting_requests(self, start: StartLeading) -> None:
        """When a leadership ends, waiting fetches and batches are answered; a late answer from the store is ignored."""
        leading = await start()
        second = leading.follower(SECOND)
        waiting = asyncio.ensure_future(leading.produce(b"a"))
        await until(lambda: leading.partition.log_end_offset == 1)
        await second.catch_up()
        parked = asyncio.ensure_future(second.fetch(10_000))
        await asyncio.sleep(0)  # noqa: TID251 - yields to the loop once, does not wait
        leading.partition.close(lambda effect: ProblemError("leader_changed", "gone", side_effect=effect))

        with pytest.raises(ProblemError) as refused:
            await waiting
        told = await parked

        assert refused.value.side_effect is SideEffect.MAYBE
        assert "no_leader" in [each.problem for each in told]


class TestDeletion:
    """Calls to delete records, answered when every in-sync replica has the new log start."""

    async def test_waits_for_the_log_starts_of_the_isr(self, start: StartLeading) -> None:
        """A deletion waits until each follower has received the new log start and reported it in its next fetch."""
        leading = await start()
        second, third = leading.follower(SECOND), leading.follower(THIRD)
        await both(second, third)
        waiting = asyncio.ensure_future(leading.produce(b"a", b"b", b"c"))
        await until(lambda: leading.partition.log_end_offset == 3)
        await both(second, third)
        await waiting
        deletion = RecordsDeletion(
            leading.shared.pool, leading.clock, leading.failures.append, lambda *counted: None
        )
        deleting = asyncio.ensure_future(deletion.delete(leading.partition, Offset(2)))
        await until(lambda: leading.partition.log_start_offset == 2)

        for follower in (second, third):
            assert not deleting.done()
            await follower.fetch(10_000)
            await follower.fetch()

        assert await deleting == 2
        assert third.copy.log_start == 2
