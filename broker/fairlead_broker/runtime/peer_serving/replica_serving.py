"""Fetches from followers: long polls for many partitions, each read up to the end of its log.

    request ──▶ reports to the state machines ──▶ partitions with changes ──▶ records, offsets or a divergence
                                                         └── none ──▶ parked until a partition changes

Reports are applied before any batch is read, because they may advance the high watermarks in the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from fairlead_api.identifiers import BrokerEpoch, BrokerId, LeaderEpoch, Offset, PartitionIndex, TopicId
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogRead
from fairlead_broker.peers.messages import (
    NEW_SESSION,
    Divergence,
    PeerIncarnation,
    PeerPartition,
    ProgressRequest,
    ReplicaFetchAnswer,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResult,
)
from fairlead_broker.replication import FetchRefusal, FollowerReport
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.replica_sessions import FollowerSession, ReplicaCursor, epoch_begin
from fairlead_broker.runtime.peer_serving.reported_damage import ReportedDamage

CACHED_READ_BYTES: Final = 1 << 20
ON_LOOP_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes read on the event loop for one answer. Reading them takes a quarter of a millisecond; other
reads use the disk pool."""
IDLE_SECONDS_MAX: Final = 60.0
"""Number of seconds without a fetch after which a session is dropped, because the follower has stopped or follows no
partition of this leader."""

REFUSAL_CODES: Final = {
    FetchRefusal.STALE_LEADER_EPOCH: "stale_leader_epoch",
    FetchRefusal.UNKNOWN_LEADER_EPOCH: "unknown_leader_epoch",
    FetchRefusal.NOT_A_REPLICA: "conflict",
    FetchRefusal.STALE_BROKER_EPOCH: "stale_broker_epoch",
}

FindPartition = Callable[[TopicId, PartitionIndex], LeaderReplica]
_Pooled = list[tuple[ReplicaCursor, "asyncio.Future[LogRead]"]]


