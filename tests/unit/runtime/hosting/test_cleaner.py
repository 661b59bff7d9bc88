"""A broker's cleaner with its child process: chosen partitions, replaced segments, failures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from cleaning_kit import SEED, KeyedBatches, committed, roll
from fairlead_api.bodies.cleaning import CleaningOutcome
from fairlead_api.configuration import TopicConfig
from fairlead_api.identifiers import Offset, TopicIdPartition
from fairlead_broker.log import PartitionLog, StorageFailed
from fairlead_broker.log.cleaning.rounds import CleaningOrder
from fairlead_broker.log.segments.storage import PosixStorage
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.hosting.cleaner import (
    FREE_BYTES_MIN,
    IDLE_SECONDS_MAX,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    REMOVAL_SECONDS,
    Cleaner,
    CleanerSettings,
    _Chosen,
)
from fairlead_broker.runtime.hosting.cleaner_meters import CleanerMeters
from fairlead_broker.runtime.hosting.cleaning_child import CleaningChild
from fairlead_broker.runtime.peer_serving.cleaning_requests import CleaningRequests
from fairlead_broker.telemetry import Telemetry
from log_kit import FIRST_TIME_US, OTHER_TOPIC, PARTITION, TOPIC, LogBox, SteppingClock, begin
from waiting import until

CONFIG = TopicConfig(cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.0)


BUFFER_BYTES = 1 << 25
SECONDS_MAX = 120.0
"""Seconds within which a round ends. On a busy machine, the low-priority child process starts slowly."""
KEY = TopicIdPartition(TOPIC, PARTITION)


@dataclass
class Hosted:
    """A replica as the cleaner sees it."""

    log: PartitionLog
    topic: str = "accounts"
    key: TopicIdPartition = KEY
    index: int = 0
    config: TopicConfig = CONFIG
    limit: int | None = None

    def removal_limit(self) -> Offset:
        """Return the limit of the test, or the end of the log."""
        return self.log.end_offset if self.limit is None else Offset(self.limit)


@dataclass
class Kit:
    """A cleaner of one partition, and its reports."""

    box: LogBox
    replica: Hosted
    pool: DiskPool
    partitions: list[Hosted] = field(default_factory=list)
    clock: SteppingClock = field(default_factory=SteppingClock)
    telemetry: Telemetry = field(
        default_factory=lambda: Telemetry(structlog.wrap_logger(structlog.ReturnLogger(), processors=[]))
    )
    failures: list[StorageFailed] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the cleaner, which is not started."""
        self.partitions.append(self.replica)
        self.cleaner = self.cleaner_of(1)

    def cleaner_of(
        self, rounds_max: int, rate: float = 1e12, disk_is_slow: Callable[[], bool] = lambda: False
    ) -> Cleaner:
        """Return a cleaner of the partitions that carries out this number of rounds at the same time.

        `rate`: maximum number of bytes per second.
        """
        return Cleaner(
            lambda: self.partitions,  # type: ignore[arg-type, return-value]
            self.pool,
            self.clock,
            CleanerSettings(rounds_max, BUFFER_BYTES, lambda: 0.01, lambda: rate, disk_is_slow),
            CleanerMeters(self.telemetry),
            CleaningRequests(is_on=True),
            random_bytes=lambda count: SEED[:count],
            failed=self.failures.append,
            log=self.telemetry.log,
        )

    def count(self, name: str, **labels: str) -> float:
        """Return the value of a metric."""
        return self.telemetry.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
async def kit(tmp_path: Path) -> AsyncIterator[Kit]:
    """Yield a cleaner, not started yet, of a partition with two closed segments."""
    box = LogBox(tmp_path / "data", config=CONFIG)
    log = box.open()
    begin(log)
    batches = KeyedBatches(log)
    for number in range(40):
        batches.append([(b"k%d" % (number % 4), b"%d" % number)])
    roll(log)
    pool = DiskPool("disk", 1)
    yield Kit(box, Hosted(log), pool)
    pool.close()
    box.stop()


async def ran(kit: Kit, outcome: str, count: int = 1, cleaner: Cleaner | None = None) -> None:
    """Run a cleaner, by default that of the kit, until the given number of rounds has ended."""
    running = asyncio.create_task((cleaner or kit.cleaner).run())
    try:
        await until(lambda: kit.count("fairlead_cleaner_rounds_total", outcome=outcome) >= count, SECONDS_MAX)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_due_partition_is_cleaned_once(kit: Kit) -> None:
    """A due partition is cleaned by the child process, which ends with the cleaner."""
    await ran(kit, "done")
    await ran(kit, "done")

    assert [record.offset for record in committed(kit.replica.log)] == [36, 37, 38, 39]
    assert kit.count("fairlead_cleaner_rounds_total", outcome="done") == 1
    assert kit.count("fairlead_cleaner_records_total", fate="dropped") == 36
    assert kit.count("fairlead_cleaner_read_bytes_total") > 0
    assert kit.replica.log.cleaning.cleaned == 40
    assert not any(child.is_running for child in kit.cleaner._children)


