"""Weekly verification of all checksums in every segment of this broker, at a limited rate.

One task scrubs. A pass is spread over the whole interval and never exceeds the rate limit, so that it hardly affects
clients. The wall clock determines the segment at which a pass begins, so that even a broker that restarts every day
reads every segment. Later reads of a damaged range fail with `log_damaged`; the scrub only logs and counts the damage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError, SegmentScrub
from fairlead_broker.log.segments.segments import Segment
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.following.follower_replica import FollowerReplica
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.telemetry import Log

Replica: TypeAlias = LeaderReplica | FollowerReplica

BYTES_PER_SECOND_MIN: Final = 1 << 20
"""Minimum number of bytes read per second: a small log is read quickly instead of slowly over the whole week."""
EMPTY_PASS_SECONDS: Final = 60.0
"""Pause in seconds after a pass that found no data."""


class Scrub:
    """Task that runs scrub passes until it is cancelled."""

    def __init__(
        self,
        partitions: Callable[[], Iterable[Replica]],
        pool: DiskPool,
        clock: Clock,
        *,
        pass_seconds: float,
        bytes_per_second_max: int,
        count_bytes: Callable[[int], None],
        count_damaged: Callable[[int], None],
        log: Log,
    ) -> None:
        """`partitions` returns the replicas to scrub, and is called for every pass."""
        self._partitions = partitions
        self._pool = pool
        self._clock = clock
        self._pass_seconds = pass_seconds
        self._bytes_per_second_max = bytes_per_second_max
        self._count_bytes = count_bytes
        self._count_damaged = count_damaged
        self._log = log

    async def run(self) -> None:
        """Run scrub passes until cancelled."""
        while True:
            begun = self._clock.monotonic()
            nbytes = await self.run_pass()
            left = begun + self._pass_seconds - self._clock.monotonic()
            await self._pause(max(left, 0.0) if nbytes else min(EMPTY_PASS_SECONDS, self._pass_seconds))

    async def run_pass(self) -> int:
        """Verify every existing segment; return the number of bytes read."""
        segments = [
            (partition, segment) for partition in self._partitions() for segment in partition.log.segments
        ]
        total = await self._pool.run(_total_bytes, segments)
        paced = total / self._pass_seconds
        bytes_per_second = min(max(paced, BYTES_PER_SECOND_MIN), self._bytes_per_second_max)
        first = self._first(len(segments))
        read = 0
        for partition, segment in segments[first:] + segments[:first]:
            read += await self._scrub(partition, segment, bytes_per_second)
        return read

    def _first(self, count: int) -> int:
        """Return the index of the segment at which a pass begins.

        An uninterrupted pass would already have reached this segment.
        """
        seconds = self._clock.now_us() / 1e6 % self._pass_seconds
        return int(count * seconds / self._pass_seconds)

    async def _scrub(self, partition: Replica, segment: Segment, bytes_per_second: float) -> int:
        read = 0
        try:
            scrub = await self._pool.run(SegmentScrub, partition.log, segment)
            while nbytes := await self._pool.run(scrub.step):
                read += nbytes
                self._count_bytes(nbytes)
                await self._pause(nbytes / bytes_per_second)
            damaged = await self._pool.run(scrub.finish)
        except (LogError, OSError) as error:
            # The segment was closed, truncated or deleted, or became unreadable. If the segment is unreadable, the next
            # pass or reader reports the problem.
            if segment not in partition.log.segments or partition.log.closed:
                return read
            self._log.warning("segment not scrubbed", path=str(segment.path), reason=str(error))
            return read
        for damage in damaged:
            self._count_damaged(1)
            self._log.error(
                "records damaged",
                topic=partition.topic,
                partition=partition.index,
                first_offset=damage.first_offset,
                next_good_offset=damage.next_good_offset,
                found="scrub",
            )
        return read

    @staticmethod
    async def _pause(seconds: float) -> None:
        # The pause limits the read rate, and no event ends the pause.
        await asyncio.sleep(seconds)  # noqa: TID251


def _total_bytes(segments: list[tuple[Replica, Segment]]) -> int:
    total = 0
    for _, segment in segments:
        try:
            total += segment.size
        except OSError:
            continue  # The segment has expired since the pass began.
    return total
