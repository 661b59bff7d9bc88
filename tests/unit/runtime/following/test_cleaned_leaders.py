"""Followers that return after their leader has cleaned its log: no deleted key returns, and merged batches fit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from cleaning_kit import clean_log, committed, newest, order_for, roll
from fairlead_api.batch.batches import encode, record_batch
from fairlead_api.batch.header import STAMP_BYTES, make_stamp, read_header
from fairlead_api.identifiers import Acks, Offset, TimestampUs
from fairlead_broker.compaction.fates import VERBATIM_BYTES
from fairlead_broker.log import PartitionLog
from fairlead_broker.log.cleaning.rounds import GroupCleaned, clean
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.registry.records import InSync, PartitionRecord, Quorum
from fairlead_broker.runtime.leading.producing import ProduceItem
from following_kit import RealFollower, everything, start_following
from leading_kit import LEADER, LEADER_EPOCH, SECOND, Leading, Tasks, start_leading
from log_kit import FIRST_TIME_US
from waiting import until

LATER_US = FIRST_TIME_US + 10**12


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Yield tasks that are cancelled at the end of the test."""
    tasks = Tasks()
    yield tasks
    await tasks.end()


async def put(leading: Leading, key: bytes, value: bytes | None) -> None:
    """Produce one record with a key."""
    columns = record_batch([value], [key], [FIRST_TIME_US], default_timestamp_us=0)
    item = ProduceItem(leading.partition, memoryview(encode(columns).to_bytes()))
    await leading.producing.produce([item], acks=Acks.LEADER, timeout_seconds=30.0)


async def begun(tmp_path: Path, tasks: Tasks) -> tuple[Leading, RealFollower]:
    """Return a leader with two keys, and a follower outside the isr that has copied both."""
    leading = await start_leading(tmp_path, tasks, isr=(LEADER,), min_isr=1)
    follower = await start_following(tmp_path, leading, SECOND, tasks)
    await put(leading, b"kept", b"1")
    await put(leading, b"deleted", b"1")
    await follower.caught_up(2)
    return leading, follower


IN_MODES = pytest.mark.parametrize("mode", ["isr", "quorum"])


async def stored_as(leading: Leading, mode: str) -> PartitionRecord:
    """Return the stored record, with the leader and the follower as voters in mode `quorum`."""
    record = await leading.stored()
    if mode == "isr":
        return record
    voters = tuple(InSync(broker=broker, broker_epoch=leading.epochs[broker]) for broker in (LEADER, SECOND))
    return replace(record, quorum=Quorum(write=1, voters=voters))


async def away(follower: RealFollower) -> PartitionLog:
    """Stop following, and return the follower's log."""
    partition = follower.partitions.pop()
    follower.fetcher.remove(partition)
    await partition.close()
    return partition.log


async def settled(leading: Leading, end: int) -> PartitionLog:
    """Wait until the leader has committed everything alone, close its last segment, and return its log."""
    log = leading.partition.log

    def committed_alone() -> bool:
        leading.pass_time(1)
        return (
            log.checkpoint_high_watermark == end and len(leading.partition.leadership.machine.record.isr) == 1
        )

    await until(committed_alone)
    roll(log)
    return log


@IN_MODES
async def test_a_follower_that_missed_a_removed_tombstone_copies_again(
    tmp_path: Path, tasks: Tasks, mode: str
) -> None:
    """A deleted key does not return with a follower that was away while the key's tombstone was removed."""
    leading, follower = await begun(tmp_path, tasks)
    log = await away(follower)
    await put(leading, b"deleted", None)
    led = await settled(leading, 3)
    clean_log(led, FIRST_TIME_US)
    clean_log(led, LATER_US, removal_limit=3)
    deleted_before = newest(committed(log))
    follower.follow(0, await stored_as(leading, mode), log)
    await follower.caught_up(3)

    assert b"deleted" in deleted_before
    assert newest(committed(log)).keys() == {b"kept"}
    assert everything(log) == everything(led)
    assert log.cleaning.removed == led.cleaning.removed == 3


@IN_MODES
async def test_a_follower_inside_a_merged_batch_takes_the_whole_batch(
    tmp_path: Path, tasks: Tasks, mode: str
) -> None:
    """A follower whose log ends inside a batch that its leader has merged is cut to the base of the merged batch."""
    leading, follower = await begun(tmp_path, tasks)
    log = await away(follower)
    await put(leading, b"later", b"2")
    led = await settled(leading, 3)
    clean_log(led, FIRST_TIME_US)
    follower.follow(0, await stored_as(leading, mode), log)
    copied = await follower.caught_up(3)

    assert copied == everything(led)
    assert len({record.offset for record in committed(log)}) == 3
    assert log.synced_offset == 3


