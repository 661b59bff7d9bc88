"""Periodic work of a broker.

The tasks write checkpoints, roll segments, remove files of dropped segments, pass the time to leaders, and delete names
of idle producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, TypeAlias

from fairlead_api.identifiers import ProducerId
from fairlead_broker.clock import Clock
from fairlead_broker.coordination.producer_registry import ProducerRegistry
from fairlead_broker.coordination.protocol import CoordinationClosed, CoordinationError
from fairlead_broker.log import LogClosed, LogDirectory, LogError, StorageFailed
from fairlead_broker.registry.records import RecordUnreadable
from fairlead_broker.runtime.engine.containment import contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log

Replica: TypeAlias = LeaderReplica | FollowerReplica

LOOK_SECONDS = 0.25
"""Number of seconds between two comparisons of the appended bytes with the limit for an early checkpoint."""


class Upkeep:
    """Task that runs the upkeep every few seconds, and earlier after many appends, until it is cancelled."""

    __slots__ = (
        "_appended_bytes",
        "_bytes_max",
        "_clock",
        "_directory",
        "_failed",
        "_interval_seconds",
        "_log",
        "_partitions",
        "_pool",
    )

    def __init__(
        self,
        directory: LogDirectory,
        partitions: Callable[[], Iterable[Replica]],
        pool: DiskPool,
        clock: Clock,
        interval_seconds: float,
        *,
        bytes_max: int,
        appended_bytes: Callable[[], int],
        failed: Callable[[StorageFailed], None],
        log: Log,
    ) -> None:
        """`partitions` returns leader and follower replicas at each call; `failed` is called when the disk fails.

        `appended_bytes` returns the number of bytes appended since the start. The upkeep's interval ends early after
        `bytes_max` appended bytes.
        """
        self._bytes_max = bytes_max
        self._appended_bytes = appended_bytes
        self._directory = directory
        self._partitions = partitions
        self._pool = pool
        self._clock = clock
        self._failed = failed
        self._interval_seconds = interval_seconds
        self._log = log

    async def run(self) -> None:
        """Run the upkeep at every interval, until cancelled."""
        while True:
            await self._until_due()
            await self.checkpoint()
            await self.look_after_segments()

    async def _until_due(self) -> None:
        """Wait until the interval ends, or until a restart after a kill would have to read too many bytes."""
        due = self._clock.monotonic() + self._interval_seconds
        enough = self._appended_bytes() + self._bytes_max
        # The number of appended bytes is polled, because an event for each append would cost too much.
        while (left := due - self._clock.monotonic()) > 0 and self._appended_bytes() < enough:  # noqa: ASYNC110
            await asyncio.sleep(min(left, LOOK_SECONDS))  # noqa: TID251

    async def look_after_segments(self) -> None:
        """Roll the due segments of every partition, and remove the files of segments dropped long enough ago."""
        failure = await self._pool.run(self._look_after, list(self._partitions()))
        if failure is not None:
            self._failed(failure)

    def _look_after(self, partitions: list[Replica]) -> StorageFailed | None:
        # A failure of the directory may first occur at a checkpoint or when a log is opened. If nothing is appended, no
        # other component would notice the failure of the directory.
        failure = self._directory.failure
        now_us = self._clock.now_us()
        for partition in partitions:
            try:
                with contained(self._log, "upkeep of segments", partition.key):
                    partition.log.roll_if_due(now_us)
                    partition.log.save_producers_if_due()
                    partition.log.remove_dropped(now_us)
            except LogClosed:
                continue
            except StorageFailed as error:
                failure = error  # The failure affects the whole directory: all other logs would fail as well.
            except LogError as error:
                self._log.warning("segment upkeep failed", topic=partition.topic, reason=str(error))
        return failure

    async def checkpoint(self) -> None:
        """Write a checkpoint with the offsets of every partition.

        A full disk only prolongs the next recovery.
        """
        try:
            with contained(self._log, "checkpoint"):
                await self._pool.run(self._directory.write_checkpoint)
        except LogError as error:
            self._log.warning("checkpoint not written", reason=str(error))


INTERVAL_SECONDS: Final = 3600.0


class ProducerNames:
    """Task that deletes the names of idle producers until it is cancelled."""

    __slots__ = ("_log", "_partitions", "_registry")

    def __init__(self, registry: ProducerRegistry, partitions: Iterable[LeaderReplica], log: Log) -> None:
        self._registry = registry
        self._partitions = partitions
        self._log = log

    async def run(self) -> None:
        """Delete the names of idle producers at every interval, until cancelled."""
        while True:
            # No event announces an idle producer, so the task checks periodically.
            await asyncio.sleep(INTERVAL_SECONDS)  # noqa: TID251
            try:
                await self.forget_idle()
            except CoordinationClosed:
                raise
            except (CoordinationError, RecordUnreadable) as error:
                self._log.warning("idle producer names not deleted", reason=str(error))

    async def forget_idle(self) -> int:
        """Delete the names of idle producers once; return the number of deleted names."""
        return await self._registry.forget_idle_names(self._is_active)

    def _is_active(self, producer_id: ProducerId) -> bool:
        return any(partition.knows_producer(producer_id) for partition in self._partitions)


SHARES: Final = 10
"""Number of ticks in a cycle that serves every partition once; each tick serves one share of the partitions."""
TURN_SECONDS_MAX: Final = 1.0


class LeaderClock:
    """Task that passes the time to leader replicas until it is cancelled."""

    __slots__ = ("_confirmed", "_lag_seconds", "_lease_confirmed", "_partitions", "_ticked")

    def __init__(
        self,
        partitions: Iterable[LeaderReplica],
        lease_confirmed: Callable[[], bool],
        lag_seconds: Callable[[], float],
        ticked: Callable[[], None],
    ) -> None:
        """`partitions` returns the current leader replicas at each tick; `ticked` is called once per cycle of ticks."""
        self._partitions = partitions
        self._lease_confirmed = lease_confirmed
        self._lag_seconds = lag_seconds
        self._ticked = ticked
        self._confirmed = True

    async def run(self) -> None:
        """Pass the time to the leader replicas at each tick, until cancelled."""
        while True:
            turn_seconds = min(TURN_SECONDS_MAX, self._lag_seconds() / 2)
            for share in range(SHARES):
                # No event signals that time has passed.
                await asyncio.sleep(turn_seconds / SHARES)  # noqa: TID251
                self.tick(share)

    def tick(self, share: int) -> None:
        """Pass the time to one share of the partitions.

        When the lease becomes doubtful or is confirmed again, all partitions are notified that time has passed.
        """
        confirmed = self._lease_confirmed()
        changed, self._confirmed = confirmed is not self._confirmed, confirmed
        partitions = self._partitions if changed else islice(self._partitions, share, None, SHARES)
        for partition in partitions:
            partition.time_passed()
        if share == 0:
            self._ticked()
