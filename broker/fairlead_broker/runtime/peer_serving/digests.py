"""Comparison of a partition's replicas: the leader requests digests of offset ranges from each replica.

A range is compared in pieces; each piece ends at the end of a batch in the leader's log. The leader requests the digest
of a piece from all replicas at once; a replica that has failed receives no further requests. Every broker computes the
digest of its own copy (`digest`); only the leader compares (`compare`). A comparison changes no data, regardless of its
result.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from fairlead_api.bodies.operations import PartitionDigest, ReplicaDigest, ReplicaDigestState
from fairlead_api.identifiers import BrokerId, Offset, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.compaction.key_hashes import SEED_BYTES
from fairlead_broker.log import LogError, OffsetOutOfRange, PartitionLog, digest_range
from fairlead_broker.log.newest_digest import TooManyKeys, digest_newest
from fairlead_broker.peers.digests import DigestRequest, RangeDigest
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica

PIECE_BYTES: Final = 8 << 20
"""Number of bytes in a piece, chosen so that reading a piece takes far less time than a call between brokers may
take."""
COMPARE_SECONDS_MAX: Final = 15.0
"""Number of seconds after which a comparison stops and returns the offset to continue at; far less than the caller's
timeout."""
NEWEST_ATTEMPTS_MAX: Final = 4
"""Number of comparisons of the newest records, if rounds end in between. The second one usually succeeds: its
range includes everything that was cleaned during the first.
"""


@dataclass(slots=True)
class _Replica:
    """State of one replica during a comparison."""

    broker: BrokerId
    state: ReplicaDigestState = "compared"
    answer: RangeDigest | None = None
    """Last answer from the replica."""
    first_difference: Offset | None = None
    detail: str | None = None
    taken: hashlib._Hash = field(default_factory=hashlib.sha256)

    def forget_pieces(self) -> None:
        """Begin the comparison of this replica again, unless it has failed."""
        self.first_difference, self.taken = None, hashlib.sha256()


class Digests:
    """Computes digests of this broker's copies, and compares replicas of the partitions that this broker leads."""

    def __init__(
        self,
        log_of: Callable[[TopicIdPartition], PartitionLog | None],
        metadata: ClusterMetadata,
        peers: Peers,
        pool: DiskPool,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`log_of` returns the open log of a partition."""
        self._random_bytes = random_bytes
        self._log_of = log_of
        self._metadata = metadata
        self._peers = peers
        self._pool = pool
        self._clock = clock

    async def digest(self, request: DigestRequest) -> RangeDigest:
        """Return the digest of a range of this broker's copy, or an answer that explains why there is no digest."""
        log = self._log_of(request.key)
        first, end = request.first_offset, request.end_offset
        if log is None:
            return RangeDigest(state="not_held", next_offset=first, detail="the broker has no open copy")
        start_offset, end_offset = log.log_start_offset, log.end_offset

        def answer(range_: RangeDigest) -> RangeDigest:
            return RangeDigest(
                state=range_.state,
                digest=range_.digest,
                next_offset=range_.next_offset,
                log_start_offset=start_offset,
                log_end_offset=end_offset,
                damaged_offset=range_.damaged_offset,
                detail=range_.detail,
                cleaned_offset=Offset(log.cleaning.differs_below),
            )

        if end_offset < end:
            return answer(
                RangeDigest(
                    state="not_held", next_offset=first, detail="its log ends before the end of the range"
                )
            )
        try:
            if request.newest:
                seed = self._random_bytes(SEED_BYTES)
                found = await self._pool.run(digest_newest, log, first, end, seed)
            else:
                found = await self._pool.run(digest_range, log, first, end, request.max_bytes)
        except OffsetOutOfRange:
            return answer(
                RangeDigest(
                    state="not_held", next_offset=first, detail="its log begins after the first offset"
                )
            )
        except TooManyKeys:
            return answer(RangeDigest(state="unreadable", next_offset=first, detail="it has too many keys"))
        except LogError as error:
            return answer(RangeDigest(state="unreadable", next_offset=first, detail=str(error)))
        if found.damaged_offset is not None:
            damaged = RangeDigest(
                state="damaged", next_offset=found.next_offset, damaged_offset=found.damaged_offset
            )
            return answer(damaged)
        return answer(RangeDigest(state="digested", digest=found.digest, next_offset=found.next_offset))

    async def compare(
        self, partition: LeaderReplica, first_offset: Offset | None, end_offset: Offset | None
    ) -> PartitionDigest:
        """Compare all replicas over a range of offsets, by default from the log start to the high watermark.

        The comparison stops after some seconds; `next_offset` of the answer is the offset to continue at. Raises
        `offset_expired` and `offset_out_of_range` for a range outside the committed records, `offset_not_available`
        while the high watermark is unknown.
        """
        first, end = _checked_range(partition, first_offset, end_offset)
        key = TopicIdPartition(partition.topic_id, partition.index)
        own = self._peers.own.broker
        record = self._metadata.partitions(key.topic_id)[key.partition].value
        replicas = [_Replica(each.broker) for each in record.replicas]
        over = self._clock.monotonic() + COMPARE_SECONDS_MAX
        # Replicas clean their logs at different times, so their bytes are certain to be equal only where no replica has
        # cleaned its log. Cleaned parts stay if the topic is no longer compacted.
        first = max(first, min(end, await self._highest_cleaned(key, end, replicas)))
        at, more = first, True
        while more:
            request = DigestRequest(
                topic_id=key.topic_id,
                partition=key.partition,
                first_offset=at,
                end_offset=end,
                max_bytes=PIECE_BYTES,
            )
            led = await self.digest(request)
            # The comparison ends if a batch extends beyond the end of the range, or if this broker cannot read its own
            # copy.
            more = at < led.next_offset < end
            at = max(at, led.next_offset)
            await self._take_piece(
                request if led.next_offset == request.first_offset else _up_to(request, at),
                replicas,
                own,
                led,
            )
            cleaned = min(end, _highest_cleaned(replicas))
            if cleaned > request.first_offset:
                # A replica has cleaned its log since the comparison began.
                first = at = cleaned
                more = at < end
                for replica in replicas:
                    replica.forget_pieces()
            if self._clock.monotonic() >= over:
                break
        return self._outcome(partition, first, at, at if more else None, replicas)

    async def compare_newest(self, partition: LeaderReplica) -> PartitionDigest:
        """Compare the newest record of each key on all replicas, from the log start to the last stable offset.

        A round that ends below the end of the range does not change the result. A round that ends above it may remove a
        key's newest record of the range, so if replicas differ, the comparison is repeated up to a later end. If rounds
        interfere each time, nothing is compared, and `next_offset` of the answer is the log start.

        Raises `not_possible_now` for a topic that is not compacted.
        """
        if not partition.config.compacts:
            raise refusals.not_compacted(partition.topic, partition.index, partition.config.cleanup_policy)
        over = self._clock.monotonic() + COMPARE_SECONDS_MAX
        attempts = 0
        while True:
            attempts += 1
            first, end, replicas = await self._take_newest(partition)
            is_decided = _identical(replicas) or _highest_cleaned(replicas) <= end
            if is_decided or attempts == NEWEST_ATTEMPTS_MAX or self._clock.monotonic() >= over:
                break
        if not is_decided:
            end = first
            for replica in replicas:
                replica.forget_pieces()
        return self._outcome(partition, first, end, None if is_decided else first, replicas)

    def _outcome(
        self,
        partition: LeaderReplica,
        first: Offset,
        end: Offset,
        next_offset: Offset | None,
        replicas: list[_Replica],
    ) -> PartitionDigest:
        """Return the outcome of a comparison from `first` to `end`, which continues at `next_offset`, if at all."""
        return PartitionDigest(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.index,
            leader=self._peers.own.broker,
            leader_epoch=partition.leader_epoch,
            first_offset=first,
            end_offset=end,
            next_offset=next_offset,
            identical=_identical(replicas),
            replicas=[_replica_digest(replica) for replica in replicas],
        )

    async def _take_newest(self, partition: LeaderReplica) -> tuple[Offset, Offset, list[_Replica]]:
        """Request a digest of the newest records from every replica; return the range and the replicas."""
        first, end = partition.log_start_offset, partition.last_stable_offset
        key = TopicIdPartition(partition.topic_id, partition.index)
        record = self._metadata.partitions(key.topic_id)[key.partition].value
        replicas = [_Replica(each.broker) for each in record.replicas]
        request = DigestRequest(
            topic_id=key.topic_id,
            partition=key.partition,
            first_offset=first,
            end_offset=end,
            max_bytes=2**62,
            newest=True,
        )
        led = await self.digest(request)
        await self._take_piece(request, replicas, self._peers.own.broker, led)
        return first, end, replicas

    async def _highest_cleaned(self, key: TopicIdPartition, end: Offset, replicas: list[_Replica]) -> Offset:
        """Return the highest offset below which any replica has cleaned its log."""
        empty = DigestRequest(
            topic_id=key.topic_id, partition=key.partition, first_offset=end, end_offset=end, max_bytes=1
        )
        own = self._peers.own.broker
        async with asyncio.TaskGroup() as group:
            for replica in replicas:
                group.create_task(self._ask_cleaned(replica, empty, own))
        return _highest_cleaned(replicas)

    async def _ask_cleaned(self, replica: _Replica, empty: DigestRequest, own: BrokerId) -> None:
        with suppress(PeerUnavailable, ProblemError):
            is_own = replica.broker == own
            replica.answer = await (
                self.digest(empty) if is_own else self._peers.digest(replica.broker, empty)
            )

    async def _take_piece(
        self, request: DigestRequest, replicas: list[_Replica], own: BrokerId, led: RangeDigest
    ) -> None:
        """Request a digest from every replica that has not failed, and compare the answers with the leader's digest."""
        asked = [replica for replica in replicas if replica.state == "compared"]
        async with asyncio.TaskGroup() as group:
            for replica in asked:
                if replica.broker == own:
                    _take(replica, request, led, led)
                else:
                    group.create_task(self._ask(replica, request, led))

    async def _ask(self, replica: _Replica, request: DigestRequest, led: RangeDigest) -> None:
        try:
            answer = await self._peers.digest(replica.broker, request)
        except (PeerUnavailable, ProblemError) as error:
            replica.state, replica.detail = "no_answer", str(error)
            return
        _take(replica, request, answer, led)


def _checked_range(
    partition: LeaderReplica, first_offset: Offset | None, end_offset: Offset | None
) -> tuple[Offset, Offset]:
    start, high_watermark = partition.log_start_offset, partition.high_watermark
    first = start if first_offset is None else first_offset
    end = high_watermark if end_offset is None else end_offset
    if first < start:
        raise refusals.offset_expired(partition.topic, partition.index, first, start)
    for each in (end, first):
        if each > high_watermark:
            raise refusals.offset_out_of_range(partition.topic, partition.index, each, start, high_watermark)
    return first, max(first, end)


def _highest_cleaned(replicas: list[_Replica]) -> Offset:
    """Return the highest offset below which any replica has cleaned its log, according to the last answers."""
    return max((each.answer.cleaned_offset for each in replicas if each.answer), default=Offset(0))


def _up_to(request: DigestRequest, end_offset: Offset) -> DigestRequest:
    """Return the request for the other replicas, with a range that ends at the end of one of the leader's batches."""
    return DigestRequest(
        topic_id=request.topic_id,
        partition=request.partition,
        first_offset=request.first_offset,
        end_offset=end_offset,
        max_bytes=2**62,
    )


def _take(replica: _Replica, request: DigestRequest, answer: RangeDigest, led: RangeDigest) -> None:
    replica.answer = answer
    if answer.state != "digested" or answer.digest is None:
        replica.state = "unreadable" if answer.state == "digested" else answer.state
        replica.detail = answer.detail
        return
    replica.taken.update(bytes.fromhex(answer.digest))
    differs = led.digest is not None and (answer.digest, answer.next_offset) != (led.digest, led.next_offset)
    if differs and replica.first_difference is None:
        replica.first_difference = request.first_offset


def _identical(replicas: list[_Replica]) -> bool:
    digests = {replica.taken.digest() for replica in replicas}
    return len(digests) == 1 and all(replica.state == "compared" for replica in replicas)


def _replica_digest(replica: _Replica) -> ReplicaDigest:
    answer = replica.answer
    return ReplicaDigest(
        broker=replica.broker,
        state=replica.state,
        digest=replica.taken.hexdigest() if replica.state == "compared" else None,
        log_start_offset=None if answer is None else answer.log_start_offset,
        log_end_offset=None if answer is None else answer.log_end_offset,
        damaged_offset=None if answer is None else answer.damaged_offset,
        first_difference=replica.first_difference,
        detail=replica.detail,
    )