async def test_a_cleaned_log_that_is_cut_below_its_cleaned_offset_is_copied_again(
    tmp_path: Path, tasks: Tasks
) -> None:
    """A follower that dropped a record in favour of a newer record gets it back if the leader lacks the newer one."""
    leading, follower = await begun(tmp_path, tasks)
    # A large batch is not merged with its neighbours.
    await put(leading, b"large", bytes(VERBATIM_BYTES))
    await follower.caught_up(3)
    log = await away(follower)
    data = encode(record_batch([b"2"], [b"kept"], [FIRST_TIME_US], default_timestamp_us=0)).to_bytes()
    stamp = make_stamp(read_header(data), Offset(3), LEADER_EPOCH, TimestampUs(FIRST_TIME_US))
    log.append_copies(memoryview(stamp + data[STAMP_BYTES:]), Offset(3), LEADER_EPOCH)
    log.checkpoint_high_watermark = Offset(4)
    roll(log)
    clean_log(log, FIRST_TIME_US)
    cleaned = [record.offset for record in committed(log)]
    stored = await leading.stored()
    leader_alone = tuple(entry for entry in stored.isr if entry.broker == LEADER)
    follower.follow(0, replace(stored, isr=leader_alone), log)
    copied = await follower.caught_up(3)

    assert cleaned == [1, 2, 3]
    assert copied == everything(leading.partition.log)


async def test_a_merged_batch_that_begins_below_the_log_start_is_taken(tmp_path: Path, tasks: Tasks) -> None:
    """A follower whose log ends inside a merged batch that begins below the leader's log start takes the batch."""
    leading, follower = await begun(tmp_path, tasks)
    log = await away(follower)
    await put(leading, b"later", b"2")
    led = await settled(leading, 3)
    clean_log(led, FIRST_TIME_US)
    led.advance_log_start(Offset(1))
    follower.follow(0, await leading.stored(), log)
    copied = await follower.caught_up(3)

    assert copied == everything(led)
    assert [record.offset for record in committed(log)] == [1, 2]
    assert (log.log_start_offset, log.synced_offset) == (1, 3)


async def test_a_copy_is_as_little_cleaned_as_its_source(tmp_path: Path, tasks: Tasks) -> None:
    """A replica that lost its end, and whose new leader removed less, adopts the leader's `removed`."""
    leading, follower = await begun(tmp_path, tasks)
    log = await away(follower)
    log.truncate_to(Offset(1))
    log.take_removed(Offset(2))
    follower.follow(0, await leading.stored(), log)
    await follower.caught_up(2)

    assert (log.cleaning.removed, log.cleaning.lacks_below) == (1, 1)


async def test_a_follower_that_is_cut_before_its_tombstone_copies_again(tmp_path: Path, tasks: Tasks) -> None:
    """A follower that ends inside a merged batch without its tombstone does not restore the deleted key."""
    leading, follower = await begun(tmp_path, tasks)
    await put(leading, b"large", bytes(VERBATIM_BYTES))
    await put(leading, b"deleted", None)
    await follower.caught_up(4)
    log = await away(follower)
    await put(leading, b"later", b"2")
    led = await settled(leading, 5)
    clean_log(led, FIRST_TIME_US)
    clean_log(led, LATER_US, removal_limit=5)
    follower.follow(0, await leading.stored(), log)
    await follower.caught_up(5)

    assert led.cleaning.removed == 4
    assert newest(committed(log)).keys() == {b"kept", b"large", b"later"}
    assert everything(log) == everything(led)
    assert log.cleaning.removed == 4


async def test_a_follower_whose_swap_was_interrupted_copies_again(tmp_path: Path, tasks: Tasks) -> None:
    """A crash before a swap leaves a deleted record with the follower, which does not restore the deleted key."""
    leading, follower = await begun(tmp_path, tasks)
    await put(leading, b"large", bytes(VERBATIM_BYTES))
    await put(leading, b"deleted", None)
    await follower.caught_up(4)
    log = await away(follower)
    roll(log)
    log.checkpoint_high_watermark = Offset(4)
    clean_log(log, FIRST_TIME_US)
    order, _ = order_for(log, LATER_US, removal_limit=4)
    [group] = [event for event in clean(order, PosixStorage()) if isinstance(event, GroupCleaned)]
    log._announce(group)
    announced = log.cleaning
    await put(leading, b"later", b"2")
    led = await settled(leading, 5)
    clean_log(led, FIRST_TIME_US)
    clean_log(led, LATER_US, removal_limit=5)
    follower.follow(0, await leading.stored(), log)
    await follower.caught_up(5)

    assert newest(committed(log)).keys() == {b"kept", b"large", b"later"}
    assert everything(log) == everything(led)
    assert (announced.removed, announced.lacks_below) == (0, 4)
    assert led.cleaning.removed == log.cleaning.removed == log.cleaning.lacks_below == 4
