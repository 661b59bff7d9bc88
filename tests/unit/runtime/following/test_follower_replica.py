"""A follower with a real log that copies records over a failing link and a failing disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Acks, LeaderEpoch, Offset, Revision, TimestampUs
from fairlead_broker.log import DamagedRange, PartitionLog
from fairlead_broker.registry.metadata import Versioned
from fairlead_broker.registry.records import DurabilityState, InSync
from fairlead_broker.replication import EpochStart
from fairlead_broker.runtime.following.move_throttle import MoveThrottle
from following_kit import RealFollower, everything, start_following
from leading_kit import LEADER, SECOND, Leading, Tasks, start_leading
from log_kit import FaultyStorage, SteppingClock, TightStorage
from waiting import until

BOTH = pytest.mark.parametrize("durability", [DurabilityState.REPLICATED, DurabilityState.SYNCED])
PAIR = (LEADER, SECOND)


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Yield tasks that are cancelled at the end of the test."""
    tasks = Tasks()
    yield tasks
    await tasks.end()


@BOTH
async def test_copies_are_acknowledged(tmp_path: Path, tasks: Tasks, durability: DurabilityState) -> None:
    """A batch with acks=all is acknowledged when the follower has it, synced if needed, without a further long poll."""
    leading = await start_leading(tmp_path, tasks, isr=PAIR, durability=durability)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    for number in range(20):
        await leading.produce(b"value %d" % number, b"x" * 1000 * number)
    copied = await follower.caught_up(40)

    assert copied == everything(leading.partition.log)
    if durability is DurabilityState.SYNCED:
        assert follower.log.synced_offset == 40
    await until(lambda: follower.log.checkpoint_high_watermark == 40)


async def test_a_lost_report_is_made_good_by_the_next_fetch(tmp_path: Path, tasks: Tasks) -> None:
    """A lost progress report is repeated in the next fetch."""
    leading = await start_leading(tmp_path, tasks, isr=PAIR, durability=DurabilityState.SYNCED)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    follower.link.silent = True
    answer = await leading.produce(b"value")

    assert answer.base_offset == 0


async def test_a_follower_reports_its_new_log_start(tmp_path: Path, tasks: Tasks) -> None:
    """A follower reports its new log start offset to the leader even if nothing else has changed."""
    leading = await start_leading(tmp_path, tasks, isr=PAIR, durability=DurabilityState.SYNCED)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await leading.produce(b"value")
    await until(lambda: [told.synced_offset for told in follower.fetcher._reported.values()] == [1])
    leading.partition.log.advance_log_start(Offset(1), remove_us=TimestampUs(0))
    leading.partition.leadership.log_start_moved(Offset(1))

    assert await leading.partition.leadership.low_watermark(Offset(1), 10)
    assert follower.log.log_start_offset == 1


async def test_whatever_the_link_does_the_copy_is_whole(tmp_path: Path, tasks: Tasks) -> None:
    """Lost calls, lost answers and flipped bits delay the copy but do not change it."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1, partitions=3)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    follower.link.faults += ["away", "lost", "", "flipped", "lost", "", "", "flipped", "away", "away"]
    for number in range(30):
        await leading.produce(b"value %d" % number, partition=number % 3, acks=Acks.LEADER)
        if number % 10 == 9:
            leading.pass_time(2.0)
            follower.fetcher.try_again()

    def over() -> bool:
        leading.clock.time_us += 10_000  # This clock decides how long a refused partition pauses.
        return not follower.link.faults or follower.log.end_offset == 10

    await until(over)
    follower.link.faults.clear()
    leading.clock.time_us += 5_000_000
    follower.fetcher.try_again()

    for index in range(3):
        assert await follower.caught_up(10, index) == everything(leading.partitions[index].log)


async def test_only_what_changed_is_named(tmp_path: Path, tasks: Tasks) -> None:
    """An idle partition is named only once in a fetch session."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1, partitions=5)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await until(lambda: all(each.leader_end_offset == 0 for each in follower.partitions))
    follower.link.requests.clear()
    for number in range(10):
        await leading.produce(b"value %d" % number, acks=Acks.LEADER)
        await follower.caught_up(number + 1)
    named = [spec.partition for request in follower.link.requests for spec in request.partitions]
    sessions = {request.session for request in follower.link.requests}

    assert len(sessions) == 1
    assert set(named) == {0}


async def test_a_full_disk_keeps_it_back_and_no_more(tmp_path: Path, tasks: Tasks) -> None:
    """A follower with a full disk resumes at its log end when the disk has space."""
    storage = FaultyStorage()
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    follower = await start_following(tmp_path, leading, SECOND, tasks, storage)
    await leading.produce(b"a" * 500, acks=Acks.LEADER)
    await follower.caught_up(1)
    storage.room_bytes = 900
    for _ in range(5):
        await leading.produce(b"b" * 500, acks=Acks.LEADER)
    await until(lambda: bool(follower.fetcher._resting))
    during = follower.log.end_offset
    storage.room_bytes = None
    leading.clock.time_us += 5_000_000
    copied = await follower.caught_up(6)

    assert during < 6
    assert copied == everything(leading.partition.log)
    assert not leading.failures


