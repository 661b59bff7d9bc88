"""Cleaning of a partition's replicas: the leader reports the cleaning and requests rounds.

Each replica cleans its own log, so the leader calls every replica. Operators' calls use `of`, and calls from leaders
use `own`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from fairlead_api.bodies.cleaning import PartitionCleaning, ReplicaCleaning
from fairlead_api.identifiers import BrokerId, TopicIdPartition
from fairlead_api.problems import ProblemError
from fairlead_broker.clock import Clock
from fairlead_broker.log import LogError, PartitionLog
from fairlead_broker.log.cleaning_plan import plan_round
from fairlead_broker.peers.cleaning import CleaningRequest
from fairlead_broker.peers.peers import Peers, PeerUnavailable
from fairlead_broker.registry.metadata import ClusterMetadata
from fairlead_broker.runtime import refusals
from fairlead_broker.runtime.engine.disk_pool import DiskPool
from fairlead_broker.runtime.leading.leader_replica import LeaderReplica
from fairlead_broker.runtime.peer_serving.cleaning_requests import CleaningRequests


class Cleanings:
    """Reports and requests the cleaning of replicas."""

    def __init__(
        self,
        log_of: Callable[[TopicIdPartition], PartitionLog | None],
        requests: CleaningRequests,
        metadata: ClusterMetadata,
        peers: Peers,
        pool: DiskPool,
        clock: Clock,
    ) -> None:
        """`log_of` returns the open log of a partition."""
        self._log_of = log_of
        self._requests = requests
        self._metadata = metadata
        self._peers = peers
        self._pool = pool
        self._clock = clock

    async def of(self, partition: LeaderReplica, *, begin: bool = False) -> PartitionCleaning:
        """Return the state of every replica. If `begin` is set, each replica begins a round as soon as possible.

        Raises `not_possible_now` if a round is requested for a topic that is not compacted.
        """
        if begin and not partition.config.compacts:
            raise refusals.not_compacted(partition.topic, partition.index, partition.config.cleanup_policy)
        key = TopicIdPartition(partition.topic_id, partition.index)
        request = CleaningRequest(topic_id=key.topic_id, partition=key.partition, begin=begin)
        record = self._metadata.partitions(key.topic_id)[key.partition].value
        answers = await asyncio.gather(*(self._ask(each.broker, request) for each in record.replicas))
        return PartitionCleaning(
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.index,
            leader=self._peers.own.broker,
            leader_epoch=partition.leader_epoch,
            replicas=list(answers),
        )

    async def own(self, request: CleaningRequest) -> ReplicaCleaning:
        """Return the cleaning state of this broker's replica; begin a round if requested."""
        broker, log = self._peers.own.broker, self._log_of(request.key)
        if log is None:
            return ReplicaCleaning(broker=broker, state="not_held", detail="the broker has no open copy")
        try:
            if request.begin:
                await self._pool.run(log.roll)
                self._requests.note(request.key, log.end_offset, self._clock.monotonic())
            planned = await self._pool.run(plan_round, log, log.stable_offset(), self._clock.now_us())
        except LogError as error:
            return ReplicaCleaning(broker=broker, state="unreadable", detail=str(error))
        wanted = self._requests.wanted.get(request.key)
        return ReplicaCleaning(
            broker=broker,
            state="held" if self._requests.is_on else "off",
            log_end_offset=log.end_offset,
            cleaned_offset=log.cleaning.cleaned,
            removed_offset=log.cleaning.lacks_below,
            dirty_bytes=planned.range.dirty_bytes,
            dirty_ratio=round(planned.range.dirty_ratio, 4),
            requested_offset=None if wanted is None else wanted.end_offset,
            last_round=self._requests.last_rounds.get(request.key),
        )

    async def _ask(self, broker: BrokerId, request: CleaningRequest) -> ReplicaCleaning:
        if broker == self._peers.own.broker:
            return await self.own(request)
        try:
            answer = await self._peers.cleaning(broker, request)
        except (PeerUnavailable, ProblemError) as error:
            return ReplicaCleaning(broker=broker, state="no_answer", detail=str(error))
        return msgspec.structs.replace(answer, broker=broker)
