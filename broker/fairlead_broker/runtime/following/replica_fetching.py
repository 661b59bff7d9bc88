"""Fetches from leaders for all partitions that this broker follows, with one long poll for each leader.

One task for each leader fetches all partitions of that leader in an incremental session (KIP-227), writes the answers
to the disk, and fetches again once the writes are done. A second task reports synced offsets without waiting for the
long poll. `replicas` decides which partitions this broker follows; this module must not depend on the reasons for this
choice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

from fairlead_api.identifiers import BrokerId, Offset, TimestampUs, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogDirectory, LogError, make_starts_durable
from fairlead_broker.peers.messages import (
    NEW_SESSION,
    PeerPartition,
    ProgressPartition,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResult,
)
from fairlead_broker.peers.peers import PeerUnavailable
from fairlead_broker.replication import FollowerReport, MoveLogStart
from fairlead_broker.runtime.engine.containment import contained
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.engine.supervisor import Supervisor
from fairlead_broker.runtime.engine.sync_rounds import SyncRounds
from fairlead_broker.runtime.following.follower_replica import AppendCopies, DiskWork, FollowerReplica
from fairlead_broker.runtime.following.move_throttle import MoveThrottle
from fairlead_broker.telemetry import Log

FETCH_WAIT_MS: Final = 500
"""Maximum wait of a fetch; Kafka's `replica.fetch.wait.max.ms`."""
FETCH_BYTES_MAX: Final = 10 << 20
"""Maximum number of bytes of one answer in memory, except for one larger first batch; Kafka's
`replica.fetch.response.max.bytes`."""
PARTITION_BYTES_MAX: Final = 1 << 20
"""Maximum number of bytes for one partition in an answer, so that a large partition does not delay other partitions of
the leader; Kafka's `replica.fetch.max.bytes`."""
BACKOFF_SECONDS_MIN: Final = 0.05
BACKOFF_SECONDS_MAX: Final = 1.0
"""Maximum number of seconds between attempts after failures of a leader or a partition. A change to the mirror ends the
pause early."""
QUIET_FAILURES: Final = 3
"""Number of consecutive failures of one partition at which a warning is logged. An ordinary election causes fewer
failures than this number."""
WORTH_A_WARNING: Final = 4
"""Number of consecutive failures of a leader at which a warning is logged. Consecutive failures reach this number
within 0.35 seconds. An ordinary start or stop of a broker causes fewer failures than this number."""

_Work = tuple[FollowerReplica, DiskWork]


def backoff_seconds(failures: int) -> float:
    """Return the seconds to wait after a given number of consecutive failures."""
    return float(min(BACKOFF_SECONDS_MIN * 2 ** min(failures - 1, 10), BACKOFF_SECONDS_MAX))