async def test_a_full_disk_is_freed_where_the_leader_has_let_records_go(tmp_path: Path, tasks: Tasks) -> None:
    """The leader's new log start frees a follower's full disk, whose checkpoint uses the pages of removed indexes."""
    storage = TightStorage()
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    follower = await start_following(tmp_path, leading, SECOND, tasks, storage)
    follower.log.update_config(TopicConfig(segment_bytes=600))
    for number in range(5):
        await leading.produce(b"a" * 500, acks=Acks.LEADER)
        await follower.caught_up(number + 1)
    first = follower.log.segments[0].path
    storage.fill()
    leading.partition.log.advance_log_start(Offset(4), remove_us=TimestampUs(0))
    leading.partition.leadership.log_start_moved(Offset(4))

    await until(lambda: follower.log.segments[0].base_offset == 4)
    assert follower.log.log_start_offset == 4
    follower.log.remove_dropped(TimestampUs(2**62))
    assert not first.exists()


async def test_records_behind_an_accepted_loss_are_copied(tmp_path: Path, tasks: Tasks) -> None:
    """A follower immediately copies the records after a loss that an operator has accepted."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    log = leading.partition.log
    await leading.produce(b"whole", acks=Acks.LEADER)
    await leading.produce(b"lost", acks=Acks.LEADER)
    log.note_damage([DamagedRange(Offset(1), Offset(2))])
    assert log.accept_damage(Offset(1), Offset(2))
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await follower.caught_up(2)
    session = leading.serving._sessions[SECOND]
    await until(lambda: session._parked is not None and not session.ready())
    await leading.produce(b"behind", acks=Acks.LEADER)
    await until(lambda: follower.log.end_offset == 3)

    assert follower.log.read(Offset(1), 1 << 20, Offset(3)).next_offset == 3


@BOTH
async def test_an_accepted_loss_at_the_end_keeps_no_replica_out_of_the_isr(
    tmp_path: Path, tasks: Tasks, durability: DurabilityState
) -> None:
    """A follower skips an accepted loss at the log end and joins the ISR, so that no offset is assigned twice."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1, durability=durability)
    log, leadership = leading.partition.log, leading.partition.leadership
    await leading.produce(b"whole", acks=Acks.ALL)
    await leading.produce(b"lost", acks=Acks.ALL)
    log.note_damage([DamagedRange(Offset(1), Offset(2))])
    assert log.accept_damage(Offset(1), Offset(2))
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await until(lambda: SECOND in {entry.broker for entry in leadership.machine.record.isr})

    assert follower.log.end_offset == follower.log.synced_offset == 2
    assert follower.log.damaged == log.damaged


async def test_a_follower_learns_every_lost_epoch(tmp_path: Path, tasks: Tasks) -> None:
    """A follower learns the epochs of lost records, because a leader truncates replicas with epochs unknown to it."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    log = leading.partition.log
    await leading.produce(b"of an older epoch", acks=Acks.ALL)
    await leading.produce(b"lost as well", acks=Acks.ALL)
    log._epochs.replace(
        [EpochStart(LeaderEpoch(3), Offset(0)), EpochStart(log.leader_epochs[0].epoch, Offset(1))]
    )
    log.note_damage([DamagedRange(Offset(0), Offset(2))])
    assert log.accept_damage(Offset(0), Offset(2))
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await follower.caught_up(2)

    assert [start.epoch for start in log.leader_epochs] == [3, leading.partition.leader_epoch]
    assert follower.log.leader_epochs == log.leader_epochs


async def test_records_that_the_leader_never_had_are_cut(tmp_path: Path, tasks: Tasks) -> None:
    """A log with records of an epoch that the leader never had is cut, and then equals the leader's log."""
    leading, follower, log = await _parted(tmp_path, tasks)
    follower.partitions.clear()
    follower.follow(0, await leading.stored(), log)
    await leading.produce(b"next", acks=Acks.LEADER)

    assert await follower.caught_up(2) == everything(leading.partition.log)
    assert [start.epoch for start in log.leader_epochs] == [5]


async def test_an_emptied_log_beyond_an_uncleanly_elected_leader_restarts(
    tmp_path: Path, tasks: Tasks
) -> None:
    """An emptied log restarts if an uncleanly elected leader does not have the epoch of its deleted records."""
    leading, follower, log = await _parted(tmp_path, tasks)
    log.checkpoint_high_watermark = Offset(1)
    log.advance_log_start(Offset(1))
    follower.partitions.clear()
    await leading.produce(b"next", acks=Acks.LEADER)
    follower.follow(0, await leading.stored(), log)

    assert await follower.caught_up(2) == everything(leading.partition.log)
    assert log.log_start_offset == 0


