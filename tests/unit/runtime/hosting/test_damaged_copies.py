"""A damaged log is never cut during an append, and an outdated partition record does not change a replica's role."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from fairlead_api.identifiers import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicIdPartition,
)
from fairlead_api.problems import ProblemError
from fairlead_broker.log import DamagedRange, PartitionLog
from fairlead_broker.log.segments.storage import PosixFile, PosixStorage
from fairlead_broker.registry.records import InSync, PartitionRecord, encode
from fairlead_broker.registry.store_writes import Put
from fairlead_broker.replication import EpochStart, end_before
from fairlead_broker.runtime import Broker, refusals
from fairlead_broker.runtime.hosting.hosted_log import drop_damaged, no_role
from fairlead_broker.runtime.hosting.replicas import _Wanted
from log_kit import BatchMaker, LogBox, begin
from runtime_kit import TopicClient, topic

MakeTopic = Callable[..., Awaitable[TopicClient]]
OTHER = InSync(broker=BrokerId(7), broker_epoch=BrokerEpoch(1))


def damage(log: PartitionLog) -> None:
    """Flip a bit in the middle of the first segment, and record the damage."""
    segment = log.segments[0]
    content = bytearray(segment.path.read_bytes())
    content[len(content) // 2] ^= 1
    segment.path.write_bytes(content)
    found = segment.first_damage(log.log_start_offset)
    assert found is not None
    log.note_damage([found])


async def give_to_another(flights: TopicClient) -> PartitionRecord:
    """Write a partition record with another leader, and wait until the mirror contains the record."""
    entry, parts = flights.broker.entry, flights.broker
    before = parts.metadata.partitions(flights.topic_id)[PartitionIndex(0)].value
    after = msgspec.structs.replace(
        before, leader=OTHER, isr=(OTHER,), leader_epoch=LeaderEpoch(before.leader_epoch + 1)
    )
    name = entry.keys.partition(flights.topic_id, PartitionIndex(0))
    result = await entry.coordination.transact((), (Put(name, encode(after)),))
    await entry.mirror.wait_for(result.revision)
    return before


async def turns(count: int) -> None:
    """Run other tasks for a number of event loop iterations."""
    for _ in range(count):
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def test_an_append_under_way_ends_before_the_cut(make_topic: MakeTopic) -> None:
    """An append that has begun is written before the damaged end is cut, never after the cut."""
    flights = await make_topic()
    for value in (b"a", b"b", b"c"):
        await flights.produce(value * 100)
    parts = flights.broker
    log = flights.handle().log
    damage(log)
    free = threading.Event()
    busy = [parts.disk.submit(free.wait) for _ in range(64)]
    append = asyncio.ensure_future(_outcome(flights.produce(b"late")))
    await turns(20)
    await give_to_another(flights)
    await turns(20)
    cut = asyncio.ensure_future(
        parts.replicas.drop_damaged(TopicIdPartition(flights.topic_id, PartitionIndex(0)))
    )
    await turns(100)
    free.set()
    await asyncio.wait([cut, append, *busy])
    await parts.replicas.settled()

    assert not log.damaged
    assert log.end_offset == 1
    assert log.read(log.log_start_offset, 1 << 20, log.end_offset).next_offset == 1


async def test_a_record_that_was_followed_by_another_gives_no_role(make_topic: MakeTopic) -> None:
    """A partition record that was replaced before it was applied gives the replica no role."""
    flights = await make_topic()
    parts, index = flights.broker, PartitionIndex(0)
    partitions = parts.replicas
    before = parts.metadata.partitions(flights.topic_id)[index]
    view = parts.views.by_id(flights.topic_id)
    assert view is not None
    await give_to_another(flights)
    await partitions.settled()
    hosted = partitions._hosted[flights.topic_id][index]
    partitions._changes.end(hosted, flights.name, refusals.leader_changed)
    await no_role(hosted)
    partitions._take_role(_Wanted(hosted.key, view, before))

    assert hosted.role is None


@pytest.mark.parametrize("damaged", [False, True])
def test_a_copy_that_is_damaged_from_its_start_says_still_what_it_deleted(
    tmp_path: Path, damaged: bool
) -> None:
    """A log that is damaged from its start still reports the epoch of its deleted records."""
    log = LogBox(tmp_path).open()
    begin(log, 6)
    BatchMaker(leader_epoch=6).fill(log, 12, 1)
    log.checkpoint_high_watermark = log.end_offset
    log.advance_log_start(Offset(10 if damaged else 12))
    if damaged:
        log.note_damage([DamagedRange(Offset(10), Offset(12))])
        drop_damaged(log)
    start = log.log_start_offset
    leader = [EpochStart(LeaderEpoch(4), Offset(0)), EpochStart(LeaderEpoch(7), Offset(5))]

    assert (start, log.end_offset, log.last_epoch) == (10 if damaged else 12, start, 6)
    assert end_before(leader, Offset(20), log.last_epoch, start) == 5


class FullStorage(PosixStorage):
    """A disk without room for a checkpoint, until the test frees it."""

    full = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> PosixFile:
        """Open a file, or fail because the disk is full."""
        if self.full and create and ".fairlead" in path.parts:
            raise OSError(errno.ENOSPC, "no space, injected by the test")
        return super().open(path, write=write, create=create)


async def test_a_copy_that_cannot_be_cut_yet_is_given_up_once(
    start_runtime: Callable[..., Awaitable[Broker]],
) -> None:
    """A replica whose log cannot be cut on a full disk gets a new generation once, before the log is cut."""
    storage = FullStorage()
    runtime = await start_runtime(storage, limits={"checkpoint_interval_seconds": 1000})
    flights = await topic(runtime)
    for value in (b"a", b"b", b"c"):
        await flights.produce(value * 100)
    parts, log, index = runtime, flights.handle().log, PartitionIndex(0)
    await give_to_another(flights)
    async with asyncio.timeout(10):
        # Broker 7 is not registered, so the controller writes a partition record without a leader.
        while parts.metadata.partitions(flights.topic_id)[index].value.leader is not None:
            await turns(1)
    await parts.replicas.settled()
    before = parts.metadata.partitions(flights.topic_id)[index].value.replicas[0].generation
    damage(log)
    storage.full = True
    for _ in range(3):
        await parts.damage_repair.look()
    during, kept = parts.metadata.partitions(flights.topic_id)[index].value, log.end_offset
    storage.full = False
    await parts.damage_repair.look()

    assert during.replicas[0].generation - before == 1
    assert kept == 3
    assert log.end_offset < 3


async def _outcome(call: Awaitable[object]) -> str:
    try:
        await call
    except ProblemError as problem:
        return problem.code
    return "stored"