async def test_damage_makes_a_partition_uncleanable(kit: Kit) -> None:
    """A damaged segment ends its round and is recorded as damage, and the partition waits for its repair."""
    path = kit.replica.log.segments[0].path
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    left = path.with_name(path.name + ".cleaned")
    left.write_bytes(data)
    await ran(kit, "damaged")

    assert not left.exists()
    assert kit.count("fairlead_cleaner_uncleanable_partitions") == 1
    assert [each.first_offset for each in kit.replica.log.damaged] == [39]
    assert not kit.failures


async def test_a_killed_child_ends_its_round_and_is_started_again(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that dies leaves the log unchanged, and the next round is carried out by another child."""
    monkeypatch.setattr("fairlead_broker.runtime.hosting.cleaning_child.PROGRAM", "no.such.program")
    await ran(kit, "failed")
    unchanged = len(committed(kit.replica.log))
    monkeypatch.undo()
    kit.cleaner._uncleanable.clear()
    await ran(kit, "done")

    assert unchanged == 40
    assert len(committed(kit.replica.log)) == 4


async def test_tombstones_that_must_stay_cause_no_round_after_another(kit: Kit) -> None:
    """Expired tombstones that must stay make one round due, and the next only once the removal limit has risen."""
    batches = KeyedBatches(kit.replica.log, time_us=FIRST_TIME_US + 10**6)
    batches.append([(b"k0", None)])
    roll(kit.replica.log)
    kit.replica.limit = 0
    await ran(kit, "done")
    kit.clock.time_us += 10**12
    await ran(kit, "done", count=2)
    chosen = await kit.cleaner._choose()
    kit.clock.time_us += round(REMOVAL_SECONDS * 1e6) + 1
    later = await kit.cleaner._choose()
    stayed = b"k0" in {record.key for record in committed(kit.replica.log)}
    kit.replica.limit = None
    await ran(kit, "done", count=3)
    kit.partitions.clear()
    none = await kit.cleaner._choose()

    assert (chosen, later, none) == (None, None, None)
    assert stayed
    assert b"k0" not in {record.key for record in committed(kit.replica.log)}
    assert not kit.cleaner._removals


async def test_a_refused_swap_claims_no_removed_tombstone(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log is cut before the swap of a round that removes tombstones, `removed` stays as it was."""
    batches = KeyedBatches(kit.replica.log, time_us=FIRST_TIME_US + 10**6)
    batches.append([(b"k0", None)])
    roll(kit.replica.log)
    await ran(kit, "done")
    kit.clock.time_us += 10**12
    swap = PartitionLog.swap

    def cut_and_swap(log: PartitionLog, *arguments: Any) -> bool:
        """Drop the tombstone from the log before the swap."""
        log.truncate_to(Offset(39))
        return swap(log, *arguments)

    monkeypatch.setattr(PartitionLog, "swap", cut_and_swap)
    await ran(kit, "abandoned")
    state = kit.replica.log.cleaning

    assert (state.removed, state.lacks_below) == (0, 0)
    assert state.cleaned == kit.replica.log.end_offset < 40


@pytest.fixture
def moving(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each pause of a cleaner move the clock, and take no time."""

    async def moved(seconds: float) -> None:
        """Move the clock."""
        kit.clock.time_us += max(0, round(seconds * 1e6))

    monkeypatch.setattr("fairlead_broker.runtime.hosting.cleaner._sleep", moved)


@pytest.mark.usefixtures("moving")
async def test_a_round_is_as_fast_as_its_rate(kit: Kit) -> None:
    """A round waits so long that the bytes read and written do not exceed the configured rate."""
    await ran(kit, "done", cleaner=kit.cleaner_of(1, rate=1000.0))
    nbytes = kit.count("fairlead_cleaner_read_bytes_total") + kit.count(
        "fairlead_cleaner_written_bytes_total"
    )

    assert nbytes > 1000
    assert kit.count("fairlead_cleaner_waiting_seconds_total") == pytest.approx(nbytes / 1000, abs=0.01)


@pytest.mark.usefixtures("moving")
@pytest.mark.parametrize(
    ("checks", "seconds"), [(0, 0.0), (3, 3 * PAUSE_SECONDS), (10**6, PAUSE_SECONDS_MAX)]
)
async def test_a_round_waits_while_the_disk_is_slow(kit: Kit, checks: int, seconds: float) -> None:
    """A round pauses until the disk is fast again, and continues on a disk that is always slow."""
    slow = itertools.chain(itertools.repeat(True, checks), itertools.repeat(False))
    await ran(kit, "done", cleaner=kit.cleaner_of(1, disk_is_slow=lambda: next(slow)))

    assert kit.count("fairlead_cleaner_waiting_seconds_total") == pytest.approx(seconds, abs=0.01)


async def test_a_volume_without_room_for_a_segment_is_not_cleaned(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round begins only if its largest new segment leaves 1 GiB of the volume free."""
    largest = sum(each.size for each in kit.replica.log.segments)
    monkeypatch.setattr(PosixStorage, "free_bytes", lambda _self, _path: FREE_BYTES_MIN + largest - 1)
    await ran(kit, "no_space")
    unchanged = len(committed(kit.replica.log))
    monkeypatch.setattr(PosixStorage, "free_bytes", lambda _self, _path: FREE_BYTES_MIN + largest)
    kit.cleaner._uncleanable.clear()
    await ran(kit, "done")

    assert unchanged == 40
    assert len(committed(kit.replica.log)) == 4


async def test_a_child_without_work_is_ended(kit: Kit) -> None:
    """The child process ends after five minutes without a round."""
    [child] = kit.cleaner._children
    running = asyncio.create_task(kit.cleaner.run())
    try:
        await until(lambda: kit.count("fairlead_cleaner_rounds_total", outcome="done") >= 1, SECONDS_MAX)
        process = child._process
        assert process is not None
        stayed = process.returncode is None
        kit.clock.time_us += round(IDLE_SECONDS_MAX * 1e6) + 1
        await until(lambda: process.returncode is not None, SECONDS_MAX)
    finally:
        running.cancel()
        await asyncio.wait([running])

    assert stayed
    assert not child.is_running


async def test_the_dirtiest_partition_is_cleaned_first_unless_a_record_is_too_old(kit: Kit) -> None:
    """The partition with the highest dirty ratio comes first, after those with a record above the maximum age."""
    await ran(kit, "done")
    KeyedBatches(kit.replica.log).append([(b"k0", b"new")])
    roll(kit.replica.log)
    other = kit.box.opened.open_partition(OTHER_TOPIC, PARTITION, CONFIG)
    begin(other)
    KeyedBatches(other).append([(b"k", b"1"), (b"k", b"2")])
    roll(other)
    kit.partitions.append(Hosted(other, key=TopicIdPartition(OTHER_TOPIC, PARTITION)))
    kit.clock.time_us += 10**7
    by_ratio = await kit.cleaner._choose()
    kit.replica.log.update_config(replace(CONFIG, max_compaction_lag_ms=1000))
    by_age = await kit.cleaner._choose()

    assert by_ratio is not None
    assert by_ratio.partition is kit.partitions[1]
    assert by_age is not None
    assert by_age.partition is kit.replica


async def test_rounds_of_several_partitions_run_at_the_same_time(kit: Kit) -> None:
    """With two threads, two partitions are cleaned at the same time, each by a child with half of the memory."""
    other = kit.box.opened.open_partition(OTHER_TOPIC, PARTITION, CONFIG)
    begin(other)
    KeyedBatches(other).append([(b"k", b"1"), (b"k", b"2")])
    roll(other)
    kit.partitions.append(Hosted(other, key=TopicIdPartition(OTHER_TOPIC, PARTITION)))
    cleaner = kit.cleaner_of(rounds_max=2)
    together = asyncio.Barrier(2)
    buffers: list[int] = []

    async def meets(child: CleaningChild, chosen: _Chosen, order: CleaningOrder) -> CleaningOutcome:
        """Wait for the round of the other partition, then carry out the round."""
        buffers.append(order.buffer_bytes)
        await together.wait()
        return await Cleaner._round(cleaner, child, chosen, order)

    cleaner._round = meets  # type: ignore[method-assign]
    await ran(kit, "done", count=2, cleaner=cleaner)

    assert buffers == [BUFFER_BYTES // 2] * 2
    assert [len(committed(each)) for each in (kit.replica.log, other)] == [4, 1]
    assert not any(child.is_running for child in cleaner._children)


async def test_a_round_that_starves_no_longer_waits_for_an_idle_processor(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a step that took too long, the broker orders the child to hurry, so that the round ends."""
    monkeypatch.setattr("fairlead_broker.runtime.hosting.cleaning_child.STEP_SECONDS_MAX", -1.0)
    await ran(kit, "done")

    assert [record.offset for record in committed(kit.replica.log)] == [36, 37, 38, 39]
