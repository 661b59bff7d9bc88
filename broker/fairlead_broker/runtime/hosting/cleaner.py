"""Cleaning of compacted topics: the task that chooses due partitions and carries out their rounds.

Child processes (`cleaning_child`) do the work of rounds, one process for each round that may run at the same time
(`log.cleaner.threads`). This task replaces segments and paces the children, so that producers keep their latency: after
every few megabytes, a child waits for permission from this task; the permission is given at the configured rate, and
not while the disk is slow. Every replica cleans its own log. `compaction` decides which partition is due and which
records are removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from fairlead_api.bodies.cleaning import CleaningOutcome, CleaningRound
from fairlead_api.identifiers import Offset, TimestampUs, TopicIdPartition
from fairlead_api.timestamps import format_timestamp
from fairlead_broker.clock import Clock
from fairlead_broker.compaction.key_hashes import SEED_BYTES
from fairlead_broker.log import LogClosed, LogError, StorageFailed
from fairlead_broker.log.cleaning.process import RoundFailed
from fairlead_broker.log.cleaning.rounds import CleaningOrder, GroupCleaned, Mapped, Progress, RoundDone
from fairlead_broker.log.cleaning_plan import PlannedRound, cleaning_order, plan_round
from fairlead_broker.runtime.engine.containment import contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.hosting.cleaner_meters import CleanerMeters
from fairlead_broker.runtime.hosting.cleaning_child import CleaningChild
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.cleaning_requests import CleaningRequests
from fairlead_broker.telemetry import Log

Replica: TypeAlias = LeaderReplica | FollowerReplica

IDLE_SECONDS_MAX: Final = 300.0
"""Number of seconds without a round after which the child process is ended to free its memory."""
FREE_BYTES_MIN: Final = 1 << 30
"""Free bytes that rounds must leave on the volume, in addition to the size of one group of segments per round."""
REMOVAL_SECONDS: Final = 600.0
"""Number of seconds between two rounds of the same partition that only remove expired tombstones: the tombstones may
have to stay for a follower that is away.
"""
UNCLEANABLE_SECONDS: Final = 600.0
"""Number of seconds between a failed round and the next round of the same partition."""
PAUSE_SECONDS: Final = 0.02
"""Number of seconds between two checks of a slow disk."""
PAUSE_SECONDS_MAX: Final = 5.0
"""Maximum pause of a round because of a slow disk: a disk that is always slow must not stop cleaning."""


@dataclass(frozen=True, slots=True)
class CleanerSettings:
    """Settings of the cleaner. The functions are called before each use."""

    rounds_max: int
    """Number of rounds that may run at the same time."""
    buffer_bytes: int
    """Memory for the maps of keys, shared equally by the rounds."""
    backoff_seconds: Callable[[], float]
    """Number of seconds between two searches for a due partition, while no partition is due."""
    bytes_per_second_max: Callable[[], float]
    disk_is_slow: Callable[[], bool]
    """Whether the disk is currently too slow for more work."""


@dataclass(slots=True)
class _Chosen:
    """A partition whose round is due."""

    partition: Replica
    planned: PlannedRound
    records: tuple[int, int] = (0, 0)
    """Numbers of records that the round kept and dropped."""


@dataclass(frozen=True, slots=True)
class _Removal:
    """Which tombstones a complete round removed."""

    limit: Offset
    now_us: int
    """Time of the round: tombstones below `limit` whose horizon was earlier have gone."""
    generation: int
    """Number of truncations of the log when the round was planned."""


class Cleaner:
    """Task that cleans partitions until it is cancelled."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Replica]],
        pool: DiskPool,
        clock: Clock,
        settings: CleanerSettings,
        meters: CleanerMeters,
        requests: CleaningRequests,
        *,
        random_bytes: Callable[[int], bytes],
        failed: Callable[[StorageFailed], None],
        log: Log,
    ) -> None:
        """`partitions` returns leader and follower replicas at each call; `failed` is called when the disk fails."""
        self._partitions = partitions
        self._pool = pool
        self._clock = clock
        self._settings = settings
        self._meters = meters
        self._requests = requests
        self._random_bytes = random_bytes
        self._failed = failed
        self._log = log
        self._children = tuple(CleaningChild(clock) for _ in range(settings.rounds_max))
        self._choosing = asyncio.Lock()
        self._running: dict[TopicIdPartition, int] = {}
        """Free bytes that each running round needs for its largest new segment, by partition."""
        self._paid_until = 0.0
        """Time up to which the read and written bytes of all rounds use up the configured rate."""
        self._uncleanable: dict[TopicIdPartition, float] = {}
        """Partitions whose last round failed, with the time of the next attempt."""
        self._removed_from: dict[TopicIdPartition, float] = {}
        """Partitions whose last round only removed expired tombstones, with the time of the next such round."""
        self._removals: dict[TopicIdPartition, _Removal] = {}
        """Last complete round of each compacted partition."""
        meters.watch(lambda: len(self._uncleanable))

    async def run(self) -> None:
        """Clean due partitions until cancelled."""
        async with asyncio.TaskGroup() as rounds:
            for child in self._children:
                rounds.create_task(self._run(child))

    async def _run(self, child: CleaningChild) -> None:
        """Clean due partitions one after another, with one child."""
        idle_since = self._clock.monotonic()
        try:
            while True:
                async with self._choosing:
                    chosen = await self._choose()
                    if chosen is not None:
                        self._running[chosen.partition.key] = 0
                if chosen is not None:
                    try:
                        with contained(self._log, "cleaning", chosen.partition.key):
                            await self._clean(child, chosen)
                    finally:
                        del self._running[chosen.partition.key]
                    idle_since = self._clock.monotonic()
                    continue
                if child.is_running and self._clock.monotonic() - idle_since > IDLE_SECONDS_MAX:
                    await child.end()
                # Except for requests, no event announces that a partition is due.
                await self._requests.wait(self._settings.backoff_seconds())
        finally:
            await child.end()

    # -- choice

    async def _choose(self) -> _Chosen | None:
        """Return the due partition with the highest dirty ratio; requested and overdue partitions are preferred."""
        now = self._clock.monotonic()
        self._requests.forget(now)
        for waiting in (self._uncleanable, self._removed_from):
            for key in [key for key, due in waiting.items() if due <= now]:
                del waiting[key]
        replicas = [each for each in self._partitions() if each.config.compacts]
        for key in self._removals.keys() - {each.key for each in replicas}:
            del self._removals[key]
        if not replicas:
            self._meters.looked(0.0, 0.0)
            return None
        found = await self._pool.run(self._plan_all, replicas)
        best: tuple[tuple[bool, float], _Chosen] | None = None
        ratio_max, oldest_us = 0.0, None
        for partition, planned in found:
            ratio_max = max(ratio_max, planned.range.dirty_ratio)
            if planned.oldest_dirty_us is not None:
                oldest_us = min(oldest_us or planned.oldest_dirty_us, planned.oldest_dirty_us)
            rank = self._rank(partition, planned)
            if rank is None:
                continue
            if best is None or rank > best[0]:
                best = rank, _Chosen(partition, planned)
        age_seconds = 0.0 if oldest_us is None else max(0.0, (self._clock.now_us() - oldest_us) / 1e6)
        self._meters.looked(ratio_max, age_seconds)
        return None if best is None else best[1]

    def _rank(self, partition: Replica, planned: PlannedRound) -> tuple[bool, float] | None:
        """Return the rank of a round among the due rounds, or None if the partition must not be cleaned now."""
        due = planned.due
        if partition.key in self._running:
            return None
        if self._is_requested(partition, planned):
            return True, planned.range.dirty_ratio
        if due is None or partition.key in self._uncleanable:
            return None
        if due.is_removal and (
            partition.key in self._removed_from or self._removes_nothing(partition, planned)
        ):
            return None
        return due.is_overdue, due.dirty_ratio

    def _removes_nothing(self, partition: Replica, planned: PlannedRound) -> bool:
        """Return whether the tombstones that make a round due already had to stay in the last round.

        Without this check, a follower would write its whole log again and again, while its leader keeps the tombstones.
        """
        last, horizon_us = self._removals.get(partition.key), partition.log.cleaning.oldest_horizon_us
        return (
            last is not None
            and last.generation == planned.generation
            and horizon_us is not None
            and horizon_us < last.now_us
            and partition.removal_limit() <= last.limit
        )

    def _is_requested(self, partition: Replica, planned: PlannedRound) -> bool:
        """Return whether a requested round has something to clean. A request that has been carried out is dropped."""
        wanted = self._requests.wanted.get(partition.key)
        if wanted is None:
            return False
        if partition.log.cleaning.cleaned >= wanted.end_offset:
            del self._requests.wanted[partition.key]
            return False
        return planned.range.dirty_bytes > 0

    def _plan_all(self, replicas: list[Replica]) -> list[tuple[Replica, PlannedRound]]:
        """Return the cleanable range of each partition. The call blocks and runs in the disk pool."""
        found = []
        for partition in replicas:
            try:
                with contained(self._log, "search for due cleaning", partition.key):
                    planned = plan_round(partition.log, partition.log.stable_offset(), self._clock.now_us())
                    found.append((partition, planned))
            except LogError as error:
                if not isinstance(error, LogClosed):
                    self._log.warning("dirty ratio not evaluated", topic=partition.topic, reason=str(error))
        return found

    # -- one round

    async def _clean(self, child: CleaningChild, chosen: _Chosen) -> None:
        partition, begun = chosen.partition, self._clock.monotonic()
        if chosen.planned.due is not None and chosen.planned.due.is_removal:
            self._removed_from[partition.key] = begun + REMOVAL_SECONDS
        outcome: CleaningOutcome = "failed"
        try:
            order = await self._pool.run(self._order, chosen)
            if order is None:
                outcome = "no_space"
                self._give_up(partition, "the volume has no room for another segment")
                return
            outcome = await self._round(child, chosen, order)
            if outcome != "done":
                await self._pool.run(partition.log.drop_cleaned)
            else:
                facts, generation = order.facts, chosen.planned.generation
                self._removals[partition.key] = _Removal(
                    Offset(facts.removal_limit), facts.now_us, generation
                )
        except LogClosed:
            outcome = "abandoned"
        except StorageFailed as error:
            self._failed(error)
            self._give_up(partition, str(error))
        except LogError as error:
            self._give_up(partition, str(error))
        finally:
            self._meters.ended(outcome, self._clock.monotonic() - begun)
            self._note(chosen, outcome)

    def _note(self, chosen: _Chosen, outcome: CleaningOutcome) -> None:
        """Record the end of a round for callers that ask about it. A request ends when its round fails."""
        key = chosen.partition.key
        kept, dropped = chosen.records
        self._requests.last_rounds[key] = CleaningRound(
            ended_at=format_timestamp(self._clock.now_us()),
            outcome=outcome,
            kept_records=kept,
            dropped_records=dropped,
        )
        if outcome != "done":
            self._requests.wanted.pop(key, None)

    def _order(self, chosen: _Chosen) -> CleaningOrder | None:
        """Return the order for a round, or None if space is short. The call blocks and runs in the disk pool."""
        log = chosen.partition.log
        order = cleaning_order(
            log,
            chosen.planned,
            removal_limit=chosen.partition.removal_limit(),
            now_us=self._clock.now_us(),
            buffer_bytes=self._settings.buffer_bytes // self._settings.rounds_max,
            seed=self._random_bytes(SEED_BYTES),
        )
        largest = max(each.size for each in order.segments)
        needed = max(largest, min(order.segment_bytes, sum(each.size for each in order.segments)))
        self._running[chosen.partition.key] = needed
        return order if log.free_bytes() >= sum(self._running.values()) + FREE_BYTES_MIN else None

    async def _round(self, child: CleaningChild, chosen: _Chosen, order: CleaningOrder) -> CleaningOutcome:
        partition = chosen.partition
        async with aclosing(child.round(order)) as events:
            async for event in events:
                match event:
                    case Progress(read_bytes, written_bytes):
                        self._meters.progressed(read_bytes, written_bytes)
                        await self._wait_for_credit(read_bytes + written_bytes)
                    case Mapped(_, used_ratio):
                        self._meters.mapped(used_ratio)
                    case GroupCleaned():
                        release_us = TimestampUs(
                            self._clock.now_us() + partition.config.file_delete_delay_ms * 1000
                        )
                        swap = partial(partition.log.swap, event, chosen.planned.generation, release_us)
                        if not await self._pool.run(swap):
                            return "abandoned"
                        if isinstance(partition, LeaderReplica):
                            partition.tombstones_removed()
                    case RoundDone():
                        generation = chosen.planned.generation
                        if not await self._pool.run(partition.log.note_cleaned, event, generation):
                            return "abandoned"
                        self._report(chosen, event)
                    case RoundFailed():
                        await self._round_failed(partition, event)
                        return "damaged" if event.first_offset is not None else "failed"
        return "done"

    async def _wait_for_credit(self, nbytes: int) -> None:
        """Wait until the round may read and write more: at the configured rate, and only while the disk is fast.

        `nbytes`: number of bytes that the round has read and written since its last wait.
        """
        waiting = self._clock.monotonic()
        self._paid_until = max(self._paid_until, waiting) + nbytes / self._settings.bytes_per_second_max()
        await _sleep(self._paid_until - waiting)
        while self._settings.disk_is_slow() and self._clock.monotonic() - waiting < PAUSE_SECONDS_MAX:
            await _sleep(PAUSE_SECONDS)
        self._meters.waited(self._clock.monotonic() - waiting)

    async def _round_failed(self, partition: Replica, failed: RoundFailed) -> None:
        if failed.first_offset is not None:
            # Damage ends the cleanable range of later rounds, and is repaired from other replicas. A batch that is
            # malformed but has correct checksums is not damage.
            await self._pool.run(partition.log.look_for_damage, Offset(failed.first_offset))
            self._log.error(
                "records cannot be cleaned",
                topic=partition.topic,
                partition=partition.index,
                first_offset=failed.first_offset,
                reason=failed.reason,
            )
        self._give_up(partition, failed.reason)

    def _give_up(self, partition: Replica, reason: str) -> None:
        self._uncleanable[partition.key] = self._clock.monotonic() + UNCLEANABLE_SECONDS
        self._log.warning(
            "partition not cleaned", topic=partition.topic, partition=partition.index, reason=reason
        )

    def _report(self, chosen: _Chosen, done: RoundDone) -> None:
        partition = chosen.partition
        self._meters.cleaned(done.kept_records, done.dropped_records)
        chosen.records = (done.kept_records, done.dropped_records)
        self._log.info(
            "partition cleaned",
            topic=partition.topic,
            partition=partition.index,
            until_offset=done.until,
            kept_records=done.kept_records,
            dropped_records=done.dropped_records,
        )


async def _sleep(seconds: float) -> None:
    # The pause limits how often the cleaner checks and how fast it works; no event ends the pause.
    await asyncio.sleep(seconds)  # noqa: TID251