async def test_a_restarted_log_keeps_the_epoch_of_deleted_records(tmp_path: Path, tasks: Tasks) -> None:
    """A restarted log keeps the epoch of the deleted records, which shows that a later leader lacks these records."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await leading.produce(b"first", acks=Acks.LEADER)
    await leading.produce(b"second", acks=Acks.LEADER)
    await follower.caught_up(2)
    await until(lambda: leading.partition.log.checkpoint_high_watermark == 2)
    partition = follower.partitions[0]
    follower.fetcher.remove(partition)
    await partition.close()
    partition.log.restart_at(Offset(0))
    leading.partition.log.advance_log_start(Offset(2), remove_us=TimestampUs(0))
    leading.partition.leadership.log_start_moved(Offset(2))
    follower.partitions.clear()
    follower.follow(0, await leading.stored(), partition.log)

    await follower.caught_up(2)
    assert (partition.log.log_start_offset, partition.log.last_epoch) == (2, leading.partition.leader_epoch)


async def test_closing_waits_for_the_disk(tmp_path: Path, tasks: Tasks) -> None:
    """A closed follower waits for its disk, and appends nothing afterwards."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await leading.produce(b"value")
    await follower.caught_up(1)
    partition = follower.partitions[0]
    partition.begin_work()
    closing = asyncio.ensure_future(partition.close())
    await leading.produce(b"late", acks=Acks.LEADER)
    before = closing.done()
    partition.end_work()
    await closing

    assert not before
    assert partition.next_fetch() is None
    assert follower.log.end_offset == 1


async def _parted(tmp_path: Path, tasks: Tasks) -> tuple[Leading, RealFollower, PartitionLog]:
    """Return a leader with one record, and a follower with that record in an epoch that the leader never had."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await leading.produce(b"common", acks=Acks.LEADER)
    await follower.caught_up(1)
    partition = follower.partitions[0]
    follower.fetcher.remove(partition)
    await partition.close()
    log = partition.log
    part = memoryview(bytearray(everything(log)))
    log.restart_at(Offset(0))
    log.begin_epoch(LeaderEpoch(3))
    log.append_copies(_in_epoch(part, 3))
    return leading, follower, log


def _in_epoch(data: memoryview, epoch: int) -> memoryview:
    """Return a batch with the leader epoch of a different leader."""
    from fairlead_api.batch.header import STAMP_BYTES, make_stamp, read_header

    header = read_header(data)
    stamp = make_stamp(header, header.base_offset, epoch, header.append_time_us)
    return memoryview(stamp + bytes(data[STAMP_BYTES:]))


async def test_an_added_replica_is_copied_at_the_rate_until_it_is_in_sync(
    tmp_path: Path, tasks: Tasks
) -> None:
    """A replica added by a move copies at most the configured bytes a second; in-sync replicas have no limit."""
    rate, leading = 1_000_000, await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    await leading.put(msgspec.structs.replace(await leading.stored(), adding=(SECOND,)))
    for _ in range(20):
        await leading.produce(b"x" * 50_000, acks=Acks.LEADER)
    follower = await start_following(tmp_path, leading, SECOND, tasks, bytes_per_second=rate)
    began = leading.clock.monotonic()

    def over() -> bool:
        leading.clock.time_us += 10_000
        return follower.log.end_offset == 20

    await until(over)
    seconds = leading.clock.monotonic() - began
    largest = max(spec.max_bytes for request in follower.link.requests for spec in request.partitions)
    [partition] = follower.partitions
    both = tuple(InSync(broker=broker, broker_epoch=leading.epochs[broker]) for broker in PAIR)
    joined = msgspec.structs.replace(await leading.stored(), isr=both)
    partition.record_changed(Versioned(joined, Revision(2), Revision(1)))
    follower.fetcher.try_again(paced=True)
    for number in range(20):
        await leading.produce(b"x" * 50_000, acks=Acks.LEADER)
        await follower.caught_up(21 + number)

    assert seconds >= (20 * 50_000 - rate // 8) / rate
    assert largest == rate // 8


def test_a_throttle_follows_the_configuration() -> None:
    """A throttle counts the bytes of all partitions, and starts counting again when the rate changes."""
    clock, rates = SteppingClock(time_us=1_000_000), [None, 1000, 1000, 500]
    throttle = MoveThrottle(lambda: rates[0], clock)
    first = throttle.follow_configuration(), throttle.copied(10), throttle.bytes_max(77)
    del rates[0]
    second = throttle.follow_configuration(), throttle.copied(1000), throttle.copied(500)
    del rates[0]
    third = throttle.follow_configuration(), throttle.copied(500)
    del rates[0]
    fourth = throttle.follow_configuration(), throttle.copied(500), throttle.bytes_max(1 << 20)

    assert first == (False, None, 77)
    assert second == (True, 2.0, 2.5)
    assert third == (False, 3.0)
    assert fourth == (True, 2.0, 64 << 10)