class LeaderCalls(Protocol):
    """Interface of the calls to leaders; implemented by `peers.Peers`."""

    async def replica_fetch(self, broker: BrokerId, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Fetch from a leader. Raises `PeerUnavailable`, and `ProblemError` if the leader refuses the whole request."""
        ...

    async def progress(self, broker: BrokerId, request: ProgressRequest) -> None:
        """Report the durable offsets of this broker to a leader. Raises like `replica_fetch`."""
        ...


class ReplicaFetching:
    """Fetchers of one broker.

    A leader's fetcher is created when this broker begins to follow the first partition of the leader.
    """

    def __init__(
        self,
        peers: LeaderCalls,
        pool: DiskPool,
        directory: LogDirectory,
        rounds: SyncRounds,
        clock: Clock,
        supervisor: Supervisor,
        throttle: MoveThrottle,
        log: Log,
    ) -> None:
        self._peers = peers
        self._pool = pool
        self._directory = directory
        self._rounds = rounds
        self._clock = clock
        self._supervisor = supervisor
        self._throttle = throttle
        self._log = log
        self._fetchers: dict[BrokerId, ReplicaFetcher] = {}

    def follow(self, partition: FollowerReplica) -> None:
        """Start fetching the partition from its leader, until the partition is closed."""
        leader = partition.following.leader
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = self._start(leader)
        fetcher.add(partition)

    def forget(self, partition: FollowerReplica) -> None:
        """Stop fetching a closed partition."""
        fetcher = self._fetchers.get(partition.following.leader)
        if fetcher is not None:
            fetcher.remove(partition)

    def report(self, partition: FollowerReplica, synced_offset: Offset) -> None:
        """Report the synced offset of the partition's log to the leader."""
        self._fetchers[partition.following.leader].report(partition, synced_offset)

    def mirror_changed(self) -> None:
        """End the pauses after failures, because a leader may be available again or a partition record may be newer.

        A change to the throttle rate ends all pauses.
        """
        changed = self._throttle.follow_configuration()
        for fetcher in self._fetchers.values():
            fetcher.try_again(paced=changed)

    def _start(self, leader: BrokerId) -> ReplicaFetcher:
        fetcher = ReplicaFetcher(
            leader,
            self._peers,
            self._pool,
            self._directory,
            self._rounds,
            self._clock,
            self._throttle,
            self._log,
        )
        self._supervisor.spawn(fetcher.run(), f"fetch from broker {leader}")
        self._supervisor.spawn(fetcher.run_reports(), f"progress to broker {leader}")
        return fetcher


class ReplicaFetcher:
    """Fetcher of every partition that this broker follows from one leader."""

    def __init__(
        self,
        leader: BrokerId,
        peers: LeaderCalls,
        pool: DiskPool,
        directory: LogDirectory,
        rounds: SyncRounds,
        clock: Clock,
        throttle: MoveThrottle,
        log: Log,
    ) -> None:
        self._leader = leader
        self._peers = peers
        self._pool = pool
        self._directory = directory
        self._rounds = rounds
        self._clock = clock
        self._throttle = throttle
        self._log = log.bind(leader=leader)
        self._partitions: dict[TopicIdPartition, FollowerReplica] = {}
        self._resting: dict[TopicIdPartition, float] = {}
        """Partitions that pause after a failure, or because of the throttle, with the time of their next fetch."""
        self._unreported: dict[TopicIdPartition, ProgressPartition] = {}
        self._reports = asyncio.Event()
        self._wake = asyncio.Event()
        self._poll: asyncio.Timeout | None = None
        self._failures = 0
        self._session = NEW_SESSION
        self._sequence = 0
        self._changed: set[TopicIdPartition] = set()
        """Partitions for which the report to the leader may have changed."""
        self._reported: dict[TopicIdPartition, FollowerReport] = {}
        """Last report of each partition that was sent in this session and that the leader may still answer."""
        self._gone: set[TopicIdPartition] = set()
        """Partitions that are no longer followed."""
        self._asked: dict[TopicIdPartition, FollowerReplica] = {}

    # -- followed partitions

    def add(self, partition: FollowerReplica) -> None:
        """Start to fetch a partition without waiting for the end of the poll that is parked at the leader.

        Waiting for the poll would delay acks=all writes to the added partition by up to half a second after an
        election.
        """
        self._partitions[partition.key] = partition
        self._resting.pop(partition.key, None)
        self._changed.add(partition.key)
        self._interrupt()

    def remove(self, partition: FollowerReplica) -> None:
        """Stop fetching a partition."""
        if self._partitions.get(partition.key) is partition:
            del self._partitions[partition.key]
            self._resting.pop(partition.key, None)
            self._reported.pop(partition.key, None)
            self._asked.pop(partition.key, None)
            self._gone.add(partition.key)

    def try_again(self, *, paced: bool = False) -> None:
        """End all pauses after failures; if `paced` is set, also end the pauses of the throttle."""
        ended = [key for key in self._resting if paced or self._has_failed(key)]
        for key in ended:
            del self._resting[key]
        if ended or self._failures:
            self._changed.update(ended)
            self._interrupt()

    def _has_failed(self, key: TopicIdPartition) -> bool:
        partition = self._partitions.get(key)
        return partition is None or partition.failed_fetches > 0

    def report(self, partition: FollowerReplica, synced_offset: Offset) -> None:
        """Report the synced offset of a log to the leader."""
        following = partition.following
        self._unreported[partition.key] = ProgressPartition(
            topic_id=partition.topic_id,
            partition=partition.index,
            generation=following.generation,
            leader_epoch=following.leader_epoch,
            synced_offset=synced_offset,
        )
        self._changed.add(partition.key)
        self._reports.set()

    def _interrupt(self) -> None:
        self._wake.set()
        if self._poll is not None and not self._poll.expired():
            self._poll.reschedule(0)

    # -- the two tasks

    async def run(self) -> None:
        """Fetch until cancelled."""
        while True:
            self._wake.clear()
            request = self._request()
            if request is None:
                await self._pause()
                continue
            answer = await self._fetch(request)
            if answer is not None:
                await self._take(answer)
            elif self._failures:
                await self._pause()

    async def run_reports(self) -> None:
        """Report durable offsets to the leader until cancelled.

        Offsets that change during a call are reported by the next call.
        """
        while True:
            await self._reports.wait()
            self._reports.clear()
            progress, self._unreported = list(self._unreported.values()), {}
            # A lost report is harmless, because the next fetch reports the same offset.
            with suppress(PeerUnavailable, ProblemError):
                await self._peers.progress(self._leader, ProgressRequest(partitions=progress))

    async def _pause(self) -> None:
        """Wait until a report changes, or until the next attempt is due."""
        due = min(self._resting.values(), default=None)
        seconds = None if due is None else max(0.0, due - self._clock.monotonic())
        if self._failures:
            seconds = backoff_seconds(self._failures)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    # -- requests

    def _request(self) -> ReplicaFetchRequest | None:
        """Return a fetch of the changed partitions; None if no partition can be fetched."""
        self._end_rests()
        if self._session == NEW_SESSION:
            self._sequence = 0
            self._reported.clear()
            self._gone.clear()
            self._changed = set(self._partitions)
        partitions = list(self._news())
        forgotten = [key for key in self._gone if key not in self._reported]
        self._gone.clear()
        if not self._reported:
            # A session without partitions would fetch nothing. The next followed partition begins a new session.
            self._session = NEW_SESSION
            return None
        return ReplicaFetchRequest(
            session=self._session,
            sequence=self._sequence,
            max_wait_ms=self._wait_ms(),
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            partitions=partitions,
            forgotten=[PeerPartition(topic_id=key.topic_id, partition=key.partition) for key in forgotten],
        )

    def _news(self) -> Iterator[ReplicaFetchPartition]:
        """Yield every partition whose report differs from the last report sent to the leader."""
        changed, self._changed = self._changed, set()
        for key in changed:
            partition = self._partitions.get(key)
            if partition is None or key in self._resting:
                continue
            report = partition.next_fetch()
            if report is not None and self._reported.get(key) != report:
                self._reported[key] = report
                self._asked[key] = partition
                yield self._fetch_partition(partition, report)

    def _fetch_partition(self, partition: FollowerReplica, report: FollowerReport) -> ReplicaFetchPartition:
        bytes_max = PARTITION_BYTES_MAX
        if partition.is_added:
            bytes_max = self._throttle.bytes_max(bytes_max)
        return ReplicaFetchPartition(
            topic_id=partition.topic_id,
            partition=partition.index,
            generation=report.generation,
            leader_epoch=report.leader_epoch,
            last_epoch=report.last_epoch,
            deleted_epoch=report.deleted_epoch,
            fetch_offset=report.fetch_offset,
            synced_offset=report.synced_offset,
            log_start=report.log_start,
            max_bytes=bytes_max,
            damaged=partition.got_damaged,
        )

    def _end_rests(self) -> None:
        now = self._clock.monotonic()
        for key in [key for key, due in self._resting.items() if due <= now]:
            del self._resting[key]
            self._changed.add(key)

    def _wait_ms(self) -> int:
        """Return the number of milliseconds for which the leader may park the poll.

        The leader must answer by the time at which the first paused partition is due.
        """
        due = min(self._resting.values(), default=None)
        if due is None:
            return FETCH_WAIT_MS
        return min(FETCH_WAIT_MS, max(1, int((due - self._clock.monotonic()) * 1000)))

    async def _fetch(self, request: ReplicaFetchRequest) -> ReplicaFetchAnswer | None:
        """Run one poll; return None if the poll failed, or was cancelled in order to fetch other partitions."""
        try:
            async with asyncio.timeout(None) as self._poll:
                answer = await self._peers.replica_fetch(self._leader, request)
        except TimeoutError:
            # The state of the session at the leader is unknown.
            self._session = NEW_SESSION
            return None
        except (PeerUnavailable, ProblemError) as error:
            self._session = NEW_SESSION
            self._failures += 1
            if self._failures in {1, WORTH_A_WARNING}:
                calm = self._failures < WORTH_A_WARNING or _is_leaving(error)
                write = self._log.info if calm else self._log.warning
                write("fetching from the leader failed", reason=str(error), attempts=self._failures)
            return None
        finally:
            self._poll = None
        if self._failures:
            self._log.info("fetching from the leader works again", attempts=self._failures)
            self._failures = 0
        self._session = answer.session
        self._sequence += 1
        return answer

    # -- answers

    async def _take(self, answer: ReplicaFetchAnswer) -> None:
        work: list[_Work] = []
        for result in answer.results:
            if result.data or (result.next_offset, result.diverging, result.problem) != (None, None, None):
                # The leader answers for the partition again only after a further request has named the partition.
                self._reported.pop(result.key, None)
                self._changed.add(result.key)
            partition = self._partitions.get(result.key)
            # If the replica was closed and opened again after the request, the answer belongs to the earlier replica
            # and must be dropped.
            if partition is not None and partition is self._asked.get(result.key):
                work += [(partition, each) for each in self._received(partition, result)]
                if result.data and partition.is_added:
                    self._pace(partition, result.nbytes)
        if any(isinstance(each, AppendCopies) for _, each in work) and not self._rounds.has_room():
            await self._rounds.room()
        while work := [(partition, each) for partition, each in work if not partition.closed]:
            work = await self._work(work)

    def _received(self, partition: FollowerReplica, result: ReplicaFetchResult) -> Sequence[DiskWork]:
        if result.problem is None:
            partition.failed_fetches = 0
            return partition.received(result)
        if result.problem == "offset_out_of_range":
            return partition.out_of_range(result)
        self._rest(partition, result.problem)
        return ()

    def _rest(self, partition: FollowerReplica, reason: str) -> None:
        """Pause the fetches of a partition after a failure."""
        partition.failed_fetches += 1
        if partition.failed_fetches == QUIET_FAILURES:
            self._log.warning(
                "partition cannot be fetched", topic=partition.topic, partition=partition.index, reason=reason
            )
        self._resting[partition.key] = self._clock.monotonic() + backoff_seconds(partition.failed_fetches)

    def _pace(self, partition: FollowerReplica, nbytes: int) -> None:
        """Pause the fetches of a partition that a move adds, for as long as the throttle requires."""
        due = self._throttle.copied(nbytes)
        if due is not None:
            self._resting[partition.key] = due

    async def _work(self, work: Sequence[_Work]) -> list[_Work]:
        """Execute the disk work of an answer in one call to the disk pool; return the resulting disk work."""
        for partition, _ in work:
            partition.begin_work()
        following: list[_Work] = []
        try:
            errors = await self._pool.run(self._do_all, work)
            for (partition, each), error in zip(work, errors, strict=True):
                if error is not None:
                    self._rest(partition, str(error))
                following += [(partition, further) for further in partition.done(each, error)]
                # The report may have changed even though no records were received, because the log start moved.
                self._changed.add(partition.key)
        finally:
            for partition, _ in work:
                partition.end_work()
        return following

    def _do_all(self, work: Sequence[_Work]) -> list[LogError | None]:
        """Execute the disk work of several partitions; return the errors. The call blocks and runs in the disk pool."""
        errors = [self._do(partition, each) for partition, each in work]
        moved = [partition for partition, each in work if isinstance(each, MoveLogStart)]
        if moved:
            self._forget_below_start(moved)
        return errors

    def _do(self, partition: FollowerReplica, work: DiskWork) -> LogError | None:
        try:
            with contained(self._log, "work of a follower", partition.key):
                partition.do(work)
        except LogError as error:
            return error
        return None

    def _forget_below_start(self, moved: Sequence[FollowerReplica]) -> None:
        try:
            with contained(self._log, "log starts of followed partitions"):
                make_starts_durable(self._directory.write_checkpoint, [partition.log for partition in moved])
        except LogError as error:
            # The files below the log start remain until the log start moves again. Clients already see the new log
            # start.
            self._log.warning("log starts of followed partitions not durable", reason=str(error))
            return
        now_us = self._clock.now_us()
        for partition in moved:
            delay_us = partition.config.file_delete_delay_ms * 1000
            try:
                with contained(self._log, "drop of segments", partition.key):
                    partition.log.drop_below_start(TimestampUs(now_us + delay_us))
            except LogError as error:
                self._log.warning("segments not dropped", topic=partition.topic, reason=str(error))


def _is_leaving(error: PeerUnavailable | ProblemError) -> bool:
    """Return whether a fetch failed because the leader or this broker is stopping, which needs no warning."""
    return error.expected if isinstance(error, PeerUnavailable) else error.code == "shutting_down"