class ReplicaServing:
    """Answers fetches from followers, each follower in its own session."""

    __slots__ = (
        "_bytes_max",
        "_clock",
        "_find",
        "_next_session",
        "_pool",
        "_reported_damage",
        "_sessions",
        "_stopping",
        "_wait_max",
    )

    def __init__(
        self,
        find: FindPartition,
        pool: DiskPool,
        clock: Clock,
        epoch: BrokerEpoch,
        *,
        bytes_max: int,
        wait_seconds_max: float,
    ) -> None:
        """`find` raises a ProblemError for a partition that this broker does not lead.

        `epoch`: broker epoch with which this broker started.
        """
        self._find = find
        self._pool = pool
        self._reported_damage = ReportedDamage(pool)
        self._clock = clock
        self._bytes_max = bytes_max
        self._wait_max = wait_seconds_max
        self._sessions: dict[BrokerId, FollowerSession] = {}
        # Session numbers of an earlier run of this broker are never used again, because a late request for an earlier
        # session must not match a new session.
        self._next_session = (epoch << 20) + 1
        self._stopping = False

    @property
    def followed_partitions(self) -> int:
        """Number of followed partitions in all sessions."""
        return sum(map(len, self._sessions.values()))

    async def fetch(self, peer: PeerIncarnation, request: ReplicaFetchRequest) -> ReplicaFetchAnswer:
        """Return the changed partitions of a follower's session, no later than the end of the wait.

        A single new byte ends the wait, regardless of `min_bytes`. After an answer with records, a point of divergence
        or a problem, a partition is left out of answers until a request names the partition again; after an answer with
        only offsets, the partition is not left out. A partition that is new in this session is answered at once. Raises
        `shutting_down`.
        """
        if self._stopping:
            raise refusals.shutting_down()
        session = self._session(peer, request)
        if session is None:
            return ReplicaFetchAnswer(NEW_SESSION, ())
        # If an earlier fetch of this session still waits, the follower has abandoned that fetch, which gets an empty
        # answer.
        session.wake()
        turn = session.turn
        for forgotten in request.forgotten:
            session.drop(forgotten.key)
        results = self._take_reports(session, request.partitions)
        results += await self._read(session, request.max_bytes)
        loop_time = asyncio.get_running_loop().time
        deadline = loop_time() + min(request.max_wait_ms / 1000, self._wait_max)
        while not results and session.turn == turn and not (session.ended or self._stopping):
            left = deadline - loop_time()
            if left <= 0:
                break
            await session.wait(left)
            if session.turn == turn:
                results += await self._read(session, request.max_bytes)
        return ReplicaFetchAnswer(NEW_SESSION if session.ended else session.number, results)

    def progress(self, peer: PeerIncarnation, request: ProgressRequest) -> None:
        """Record the synced offsets of a follower; offsets of partitions that this broker does not lead are ignored."""
        for reported in request.partitions:
            try:
                partition = self._find(reported.topic_id, reported.partition)
            except ProblemError:
                continue
            partition.leadership.follower_synced(
                peer.broker,
                peer.epoch,
                reported.generation,
                LeaderEpoch(reported.leader_epoch),
                reported.synced_offset,
            )

    def drop_idle(self) -> None:
        """Drop sessions that have had no recent fetch."""
        oldest = self._clock.monotonic() - IDLE_SECONDS_MAX - self._wait_max
        for broker, session in tuple(self._sessions.items()):
            if session.used_at < oldest:
                session.end()
                del self._sessions[broker]

    def answer_all(self) -> None:
        """Answer every waiting fetch and refuse new fetches, because the broker is stopping."""
        self._stopping = True
        for session in self._sessions.values():
            session.wake()

    # -- sessions

    def _session(self, peer: PeerIncarnation, request: ReplicaFetchRequest) -> FollowerSession | None:
        session = self._sessions.get(peer.broker)
        if request.session == NEW_SESSION:
            if session is not None:
                session.end()
            session = FollowerSession(self._next_session, peer, self._clock.monotonic())
            self._next_session += 1
            self._sessions[peer.broker] = session
        elif session is None or session.number != request.session:
            return None
        if not session.goes_on(peer, request.sequence):
            # An answer was lost or a request arrived twice, so the last answer that the follower has received is
            # unknown.
            session.end()
            del self._sessions[peer.broker]
            return None
        session.used_at = self._clock.monotonic()
        return session

    # -- reports

    def _take_reports(
        self, session: FollowerSession, specs: Iterable[ReplicaFetchPartition]
    ) -> list[ReplicaFetchResult]:
        answered = []
        for spec in specs:
            result = self._take_report(session, spec)
            if result is not None:
                session.drop(spec.key)
                answered.append(result)
        return answered

    def _take_report(
        self, session: FollowerSession, spec: ReplicaFetchPartition
    ) -> ReplicaFetchResult | None:
        """Apply a follower's report; return an answer if the follower cannot continue from its offset."""
        try:
            partition = self._find(spec.topic_id, spec.partition)
        except ProblemError as problem:
            return _problem(spec, problem.code)
        leadership = partition.leadership
        peer, leader_epoch = session.peer, LeaderEpoch(spec.leader_epoch)
        report = FollowerReport(
            peer.broker,
            peer.epoch,
            spec.generation,
            leader_epoch,
            spec.last_epoch,
            spec.fetch_offset,
            spec.synced_offset,
            spec.log_start,
            spec.deleted_epoch,
        )
        refusal = leadership.refusal_of(report)
        if refusal is not None:
            return _problem(spec, REFUSAL_CODES[refusal], partition.leader_epoch)
        diverging = partition.divergence(spec.last_epoch, spec.fetch_offset)
        if diverging is not None:
            return ReplicaFetchResult(
                topic_id=spec.topic_id,
                partition=spec.partition,
                leader_epoch=partition.leader_epoch,
                log_start=partition.log_start_offset,
                end_offset=partition.log_end_offset,
                diverging=Divergence(epoch=diverging.epoch, end_offset=diverging.end_offset),
            )
        end = partition.end_before(spec.deleted_epoch, spec.fetch_offset)
        if end is not None or not (
            partition.log_start_offset <= spec.fetch_offset <= partition.log_end_offset
        ):
            return _out_of_range(spec, partition, partition.log_end_offset if end is None else end)
        leadership.follower_fetched(report)
        if spec.damaged:
            self._reported_damage.verify(partition, spec.fetch_offset)
        session.name(partition, spec)
        return None

    # -- reading

    async def _read(self, session: FollowerSession, bytes_max: int) -> list[ReplicaFetchResult]:
        """Read the new records: cached records on the event loop, all others in parallel in the disk pool."""
        left, on_loop = min(bytes_max, self._bytes_max), ON_LOOP_BYTES_MAX
        results: list[ReplicaFetchResult] = []
        pooled: _Pooled = []
        for place in session.ready():
            result: ReplicaFetchResult | None
            if place.partition.closed:
                result = self._ended(session, place)
            elif place.resting:
                session.considered(place)
                continue
            elif not place.has_records:
                session.considered(place)
                result = place.offsets_if_new()
            elif left <= 0:
                continue  # The next answer starts with this cursor, before the partitions of the current answer.
            else:
                wanted = min(left, place.spec.max_bytes)
                result = self._read_cached(session, place, wanted) if on_loop > 0 else None
                if result is None:
                    future = self._pool.submit(
                        place.partition.read,
                        place.spec.fetch_offset,
                        wanted,
                        place.partition.log_end_offset,
                    )
                    pooled.append((place, future))
                    left -= wanted
                else:
                    on_loop -= result.nbytes
                    left -= result.nbytes
                session.considered(place)
            if result is not None:
                results.append(result)
        for place, future in pooled:
            finished = await self._finish(session, place, future)
            if finished is not None:
                results.append(finished)
        return results

    def _read_cached(
        self, session: FollowerSession, place: ReplicaCursor, wanted: int
    ) -> ReplicaFetchResult | None:
        try:
            read = place.partition.read_cached_for_follower(
                place.spec.fetch_offset, min(wanted, CACHED_READ_BYTES)
            )
        except ProblemError as problem:
            return self._failed(session, place, problem)
        if read is None or not read.data:
            return None
        return place.records(read.data)

    async def _finish(
        self, session: FollowerSession, place: ReplicaCursor, future: asyncio.Future[LogRead]
    ) -> ReplicaFetchResult | None:
        try:
            read = await future
        except ProblemError as problem:
            return self._failed(session, place, problem)
        if place.partition.closed:
            # The log may have been truncated and may have grown again before the read. The records that were read may
            # belong to a different leader epoch.
            return self._ended(session, place)
        if read.data:
            return place.records(read.data)
        # An accepted loss can extend to the end of the log; in this case, there are no records to send.
        skips = read.next_offset > place.spec.fetch_offset
        return place.skipped(read.next_offset) if skips else place.offsets_if_new()

    def _ended(self, session: FollowerSession, place: ReplicaCursor) -> ReplicaFetchResult:
        """Return the answer for a partition that this broker no longer leads in the session's leader epoch."""
        spec = place.spec
        session.drop(spec.key)
        try:
            partition = self._find(spec.topic_id, spec.partition)
        except ProblemError as problem:
            return _problem(spec, problem.code)
        return _problem(spec, "stale_leader_epoch", partition.leader_epoch)

    def _failed(
        self, session: FollowerSession, place: ReplicaCursor, problem: ProblemError
    ) -> ReplicaFetchResult:
        session.drop(place.spec.key)
        return _problem(place.spec, problem.code, place.partition.leader_epoch)


def _out_of_range(of: PeerPartition, partition: LeaderReplica, end_offset: Offset) -> ReplicaFetchResult:
    log_start = partition.log_start_offset
    before = partition.log.epoch_before(log_start)
    return ReplicaFetchResult(
        topic_id=of.topic_id,
        partition=of.partition,
        leader_epoch=partition.leader_epoch,
        log_start=log_start,
        end_offset=end_offset,
        problem="offset_out_of_range",
        epoch_before=None if before is None else epoch_begin(before),
    )


def _problem(of: PeerPartition, code: str, leader_epoch: int = 0) -> ReplicaFetchResult:
    return ReplicaFetchResult(
        topic_id=of.topic_id, partition=of.partition, leader_epoch=LeaderEpoch(leader_epoch), problem=code
    )
